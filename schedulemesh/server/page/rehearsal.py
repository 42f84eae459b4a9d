"""The rehearsal form, and the answer of the last rehearsal that its token had made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.sentences import in_words
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.reads import ScreenReads, together
from schedulemesh.server.page.rehearsals import LIMIT_S, PERIODS, RehearsalQuestion
from schedulemesh.server.problems import beyond_role

#: The path of the screen, to which the form is sent, too; and seconds between two looks at one that runs.
REHEARSAL, _LOOK_S = "/rehearsal", 2
#: The most nodes more or less, and GPUs of a pool.
_MOST_NODES, _MOST_GPUS = 10_000, 1_000_000


def may_rehearse(caller: TokenCaller) -> bool:
    """Whether a role may have a rehearsal made: as it may have tasks run."""
    return SubmitTask.allows(caller.role)


def question_in(fields: Mapping[str, str]) -> RehearsalQuestion:
    """What a form asks. Raises InvalidRequestError."""
    period = fields.get("period", "")
    if period not in PERIODS:
        raise InvalidEntryError("wrong_period", value=period, allowed=", ".join(PERIODS))
    pool = fields.get("pool", "").strip()
    return RehearsalQuestion(
        period=period,
        nodes=_whole(fields.get("nodes", "")),
        pool=pool and parse_name(pool, "pool"),
        gpus=_gpus(fields.get("gpus", "")) if pool else 0.0,
    )


def _whole(text: str) -> int:
    try:
        nodes = int(text.strip() or "0")
    except ValueError:
        raise InvalidEntryError("wrong_nodes", value=text) from None
    if not -_MOST_NODES <= nodes <= _MOST_NODES:
        raise InvalidEntryError("too_many_nodes", value=text, most=f"{_MOST_NODES:,}")
    return nodes


def _gpus(text: str) -> float:
    try:
        gpus = float(text)
    except ValueError:
        gpus = -1.0
    if not 0.0 <= gpus <= _MOST_GPUS:
        raise InvalidEntryError("wrong_gpus", value=text)
    return gpus


async def begin_rehearsal(reader: ScreenReads, fields: Mapping[str, str]) -> bool:
    """Have a rehearsal made; False: another one runs. Raises Problem and InvalidRequestError."""
    caller = reader.caller
    if not may_rehearse(caller):
        raise beyond_role(caller, SubmitTask.least_role)
    about = await reader.facts(GetAbout())
    question, token = question_in(fields), caller.token.name
    return reader.rehearsals.begin(token, question, about)


async def rehearsal(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``rehearsal.html`` shows."""
    about, pools = await together(reader.facts(GetAbout()), reader.rows(ListPools()))
    run = reader.rehearsals.of_token(reader.caller.token.name)
    rows = None if run is None else run.rows
    waits = [_wait(row, part) for row in rows or () for part in ("recorded", "rehearsed")]
    return {
        "pools": sorted(str(pool["name"]) for pool in pools),
        "periods": PERIODS,
        "run": run,
        "remarks": [in_words(remark, reader.language) for remark in run.remarks] if run else [],
        "question": RehearsalQuestion() if run is None else run.question,
        "may": may_rehearse(reader.caller),
        "most_wait": max(waits, default=0.0) or 1.0,
        "busy": query.get("busy") == "1",
        "since_began": 0.0 if run is None else max(0.0, about["time"] - run.began),
        "limit_s": LIMIT_S,
        "rehearsal_path": REHEARSAL,
        "reload_s": None if run is None or run.is_over else _LOOK_S,
    }


def _wait(row: Mapping[str, Any], part: str) -> float:
    return float(row[part]["waited_s"]["mean"])
