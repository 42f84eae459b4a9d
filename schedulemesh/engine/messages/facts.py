"""Facts: what is now true. They are journalled, and folding them gives the state back.

Each says all that it changes, so that a replay decides nothing. Facts are past tense, carry their time
``at`` (seconds since 1970) where it matters, and are written as JSON objects with a tag.
"""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import EndReason, PreemptionReason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Candidate, RequestOutcome

#: Incremented when the meaning of a stored fact changes; an older journal is migrated, a newer one refused.
FORMAT_VERSION = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all facts. The tag of each is explicit, so that renaming a class changes nothing stored."""


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of a claim and the pool whose quota pays for it."""

    pool_name: str
    amount: Resources


class Devices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Units taken of each GPU device of a node.

    A device is a place in the node's list of devices, which says nothing of its name: names are learnt
    from the agents that report them.
    """

    units: tuple[tuple[int, int], ...] = ()


class PoolEnsured(Fact, tag="pool_ensured", frozen=True, kw_only=True):
    """The pool exists and is like this; it replaces an earlier definition of the same name."""

    spec: PoolSpec


class StateHandlersRegistered(Fact, tag="state_handlers_registered", frozen=True, kw_only=True):
    """How states of this pool's tasks are saved and restored: keys of stored functions."""

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
    """The node lives and is like this."""

    report: NodeReport


class NodeLost(Fact, tag="node_lost", frozen=True, kw_only=True):
    """The node is gone; what claims stood there stand nowhere until their agents are known dead."""

    node_id: str


class NodeCordoned(Fact, tag="node_cordoned", frozen=True, kw_only=True):
    """Whether the node takes new agents."""

    node_id: str
    cordoned: bool


class ClassLoaded(Fact, tag="class_loaded", frozen=True, kw_only=True):
    """The class with this key has loaded in a worker at least once."""

    class_key: str


class AgentAdmitted(Fact, tag="agent_admitted", frozen=True, kw_only=True):
    """An agent is on the book with what is free of its claim; its task, if any, with it."""

    agent: AgentSpec
    incarnation: int
    at: float
    task: TaskSpec | None = None
    #: Who pays for the part that is reserved now.
    shares: tuple[Share, ...] = ()
    #: Where it will live; None: Ray chooses, and the book learns it from the agent's report.
    node_id: str | None = None
    #: What of the claim is held on the node now (GPUs are in ``devices``).
    held: Resources = NOTHING
    #: The devices that the book assumes until the agent reports.
    devices: Devices = Devices()
    #: The tasks that are evicted for it, highest score first; it starts when their agents are gone.
    evicting: tuple[Candidate, ...] = ()
    request_id: str | None = None
    #: The key of the saved state that its object is built from; None: it starts from the beginning.
    state_key: str | None = None
    #: The placement group that it lives in, which holds its room; None: it stands on the node itself.
    group_id: str | None = None
    #: How it came to that group: "reserved", "reused", "created" or "preempted".
    group_path: str = ""
    #: Groups that leave for it, or that are made for it; it starts when all that is done.
    waits_for_groups: tuple[str, ...] = ()


class ClaimGrew(Fact, tag="claim_grew", frozen=True, kw_only=True):
    """A waiting agent took what a victim freed: quota, and room on its node."""

    agent_name: str
    shares: tuple[Share, ...] = ()
    held: Resources = NOTHING
    devices: Devices = Devices()


class AgentReady(Fact, tag="agent_ready", frozen=True, kw_only=True):
    """The claim of a waiting agent is whole; its start may begin."""

    agent_name: str
    at: float


class AgentStarted(Fact, tag="agent_started", frozen=True, kw_only=True):
    """The agent runs; node and devices are as it reports them. Its claim is committed."""

    agent_name: str
    incarnation: int
    at: float
    node_id: str | None = None
    #: Its GPUs by their names on the node; empty: it cannot tell.
    gpu_ids: tuple[str, ...] = ()
    pid: int = 0
    #: Which control methods its class has.
    capabilities: tuple[str, ...] = ()
    #: Its Ray name and namespace, by which it is found again.
    actor_name: str = ""
    actor_namespace: str = ""
    #: Whether a saved state was given back to its object; None: there was none to give.
    state_restored: bool | None = None


class AgentProcessRestarted(Fact, tag="agent_process_restarted", frozen=True, kw_only=True):
    """Ray restarted the agent's process by itself; its object was built anew."""

    agent_name: str
    pid: int
    at: float
    #: Where it lives now; None: where it was.
    node_id: str | None = None
    gpu_ids: tuple[str, ...] = ()


class LossReported(Fact, tag="loss_reported", frozen=True, kw_only=True):
    """Somebody was told that this agent is lost and cannot be rebuilt."""

    agent_name: str


class AgentEnding(Fact, tag="agent_ending", frozen=True, kw_only=True):
    """The agent is being ended; its claim is held until its process is gone."""

    agent_name: str
    reason: EndReason
    at: float
    #: Once it is gone, its quota is held for this pool, or for this client.
    hold_for: str | None = None
    hold_for_client: str | None = None
    #: Which request its end answers.
    request_id: str | None = None
    #: Whether its placement group goes too; None: what the pool's definition says.
    destroy_group: bool | None = None


class AgentEnded(Fact, tag="agent_ended", frozen=True, kw_only=True):
    """The agent is gone; its claim is released and its tasks are off the book."""

    agent_name: str
    incarnation: int
    at: float
    reason: EndReason


class GroupPlanned(Fact, tag="group_planned", frozen=True, kw_only=True):
    """A placement group is on the book; it takes its room as that becomes free."""

    group_id: str
    pool_name: str
    shape: GroupShape
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    at: float
    reserved: bool = False
    #: The agent that it is made for.
    agent_name: str | None = None


class GroupGrew(Fact, tag="group_grew", frozen=True, kw_only=True):
    """One bundle of a planned group took room on its node."""

    group_id: str
    bundle: int
    held: Resources = NOTHING
    devices: Devices = Devices()


class GroupWhole(Fact, tag="group_whole", frozen=True, kw_only=True):
    """A planned group has all its room; Ray makes it now."""

    group_id: str


class GroupReady(Fact, tag="group_ready", frozen=True, kw_only=True):
    """Ray has placed the group."""

    group_id: str
    at: float


class GroupClaimed(Fact, tag="group_claimed", frozen=True, kw_only=True):
    """The group goes for this agent, which takes its room, as soon as nobody lives in it any more."""

    group_id: str
    for_agent: str


class GroupEnding(Fact, tag="group_ending", frozen=True, kw_only=True):
    """The group is being removed; its room is held until it is gone."""

    group_id: str
    #: The agent that takes its room.
    for_agent: str | None = None
    #: Whether it is a reserved one that is not to be made again until its pool is ensured.
    dropped: bool = False


class GroupEnded(Fact, tag="group_ended", frozen=True, kw_only=True):
    """The group is gone."""

    group_id: str
    at: float
    #: Why Ray did not place it; empty: that is not why it is gone.
    error: str = ""


class TaskRegistered(Fact, tag="task_registered", frozen=True, kw_only=True):
    """A task runs on an agent; the agent may be unknown, then the task holds no quota."""

    task: TaskSpec
    agent_name: str
    at: float


class TaskCompleted(Fact, tag="task_completed", frozen=True, kw_only=True):
    """The task is done."""

    task_id: str
    at: float


class EvictionStarted(Fact, tag="eviction_started", frozen=True, kw_only=True):
    """The task is a victim from now on, and why."""

    task_id: str
    at: float
    #: The rule that allowed it.
    reason: PreemptionReason
    preempt_score: float | None = None
    #: The agent that it leaves for; None: evicted by hand.
    for_agent: str | None = None
    #: Which request its eviction answers.
    request_id: str | None = None


class StateSaved(Fact, tag="state_saved", frozen=True, kw_only=True):
    """The state of a task is stored under a key."""

    task_id: str
    state_key: str
    at: float
    #: False: saved beside running methods, so it may be torn.
    consistent: bool = True
    #: "preserver", "save_state" or "payload": who made it.
    source: str = "payload"


class SavingFailed(Fact, tag="saving_failed", frozen=True, kw_only=True):
    """The state of a task that is being evicted could not be saved; what was saved before stays."""

    task_id: str
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
    #: Why its state of that moment was not saved; empty: it was, or it has none.
    save_error: str = ""


class EvictionFailed(Fact, tag="eviction_failed", frozen=True, kw_only=True):
    """The task could not be cancelled and runs on."""

    task_id: str


class StatesForgotten(Fact, tag="states_forgotten", frozen=True, kw_only=True):
    """These saved states are kept no longer; the tasks that they were of stay on record without one."""

    state_keys: tuple[str, ...]


class QuotaHeld(Fact, tag="quota_held", frozen=True, kw_only=True):
    """Quota freed by hand is kept, as a loan for one pool or for one client, until it is used or the time is
    up.
    """

    hold_id: str
    for_pool: str | None = None
    for_client: str | None = None
    shares: tuple[Share, ...]
    until: float


class HoldShrank(Fact, tag="hold_shrank", frozen=True, kw_only=True):
    """What is left of a hold; nothing left ends it."""

    hold_id: str
    shares: tuple[Share, ...] = ()


class RequestAnswered(Fact, tag="request_answered", frozen=True, kw_only=True):
    """The answer to a request, given again when the request is repeated."""

    request_id: str
    at: float
    outcome: RequestOutcome


class AnswersForgotten(Fact, tag="answers_forgotten", frozen=True, kw_only=True):
    """The oldest answers are no longer remembered, up to the first that was given at this time or later."""

    before: float


class EpochBegun(Fact, tag="epoch_begun", frozen=True, kw_only=True):
    """A supervisor took over with this epoch; commands of a lower one are void."""

    epoch: int
    at: float
    #: So many numbers of agents and groups are left out.
    gap: int = 0


AnyFact = Union[
    PoolEnsured,
    StateHandlersRegistered,
    PolicyChanged,
    NodeSeen,
    NodeLost,
    NodeCordoned,
    ClassLoaded,
    AgentAdmitted,
    ClaimGrew,
    AgentReady,
    AgentStarted,
    AgentProcessRestarted,
    LossReported,
    AgentEnding,
    AgentEnded,
    GroupPlanned,
    GroupGrew,
    GroupWhole,
    GroupReady,
    GroupClaimed,
    GroupEnding,
    GroupEnded,
    TaskRegistered,
    TaskCompleted,
    EvictionStarted,
    StateSaved,
    SavingFailed,
    TaskPreempted,
    EvictionFailed,
    StatesForgotten,
    QuotaHeld,
    HoldShrank,
    RequestAnswered,
    AnswersForgotten,
    EpochBegun,
]
