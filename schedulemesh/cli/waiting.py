"""The command wait: until tasks run or have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.columns import sentence, waits_because, wide
from schedulemesh.cli.command import Output, Target, Tasks, command, note
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Column, Listing, Row
from schedulemesh.cli.texts import local_time, seconds

if TYPE_CHECKING:
    from schedulemesh.api.tasks import WaitUntil
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()

_STATES = (
    Column(heading="task", key="task_id"),
    Column(heading="state", key="state"),
    Column(heading="reason", key="", show=waits_because, least=25),
    wide("agent", "agent_name"),
    wide("ended", "ended_at", local_time),
    wide("error", "error", sentence),
)


@command(app)
def wait(
    target: Target,
    output: Output,
    tasks: Tasks,
    until: Annotated[str, typer.Option(help="How far they have to get: running or ended.")] = (
        "ended"
    ),
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="The longest wait, such as 30m; default: no limit."),
    ] = None,
    first: Annotated[
        bool, typer.Option("--any", help="Wait until one of them has got so far, not all.")
    ] = False,
) -> int:
    """Wait until tasks run or have ended, and print how each stands.

    Fails where one of those that were waited for was not completed, and with the exit code 124 where the
    time is over.
    """
    from schedulemesh.api.tasks import WaitUntil
    from schedulemesh.cli.exits import ExitCode
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.errors import InvalidRequestError, nearest

    words = [one.value for one in WaitUntil]
    if until not in words:
        raise InvalidRequestError(
            f"--until is {until!r}{nearest(until, words)}; it may be {', '.join(words)}"
        )
    limit_s = None if timeout is None else seconds(timeout, "--timeout")
    names = list(dict.fromkeys(tasks))
    how_far, enough = WaitUntil(until), 1 if first else len(names)
    with gateway_to(target) as gateway:
        rows = _states_of(gateway, names, how_far, enough, limit_s)
    reached = [row for row in rows if _has_reached(row, how_far)]
    emit(Listing(kind="tasks", rows=rows, columns=_STATES, name="task_id"), output)
    if len(reached) < enough:
        missing, limit = len(rows) - len(reached), _with_unit(timeout)
        note(phrase("remark_not_yet", count=missing, total=len(rows), until=until, limit=limit))
        return ExitCode.TIMED_OUT
    failed = [row for row in reached if row["state"] in _FAILED]
    return ExitCode.FAILED if failed else ExitCode.OK


def _with_unit(timeout: str | None) -> str:
    """The longest wait as it was given; a number without a unit is one of seconds."""
    return f"{timeout}s" if timeout and timeout[-1].isdigit() else str(timeout)


#: States of tasks that have ended and were not completed.
_FAILED = ("failed", "cancelled", "lost")


def _has_reached(task: Row, how_far: WaitUntil) -> bool:
    """Whether a task runs or has ended, as was asked for."""
    from schedulemesh.domain.task import ENDED_STATES

    is_running = how_far.value == "running" and task["state"] not in ("queued", "starting")
    return is_running or task["state"] in ENDED_STATES


def _states_of(
    gateway: Gateway, names: list[str], how_far: WaitUntil, enough: int, limit_s: float | None
) -> list[dict[str, Any]]:
    """How tasks stand, once so many have got so far, or the time is over; a restart is waited for."""
    from schedulemesh.api.tasks import LONGEST_WAIT_S, WaitTasks
    from schedulemesh.protocol.answers import Listed
    from schedulemesh.protocol.patience import until_answered

    ends_at = None if limit_s is None else time.monotonic() + limit_s

    def ask() -> list[dict[str, Any]]:
        left_s = LONGEST_WAIT_S if ends_at is None else max(0.0, ends_at - time.monotonic())
        request = WaitTasks(
            task_ids=tuple(names), until=how_far, enough=enough, wait_s=min(left_s, LONGEST_WAIT_S)
        )
        return gateway.ask(request, Listed).rows

    while True:
        rows = until_answered(ask)
        is_late = ends_at is not None and time.monotonic() >= ends_at
        if is_late or sum(_has_reached(row, how_far) for row in rows) >= enough:
            return rows
