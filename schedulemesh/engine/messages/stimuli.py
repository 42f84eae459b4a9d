"""Stimuli: what happened. Together with the time passed to ``Engine.handle``, the engine's only input."""

from __future__ import annotations

from typing import Union

import msgspec
from msgspec import UNSET, UnsetType

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.actor_names import ActorNames
from schedulemesh.domain.agent import AgentSpec, Death, MemberProcess
from schedulemesh.domain.audit import AuditRecord
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.labels import Selector
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, TaskSpec
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages.audit_facts import ChangeAnswered
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim, JobWorkObserved
from schedulemesh.engine.messages.stimulus import RequestStimulus, Stimulus


class PoolRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requested a pool with this definition."""

    spec: PoolSpec
    #: Whether the request is refused if a pool of the same name has a different definition.
    must_be_new: bool = False
    #: Whether the request is refused for a pool that is being deleted.
    must_last: bool = False


class CohortRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requested a cohort with this definition."""

    spec: CohortSpec
    #: Whether the request is refused if a cohort of the same name has a different definition.
    must_be_new: bool = False


class PoolDeletionRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client deletes a pool."""

    pool_name: str
    #: Whether a pool that is in use is drained first; False: it is refused.
    drain: bool = False
    #: Seconds from now by which its agents should have ended; None: they are evicted at once.
    deadline_s: float | None = None
    client: str = "unknown"


class PoolRenameRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client gives a pool another name."""

    pool_name: str
    new_name: str


class CohortDeletionRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client deletes a cohort."""

    name: str


class CohortRenameRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client gives a cohort another name."""

    name: str
    new_name: str


class PolicyChangeRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client changed the policy; ``changes`` names the fields that it gave."""

    policy: PreemptionPolicy
    client: str
    changes: tuple[str, ...]
    level: str | None = None


class QueuePolicyChangeRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client changed the policy of the queue; ``changes`` names the fields that it gave."""

    policy: QueuePolicy
    client: str
    changes: tuple[str, ...]


class StateHandlersGiven(RequestStimulus, frozen=True, kw_only=True):
    """A client registered functions that save and restore the states of a pool's tasks."""

    pool_name: str
    preserver_key: str | None
    restorer_key: str | None


class CordonRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client closed a node to new agents, or opened it again."""

    node_id: str
    cordoned: bool


class DrainRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client drains a node or a pool, or ends its drain."""

    #: One of the two is given.
    node_id: str | None = None
    pool_name: str | None = None
    drained: bool = True
    #: Seconds from now by which all agents should have ended; None: there is no time limit.
    deadline_s: float | None = None
    client: str = "unknown"


class WindowRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requests a maintenance window."""

    window: MaintenanceWindow
    #: Whether it takes the place of a different one of its name.
    replace: bool = False
    client: str = "unknown"


class WindowDeletionRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client deletes a maintenance window."""

    name: str
    client: str = "unknown"


class TaskSubmitted(RequestStimulus, frozen=True, kw_only=True):
    """A client requests an agent, with a task on it or without."""

    #: Its pool_name may be empty: then ``selector`` chooses among the pools. So may its name.
    agent: AgentSpec
    #: Whether the agent gets its pool's default resources.
    default_resources: bool = False
    task: TaskSpec | None = None
    selector: Selector = ()
    #: False: the user's Ray options place it, and its node is known once it reports.
    choose_node: bool = True
    may_preempt: bool = True
    #: Evict for a placement group, never for quota; refused in a pool without groups.
    for_group: bool = False
    #: Whether nothing is to be changed or remembered.
    dry_run: bool = False
    #: The client that requests it, as host:pid, which may use quota that is held for it; None: unknown.
    client: str | None = None
    #: The key of the saved state that its object is built from; clients cannot set it.
    state_key: str | None = None
    #: What happened to the task before, where it has run and does not wait in the queue; clients cannot set
    #: it.
    attempts: Attempts = FIRST_ATTEMPT
    #: Whether the task waits in the queue if it does not fit now.
    queue: bool = False
    #: Seconds after which a task that waits in the queue is cancelled; None: it waits without limit.
    wait_s: float | None = None
    #: Whether the request is answered when the task runs, or cannot; False: when it is in the queue.
    until_runs: bool = False

    @property
    def each_alternative(self) -> tuple[TaskSubmitted, ...]:
        """The same for each of the ways in which its agent may run, the preferred one first."""
        if not self.agent.alternatives:
            return (self,)
        agents = self.agent.each_alternative
        return tuple(msgspec.structs.replace(self, agent=agent) for agent in agents)


class QueuedTaskChanged(RequestStimulus, frozen=True, kw_only=True):
    """A client changed how a task waits in the queue; what is None or False stays as it is."""

    task_id: str
    #: True: it does not start until it is released; False: it is released.
    held: bool | None = None
    priority: float | None = None
    #: Whether it comes before all tasks that wait now.
    to_front: bool = False


class TimeLimitRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client set how long a task may run."""

    task_id: str
    #: Seconds from the start of an attempt; None: as its pool says.
    max_run_s: float | None = None
    #: Whether it may run for longer by that than before.
    may_lengthen: bool = True


class TaskCancellationRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client cancelled a task, or the runtime ends a lease that nobody holds any more."""

    task_id: str
    reason: TaskEndReason = TaskEndReason.CANCELLED
    error: str = ""


class TasksCancellationRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client cancelled several tasks."""

    task_ids: tuple[str, ...]


class TaskAnnounced(RequestStimulus, frozen=True, kw_only=True):
    """A client registered a task that runs on an agent."""

    task: TaskSpec
    agent_name: str


class TaskFinished(RequestStimulus, frozen=True, kw_only=True):
    """A client completed a task, and with ``end_agent`` its agent is to be terminated, too."""

    task_id: str
    end_agent: bool = False


class RunEnded(Stimulus, frozen=True, kw_only=True):
    """The method that a task consists of has returned or raised, or could not be called."""

    task_id: str
    agent_name: str
    incarnation: int
    #: The key of the stored result or exception; None: nothing is stored.
    result_key: str | None = None
    #: Why it was not completed; None: it returned, and the result is stored.
    reason: TaskEndReason | None = None
    #: One line for people; empty: it returned.
    error: str = ""
    #: Whether the agent's ``cancel()`` was called before by the scheduler, so that it may have ended early.
    cancelled: bool = False


class AgentDeletionRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requested the termination of an agent."""

    agent_name: str
    #: Whether its placement group is to be removed, too; None: as the pool's definition says.
    destroy_group: bool | None = None


class PreemptionRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client evicts manually: one task (its agent is kept), or an agent with all its tasks."""

    task_id: str | None = None
    agent_name: str | None = None
    end_agent: bool = False
    #: Hold the freed quota for this pool; None: for the client.
    for_pool: str | None = None
    #: The client, for which quota is held; None: unknown.
    client: str | None = None
    #: The recorded reason: that of the last evaluation that named the task, else manual.
    reason: PreemptionReason = PreemptionReason.MANUAL
    preempt_score: float | None = None


class AgentReported(Stimulus, frozen=True, kw_only=True):
    """The agent's object is constructed, and the agent reported where it runs."""

    agent_name: str
    incarnation: int
    node_id: str | None = None
    #: The ids of the GPUs that Ray assigned to it; empty: unknown.
    gpu_ids: tuple[str, ...] = ()
    pid: int = 0
    capabilities: tuple[str, ...] = ()
    actor_name: str = ""
    actor_namespace: str = ""
    state_restored: bool | None = None
    #: Of a gang: its members in the order of their ranks, of whom the first is described above too.
    members: tuple[MemberProcess, ...] = ()
    #: See ``AgentStarted``.
    room: str = ""


class AgentStartFailed(Stimulus, frozen=True, kw_only=True):
    """The agent could not be started; no process of it exists."""

    agent_name: str
    incarnation: int
    reason: Reason
    error: str
    #: The traceback of what its class raised; empty: it raised nothing.
    detail: str = ""
    #: Whether the state that its object was to be built from could not be restored.
    restore_failed: bool = False
    #: How its process died; None: it did not die by itself, or that is not known.
    death: Death | None = None
    #: Whether its node or its placement group is lost, which may be known before those are missing here.
    room_lost: bool = False


class AgentGone(Stimulus, frozen=True, kw_only=True):
    """The agent's process has ended, whether it was terminated or died."""

    agent_name: str
    incarnation: int
    #: How it died; None: it was terminated, or that is not known.
    death: Death | None = None
    #: Host names of nodes that were lost, by id, as far as they are known.
    hosts: dict[str, str] = msgspec.field(default_factory=dict)


class GroupCreated(Stimulus, frozen=True, kw_only=True):
    """Ray has placed a group as requested."""

    group_id: str


class GroupCreateFailed(Stimulus, frozen=True, kw_only=True):
    """Ray has not placed a group, and it was withdrawn."""

    group_id: str
    error: str


class GroupGone(Stimulus, frozen=True, kw_only=True):
    """A group no longer exists in Ray, whether it was removed or lost."""

    group_id: str


class AgentRestarted(Stimulus, frozen=True, kw_only=True):
    """Ray restarted the agent's process by itself (max_restarts), and the new process reported it."""

    agent_name: str
    incarnation: int
    pid: int
    #: The node that it runs on; None: unknown.
    node_id: str | None = None
    gpu_ids: tuple[str, ...] = ()


class RebuildRequested(RequestStimulus, frozen=True, kw_only=True):
    """A lost agent is to be rebuilt, with its tasks, from the last saved state."""

    agent_name: str


class TaskAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt of a task, as opposed to a former or later one of the same id."""

    agent_name: str
    #: That of its agent; None: the scheduler does not know the agent.
    incarnation: int | None
    #: When it began, in seconds since 1970.
    started_at: float


class AttemptStimulus(Stimulus, frozen=True, kw_only=True):
    """Base of the results of saving and cancelling a task: they change nothing once the attempt has ended."""

    task_id: str
    #: None: the one that runs.
    attempt: TaskAttempt | None = None


class StateStored(AttemptStimulus, frozen=True, kw_only=True):
    """The state of a task was saved and stored."""

    state_key: str
    #: When the state was taken; None: now.
    saved_at: float | None = None
    #: False: it is the payload and the last metrics, from which no work can be restored.
    restorable: bool = True


class WorkReported(Stimulus, frozen=True, kw_only=True):
    """A job or the holder of a lease reports that it has saved its work by itself."""

    task_id: str
    agent_name: str
    #: When it was saved, in seconds since 1970.
    saved_at: float


class StateNotSaved(AttemptStimulus, frozen=True, kw_only=True):
    """The current state of a task that is being evicted could not be saved; an earlier one stays stored."""

    error: str


class CancelAnswered(AttemptStimulus, frozen=True, kw_only=True):
    """The cancellation of a task that is evicted without its agent has ended, with or without success."""

    cancel_success: bool
    #: Whether the agent is alive and its method continues as if it had not been cancelled.
    runs_on: bool = False
    #: Whether ``cancel()`` did not return in time; it may never return, so the agent is ended.
    timed_out: bool = False
    error: str = ""


class ClassProbed(Stimulus, frozen=True, kw_only=True):
    """A class was loaded successfully."""

    class_key: str


class ClassProbeFailed(Stimulus, frozen=True, kw_only=True):
    """The class of a queued task could not be loaded."""

    task_id: str
    reason: Reason
    error: str


class ClusterObserved(Stimulus, frozen=True, kw_only=True):
    """The complete list of alive nodes, and what external work waits for."""

    nodes: tuple[NodeReport, ...]
    #: None: that was not looked up.
    external_demand: tuple[ExternalDemand, ...] | None = None
    #: See ``AgentGone``.
    hosts: dict[str, str] = msgspec.field(default_factory=dict)


class ClockTicked(Stimulus, frozen=True, kw_only=True):
    """Time has passed; holds and remembered answers may have expired."""

    #: After how many classes of waiting tasks others may be served; 0: after all. Then ``TickContinued``
    #: follows until the tick is finished.
    portion: int = 0


class TickContinued(Stimulus, frozen=True, kw_only=True):
    """The tick goes on that has begun last, if it is not finished."""


class StatesOutlived(Stimulus, frozen=True, kw_only=True):
    """Saved states of preempted tasks are too old, or too large together, to be kept."""

    state_keys: tuple[str, ...]


class RecoveryObserved(Stimulus, frozen=True, kw_only=True):
    """After a restart of the supervisor: the existing agents as (name, incarnation); all others are dead."""

    living: frozenset[tuple[str, int]]
    #: The ids of the placement groups that exist in Ray; all others do not.
    groups: frozenset[str] = frozenset()
    #: How agents died that are dead, by name, as far as that is known.
    deaths: dict[str, Death] = msgspec.field(default_factory=dict)
    #: See ``AgentGone``.
    hosts: dict[str, str] = msgspec.field(default_factory=dict)


class TokenRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requested a token, or another secret for one."""

    #: Of a rotation only the name and the hash count.
    spec: TokenSpec
    rotate: bool = False
    #: Seconds after which it expires; None: it does not.
    lifetime_s: float | None = None
    client: str


class TokenChangeRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requested another role, other limits or another expiry of a token; what is unset stays."""

    name: str
    role: Role | UnsetType = UNSET
    pools: tuple[str, ...] | UnsetType = UNSET
    max_priority: float | UnsetType | None = UNSET
    evict_pools: tuple[str, ...] | UnsetType | None = UNSET
    label_values: dict[str, tuple[str, ...]] | UnsetType = UNSET
    least_max_preemptions: int | UnsetType | None = UNSET
    owner: str | UnsetType = UNSET
    #: In seconds since 1970; None: never.
    expires_at: float | UnsetType | None = UNSET
    client: str


class TokenRevocationRequested(RequestStimulus, frozen=True, kw_only=True):
    """A client requested that a token is accepted no more."""

    name: str
    client: str


class AuthenticationRequested(Stimulus, frozen=True, kw_only=True):
    """Calls over Ray are to need a token."""

    #: The operator's token that is issued where no token of an operator is valid.
    first: TokenSpec


class ChangeWasReceived(Stimulus, frozen=True, kw_only=True):
    """A change is about to be carried out; the engine numbers its record and sets the time."""

    record: AuditRecord


class ChangeWasAnswered(Stimulus, frozen=True, kw_only=True):
    """A change was carried out or refused."""

    fact: ChangeAnswered


class AgentsMeasured(Stimulus, frozen=True, kw_only=True):
    """What agents really use, and what their tasks report, was looked at."""

    #: All agents whose GPUs are idle by the policy, each with the time since when, in seconds since 1970.
    idle: tuple[tuple[str, float], ...] = ()
    #: When tasks end by the progress that they report; None: the estimate counts again.
    ends: tuple[tuple[str, float | None], ...] = ()
    #: All agents with a limit for that whose GPUs are not used, each with the time since when.
    unused: tuple[tuple[str, float], ...] = ()


class SupervisorBegan(Stimulus, frozen=True, kw_only=True):
    """A supervisor has started with this state."""

    epoch: int
    #: How many numbers of agents and groups to skip, because they may have been assigned meanwhile.
    gap: int = 0
    #: How it names the actors of agents.
    actor_names: ActorNames = ActorNames()


AnyStimulus = Union[
    PoolRequested,
    PoolDeletionRequested,
    PoolRenameRequested,
    CohortRequested,
    CohortDeletionRequested,
    CohortRenameRequested,
    PolicyChangeRequested,
    QueuePolicyChangeRequested,
    StateHandlersGiven,
    CordonRequested,
    DrainRequested,
    WindowRequested,
    WindowDeletionRequested,
    TaskSubmitted,
    QueuedTaskChanged,
    TimeLimitRequested,
    TaskCancellationRequested,
    TasksCancellationRequested,
    TaskAnnounced,
    TaskFinished,
    RunEnded,
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
    WorkReported,
    StateNotSaved,
    CancelAnswered,
    ClassProbed,
    ClassProbeFailed,
    ClusterObserved,
    ClockTicked,
    TickContinued,
    StatesOutlived,
    RecoveryObserved,
    SupervisorBegan,
    TokenRequested,
    TokenChangeRequested,
    TokenRevocationRequested,
    AuthenticationRequested,
    ChangeWasReceived,
    ChangeWasAnswered,
    AgentsMeasured,
    JobWorkObserved,
    JobBeyondClaim,
]

#: The stimuli that are requests.
AnyRequest = Union[
    TaskSubmitted,
    QueuedTaskChanged,
    TimeLimitRequested,
    TaskCancellationRequested,
    TaskFinished,
    PreemptionRequested,
    RebuildRequested,
    PoolRequested,
    PoolDeletionRequested,
    PoolRenameRequested,
    CohortRequested,
    CohortDeletionRequested,
    CohortRenameRequested,
    PolicyChangeRequested,
    QueuePolicyChangeRequested,
    StateHandlersGiven,
    CordonRequested,
    DrainRequested,
    WindowRequested,
    WindowDeletionRequested,
    TaskAnnounced,
    AgentDeletionRequested,
    TasksCancellationRequested,
    TokenChangeRequested,
    TokenRequested,
    TokenRevocationRequested,
]
