"""Extension points: the base classes of scheduling and dispatch strategies, what they see, and discovery."""

from __future__ import annotations

from schedulemesh.plugins.dispatch import DispatchStrategyPlugin
from schedulemesh.plugins.scheduling import ResourceDomain, SchedulingStrategyPlugin, TaskView

__all__ = ["DispatchStrategyPlugin", "ResourceDomain", "SchedulingStrategyPlugin", "TaskView"]
