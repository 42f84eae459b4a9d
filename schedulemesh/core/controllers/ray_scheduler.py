"""The scheduler under the path that the documents promise."""

from schedulemesh.core.client.scheduler import RayScheduler

__all__ = ["RayScheduler"]
