"""Evictions: who for whom, by which rule, at what cost, and whether what was freed was used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from schedulemesh.api.pools import ListPools
from schedulemesh.api.preemption import MAX_PREEMPTIONS, ListPreemptions
from schedulemesh.domain.names import parse_name
from schedulemesh.server.page.asked_for import unknown_names
from schedulemesh.server.page.links import link, page_number
from schedulemesh.server.page.reads import ScreenReads, together

#: Rows of a page.
_ROWS = 50
#: By what is filtered: evictions in which they were evicted or evicted others.
_FILTERS = ("pool_name", "owner")


async def evictions(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``evictions.html`` shows. Raises InvalidRequestError for a name that is none."""
    chosen = {name: query.get(name, "") for name in _FILTERS}
    filters = {name: parse_name(value, name) for name, value in chosen.items() if value}
    number = page_number(query, MAX_PREEMPTIONS // _ROWS)
    # One more than is shown tells whether there is a next page.
    limit = min(number * _ROWS + 1, MAX_PREEMPTIONS)
    rows, pools = await together(
        reader.rows(ListPreemptions(limit=limit, **filters)), reader.rows(ListPools())
    )
    newest_first, names = list(reversed(rows)), sorted(str(pool["name"]) for pool in pools)
    begin = (number - 1) * _ROWS
    following = ("page", number + 1) if len(rows) > number * _ROWS else None
    return {
        "rows": newest_first[begin : begin + _ROWS],
        "chosen": chosen,
        "filtered": bool(filters),
        "pools": names,
        "unknown": () if rows else await unknown_names(reader, "/evictions", chosen, names),
        "following": following and link("/evictions", *filters.items(), following),
        "begun": link("/evictions", *filters.items()) if number > 1 else "",
    }
