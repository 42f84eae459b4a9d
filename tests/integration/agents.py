"""Agent classes that several tests use."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import ray

from schedulemesh.core.agent.agent_actor import AgentActor


class Counter:
    """A bare user class, without any base: it counts, and can be saved and restored."""

    def __init__(self, name: str, labels: dict[str, str], start: int = 0) -> None:
        self.name, self.labels, self.count = name, labels, start

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def save_state(self) -> dict[str, int]:
        return {"count": self.count}

    def restore_state(self, saved: dict[str, int]) -> None:
        self.count = saved["count"]


class Plain:
    """As little as an agent can be."""

    def __init__(self, name: str, labels: dict[str, str], *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def given(self) -> tuple[Any, ...]:
        return self.args, self.kwargs

    def pid(self) -> int:
        return os.getpid()


class Hung:
    """Any of its methods may be told to hang; ``mark`` is a file that it makes when it does."""

    def __init__(self, name: str, labels: dict[str, str], where: str, mark: str) -> None:
        self.where, self.mark = where, mark
        self._hang("init")

    def _hang(self, here: str) -> None:
        if self.where == here:
            Path(self.mark).touch()
            threading.Event().wait()

    def cancel(self, task_id: str) -> dict[str, Any]:
        self._hang("cancel")
        return {"success": True}

    def save_state(self) -> dict[str, Any]:
        self._hang("save_state")
        return {}

    def pid(self) -> int:
        return os.getpid()


class Raising(AgentActor):
    """Raises where it is told to."""

    def __init__(self, name: str, labels: dict[str, str], where: str) -> None:
        super().__init__(name, labels)
        self.where = where
        self._raise("init")

    def _raise(self, here: str) -> None:
        if self.where == here:
            raise RuntimeError(f"raised in {here}")

    def cancel(self, task_id: str) -> dict[str, Any]:
        self._raise("cancel")
        return super().cancel(task_id)

    def save_state(self) -> dict[str, Any]:
        self._raise("save_state")
        return {"saved": True}

    def work(self) -> None:
        raise ValueError("the work raised")


class Exiting:
    """Its constructor ends the process."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        os._exit(3)


class Member:
    """A member of a gang: knows its rank and counts; with ``broken_rank`` that member cannot be built."""

    def __init__(
        self,
        name: str,
        labels: dict[str, str],
        start: int = 0,
        broken_rank: int | None = None,
        *,
        rank: int,
        world_size: int,
    ) -> None:
        if rank == broken_rank:
            raise ValueError(f"rank {rank} is broken")
        self.name, self.rank, self.world_size, self.count = name, rank, world_size, start
        self.ranks: list[int] = []

    def who(self) -> tuple[int, int, str, str]:
        return (self.rank, self.world_size, os.environ["RANK"], os.environ["WORLD_SIZE"])

    def on_members_changed(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def others(self) -> list[int]:
        """The ranks of the members of its elastic gang, as it was told."""
        return self.ranks

    def where(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    def save_state(self) -> dict[str, int]:
        return {"rank": self.rank, "count": self.count}

    def restore_state(self, state: dict[str, int]) -> None:
        assert state["rank"] == self.rank
        self.count = state["count"]

    def cancel(self, task_id: str) -> dict[str, Any]:
        return {"success": True}
