"""What the supervisor and its clients say to each other beside stimuli and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.engine.messages.outcomes import RequestOutcome
from schedulemesh.protocol.agents import SavedState, pack


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who the supervisor is."""

    protocol: int
    python: str
    ray: str
    detached: bool
    #: The job that made it.
    job_id: str
    #: What it was made with, without the code of strategies.
    settings: SchedulerSettings


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a placement group is found."""

    #: In Ray.
    name: str
    node_ids: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome, and what a caller needs with it."""

    outcome: RequestOutcome
    #: The agent's Ray handle.
    handle: Any = None
    #: The placement group that the outcome speaks of.
    group: GroupPlace | None = None
    #: The saved state that the outcome speaks of.
    saved: bytes | None = None
    #: Tasks evicted by hand with their saved states: (task id, reason, state).
    evicted: tuple[tuple[str, str, bytes | None], ...] = ()


class PoolReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a pool."""

    outcome: RequestOutcome
    #: The pool as it is now; None: it was refused.
    spec: PoolSpec | None = None
    #: How its reserved groups stand; None: it keeps none.
    groups: dict[str, Any] | None = None


def to_saved_state(given: Mapping[str, Any], source: str, state: bytes, now: float) -> bytes:
    """A state that a caller hands in, as it is stored."""
    return pack(
        SavedState(
            task_id=str(given["task_id"]),
            agent_name=str(given.get("agent_name", "")),
            pool_name=str(given.get("pool_name", "")),
            priority=float(given.get("priority", 0.0)),
            source=source,
            saved_at=now,
            state=state,
        )
    )
