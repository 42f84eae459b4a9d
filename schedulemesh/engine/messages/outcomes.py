"""Outcomes: the results of requests. A refusal is an outcome, not an error."""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.sentences import InEnglish, Text
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
    #: The same, or the rank of a label match where that is higher.
    effective_delta: float
    #: Seconds left of its estimated duration; 0 where unknown or overdue.
    remaining_time: float
    #: The rule that allows its eviction.
    reason: PreemptionReason
    #: Seconds since its start or its last saved state: the most work that its eviction can lose.
    lost_work: float = 0.0
    #: Whether something of its present work was saved when it had been evicted; None: it was not evicted.
    state_saved: bool | None = None
    #: Why its state could not be saved for the eviction; empty: it was, it has none, or it was not evicted.
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
    """An agent that holds some of what was short."""

    agent_name: str
    pool_name: str
    resources: Resources
    task_ids: tuple[str, ...] = ()


class Accepted(Outcome, tag="accepted", frozen=True, kw_only=True):
    """The agent is running, with its task if it has one (in a dry run: would be running)."""

    agent_name: str
    #: Which agent of that name; None in a dry run.
    incarnation: int | None = None
    pool_name: str
    resources: Resources
    labels: Labels = {}
    task_id: str | None = None
    #: The tasks that were evicted for it, highest score first.
    preempted: tuple[Candidate, ...] = ()
    #: In a dry run: the tasks on borrowed quota that do not run yet and whose start would be cancelled.
    cancelled_starts: tuple[str, ...] = ()
    node_id: str | None = None
    restartable: bool = True
    #: Whether a saved state was restored into its object; None: there was none.
    state_restored: bool | None = None
    #: The placement group that it runs in; None: it runs outside of groups.
    group_id: str | None = None
    #: How it got that group: "reserved", "reused", "created" or "preempted"; empty: it has none.
    group_path: str = ""
    #: Whether it holds the whole quota of its pool.
    whole_pool: bool = False


class Refused(
    Outcome,
    tag="refused",
    frozen=True,
    kw_only=True,
    rename={"error_text": "error", "hint_text": "hint"},
):
    """The request was refused; nothing is held for it."""

    reason: Reason
    #: One sentence for people; nothing may depend on its text.
    error_text: Text
    #: What the pool's quota lacked.
    short_quota: Resources = NOTHING
    #: What the best node lacked.
    short_node: Resources = NOTHING
    #: The agents that hold most of what was short, largest first, at most ten.
    holders: tuple[Holder, ...] = ()
    #: How many running tasks each rule keeps from being evicted.
    turned_away: dict[Reason, int] = {}
    #: The lowest priority with which it would have been accepted; None: there is none, or it is unknown.
    sufficient_priority: float | None = None
    #: Of a dry run: when it could start at the earliest if it waited, in seconds since 1970; None: not known.
    earliest_start: float | None = None
    #: Of a dry run: how many tasks of its pool would come before it, plus one; None: it would not wait.
    position: int | None = None
    #: What the caller can do; empty: the error says it, or nothing helps.
    hint_text: Text = ""
    #: The traceback of what user code raised; empty: it raised nothing.
    detail: str = ""
    #: Victims that were evicted for it and run again.
    restarted: tuple[str, ...] = ()
    #: Victims that were evicted for it and wait in the queue to run again.
    requeued: tuple[str, ...] = ()
    #: Victims that were evicted for it and could not be started again.
    not_restarted: tuple[str, ...] = ()

    #: Why it was refused, in English.
    error = InEnglish("error_text")
    #: What the caller can do, in English.
    hint = InEnglish("hint_text")


class Queued(Outcome, tag="queued", frozen=True, kw_only=True):
    """The task waits in the queue, or starts already."""

    task_id: str
    agent_name: str
    pool_name: str
    #: How many tasks of its pool come before it, plus one; 0: it does not wait.
    position: int


class Pending(Outcome, tag="pending", frozen=True, kw_only=True):
    """The request is being carried out: an agent starts or ends, or victims are evicted first. The final
    outcome follows.
    """

    agent_name: str


class ProbeNeeded(Outcome, tag="probe_needed", frozen=True, kw_only=True):
    """Nothing was changed: the class has to be loaded in a worker before a task is evicted for it."""

    class_key: str


class Done(
    Outcome,
    tag="done",
    frozen=True,
    kw_only=True,
    rename={"warning_texts": "warnings"},
):
    """The request was carried out."""

    #: What was changed, for requests that may find it done already; None: what was requested.
    change: Change | None = None
    #: About what the caller may not have intended.
    warning_texts: tuple[Text, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """About what the caller may not have intended, in English."""
        return tuple(map(str, self.warning_texts))


class Evicted(Outcome, tag="evicted", frozen=True, kw_only=True):
    """A task was preempted by request."""

    task_id: str
    agent_name: str
    reason: PreemptionReason
    #: The key of its last stored state, which may be an earlier one; None: there is none.
    state_key: str | None = None
    #: Whether something that it can be restored from was saved since its attempt began.
    state_saved: bool = False
    cancel_success: bool = False
    #: Whether its method runs on because it could not be cancelled; then it is not preempted.
    runs_on: bool = False
    #: Why its state could not be saved for the eviction; empty: it was, or it has none.
    save_error: str = ""
    #: What went wrong while saving or cancelling; empty: nothing.
    error: str = ""


class AgentEvicted(Outcome, tag="agent_evicted", frozen=True, kw_only=True):
    """An agent was ended by request, with its tasks."""

    agent_name: str
    task_ids: tuple[str, ...] = ()


class TasksCancelled(Outcome, tag="tasks_cancelled", frozen=True, kw_only=True):
    """Several tasks were cancelled by request."""

    #: Why others were not, by task.
    refused: dict[str, Refused] = {}
    #: Those that had ended before.
    already_ended: tuple[str, ...] = ()
    #: Agents that are being terminated with their tasks.
    ending: tuple[str, ...] = ()


RequestOutcome = Union[
    Accepted, Refused, Queued, Pending, ProbeNeeded, Done, Evicted, AgentEvicted, TasksCancelled
]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a dry run of the preemption decision."""

    should_preempt: bool
    candidates: tuple[Candidate, ...] = ()
    #: Where nobody is to be evicted: the rule that keeps most tasks, or why no eviction is needed.
    reason: Reason | None = None
    turned_away: dict[Reason, int] = {}
    #: The tasks that a submission of these resources would evict.
    victims: tuple[str, ...] = ()
    #: The tasks on borrowed quota that do not run yet and whose start it would cancel.
    cancelled_starts: tuple[str, ...] = ()
