"""The base class of dispatch strategies, which split data among the workers of a group."""

from __future__ import annotations

from typing import Any


class DispatchStrategyPlugin:
    """Base class of dispatch strategies; a hook that is not overridden is not supported.

    ``workers_a`` is the group that has the data (None: the caller), ``workers_b`` the one that receives it.
    Each hook returns one shard per worker of ``workers_b``, in the order of their ranks. Unlike scheduling
    strategies, dispatch strategies run in the process that dispatches, never in the supervisor.
    """

    def python_dispatch_fn(self, data: Any, workers_a: Any, workers_b: Any) -> Any:
        """Split Python data: lists, dicts, nested trees, arrays. Raises NotImplementedError by default."""
        raise NotImplementedError(f"{type(self).__name__} has no python_dispatch_fn")

    def torch_dispatch_fn(self, tensor: Any, workers_a: Any, workers_b: Any) -> Any:
        """Split a torch tensor. Raises NotImplementedError by default."""
        raise NotImplementedError(f"{type(self).__name__} has no torch_dispatch_fn")
