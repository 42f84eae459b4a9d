"""Outcomes: what the engine answers to a request; a refusal is one of them, not an error."""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskSpec


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all outcomes."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A running task that the policy lets the incoming task evict."""

    task: TaskSpec
    agent_name: str
    #: Effective difference + κ · remaining time.
    preempt_score: float
    #: Priority of the incoming task minus that of this one.
    priority_delta: float
    #: The same, or a label match's rank where that is more.
    effective_delta: float
    #: Seconds left of its estimated duration; 0 where unknown or overdue.
    remaining_time: float
    #: The rule that allowed it.
    reason: PreemptionReason
    #: Seconds of work since its start or its last saved state, which its eviction loses at most.
    lost_work: float = 0.0
    #: Why its state was not saved when it was evicted; empty: it was, it has none, or it was not evicted.
    save_error: str = ""

    @property
    def task_id(self) -> str:
        """The id of its task."""
        return self.task.task_id

    @property
    def pool_name(self) -> str:
        """The pool of its task."""
        return self.task.pool_name

    @property
    def priority(self) -> float:
        """The priority of its task."""
        return self.task.priority


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who holds some of what was short."""

    agent_name: str
    pool_name: str
    resources: Resources
    task_ids: tuple[str, ...] = ()


class Accepted(Outcome, tag="accepted", frozen=True, kw_only=True):
    """The agent runs, with its task if it has one (in a dry run: would run)."""

    agent_name: str
    pool_name: str
    resources: Resources
    labels: Labels = {}
    task_id: str | None = None
    #: Who was evicted for it, highest score first.
    preempted: tuple[Candidate, ...] = ()
    node_id: str | None = None
    restartable: bool = True
    #: Whether a saved state was given back to the object; None: there was none.
    state_restored: bool | None = None
    #: The placement group that it lives in; None: it lives on a node.
    group_id: str | None = None
    #: "reserved", "reused", "created" or "preempted": how it came to that group; empty: it lives on a node.
    group_path: str = ""
    #: Whether it holds the whole quota of its pool.
    whole_pool: bool = False


class Refused(Outcome, tag="refused", frozen=True, kw_only=True):
    """The request was turned down and holds nothing."""

    reason: Reason
    #: One sentence for a person.
    error: str
    #: What the pool's quota lacked.
    short_quota: Resources = NOTHING
    #: What the best node lacked.
    short_node: Resources = NOTHING
    #: Who holds most of what was short, biggest first, at most ten.
    holders: tuple[Holder, ...] = ()
    #: Running tasks that each rule turned away.
    turned_away: dict[Reason, int] = {}
    #: The lowest priority with which it would have been accepted; None: none, or it is not known.
    sufficient_priority: float | None = None
    #: What the caller can do next; empty: the error says it, or nothing can be done.
    hint: str = ""
    #: Victims evicted in vain that run again.
    restarted: tuple[str, ...] = ()
    #: Victims evicted in vain that could not be started again.
    not_restarted: tuple[str, ...] = ()


class Pending(Outcome, tag="pending", frozen=True, kw_only=True):
    """Accepted, and under way: an agent starts, or victims leave first. The final outcome follows."""

    agent_name: str


class ProbeNeeded(Outcome, tag="probe_needed", frozen=True, kw_only=True):
    """Nothing was changed: the class must be seen to load before anyone is evicted for it."""

    class_key: str


class Done(Outcome, tag="done", frozen=True, kw_only=True):
    """The request was carried out."""

    #: What that changed, where it may be several things; None: what was asked for.
    change: Change | None = None
    #: What the caller may not have meant, in sentences.
    warnings: tuple[str, ...] = ()


class Evicted(Outcome, tag="evicted", frozen=True, kw_only=True):
    """A task was preempted by request."""

    task_id: str
    agent_name: str
    reason: PreemptionReason
    #: The key of its saved state; None: nothing was saved.
    state_key: str | None = None
    cancel_success: bool = False
    #: Whether its method runs on because it could not be cancelled; then it is not preempted.
    runs_on: bool = False
    #: Why its state of that moment was not saved; empty: it was, or it has none.
    save_error: str = ""
    #: What went wrong while saving or cancelling; empty: nothing.
    error: str = ""


class AgentEvicted(Outcome, tag="agent_evicted", frozen=True, kw_only=True):
    """An agent was ended by request, with its tasks."""

    agent_name: str
    task_ids: tuple[str, ...] = ()


RequestOutcome = Union[Accepted, Refused, Pending, ProbeNeeded, Done, Evicted, AgentEvicted]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer of a dry run of the preemption decision."""

    should_preempt: bool
    candidates: tuple[Candidate, ...] = ()
    #: For a refusal: the rule that turned away most tasks, or why no eviction is needed.
    reason: Reason | None = None
    turned_away: dict[Reason, int] = {}
    #: The tasks that a submission of these resources would evict.
    victims: tuple[str, ...] = ()
