"""Groups of agents with a parallel layout. Exports are loaded lazily, because agents need only
``shard_holder``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedulemesh.core.worker_groups.group import WorkerGroup
    from schedulemesh.core.worker_groups.pending_result import PendingResult
    from schedulemesh.core.worker_groups.resharding import Moved, reshard
    from schedulemesh.core.worker_groups.shard_holder import ShardHolder

__all__ = ["Moved", "PendingResult", "ShardHolder", "WorkerGroup", "reshard"]

_MODULES = {
    "Moved": "resharding",
    "PendingResult": "pending_result",
    "ShardHolder": "shard_holder",
    "WorkerGroup": "group",
    "reshard": "resharding",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
