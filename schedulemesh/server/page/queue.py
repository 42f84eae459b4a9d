"""The queue: who waits where, for what and why; filtered by pool, owner and reason, in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from schedulemesh.api.pages import PageQuery
from schedulemesh.api.pools import ListPools
from schedulemesh.api.queue import QueueListing
from schedulemesh.api.rows import allowed_values
from schedulemesh.domain.reasons import Reason
from schedulemesh.server.listings import page_answer, page_query
from schedulemesh.server.page.actions import actions_of_queue, actions_of_task
from schedulemesh.server.page.asked_for import unknown_names, word_in
from schedulemesh.server.page.links import link
from schedulemesh.server.page.reads import ScreenReads, together

#: Rows of a page.
_ROWS = 50
_KEY = ("pool_name", "position", "task_id")
#: Asks for no more than how many wait.
_EVERY = PageQuery(order=tuple((field, False) for field in _KEY), limit=1)
#: By what is filtered, as the API's listing is.
_FILTERS = ("pool_name", "owner", "reason")
#: Why tasks wait; what is chosen in the address besides these is offered, too.
_REASONS = (
    Reason.INSUFFICIENT_QUOTA,
    Reason.OWNER_LIMIT,
    Reason.BUDGET_SPENT,
    Reason.INSUFFICIENT_RESOURCES,
    Reason.BEHIND_QUEUE_HEAD,
    Reason.HELD_BY_USER,
    Reason.DEPENDENCY,
    Reason.ARRAY_LIMIT,
    Reason.BACK_OFF,
    Reason.QUOTA_ON_LOAN,
    Reason.QUOTA_ON_HOLD,
    Reason.COHORT_EXHAUSTED,
    Reason.NODES_CORDONED,
    Reason.MAINTENANCE_WINDOW,
    Reason.NODE_RESERVED,
    Reason.EXTERNAL_RAY_WORK,
    Reason.EXTERNAL_DEMAND,
    Reason.GROUP_UNPLACEABLE,
    Reason.CLASS_NOT_LOADED,
    Reason.EXCEEDS_POOL_CAPACITY,
    Reason.NO_FLAVOR,
    Reason.CLUSTER_OUT_OF_RESOURCES,
    Reason.POOL_DRAINING,
    Reason.NEXT_SCHEDULING_PASS,
)


async def queue(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``queue.html`` shows. Raises Problem for a filter that cannot be."""
    chosen = {name: query.get(name, "") for name in _FILTERS}
    chosen["reason"] = word_in(reader, query, "reason", allowed_values(QueueListing, "reason"))
    filters = [(name, value) for name, value in chosen.items() if value]
    cursor = [("cursor", query["cursor"])] if query.get("cursor") else []
    page_asked_for = page_query(
        QueueListing, _KEY, QueryParams([*filters, *cursor, ("limit", str(_ROWS))])
    )
    rows, pools = await together(reader.page("queue", page_asked_for), reader.rows(ListPools()))
    page = page_answer(rows.items, rows.total, page_asked_for, more=rows.more)
    names = sorted(str(pool["name"]) for pool in pools)
    every = rows if not filters else await reader.page("queue", _EVERY)
    reasons = dict.fromkeys((*(reason.value for reason in _REASONS), chosen["reason"]))
    select_all = [*filters, *cursor, ("select", "all")]
    return {
        "rows": [
            {**row, "changeable": bool(actions_of_task(reader.caller, row))} for row in page.items
        ],
        "actions": actions_of_queue(reader.caller),
        "selected": query.get("select") == "all",
        "select_all": link("/queue", *select_all),
        "total": page.total,
        "every": every.total,
        "chosen": chosen,
        "filtered": bool(filters),
        "pools": names,
        "unknown": () if rows.total else await unknown_names(reader, "/queue", chosen, names),
        "reasons": [reason for reason in reasons if reason],
        "following": page.following and link("/queue", *filters, ("cursor", page.following)),
        "begun": link("/queue", *filters) if cursor else "",
    }
