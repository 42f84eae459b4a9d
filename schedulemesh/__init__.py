"""Pools, quotas, preemption and placement for Ray clusters.

Import from the modules that the documentation names, for instance
``from schedulemesh.simple import SimpleScheduler``; importing this package alone loads nothing else,
because every agent's process does it.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
