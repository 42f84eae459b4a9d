"""Facts about Ray work that does not belong to the scheduler and waits for room; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.engine.messages.fact import Fact


class ExternalDemandSeen(Fact, tag="external_demand_seen", frozen=True, kw_only=True):
    """All that external work waits for in Ray, from now on."""

    demand: tuple[ExternalDemand, ...] = ()
    at: float = 0.0


class RoomLost(Fact, tag="room_lost", frozen=True, kw_only=True):
    """External work got the room on these nodes that evictions had freed for a task."""

    task_id: str
    node_ids: tuple[str, ...]
    at: float = 0.0


AnyDemandFact = Union[ExternalDemandSeen, RoomLost]
