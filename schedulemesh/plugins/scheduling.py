"""The base class of scheduling strategies, and the views of tasks and resources that they get.

A strategy runs in the supervisor's process during decisions. The views are copies: changing them does not
change the scheduler's state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TaskView:
    """A task as a strategy sees it."""

    #: Empty for an agent without a task, and in ``evaluate_preemption``, whose task has no id.
    id: str
    #: Empty while its pool is being chosen.
    pool: str
    #: In the hook ``priority`` the submitted priority, in every other hook the admitted one.
    priority: float
    labels: Mapping[str, str]
    #: ``{"cpu", "memory" (MB), "gpu", "custom": {name: amount}}``, every key present.
    resources: Mapping[str, Any]
    #: Seconds from start to end; None: unknown.
    estimated_duration: float | None = None
    #: Remaining seconds of its estimated duration; None if it does not run or has none.
    remaining_time: float | None = None
    #: Seconds of work that an eviction would lose; None for a task that does not run.
    lost_work: float | None = None
    #: The agent that it runs on; empty for a task that does not run.
    agent: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ResourceDomain:
    """A candidate for a task: a pool (its quota), a node (its physical resources) or a group of nodes."""

    kind: Literal["pool", "node", "group"]
    name: str
    labels: Mapping[str, str]
    #: ``{"cpu", "memory" (MB), "gpu", "custom": {name: amount}}``, every key present.
    total: Mapping[str, Any]
    #: As ``total``. The task fits on a node that is shown; a pool's free quota may be short.
    free: Mapping[str, Any]
    #: The free fraction of each GPU device of a node, 0.0 to 1.0.
    devices: tuple[float, ...] = ()


class SchedulingStrategyPlugin:
    """Base class of scheduling strategies. Every hook is optional; returning None means no opinion.

    Hooks must be fast (three calls above 10 ms disable the strategy), must not block, and should return the
    same for the same arguments. A hook that raises or returns something other than documented is skipped for
    that decision.
    """

    def score(
        self,
        task: TaskView,
        resources: ResourceDomain,
    ) -> float | None:
        """How well the candidate suits the task: a finite number; the highest is chosen."""
        return None

    def priority(self, task: TaskView) -> float | None:
        """The priority that a submitted task is admitted with: a finite number."""
        return None

    def preemption_policy(
        self,
        high_priority_task: TaskView,
        low_priority_task: TaskView,
    ) -> bool | None:
        """Whether the incoming (first) task may evict the running (second) one.

        False protects a candidate. True allows the eviction of one that the thresholds of rule 3 or 4
        refused, unless the reverse eviction would be allowed, too. It never applies to protected pools or
        overrules a label rule, and ``min_preempt_score`` still applies. None: the rules decide.
        """
        return None


#: The hooks, in the order in which a decision calls them.
HOOKS = ("priority", "score", "preemption_policy")


def hooks_of(plugin: SchedulingStrategyPlugin) -> tuple[str, ...]:
    """The hooks that this strategy overrides."""
    base = SchedulingStrategyPlugin
    return tuple(hook for hook in HOOKS if getattr(type(plugin), hook) is not getattr(base, hook))
