"""The head under the path that the documents promise."""

from schedulemesh.core.client.head import ScheduleMeshHead

__all__ = ["ScheduleMeshHead"]
