"""What preservers get, under the path that the documents promise."""

from schedulemesh.domain.task import TaskState

__all__ = ["TaskState"]
