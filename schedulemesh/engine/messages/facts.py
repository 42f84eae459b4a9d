"""Facts: what has become true. They are stored in the journal, and replaying them gives the state again.

Each contains everything that it changes, so a replay makes no decision. Facts are named in the past tense
and stored as tagged JSON objects; ``at`` is in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.actor_names import ActorName, ActorNames
from schedulemesh.domain.agent import AgentSpec, Death, MemberProcess
from schedulemesh.domain.end_reasons import EndReason, ReturnReason, TaskEndReason
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import GroupShape, Place, Unplaced
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.sentences import Text
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, EndState, TaskSpec
from schedulemesh.engine.messages.audit_facts import AnyAuditFact
from schedulemesh.engine.messages.cohort_facts import AnyCohortFact
from schedulemesh.engine.messages.demand_facts import AnyDemandFact
from schedulemesh.engine.messages.drain_facts import DrainEnded, DrainStarted
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.engine.messages.limit_facts import AnyLimitFact
from schedulemesh.engine.messages.measurement_facts import AnyMeasurement
from schedulemesh.engine.messages.outcomes import Candidate, RequestOutcome
from schedulemesh.engine.messages.pool_facts import AnyPoolFact
from schedulemesh.engine.messages.queue_facts import AnyQueueFact
from schedulemesh.engine.messages.token_facts import AnyTokenFact
from schedulemesh.engine.messages.window_facts import AnyWindowFact

#: Incremented with every change of what is stored: an older journal is migrated, a newer one refused, so that
#: no version reads half of what another has written.
FORMAT_VERSION = 5


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of a claim and the pool whose quota pays for it."""

    pool_name: str
    amount: Resources


def merged(shares: Iterable[Share]) -> tuple[Share, ...]:
    """The same shares with one entry per pool."""
    total: dict[str, Resources] = {}
    for share in shares:
        total[share.pool_name] = total.get(share.pool_name, NOTHING) + share.amount
    return tuple(Share(pool_name=name, amount=amount) for name, amount in total.items() if amount)


class Devices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Units taken of each GPU device of a node.

    A device is an index into the node's list of devices, unrelated to the name that an agent reports.
    """

    #: (index of the device, units).
    units: tuple[tuple[int, int], ...] = ()


class PoolEnsured(Fact, tag="pool_ensured", frozen=True, kw_only=True):
    """The pool exists with this definition, which replaces an earlier one of the same name."""

    spec: PoolSpec
    at: float


class StateHandlersRegistered(Fact, tag="state_handlers_registered", frozen=True, kw_only=True):
    """The functions that save and restore states of this pool's tasks, by the keys of their stored bytes."""

    pool_name: str
    preserver_key: str | None = None
    restorer_key: str | None = None


class PolicyChanged(Fact, tag="policy_changed", frozen=True, kw_only=True):
    """The policy in force from now on, and who changed what of it."""

    policy: PreemptionPolicy
    at: float
    client: str
    changes: tuple[str, ...] = ()
    #: The named aggressiveness level, if the change named one.
    level: str | None = None


class NodeSeen(Fact, tag="node_seen", frozen=True, kw_only=True):
    """The node is alive, with these resources and labels."""

    report: NodeReport
    at: float


class NodeLost(Fact, tag="node_lost", frozen=True, kw_only=True):
    """The node has left the cluster. Its agents keep their quota until they are known to have ended."""

    node_id: str
    at: float


class NodeCordoned(Fact, tag="node_cordoned", frozen=True, kw_only=True):
    """The node accepts new agents no longer, or again."""

    node_id: str
    cordoned: bool
    at: float


class AgentAdmitted(Fact, tag="agent_admitted", frozen=True, kw_only=True):
    """An agent was admitted, with its task if it has one: the part of its claim that is free is reserved."""

    agent: AgentSpec
    incarnation: int
    at: float
    task: TaskSpec | None = None
    #: The quota that is reserved now, by the pool that it belongs to.
    shares: tuple[Share, ...] = ()
    #: Where it will run.
    place: Place = Unplaced()
    #: What of the claim is held now on the node where it is placed without a group (GPUs are in ``devices``).
    held: Resources = NOTHING
    #: The devices that are assumed until the agent reports.
    devices: Devices = Devices()
    #: The tasks that are evicted for it, highest score first; it starts when their agents have ended.
    evicting: tuple[Candidate, ...] = ()
    #: Agents that were leaving already and whose capacity it has claimed, beside its victims.
    waits_for_agents: tuple[str, ...] = ()
    #: The quota that these and its victims hold and it gets from them, by the pool that it belongs to.
    promised: tuple[Share, ...] = ()
    request_id: str | None = None
    #: The key of the saved state that its object is built from; None: it starts from the beginning.
    state_key: str | None = None
    #: Groups that are removed or created for it; it starts when all of these are done.
    waits_for_groups: tuple[str, ...] = ()
    #: False: the user's Ray options place it, and its node is known once it reports.
    choose_node: bool = True
    #: What happened to the task before, where it has run and did not wait in the queue.
    attempts: Attempts = FIRST_ATTEMPT
    #: Its order value in the queue, where tasks wait on that it came before and might be evicted for; None:
    #: there are none.
    order_value: float | None = None
    #: Seconds that this attempt of its task may run; None: no limit.
    max_run_s: float | None = None
    #: The actors of a gang's members in the order of their ranks; of another agent that of its process, if
    #: the user has chosen its name. Empty: see ``ActorNames.of_process``.
    actors: tuple[ActorName, ...] = ()


class ClaimGrew(Fact, tag="claim_grew", frozen=True, kw_only=True):
    """A waiting agent received what a victim freed: quota, and resources of its node."""

    agent_name: str
    at: float
    shares: tuple[Share, ...] = ()
    held: Resources = NOTHING
    devices: Devices = Devices()


class AgentReady(Fact, tag="agent_ready", frozen=True, kw_only=True):
    """The claim of a waiting agent is complete, so it can be started."""

    agent_name: str
    at: float


class AgentStarted(Fact, tag="agent_started", frozen=True, kw_only=True):
    """The agent is running, on the node and devices that it reported. Its claim is committed."""

    agent_name: str
    incarnation: int
    at: float
    node_id: str | None = None
    #: Its GPUs by their names on the node; empty: it does not know them.
    gpu_ids: tuple[str, ...] = ()
    pid: int = 0
    #: The control methods that its class has.
    capabilities: tuple[str, ...] = ()
    #: Its Ray name and namespace, by which it is found again.
    actor_name: str = ""
    actor_namespace: str = ""
    #: Whether a saved state was restored into its object; None: there was none.
    state_restored: bool | None = None
    #: Of a gang: its members in the order of their ranks, of whom the first is described above too.
    members: tuple[MemberProcess, ...] = ()
    #: The group in which it alone runs, which the next agent may take over; empty: none, or a pool's.
    room: str = ""


class AgentProcessRestarted(Fact, tag="agent_process_restarted", frozen=True, kw_only=True):
    """Ray restarted the agent's process by itself; its object was constructed again."""

    agent_name: str
    pid: int
    at: float
    #: The node that it runs on now; None: the same as before.
    node_id: str | None = None
    gpu_ids: tuple[str, ...] = ()


class LossReported(Fact, tag="loss_reported", frozen=True, kw_only=True):
    """A health check reported that this agent is lost and cannot be rebuilt."""

    agent_name: str


class AgentEnding(Fact, tag="agent_ending", frozen=True, kw_only=True):
    """The agent is being ended; its claim is held until its process has ended."""

    agent_name: str
    reason: EndReason
    at: float
    #: The incoming agent that gets its resources, if it is a victim of a submission.
    leaves_for: str | None = None
    #: The pool, or the client, for which its quota is held after its end.
    hold_for: str | None = None
    hold_for_client: str | None = None
    #: The request that its end answers.
    request_id: str | None = None
    #: Whether its placement group is removed with it; None: as the pool's definition says.
    destroy_group: bool | None = None


class EndingAgentDeleted(Fact, tag="ending_agent_deleted", frozen=True, kw_only=True):
    """The deletion of an agent that is being terminated was requested: its tasks do not return."""

    agent_name: str
    #: Whether its placement group is removed with it; None: as was decided before.
    destroy_group: bool | None = None


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """A task that gave its claim back before it ran, and waits in the queue again. It has not failed."""

    task_id: str
    reason: ReturnReason


class AgentEnded(Fact, tag="agent_ended", frozen=True, kw_only=True):
    """The agent has ended: its claim is released, and its tasks are removed."""

    agent_name: str
    incarnation: int
    at: float
    reason: EndReason
    #: Why it could not be started, or how it was lost; a text where others say why, such as an exception.
    #: Empty: neither, or nobody knows.
    error: Text = ""
    #: How its process died; None: it was terminated, or that is not known.
    death: Death | None = None
    #: The task that it was to run, where that joins the queue again in the same step; None: there is none.
    returned: Returned | None = None


class GroupPlanned(Fact, tag="group_planned", frozen=True, kw_only=True):
    """A placement group is planned; its bundles take their resources as these become free."""

    group_id: str
    pool_name: str
    shape: GroupShape
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    at: float
    reserved: bool = False
    #: The agent that it is created for.
    agent_name: str | None = None


class GroupGrew(Fact, tag="group_grew", frozen=True, kw_only=True):
    """One bundle of a planned group took resources of its node."""

    group_id: str
    bundle: int
    held: Resources = NOTHING
    devices: Devices = Devices()


class GroupWhole(Fact, tag="group_whole", frozen=True, kw_only=True):
    """A planned group has all its resources; Ray is asked to create it."""

    group_id: str


class GroupReady(Fact, tag="group_ready", frozen=True, kw_only=True):
    """Ray has placed the group."""

    group_id: str
    at: float


class GroupClaimed(Fact, tag="group_claimed", frozen=True, kw_only=True):
    """The group will be removed for this agent, which takes its resources, once no agent runs in it. Where it
    goes for others already, the agent takes what they leave.
    """

    group_id: str
    for_agent: str


class GroupEnding(Fact, tag="group_ending", frozen=True, kw_only=True):
    """The group is being removed; its resources are held until it is gone."""

    group_id: str
    #: The agent that takes its resources.
    for_agent: str | None = None
    #: Whether it is a reserved group that is not created again until its pool is ensured.
    dropped: bool = False


class GroupEnded(Fact, tag="group_ended", frozen=True, kw_only=True):
    """The group has been removed, or was not placed."""

    group_id: str
    at: float
    #: Why Ray did not place it; empty: it was removed.
    error: str = ""


class TaskRegistered(Fact, tag="task_registered", frozen=True, kw_only=True):
    """A task runs on an agent; if the agent is unknown, the task holds no quota."""

    task: TaskSpec
    agent_name: str
    at: float
    #: Seconds that it may run; None: no limit.
    max_run_s: float | None = None


class TaskEnded(Fact, tag="task_ended", frozen=True, kw_only=True):
    """The task has ended, other than by its eviction or with its agent."""

    task_id: str
    at: float
    state: EndState = EndState.COMPLETED
    #: Why it was not completed; None: it was.
    reason: TaskEndReason | None = None
    error: str = ""
    #: The key of the stored result or exception; None: there is none.
    result_key: str | None = None


class EvictionStarted(Fact, tag="eviction_started", frozen=True, kw_only=True):
    """The task is being evicted."""

    task_id: str
    at: float
    #: The rule that allowed it.
    reason: PreemptionReason
    preempt_score: float | None = None
    #: The agent that it is evicted for; None: it is for none, and the reason says why.
    for_agent: str | None = None
    #: The request that is answered when it has been evicted.
    request_id: str | None = None
    #: The client that requested it, or the window.
    client: str = ""


class StateSaved(Fact, tag="state_saved", frozen=True, kw_only=True):
    """The state of a task is stored under this key."""

    task_id: str
    state_key: str
    at: float
    #: When the state was taken; None: ``at``.
    saved_at: float | None = None
    #: False: it is the payload and the last metrics, from which no work can be restored.
    restorable: bool = True

    @property
    def work_saved_at(self) -> float | None:
        """Until when the work of the task can be restored; None: nothing of it can."""
        if not self.restorable:
            return None
        return self.at if self.saved_at is None else min(self.saved_at, self.at)


class WorkSaved(Fact, tag="work_saved", frozen=True, kw_only=True):
    """A job or a lease has written by itself what its work until then can be restored from."""

    task_id: str
    saved_at: float
    at: float

    @property
    def work_saved_at(self) -> float:
        """Until when the work of the task can be restored."""
        return min(self.saved_at, self.at)


class SavingFailed(Fact, tag="saving_failed", frozen=True, kw_only=True):
    """The state of a task that is being evicted could not be saved; a state that was saved before is kept."""

    task_id: str
    at: float
    error: str


class TaskPreempted(Fact, tag="task_preempted", frozen=True, kw_only=True):
    """The task was preempted: it is counted under its reason, and no longer part of the state."""

    task: TaskSpec
    agent_name: str
    reason: PreemptionReason
    at: float
    preempt_score: float | None = None
    #: How its agent was created, which is needed to run it again; None: the agent was created elsewhere.
    agent: AgentSpec | None = None
    #: False: it could not be cancelled, and is removed without being counted.
    counted: bool = True
    #: Why its state was not saved at that time; empty: it was saved, or it has none.
    save_error: str = ""
    #: The position of its first submission among all submissions; 0: it was only registered.
    number: int = 0
    attempts: Attempts = FIRST_ATTEMPT
    choose_node: bool = True


class EvictionFailed(Fact, tag="eviction_failed", frozen=True, kw_only=True):
    """The task could not be cancelled and runs on."""

    task_id: str
    at: float


class StatesForgotten(Fact, tag="states_forgotten", frozen=True, kw_only=True):
    """These saved states are no longer kept; their tasks stay on record without a state."""

    state_keys: tuple[str, ...]


class QuotaHeld(Fact, tag="quota_held", frozen=True, kw_only=True):
    """Quota is held for one pool or one client, until it is used or expires: what a requested eviction has
    freed, or what a task had that waits for its next attempt.
    """

    hold_id: str
    for_pool: str | None = None
    for_client: str | None = None
    shares: tuple[Share, ...]
    at: float
    #: Seconds since 1970.
    until: float


class HoldShrank(Fact, tag="hold_shrank", frozen=True, kw_only=True):
    """Some of a hold was used or has expired; these shares remain. Without any it ends."""

    hold_id: str
    at: float
    shares: tuple[Share, ...] = ()


class RequestAnswered(Fact, tag="request_answered", frozen=True, kw_only=True):
    """The outcome of a request, returned again when the request is repeated."""

    request_id: str
    at: float
    outcome: RequestOutcome


class AnswersForgotten(Fact, tag="answers_forgotten", frozen=True, kw_only=True):
    """Outcomes of requests are forgotten, oldest first, up to the first one of this time or later."""

    before: float


class EpochBegun(Fact, tag="epoch_begun", frozen=True, kw_only=True):
    """A supervisor took over with this epoch; agents ignore commands of a lower one."""

    epoch: int
    at: float
    #: How many numbers of agents and groups are skipped.
    gap: int = 0
    #: How it names the actors of agents that are admitted from now on.
    actor_names: ActorNames = ActorNames()


AnyFact = Union[
    PoolEnsured,
    AnyCohortFact,
    AnyPoolFact,
    StateHandlersRegistered,
    PolicyChanged,
    NodeSeen,
    NodeLost,
    NodeCordoned,
    AgentAdmitted,
    AnyQueueFact,
    DrainStarted,
    DrainEnded,
    AnyWindowFact,
    ClaimGrew,
    AgentReady,
    AgentStarted,
    AgentProcessRestarted,
    LossReported,
    AgentEnding,
    EndingAgentDeleted,
    AgentEnded,
    GroupPlanned,
    GroupGrew,
    GroupWhole,
    GroupReady,
    GroupClaimed,
    GroupEnding,
    GroupEnded,
    JobClaimMoved,
    TaskRegistered,
    TaskEnded,
    EvictionStarted,
    StateSaved,
    WorkSaved,
    SavingFailed,
    TaskPreempted,
    EvictionFailed,
    StatesForgotten,
    QuotaHeld,
    HoldShrank,
    RequestAnswered,
    AnswersForgotten,
    EpochBegun,
    AnyTokenFact,
    AnyAuditFact,
    AnyMeasurement,
    AnyLimitFact,
    AnyDemandFact,
]
