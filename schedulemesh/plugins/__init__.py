"""The opinions: what outsiders supply, as base classes, plain views and ways to find them."""

from __future__ import annotations

from schedulemesh.plugins.dispatch import DispatchStrategyPlugin
from schedulemesh.plugins.scheduling import ResourceDomain, SchedulingStrategyPlugin, TaskView

__all__ = ["DispatchStrategyPlugin", "ResourceDomain", "SchedulingStrategyPlugin", "TaskView"]
