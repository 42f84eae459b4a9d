"""The saved state of a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from schedulemesh.domain.task import TaskSpec, task_row
from schedulemesh.domain.user_data import UserValue


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """The saved state of a task in its stored form."""

    task: TaskSpec
    agent_name: str
    #: "preserver": ``state`` is the preserver's dict; "save_state": the return value of the agent's method;
    #: "payload": it holds nothing to restore; "given": the dict that a caller passed to restore_task.
    source: str
    saved_at: float
    #: False: saved while other methods of the object were running.
    consistent: bool = True
    last_metrics: dict[str, Any] = {}
    #: Opaque.
    state: bytes | None = None
    payload: bytes | None = None
    #: Why a preferred source failed; empty: none did.
    warning: str = ""
    #: False: the current state of the task could not be saved, and this is an earlier one.
    current: bool = True
    #: Of a gang: the state of each member in the order of ranks, opaque, instead of ``state``; None: a member
    #: without one.
    members: tuple[bytes | None, ...] = ()

    @property
    def opaque(self) -> tuple[bytes | None, ...]:
        """What nobody but the code of the user reads, in the order of the fields."""
        return (self.state, self.payload, *self.members)

    @property
    def size(self) -> int:
        """Its bytes, beside what is known of the task anyway."""
        return sum(len(part) for part in self.opaque if part is not None)

    @property
    def restorable(self) -> bool:
        """Whether it holds a state, and not only what is known of the task anyway."""
        if self.source == "payload":
            return False
        return self.state is not None or any(state is not None for state in self.members)


def public_state(saved: SavedState, load: Callable[[bytes], UserValue]) -> dict[str, UserValue]:
    """The saved state as callers see it: the preserver's own dict, or everything that is known. ``load``:
    loads what is opaque.
    """
    state = None if saved.state is None else load(saved.state)
    if saved.members:
        state = [
            None if member_state is None else load(member_state) for member_state in saved.members
        ]
    if saved.source != "save_state" and isinstance(state, dict):
        return {"task_id": saved.task.task_id, **state}
    shown = {
        **task_row(saved.task),
        "agent_name": saved.agent_name,
        "source": saved.source,
        "saved_at": saved.saved_at,
        "consistent": saved.consistent,
        "last_metrics": saved.last_metrics,
        "progress": saved.last_metrics.get("progress"),
        "payload": None if saved.payload is None else load(saved.payload),
        "state": state,
    }
    if saved.members:
        shown["world_size"] = len(saved.members)
    return {**shown, "warning": saved.warning} if saved.warning else shown
