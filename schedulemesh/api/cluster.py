"""The scheduler as a whole: what it is, its figures, its strategies, and what it does not know in Ray."""

from __future__ import annotations

from typing import ClassVar

from schedulemesh.api.call import Call, Change
from schedulemesh.api.routes import post
from schedulemesh.api.values import Names


class GetAbout(Call, tag="get_about", frozen=True, kw_only=True):
    """Describe the supervisor."""


class GetStats(Call, tag="get_stats", frozen=True, kw_only=True):
    """Get preemption statistics, pools, and the numbers of agents and nodes."""


class ListStrategies(Call, tag="list_strategies", frozen=True, kw_only=True):
    """List the supplied scheduling strategies."""


class ListOrphans(Call, tag="list_orphans", frozen=True, kw_only=True):
    """List actors and placement groups that the journal does not know."""


class EndOrphans(Change, tag="end_orphans", frozen=True, kw_only=True):
    """Terminate actors of this scheduler that its journal does not know."""

    routes: ClassVar = (post("/orphans/end", "End orphaned actors"),)

    #: Their names in Ray; None: all.
    names: Names | None = None
