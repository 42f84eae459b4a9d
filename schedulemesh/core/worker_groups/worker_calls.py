"""Waits for the results of workers; errors name the worker that died, failed or timed out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import ray
from ray import ObjectRef
from ray.exceptions import RayActorError, RayError, RayTaskError

from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import WorkerDiedError, WorkerFailedError, WorkerTimeoutError

#: Seconds after which a failure is noticed while other workers are still running.
_LOOK_S = 0.2


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True):
    """One pending call of one worker."""

    group: str
    rank: int
    agent: str
    method: str
    #: The Ray object reference of its result.
    ref: ObjectRef
    #: What its scheduler knows of a worker that is dead; None: there is no scheduler to ask.
    known: Callable[[], str] | None = None

    def __str__(self) -> str:
        """The worker and the method."""
        return f"rank {self.rank} (agent {self.agent}) of group {self.group}, method {self.method}"


def results(calls: Sequence[WorkerCall], timeout_s: float | None) -> list[UserValue]:
    """The result of each call, in order. All references must be different.

    The first failure ends the wait: ``WorkerDiedError``, ``WorkerFailedError``, or, after ``timeout_s``
    seconds (None: never), ``WorkerTimeoutError``. The other workers continue.
    """
    by_call: dict[int, UserValue] = {}
    for at in _done(calls, timeout_s):
        by_call[at] = _answer(calls[at])
    return [by_call[at] for at in range(len(calls))]


def _done(calls: Sequence[WorkerCall], timeout_s: float | None) -> Iterator[int]:
    """The indexes of completed calls, as they complete; those that complete together in ascending order."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    pending = {call.ref: at for at, call in enumerate(calls)}
    while pending:
        remaining_s = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=max(remaining_s, 0.0))
        if not ready and remaining_s <= 0:
            raise _late([calls[at] for at in pending.values()], timeout_s)
        yield from sorted(pending.pop(ref) for ref in ready)


def _answer(call: WorkerCall) -> UserValue:
    try:
        return ray.get(call.ref)
    except RayActorError as error:
        state = "" if call.known is None else f". {call.known()}"
        raise WorkerDiedError(f"{call}: the worker is dead: {error}{state}", *_who(call)) from error
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        raise WorkerFailedError(f"{call}: {type(cause).__name__}: {cause}", *_who(call)) from error
    except RayError as error:
        raise WorkerDiedError(f"{call}: its answer is lost: {error}", *_who(call)) from error


def _late(calls: Sequence[WorkerCall], timeout_s: float | None) -> WorkerTimeoutError:
    first = calls[0]
    more = f", and {len(calls) - 1} more" if len(calls) > 1 else ""
    return WorkerTimeoutError(f"no answer within {timeout_s:g} s of {first}{more}", *_who(first))


def _who(call: WorkerCall) -> tuple[str, int, str, str]:
    return call.group, call.rank, call.agent, call.method
