"""Facts about pools that end or get another name, and about their budgets; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.engine.messages.fact import Fact


class PoolDeleted(Fact, tag="pool_deleted", frozen=True, kw_only=True):
    """The pool exists no more, and with it its drain and its handlers. Nothing used it."""

    pool_name: str
    at: float


class PoolRenamed(Fact, tag="pool_renamed", frozen=True, kw_only=True):
    """The pool has another name. All that refers to it refers to the new name; what has ended keeps the old
    one.
    """

    #: The name until now.
    pool_name: str
    new_name: str
    at: float


class BudgetLevelChanged(Fact, tag="budget_level_changed", frozen=True, kw_only=True):
    """So much of a budget is used that somebody is told, or less is, because its period has turned or it was
    changed.
    """

    pool_name: str
    #: Whose; None: the pool's.
    owner: str | None = None
    at: float
    #: In percent, one of ``budgets.LEVELS``; 0: less than all of them.
    level: int
    #: When the period turns, in seconds since 1970.
    until: float
    #: The GPU-hours that were used of it, and what it is.
    used: float = 0.0
    gpu_hours: float = 0.0


AnyPoolFact = Union[PoolDeleted, PoolRenamed, BudgetLevelChanged]
