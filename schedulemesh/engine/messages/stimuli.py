"""Stimuli: what happens. Together with the time that ``Engine.handle`` is given, the engine's only input."""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.labels import Selector
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec


class Stimulus(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Base of all stimuli. A client's submission is one from the start, and travels as bytes."""


class Request(Stimulus, frozen=True, kw_only=True):
    """Base of the stimuli whose outcome is remembered: sent again with the same ``request_id``, they get it
    again and change nothing. None: a repetition cannot be recognised.
    """

    request_id: str | None = None


class PoolRequested(Stimulus, frozen=True, kw_only=True):
    """Somebody wants this pool to exist like this."""

    spec: PoolSpec
    #: Whether a pool of the same name and another definition is refused.
    must_be_new: bool = False


class PolicyChangeRequested(Stimulus, frozen=True, kw_only=True):
    """Somebody changed the policy to this; ``changes`` names the fields that they gave."""

    policy: PreemptionPolicy
    client: str
    changes: tuple[str, ...]
    level: str | None = None


class StateHandlersGiven(Stimulus, frozen=True, kw_only=True):
    """Somebody registered functions that save and restore the states of a pool's tasks."""

    pool_name: str
    preserver_key: str | None
    restorer_key: str | None


class CordonRequested(Stimulus, frozen=True, kw_only=True):
    """Somebody wants a node to take no new agents, or to take them again."""

    node_id: str
    cordoned: bool


class TaskSubmitted(Request, frozen=True, kw_only=True):
    """A client requests an agent, with a task on it or without."""

    #: Its pool_name may be empty: then ``selector`` chooses among the pools. So may its name.
    agent: AgentSpec
    #: Whether the agent takes its pool's default resources.
    default_resources: bool = False
    task: TaskSpec | None = None
    selector: Selector = ()
    #: False: the user's Ray options place it, and its node is known once it reports.
    choose_node: bool = True
    may_preempt: bool = True
    #: Evict for a placement group, never for quota; refused in a pool that keeps no groups.
    for_group: bool = False
    #: Nothing is changed or remembered.
    dry_run: bool = False
    #: The client that requests it, as host:pid, which may use quota that is held for it; None: unknown.
    client: str | None = None
    #: The key of the saved state that its object is built from; clients cannot set it.
    state_key: str | None = None


class TaskAnnounced(Stimulus, frozen=True, kw_only=True):
    """Somebody says that a task runs on an agent."""

    task: TaskSpec
    agent_name: str


class TaskFinished(Request, frozen=True, kw_only=True):
    """Somebody says that a task is done; its agent goes too if asked."""

    task_id: str
    end_agent: bool = False


class AgentDeletionRequested(Stimulus, frozen=True, kw_only=True):
    """Somebody wants an agent gone."""

    agent_name: str
    #: Whether its placement group goes too; None: what the pool's definition says.
    destroy_group: bool | None = None


class PreemptionRequested(Request, frozen=True, kw_only=True):
    """Somebody evicts by hand: one task (its agent stays), or an agent with all its tasks."""

    task_id: str | None = None
    agent_name: str | None = None
    end_agent: bool = False
    #: Hold the freed quota for this pool; None: for the client.
    for_pool: str | None = None
    #: Who asks; None: nobody for whom quota could be held.
    client: str | None = None
    #: What it is counted as: the reason of the last evaluation that named the task, else manual.
    reason: PreemptionReason = PreemptionReason.MANUAL
    preempt_score: float | None = None


class AgentReported(Stimulus, frozen=True, kw_only=True):
    """The agent runs, and says where."""

    agent_name: str
    incarnation: int
    node_id: str | None = None
    #: The GPUs that Ray gave it, by the names that they have on its node; empty: it cannot tell.
    gpu_ids: tuple[str, ...] = ()
    pid: int = 0
    capabilities: tuple[str, ...] = ()
    actor_name: str = ""
    actor_namespace: str = ""
    state_restored: bool | None = None


class AgentStartFailed(Stimulus, frozen=True, kw_only=True):
    """The agent could not be made; nothing of it lives."""

    agent_name: str
    incarnation: int
    reason: Reason
    error: str


class AgentGone(Stimulus, frozen=True, kw_only=True):
    """The agent's process is gone, by our hand or not."""

    agent_name: str
    incarnation: int


class GroupCreated(Stimulus, frozen=True, kw_only=True):
    """Ray has placed a group as it was asked to."""

    group_id: str


class GroupCreateFailed(Stimulus, frozen=True, kw_only=True):
    """Ray has not placed a group, and it was withdrawn: nothing of it is left."""

    group_id: str
    error: str


class GroupGone(Stimulus, frozen=True, kw_only=True):
    """A group is gone from Ray, by our hand or not."""

    group_id: str


class AgentRestarted(Stimulus, frozen=True, kw_only=True):
    """Ray restarted the agent's process by itself (max_restarts); it says so."""

    agent_name: str
    incarnation: int
    pid: int
    #: Where Ray put it; None: not known.
    node_id: str | None = None
    gpu_ids: tuple[str, ...] = ()


class RebuildRequested(Request, frozen=True, kw_only=True):
    """Somebody wants a lost agent made again, with its tasks, from the last saved state."""

    agent_name: str


class StateStored(Stimulus, frozen=True, kw_only=True):
    """The saved state of a task that is being evicted lies in the store."""

    task_id: str
    state_key: str
    consistent: bool
    source: str


class StateNotSaved(Stimulus, frozen=True, kw_only=True):
    """The present state of a task that is being evicted is not in the store; an earlier one may be."""

    task_id: str
    error: str


class CancelAnswered(Stimulus, frozen=True, kw_only=True):
    """The cancellation of a task that is evicted without its agent has ended, with or without success."""

    task_id: str
    cancel_success: bool
    #: Whether the agent lives and its method runs on as if nothing had been asked.
    runs_on: bool = False
    #: Whether ``cancel()`` did not return in time; it may never return, so the agent is ended.
    timed_out: bool = False
    error: str = ""


class ClassProbed(Stimulus, frozen=True, kw_only=True):
    """A class was seen to load."""

    class_key: str


class ClusterObserved(Stimulus, frozen=True, kw_only=True):
    """The living nodes, all of them."""

    nodes: tuple[NodeReport, ...]


class ClockTicked(Stimulus, frozen=True, kw_only=True):
    """Time went by; holds and remembered answers may be over."""


class StatesOutlived(Stimulus, frozen=True, kw_only=True):
    """Saved states of preempted tasks are too old, or too many, to be kept."""

    state_keys: tuple[str, ...]


class RecoveryObserved(Stimulus, frozen=True, kw_only=True):
    """After a recovery: which agents live, as (name, incarnation); all others do not."""

    living: frozenset[tuple[str, int]]
    #: The placement groups that live in Ray, by id; all others do not.
    groups: frozenset[str] = frozenset()


class SupervisorBegan(Stimulus, frozen=True, kw_only=True):
    """A supervisor took over this state."""

    epoch: int
    #: Numbers of agents and groups that may have been given since, and are not given again.
    gap: int = 0


AnyStimulus = Union[
    PoolRequested,
    PolicyChangeRequested,
    StateHandlersGiven,
    CordonRequested,
    TaskSubmitted,
    TaskAnnounced,
    TaskFinished,
    AgentDeletionRequested,
    PreemptionRequested,
    AgentReported,
    AgentStartFailed,
    AgentGone,
    GroupCreated,
    GroupCreateFailed,
    GroupGone,
    AgentRestarted,
    RebuildRequested,
    StateStored,
    StateNotSaved,
    CancelAnswered,
    ClassProbed,
    ClusterObserved,
    ClockTicked,
    StatesOutlived,
    RecoveryObserved,
    SupervisorBegan,
]

#: The stimuli that are requests.
AnyRequest = Union[TaskSubmitted, TaskFinished, PreemptionRequested, RebuildRequested]


class PreemptionQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A dry run of the preemption decision; with resources, of the victim search too."""

    priority: float
    pool_name: str
    labels: dict[str, str] = {}
    resources: Resources | None = None
    limit: int = 100
