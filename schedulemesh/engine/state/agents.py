"""What the state holds of agents: those that exist, those that were preempted, those that were lost.

An agent is in one of four phases, and each phase carries the data that exists only in it::

    Waiting --> Starting --> Running
                    |           |
                    +-> Ending <+

When an agent has ended, in whatever phase it was, it is removed from the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn, Union

import msgspec

from schedulemesh.domain.actor_names import ActorName
from schedulemesh.domain.agent import AgentSpec, MemberProcess
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.placement import OnNode, Place
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import Attempts, TaskSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.facts import merged
from schedulemesh.engine.messages.outcomes import Candidate, RequestOutcome
from schedulemesh.engine.state.transitions import ForbiddenTransitionError

_NOBODY: frozenset[str] = frozenset()


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is kept of the submission of an agent until it runs."""

    #: The request that its start, or its failure, answers.
    request_id: str | None = None
    #: The task that it was submitted with.
    task_id: str | None = None
    #: The key of the saved state that its object is built from; None: it starts from the beginning.
    state_key: str | None = None
    #: Its victims, highest score first.
    evicting: tuple[Candidate, ...] = ()
    #: Whether its task was in the queue, and joins it again if there turns out to be no room.
    queued: bool = False
    #: When its task is cancelled if it waits in the queue again, in seconds since 1970; None: never.
    expires_at: float | None = None


class Waiting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="waiting", gc=False
):
    """The free part of its claim is reserved; the rest comes from victims that are being evicted, or a
    placement group is being created for it. There is always something that it waits for.
    """

    value: ClassVar[str] = "waiting"
    submission: Submission
    #: Agents that have not ended yet: its victims, and those that were leaving already.
    for_agents: frozenset[str] = _NOBODY
    #: Groups that have not been removed, or not been created, yet.
    for_groups: frozenset[str] = _NOBODY
    #: The quota that it still gets from them, by the pool that it belongs to.
    promised: tuple[f.Share, ...] = ()


class Starting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="starting", gc=False
):
    """Its whole claim is reserved and its actor is being created."""

    value: ClassVar[str] = "starting"
    submission: Submission


class Running(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="running", gc=False
):
    """Its actor runs; its claim is committed."""

    value: ClassVar[str] = "running"
    #: Seconds since 1970.
    started_at: float
    pid: int = 0
    #: Its Ray name and namespace, by which it is found again.
    actor_name: str = ""
    actor_namespace: str = ""
    #: The control methods that its class has.
    capabilities: tuple[str, ...] = ()
    #: Of a gang: its members in the order of their ranks, of whom the first is described above too.
    members: tuple[MemberProcess, ...] = ()
    #: See ``AgentStarted``.
    room: str = ""


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ending", gc=False):
    """Being terminated; its claim is held until its process is gone."""

    value: ClassVar[str] = "ending"
    previous: Starting | Running
    reason: EndReason
    #: The incoming agent that gets its resources, if it is a victim of a submission.
    leaves_for: str | None = None
    #: Those that have claimed what it frees beyond that, the first one first.
    also_for: tuple[str, ...] = ()
    #: The pool, or the client, for which its quota is held once it is gone.
    hold_for: str | None = None
    hold_for_client: str | None = None
    #: The request that its end answers.
    request_id: str | None = None
    #: Whether its placement group is removed with it; None: as the pool's definition says.
    destroy_group: bool | None = None
    #: Whether its deletion was requested meanwhile, so that its tasks do not join the queue again.
    deleted: bool = False

    @property
    def waiters(self) -> tuple[str, ...]:
        """The incoming agents that get what it frees, each after those before it."""
        return self.also_for if self.leaves_for is None else (self.leaves_for, *self.also_for)

    def without(self, agent_name: str) -> Ending:
        """The same where an incoming agent does not wait for it any more."""
        first = None if self.leaves_for == agent_name else self.leaves_for
        others = tuple(name for name in self.also_for if name != agent_name)
        return msgspec.structs.replace(self, leaves_for=first, also_for=others)


AgentPhase = Union[Waiting, Starting, Running, Ending]

#: The allowed next phases of each phase; ``Agent.enter`` checks it.
TRANSITIONS: dict[type[AgentPhase], tuple[type[AgentPhase], ...]] = {
    Waiting: (Starting,),
    Starting: (Running, Ending),
    Running: (Ending,),
    Ending: (),
}


class Agent(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """An agent, from its admission until its process is known to be gone."""

    spec: AgentSpec
    incarnation: int
    #: Changed by the methods here only.
    phase: AgentPhase
    place: Place
    #: Seconds since 1970.
    admitted_at: float
    #: Which pools pay for what is reserved or used of its claim.
    shares: tuple[f.Share, ...] = ()
    #: How often Ray restarted its process by itself.
    restarts: int = 0
    #: Pools whose quota it held when they and its own pool stopped sharing a tree of cohorts: they may
    #: reclaim it all the same.
    former_lenders: tuple[str, ...] = ()
    #: See ``AgentAdmitted``.
    actors: tuple[ActorName, ...] = ()
    #: The owner of the task with which it was admitted; None: it had none.
    owner: str | None = None
    #: The owner of the first task that was registered on it, if it had none; None: none was.
    first_owner: str | None = None

    def enter(self, phase: AgentPhase) -> None:
        """Change the phase; raises ForbiddenTransitionError where ``TRANSITIONS`` does not allow it."""
        if type(phase) not in TRANSITIONS[type(self.phase)]:
            self._forbid(phase.value)
        self.phase = phase

    def start(self) -> None:
        """Nothing is left that a waiting agent waits for."""
        waiting = self.phase
        if not isinstance(waiting, Waiting):
            self._forbid(Starting.value)
        self.enter(Starting(submission=waiting.submission))

    def end(self, fact: f.AgentEnding) -> None:
        """Its process, which runs or is being started, is being terminated."""
        previous = self.phase
        if not isinstance(previous, (Starting, Running)):
            self._forbid(Ending.value)
        ending = Ending(
            previous=previous,
            reason=fact.reason,
            leaves_for=fact.leaves_for,
            hold_for=fact.hold_for,
            hold_for_client=fact.hold_for_client,
            request_id=fact.request_id,
            destroy_group=fact.destroy_group,
        )
        self.enter(ending)

    def note_restart(self, pid: int) -> None:
        """Ray restarted its process. The process id of an agent that is starting comes with its report."""
        phase = self.phase
        if isinstance(phase, Waiting):
            self._forbid("one that Ray restarted")
        self.restarts += 1
        if isinstance(phase, Running):
            self.phase = msgspec.structs.replace(phase, pid=pid)
        elif isinstance(phase, Ending) and isinstance(phase.previous, Running):
            previous = msgspec.structs.replace(phase.previous, pid=pid)
            self.phase = msgspec.structs.replace(phase, previous=previous)

    def amend_end(self, **changes: str | bool | None) -> None:
        """Change data of an agent that is being terminated."""
        self.phase = msgspec.structs.replace(self._ending(), **changes)

    def leave_also_for(self, agent_name: str) -> None:
        """Another incoming agent has claimed what it frees beyond what others get of it."""
        ending = self._ending()
        self.phase = msgspec.structs.replace(ending, also_for=(*ending.also_for, agent_name))

    def leave_no_more_for(self, agent_name: str) -> None:
        """An incoming agent that waited for its end is gone."""
        self.phase = self._ending().without(agent_name)

    def _ending(self) -> Ending:
        if not isinstance(self.phase, Ending):
            self._forbid(Ending.value)
        return self.phase

    def stop_waiting_for(self, *, agent: str | None = None, group: str | None = None) -> None:
        """Note that a victim has ended, or that a group was removed or created."""
        waiting = self.phase
        if not isinstance(waiting, Waiting):
            self._forbid(Waiting.value)
        self.phase = msgspec.structs.replace(
            waiting,
            for_agents=waiting.for_agents - {agent},
            for_groups=waiting.for_groups - {group},
        )

    def receive(self, shares: tuple[f.Share, ...]) -> None:
        """Add quota to its claim, which a victim has freed for it."""
        waiting = self.phase
        if not isinstance(waiting, Waiting):
            self._forbid(Waiting.value)
        self.shares = merged((*self.shares, *shares))
        received = (f.Share(pool_name=s.pool_name, amount=NOTHING - s.amount) for s in shares)
        promised = merged((*waiting.promised, *received))
        self.phase = msgspec.structs.replace(waiting, promised=promised)

    def _forbid(self, value: str) -> NoReturn:
        raise ForbiddenTransitionError(f"agent {self.spec.name!r}", self.phase.value, value)

    @property
    def paid(self) -> Resources:
        """The sum of its shares."""
        total = NOTHING
        for share in self.shares:
            total = total + share.amount
        return total

    @property
    def promised(self) -> tuple[f.Share, ...]:
        """The quota that it still gets from victims."""
        return self.phase.promised if isinstance(self.phase, Waiting) else ()

    @property
    def payers(self) -> tuple[str, ...]:
        """The pools that pay for it, sorted; empty where its own pool alone does."""
        shares, own_pool = self.shares, self.spec.pool_name
        if not shares or (len(shares) == 1 and shares[0].pool_name == own_pool):
            return ()
        return tuple(sorted({share.pool_name for share in shares}))

    @property
    def process(self) -> Running | None:
        """Its process as last reported, also while it is being terminated; None: it never ran."""
        phase = self.phase.previous if isinstance(self.phase, Ending) else self.phase
        return phase if isinstance(phase, Running) else None

    @property
    def submission(self) -> Submission | None:
        """What is kept of its submission; None: it has run."""
        phase = self.phase.previous if isinstance(self.phase, Ending) else self.phase
        return None if isinstance(phase, Running) else phase.submission

    @property
    def charged_owner(self) -> str:
        """The owner that its use of resources is counted for; empty: that of tasks without one."""
        return (self.first_owner if self.owner is None else self.owner) or ""

    @property
    def committed(self) -> bool:
        """Whether its shares are used (True) or only reserved."""
        return self.process is not None

    @property
    def node_id(self) -> str | None:
        """The node that it is placed on, in a group or not; None: not known yet."""
        return self.place.node_id

    @property
    def group_id(self) -> str | None:
        """The placement group that it is placed in; None: it is in none."""
        return self.place.group_id

    def is_on(self, node_id: str) -> bool:
        """Whether it holds resources on this node itself, not in a placement group."""
        return isinstance(self.place, OnNode) and self.place.node_id == node_id


def kind_of(agents: Mapping[str, Agent], agent_name: str) -> str:
    """What the agent of a task is, as listings show it; one that the scheduler does not know is an agent."""
    agent = agents.get(agent_name)
    return "agent" if agent is None else agent.spec.kind


class Preempted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A past preemption; the specs in the fact are enough to run the task again."""

    fact: f.TaskPreempted
    #: The key of its saved state; None: there is none.
    state_key: str | None = None
    #: Whether its task has run again since; then nothing can be restored, and its state is no longer kept.
    ran_again: bool = False
    #: Whether a task that starts after it, or after its array, goes by its end, so that it cannot return.
    is_final: bool = False


class LostAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent whose process died without being terminated, with what is needed to create it again."""

    spec: AgentSpec
    at: float
    #: Each of its tasks with the key of its last saved state, if any.
    tasks: tuple[tuple[TaskSpec, str | None], ...] = ()
    #: What is behind each of them, its loss included, by task.
    attempts: dict[str, Attempts] = {}
    #: Whether it was reported that it cannot be rebuilt.
    reported: bool = False


class RememberedAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A remembered answer."""

    at: float
    outcome: RequestOutcome
