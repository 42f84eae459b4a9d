"""Functions that run in Ray workers of their own, so that they can time out: state handlers and class probes.

Each returns a packed message.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import ray
from ray import cloudpickle

from schedulemesh.core.agent.user_errors import error_text
from schedulemesh.core.transport.user_code import load_class, pickled_state
from schedulemesh.domain.saved_state import SavedState, public_state
from schedulemesh.domain.task import TaskState, task_row
from schedulemesh.domain.user_data import UserFunction
from schedulemesh.protocol.agents import (
    Accelerators,
    Handled,
    ShippedClass,
    ShippedFunction,
    StateTooLargeError,
    pack,
)

#: The variables that select GPUs for the libraries; Ray sets the one of the kind that it found.
_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ONEAPI_DEVICE_SELECTOR",
)


def probe_class(shipped: bytes) -> bytes:
    """Whether the class loads in a fresh worker: Handled."""
    return _handled(lambda: load_class(msgspec.msgpack.decode(shipped, type=ShippedClass)) and None)


def accelerators() -> bytes:
    """The GPUs that Ray gave to this worker: Accelerators."""
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
    shown = {name: os.environ[name] for name in _VISIBLE if name in os.environ}
    return pack(Accelerators(ids=tuple(map(str, ids)), env_vars=shown))


def preserve(handler: bytes, task: bytes, started_at: float, limit_bytes: int) -> bytes:
    """Call a preserver with the task's state: Handled, with its dict as at most so many bytes."""

    def call() -> bytes:
        saved = msgspec.msgpack.decode(task, type=SavedState)
        preserved = _function(handler)(_task_state(saved, started_at))
        if not isinstance(preserved, dict):
            raise TypeError(f"a preserver must return a dict, not {preserved!r}")
        return pickled_state(preserved, limit_bytes)

    return _handled(call)


def restore(handler: bytes, saved: bytes) -> bytes:
    """Call a restorer with the saved state: Handled."""

    def call() -> None:
        state = msgspec.msgpack.decode(saved, type=SavedState)
        _function(handler)(public_state(state, cloudpickle.loads))

    return _handled(call)


def _function(handler: bytes) -> UserFunction:
    function: UserFunction = load_class(msgspec.msgpack.decode(handler, type=ShippedFunction))
    return function


def _task_state(saved: SavedState, started_at: float) -> TaskState:
    return TaskState(
        **task_row(saved.task),
        agent_name=saved.agent_name,
        payload=None if saved.payload is None else cloudpickle.loads(saved.payload),
        started_at=started_at,
        progress=saved.last_metrics.get("progress"),
        last_metrics=saved.last_metrics,
    )


def _handled(call: Callable[[], bytes | None]) -> bytes:
    try:
        handled = Handled(data=call())
    except StateTooLargeError as error:
        handled = Handled(error=str(error), too_large=True)
    except BaseException as error:  # noqa: BLE001  # user code raises anything
        handled = Handled(error=error_text(error))
    return pack(handled)
