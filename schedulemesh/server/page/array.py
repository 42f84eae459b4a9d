"""An array: how it stands, and its members in pages, of which some or all are changed together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.arrays import MEMBER_STATES, GetArray
from schedulemesh.domain.arrays import MAX_INDEX
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import actions_of_array
from schedulemesh.server.page.asked_for import word_in
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.links import ARRAY, link
from schedulemesh.server.page.reads import ScreenReads, together

#: Members of a page.
_ROWS = 50
#: The order in which the states of members are drawn: what is done first, what waits last.
_DRAWN = ("completed", "failed", "lost", "cancelled", "running", "queued")


class StatePart(NamedTuple):
    """The members in a state, in per cent of all."""

    state: str
    members: int
    x: float
    width: float


async def array(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``array.html`` shows. Raises Problem where there is no such array."""
    array_id = parse_name(query.get("id", "").strip(), "the array's id")
    chosen = word_in(reader, query, "state", MEMBER_STATES)
    after = _index(query.get("after", ""))
    call = GetArray(task_id=array_id, state=chosen or None, after=after, limit=_ROWS)
    facts, names = await together(reader.facts(call), reader.node_names())
    state = ("state", chosen)
    following = ("after", facts["next"])
    return {
        "facts": facts,
        "ended": facts["state"] in ENDED_STATES,
        "parts": parts_of(facts),
        "members": [
            {**row, "changeable": row["state"] not in ENDED_STATES} for row in facts["members"]
        ],
        "actions": actions_of_array(reader.caller, facts),
        "names": names,
        "chosen": chosen,
        "states": MEMBER_STATES,
        "total": facts[chosen] if chosen else facts["count"],
        "following": ""
        if facts["next"] is None
        else link(ARRAY, ("id", array_id), state, following),
        "begun": "" if after is None else link(ARRAY, ("id", array_id), state),
    }


def parts_of(facts: Row) -> list[StatePart]:
    """The parts of a bar of an array's members by their states, those without members left out."""
    parts, x = [], 0.0
    for state in _DRAWN:
        if count := facts[state]:
            width = 100.0 * count / facts["count"]
            parts.append(StatePart(state, count, round(x, 3), round(width, 3)))
            x += width
    return parts


def _index(text: str) -> int | None:
    """The index after which a page begins; None: it is the first page. Raises InvalidRequestError."""
    if not text:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_INDEX))
    if not digits:
        raise InvalidEntryError("wrong_after", value=text)
    return int(text)
