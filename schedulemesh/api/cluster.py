"""The scheduler as a whole: what it is, its figures, its strategies, and what it does not know in Ray."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.pools import PoolInfo
from schedulemesh.api.preemption import PreemptionCounts
from schedulemesh.api.routes import ListRoute, get, post
from schedulemesh.api.rows import OneOf
from schedulemesh.api.values import Names


class OrphanInfo(TypedDict, total=False):
    """An actor or a placement group of the scheduler that its journal does not know."""

    #: In Ray.
    name: str
    #: Of an actor.
    namespace: str | None
    kind: Annotated[str, OneOf("actor", "placement group")]


class SchedulerAbout(TypedDict, total=False):
    """What a scheduler is, and where it and its journal are."""

    name: str
    #: Its namespace in Ray.
    namespace: str
    detached: bool
    #: That of ScheduleMesh.
    version: str
    #: When its supervisor began to serve, in seconds since 1970.
    started_at: float
    node_id: str
    pid: int
    #: The address of the journal.
    journal: str
    #: One more with each life of the supervisor.
    epoch: int
    #: Its clock, in seconds since 1970.
    time: float
    #: The address of the HTTP API; None: there is none, or it does not serve yet.
    http: str | None


class SchedulerFigures(SchedulerAbout, total=False):
    """The same, and how much it has."""

    pools: int
    agents: int
    running_tasks: int
    queued_tasks: int
    #: How many tasks have failed in the last hour, of those that are still on record.
    failed_last_hour: int


class SchedulerStats(PreemptionCounts, total=False):
    """The counts of preemptions, the pools by name, and how many agents and nodes there are."""

    pools: dict[str, PoolInfo]
    agents: int
    nodes: int


class StrategyInfo(TypedDict, total=False):
    """A strategy that the scheduler was made with, and how often it was called."""

    name: str
    hooks: list[str]
    calls: int
    failures: int
    slow_calls: int
    #: Why it is not called any more; empty: it is called.
    disabled: str


class GetAbout(Call, tag="get_about", frozen=True, kw_only=True):
    """Describe the supervisor."""

    routes: ClassVar = (
        get("/status", "Describe the supervisor, its journal, and how much there is"),
    )


class GetStats(Call, tag="get_stats", frozen=True, kw_only=True):
    """Get preemption statistics, pools, and the numbers of agents and nodes."""

    routes: ClassVar = (get("/stats", "Count preemptions, agents and nodes; the pools by name"),)


class ListStrategies(Call, tag="list_strategies", frozen=True, kw_only=True):
    """List the supplied scheduling strategies."""

    listings: ClassVar = (
        ListRoute(
            path="/strategies",
            summary="List the scheduling strategies that were supplied",
            row=StrategyInfo,
            key=("name",),
        ),
    )


class ListOrphans(Call, tag="list_orphans", frozen=True, kw_only=True):
    """List actors and placement groups that the journal does not know."""

    listings: ClassVar = (
        ListRoute(
            path="/orphans",
            summary="List actors and placement groups that the journal does not know",
            row=OrphanInfo,
            key=("name", "namespace", "kind"),
        ),
    )


class EndOrphans(ChangingCall, tag="end_orphans", frozen=True, kw_only=True):
    """Terminate actors of this scheduler that its journal does not know."""

    routes: ClassVar = (post("/orphans/end", "End orphaned actors"),)

    #: Their names in Ray; None: all.
    names: Names | None = None
