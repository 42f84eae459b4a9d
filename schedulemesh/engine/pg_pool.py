"""The book of placement groups: which exist, who lives in them, and which are free for whom."""

from __future__ import annotations

from enum import Enum

import msgspec

from schedulemesh.domain.placement import GroupShape


class GroupPhase(str, Enum):
    """Where a placement group stands."""

    #: Its room is not whole yet: others are still leaving for it.
    PLANNED = "planned"
    #: Its room is held on the nodes, and Ray is making it.
    CREATING = "creating"
    READY = "ready"
    #: Being removed; its room is held until it is gone.
    ENDING = "ending"


class Group(msgspec.Struct, kw_only=True, gc=False):
    """A placement group on the book."""

    group_id: str
    pool_name: str
    shape: GroupShape
    #: Kept for entitled tasks; False: dynamic.
    reserved: bool
    phase: GroupPhase
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    #: The agent that lives in it, or that it is made for.
    agent: str | None = None
    #: The agent that gets it once the present one has left.
    promised_to: str | None = None
    #: Since when nobody uses it, in seconds since 1970.
    idle_since: float = 0.0
    #: How many agents have lived in it.
    used: int = 0


class PoolCounts(msgspec.Struct, kw_only=True, gc=False):
    """What has happened to the groups of one pool."""

    created: int = 0
    #: Agents that came to a group which had been used before.
    reused: int = 0
    destroyed: int = 0
    #: Agents that came to a group, and the seconds that all of them waited for it.
    entered: int = 0
    waited_s: float = 0.0


class GroupBook:
    """All groups of all pools."""

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        #: By pool name.
        self.counts: dict[str, PoolCounts] = {}
