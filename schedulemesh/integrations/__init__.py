"""Adapters for Ray's own libraries and for libraries on Ray: each runs in the placement groups of a lease.

Each adapter is a module of its own, which imports its library and is imported only when it is used. The
names here are loaded when they are first used, because importing this package must not load Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedulemesh.integrations.group_capture import Capture, capture

__all__ = ["Capture", "capture"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.group_capture"), name)
