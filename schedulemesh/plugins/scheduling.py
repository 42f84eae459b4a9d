"""What a scheduling strategy is, and what it is shown.

A strategy runs inside the supervisor, at decision time, and what it sees are copies: nothing that it does
to them changes the scheduler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TaskView:
    """A task as a strategy sees it."""

    #: Empty for an agent without a task, and in ``evaluate_preemption``, which names none.
    id: str
    #: Empty while its pool is being chosen.
    pool: str
    #: What the submitter asked for in ``priority``; what the task has in every other hook.
    priority: float
    labels: Mapping[str, str]
    #: ``{"cpu", "memory" (MB), "gpu", "custom": {name: amount}}``, every key present.
    resources: Mapping[str, Any]
    #: Seconds from start to end; None: unknown.
    estimated_duration: float | None = None
    #: Seconds left of its estimated duration; None for a task that does not run, or where unknown.
    remaining_time: float | None = None
    #: Seconds of work that an eviction would lose; None for a task that does not run.
    lost_work: float | None = None
    #: The agent that it runs on; empty for a task that does not run.
    agent: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ResourceDomain:
    """A candidate for a task: a pool (its quota), a node (what is physically there) or a group of nodes."""

    kind: Literal["pool", "node", "group"]
    name: str
    labels: Mapping[str, str]
    #: ``{"cpu", "memory" (MB), "gpu", "custom": {name: amount}}``, every key present.
    total: Mapping[str, Any]
    #: As ``total``; a node's has room for the task, a pool's may be short.
    free: Mapping[str, Any]
    #: Free part of each GPU device of a node, 0.0 to 1.0.
    devices: tuple[float, ...] = ()


class SchedulingStrategyPlugin:
    """Base of scheduling strategies; every hook is optional, and answering None means: no opinion.

    Hooks must be quick (three calls above 10 ms disable the strategy), must not block, and should answer
    the same for the same arguments. One that raises or answers something else than documented is skipped
    for that decision.
    """

    def score(
        self, task: TaskView, resources: ResourceDomain  # noqa: ARG002  # for those who override it
    ) -> float | None:
        """How well the candidate suits the task: a finite number, the highest wins."""
        return None

    def priority(self, task: TaskView) -> float | None:  # noqa: ARG002
        """The priority that a submitted task is admitted with: a finite number."""
        return None

    def preemption_policy(
        self, high_priority_task: TaskView, low_priority_task: TaskView  # noqa: ARG002
    ) -> bool | None:
        """Whether the incoming (first) task may evict the running (second) one.

        False keeps a candidate from being evicted. True lets one be evicted that the thresholds of rule 3
        or 4 refused, unless the reverse eviction would be permitted, too; it never opens a protected pool,
        never overrules a label rule, and ``min_preempt_score`` still holds. None leaves it to the rules.
        """
        return None


#: The hooks, in the order of a decision.
HOOKS = ("priority", "score", "preemption_policy")


def hooks_of(plugin: SchedulingStrategyPlugin) -> tuple[str, ...]:
    """The hooks that this strategy has of its own."""
    base = SchedulingStrategyPlugin
    return tuple(hook for hook in HOOKS if getattr(type(plugin), hook) is not getattr(base, hook))
