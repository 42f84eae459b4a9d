"""Waits for a supervisor's answer as long as the supervisor is alive and within its time limits.

A submission may take minutes, because agents are saved, cancelled and started meanwhile, so no fixed time
suits every call. While a call is open, the supervisor is asked for a sign of life, which it gives at once
whatever else it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayTaskError

from schedulemesh.errors import SchedulerUnavailableError

Value = TypeVar("Value")

#: Seconds between two requests for a sign of life from a supervisor that has not answered yet.
LOOK_S = 5.0
#: Seconds that it may take to give that sign. A supervisor that Ray is restarting needs some of them.
SILENCE_S = 25.0
#: Seconds for calls that only read or change the scheduler's state.
BOOKS_S = 60.0
#: Seconds for a call of Ray itself.
RAY_S = 30.0

#: Requests that start, save or end agents, which takes as long as the policy allows.
_SLOW = frozenset(
    {
        "cancel_task",
        "cancel_tasks",
        "complete_task",
        "create_pool",
        "delete_agent",
        "end_orphans",
        "ensure_agent_health",
        "ensure_pool",
        "execute_preemption",
        "preempt_task",
        "release_lease",
        "resize_pool",
        "restore_task",
        "save_task_state",
        "shutdown",
        "submit_many",
        "submit_task",
    }
)

#: Stands for requests that wait until a task runs: they are answered when that happens, however late.
WAITS = "wait"


class SilentSchedulerError(SchedulerUnavailableError):
    """The supervisor's process gives no sign of life."""


def answer(handle: ActorHandle, name: str, method: str, ref: ObjectRef) -> object:
    """The result of a call of the supervisor; ``method`` is the request's name.

    Raises what the call raised, and SchedulerUnavailableError where the supervisor gives no sign of life or
    exceeds the time that its policy allows.
    """
    began = time.monotonic()
    while True:
        try:
            return ray.get(ref, timeout=LOOK_S)
        except GetTimeoutError as error:
            if isinstance(error, RayTaskError):
                # The call itself raised it.
                raise
            require_sign_of_life(handle, name, method, began, [ref])


def require_sign_of_life(
    handle: ActorHandle,
    name: str,
    method: str,
    began: float,
    refs: Sequence[ObjectRef] = (),
) -> None:
    """Return where a supervisor that has not answered since ``began`` lives and is within its time limits, or
    once one of ``refs`` is there. Raises what ``answer`` does.
    """
    sign = handle.alive.remote()
    done, _ = ray.wait([*refs, sign], num_returns=1, timeout=SILENCE_S)
    if any(ref in done for ref in refs):
        return
    waited = time.monotonic() - began
    if not done:
        raise SilentSchedulerError(_silent(name, method, waited)) from None
    is_ready, slow_s = ray.get(sign)
    limit_s = slow_s if method in _SLOW else BOOKS_S
    if waited > limit_s and not (is_ready and method == WAITS):
        raise SchedulerUnavailableError(_late(name, method, waited, is_ready)) from None


def _silent(name: str, method: str, waited_s: float) -> str:
    """The message for a supervisor whose process gives no sign of life."""
    message = (
        f"scheduler {name!r} shows no sign of life after {waited_s:.0f} s of waiting for {method!r}: its "
        "process is stopped, not started yet or cut off, or its node hangs"
    )
    if method == "submit_task":
        message += (
            ". The submission may still be carried out; the same request_id repeats it safely"
        )
    return message


def _late(name: str, method: str, waited_s: float, is_ready: bool) -> str:
    doing = (
        "it lives, but its journal or Ray does not answer it"
        if is_ready
        else "it is still recovering"
    )
    return (
        f"scheduler {name!r} has not answered {method!r} after {waited_s:.0f} s: {doing}. The request may "
        "still be carried out; see the supervisor's log"
    )


def ask_ray(what: str, call: Callable[[], Value]) -> Value:
    """The result of a blocking call of Ray. Raises SchedulerUnavailableError where Ray does not answer."""
    box: list[Value | BaseException] = []

    def run() -> None:
        try:
            box.append(call())
        except BaseException as error:  # noqa: BLE001  # raised again by the caller
            box.append(error)

    thread = threading.Thread(target=run, name=f"ray: {what}", daemon=True)
    thread.start()
    thread.join(RAY_S)
    if not box:
        raise SchedulerUnavailableError(
            f"Ray did not answer within {RAY_S:g} s while it was asked to {what}: its head process "
            "(GCS) hangs or cannot be reached"
        )
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]
