"""The hands: the only package that imports Ray. What it exports is loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schedulemesh.core.controllers.ray_scheduler import RayScheduler
    from schedulemesh.core.resharding import reshard
    from schedulemesh.core.shard_holder import ShardHolder
    from schedulemesh.core.worker_group import WorkerGroup

__all__ = ["RayScheduler", "ShardHolder", "WorkerGroup", "reshard"]

_HOMES = {
    "RayScheduler": "schedulemesh.core.controllers.ray_scheduler",
    "ShardHolder": "schedulemesh.core.shard_holder",
    "WorkerGroup": "schedulemesh.core.worker_group",
    "reshard": "schedulemesh.core.resharding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
