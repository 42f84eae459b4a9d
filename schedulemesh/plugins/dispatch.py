"""What a dispatch strategy is: how data is cut for the workers of a group."""

from __future__ import annotations

from typing import Any


class DispatchStrategyPlugin:
    """Base of dispatch strategies; a hook that is not overridden is not offered.

    ``workers_a`` is the group that the data comes from (None: the caller), ``workers_b`` the one that it
    goes to. Each hook gives one shard per worker of ``workers_b``, in the order of their ranks. Unlike
    scheduling strategies these run in the process that dispatches, never in the supervisor.
    """

    def python_dispatch_fn(self, data: Any, workers_a: Any, workers_b: Any) -> Any:
        """The shards of plain data: lists, dicts, nested trees, arrays. Raises where it is not offered."""
        raise NotImplementedError(f"{type(self).__name__} has no python_dispatch_fn")

    def torch_dispatch_fn(self, tensor: Any, workers_a: Any, workers_b: Any) -> Any:
        """The shards of a torch tensor. Raises where it is not offered."""
        raise NotImplementedError(f"{type(self).__name__} has no torch_dispatch_fn")
