"""Tokens, and the record of changes: by whom, from where, and what came of them. For operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starlette.datastructures import QueryParams

from schedulemesh.api.audit import QueryAudit
from schedulemesh.api.calls import CHANGES
from schedulemesh.api.tokens import ListTokens
from schedulemesh.domain.audit import DONE, OPEN, REFUSED
from schedulemesh.domain.names import parse_name
from schedulemesh.server.page.actions import actions_of_token
from schedulemesh.server.page.asked_for import UnknownName, unknown_name, word_in
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.links import link
from schedulemesh.server.page.policy import recorded_change
from schedulemesh.server.page.reads import ScreenReads, together
from schedulemesh.server.page.settings_fields import written

#: Rows of a page.
_ROWS = 50
_OUTCOMES = (DONE, REFUSED, OPEN)
#: Digits of the number of a change that is read.
_DIGITS = 15


async def audit(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``audit.html`` shows. Raises Problem and InvalidRequestError."""
    calls = sorted(str(one.__struct_config__.tag) for one in CHANGES)
    chosen = {
        "token": query.get("token", ""),
        "call": word_in(reader, query, "call", calls),
        "outcome": word_in(reader, query, "outcome", _OUTCOMES),
    }
    token, call = (
        parse_name(chosen[name], name) if chosen[name] else None for name in ("token", "call")
    )
    before = _number(query.get("before", ""))
    record = QueryAudit(
        token=token, call=call, outcome=chosen["outcome"] or None, before=before, limit=_ROWS
    )
    rows, tokens, names = await together(
        reader.rows(record), reader.rows(ListTokens()), reader.node_names()
    )
    here = list(chosen.items())
    following = ("before", rows[-1]["number"]) if len(rows) == _ROWS else None
    return {
        "tokens": [
            {**token, "actions": actions_of_token(reader.caller, token)}
            for token in sorted(tokens, key=lambda token: str(token["name"]))
        ],
        "rows": [
            {
                **row,
                "fields": recorded_change(row).fields,
                "shown": {
                    key: names.get(value, value) if key == "node_id" else written(value)
                    for key, value in row["request"].items()
                },
            }
            for row in rows
        ],
        "chosen": chosen,
        "filtered": any(chosen.values()),
        "unknown": () if rows else _unknown(chosen, [str(one["name"]) for one in tokens]),
        "calls": calls,
        "outcomes": _OUTCOMES,
        "following": following and link("/audit", *here, following),
        "begun": link("/audit", *here) if before is not None else "",
    }


def _unknown(chosen: Mapping[str, str], tokens: Collection[str]) -> list[UnknownName]:
    """The token of the filter, where there is none of this name."""
    if not chosen["token"] or chosen["token"] in tokens:
        return []
    return [unknown_name("no_such_token", "/audit", chosen, "token", tokens)]


def _number(text: str) -> int | None:
    """The number of a change; None: none is given. Raises InvalidRequestError."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise InvalidEntryError("wrong_before", value=text)
    return int(text)
