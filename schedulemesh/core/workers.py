"""What runs in workers of its own, so that it can be timed out: handlers of states, and class probes."""

from __future__ import annotations

import os
import traceback
from typing import Any

import msgspec
import ray
from ray import cloudpickle

from schedulemesh.core.agent_host import public_state
from schedulemesh.core.shipping import load_class
from schedulemesh.core.wire import Accelerators, SavedState, ShippedClass, ShippedFunction, writable
from schedulemesh.domain.task import TaskState

#: By these libraries are told which GPUs to use; Ray sets the one of the kind that it found.
_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ONEAPI_DEVICE_SELECTOR",
)


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: opaque bytes, or the error."""

    data: bytes | None = None
    error: str = ""


def probe_class(shipped: bytes) -> Handled:
    """Whether the class loads in a fresh worker."""
    return _told(lambda: load_class(msgspec.msgpack.decode(shipped, type=ShippedClass)) and None)


def accelerators() -> Accelerators:
    """The GPUs that Ray gave to this worker."""
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
    shown = {name: os.environ[name] for name in _VISIBLE if name in os.environ}
    return Accelerators(ids=tuple(ids), env_vars=shown)


def preserve(handler: bytes, task: bytes, started_at: float, duration: float | None) -> Handled:
    """Call a preserver with the task's state; its dict as bytes."""

    def call() -> bytes:
        saved = msgspec.msgpack.decode(task, type=SavedState)
        kept = _function(handler)(_task_state(saved, started_at, duration))
        if not isinstance(kept, dict):
            raise TypeError(f"a preserver must return a dict, not {kept!r}")
        return bytes(cloudpickle.dumps(kept))

    return _told(call)


def restore(handler: bytes, saved: bytes) -> Handled:
    """Call a restorer with the saved state."""
    return _told(
        lambda: _function(handler)(public_state(msgspec.msgpack.decode(saved, type=SavedState)))
        and None
    )


def _function(handler: bytes) -> Any:
    return load_class(msgspec.msgpack.decode(handler, type=ShippedFunction))


def _task_state(saved: SavedState, started_at: float, duration: float | None) -> TaskState:
    return TaskState(
        task_id=saved.task_id,
        agent_name=saved.agent_name,
        pool_name=saved.pool_name,
        priority=saved.priority,
        labels=saved.labels,
        payload=None if saved.payload is None else cloudpickle.loads(saved.payload),
        estimated_duration=duration,
        started_at=started_at,
        progress=saved.last_metrics.get("progress"),
        last_metrics=saved.last_metrics,
    )


def _told(call: Any) -> Handled:
    try:
        return Handled(data=call())
    except Exception:  # noqa: BLE001  # user code raises anything; it becomes the answer
        return Handled(error=writable(traceback.format_exc(limit=-4)))
