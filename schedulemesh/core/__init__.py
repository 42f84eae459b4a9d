"""The hands: the only package that imports Ray. ``RayScheduler`` is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schedulemesh.core.controllers.ray_scheduler import RayScheduler

__all__ = ["RayScheduler"]


def __getattr__(name: str) -> Any:
    if name == "RayScheduler":
        from schedulemesh.core.controllers.ray_scheduler import RayScheduler

        return RayScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
