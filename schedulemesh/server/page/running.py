"""Tasks that run: where, since when, with what and until when; filtered by pool and owner, in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from schedulemesh.api.pages import PageQuery
from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import PHASES, TaskListing
from schedulemesh.server.listings import page_answer, page_query
from schedulemesh.server.page.actions import actions_of_running, actions_of_task
from schedulemesh.server.page.asked_for import unknown_names
from schedulemesh.server.page.links import RUNNING, link
from schedulemesh.server.page.reads import ScreenReads, together

#: Rows of a page.
_ROWS = 50
_KEY = ("pool_name", "task_id")
#: By what is filtered, as the API's listing is.
_FILTERS = ("pool_name", "owner")
#: The phases of tasks that hold something.
_PHASES = tuple(phase for phase in PHASES if phase != "queued")
#: Asks for no more than how many run.
_EVERY = PageQuery(
    fields=(("phase", _PHASES),), order=tuple((field, False) for field in _KEY), limit=1
)


async def running(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``running_tasks.html`` shows. Raises Problem for a filter that cannot be."""
    chosen = {name: query.get(name, "") for name in _FILTERS}
    filters = [(name, value) for name, value in chosen.items() if value]
    cursor = [("cursor", query["cursor"])] if query.get("cursor") else []
    phases = [("phase", phase) for phase in _PHASES]
    page_asked_for = page_query(
        TaskListing, _KEY, QueryParams([*filters, *phases, *cursor, ("limit", str(_ROWS))])
    )
    rows, pools, names = await together(
        reader.page("tasks", page_asked_for), reader.rows(ListPools()), reader.node_names()
    )
    page = page_answer(rows.items, rows.total, page_asked_for, more=rows.more)
    pool_names = sorted(str(pool["name"]) for pool in pools)
    every = rows if not filters else await reader.page("tasks", _EVERY)
    return {
        "rows": [
            {**row, "changeable": bool(actions_of_task(reader.caller, row))} for row in page.items
        ],
        "actions": actions_of_running(reader.caller),
        "names": names,
        "selected": query.get("select") == "all",
        "select_all": link(RUNNING, *filters, *cursor, ("select", "all")),
        "total": page.total,
        "every": every.total,
        "chosen": chosen,
        "filtered": bool(filters),
        "pools": pool_names,
        "unknown": () if rows.total else await unknown_names(reader, RUNNING, chosen, pool_names),
        "following": page.following and link(RUNNING, *filters, ("cursor", page.following)),
        "begun": link(RUNNING, *filters) if cursor else "",
    }
