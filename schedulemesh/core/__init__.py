"""Everything that touches Ray. Exported names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedulemesh.core.client.scheduler import RayScheduler
    from schedulemesh.core.worker_groups import ShardHolder, WorkerGroup, reshard

__all__ = ["RayScheduler", "ShardHolder", "WorkerGroup", "reshard"]

_MODULES = {
    "RayScheduler": "schedulemesh.core.client.scheduler",
    "ShardHolder": "schedulemesh.core.worker_groups",
    "WorkerGroup": "schedulemesh.core.worker_groups",
    "reshard": "schedulemesh.core.worker_groups",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
