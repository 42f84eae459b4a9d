"""Instructions: what the executor does once the facts of the step are durable."""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.domain.actor_names import ActorName
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import GroupShape


class Instruction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all instructions."""


class StartAgent(Instruction, frozen=True, kw_only=True):
    """Create the actor; its result is AgentReported or AgentStartFailed."""

    agent: AgentSpec
    incarnation: int
    #: The node that it must run on; None: the user's Ray options decide.
    node_id: str | None
    state_key: str | None
    #: Whether its actor exists already, created by a previous supervisor.
    adopt: bool = False
    #: The placement group in whose first bundle it runs, or its members in one bundle each; None: it runs in
    #: no group.
    group_id: str | None = None
    #: The number of members of the gang that it is, or that it is a member of; 0: it is a single process.
    world_size: int = 0
    #: Of an extra member of an elastic gang: its rank.
    rank: int = 0
    #: See ``AgentAdmitted``.
    actors: tuple[ActorName, ...] = ()


class RunTask(Instruction, frozen=True, kw_only=True):
    """Have a running agent call the method that a task consists of, or wait for a call that a previous
    supervisor ordered: an agent calls it once. The result is RunEnded.
    """

    task_id: str
    agent_name: str
    incarnation: int
    method: str
    #: The key of its stored arguments; None: it takes none.
    arguments_key: str | None = None


class EvictAgent(Instruction, frozen=True, kw_only=True):
    """Give notice, save and cancel each task, then terminate the actor. The results are StateStored for each
    task, then AgentGone.
    """

    agent_name: str
    incarnation: int
    task_ids: tuple[str, ...]
    #: Seconds from notice to eviction.
    grace_s: float
    #: Of an eviction that a previous supervisor began: the runs of the tasks. One that has ended meanwhile is
    #: reported before anything else is done, and its task is not evicted.
    runs: tuple[RunTask, ...] = ()


class EvictTask(Instruction, frozen=True, kw_only=True):
    """Save and cancel one task; the agent is kept. The results are StateStored, then CancelAnswered."""

    task_id: str
    #: As of EvictAgent.
    runs: tuple[RunTask, ...] = ()


class StopAgent(Instruction, frozen=True, kw_only=True):
    """Terminate the actor without saving its state; the result is AgentGone."""

    agent_name: str
    incarnation: int


class ProbeClass(Instruction, frozen=True, kw_only=True):
    """Load the class of a queued task, so that others may be evicted for it. The result is ClassProbed, or
    ClassProbeFailed.
    """

    task_id: str
    class_key: str
    agent: AgentSpec


class CreateGroup(Instruction, frozen=True, kw_only=True):
    """Create the placement group, or adopt one with this id. The result is GroupCreated or
    GroupCreateFailed.
    """

    group_id: str
    shape: GroupShape
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    #: Seconds after which it is withdrawn if Ray has not placed it.
    wait_s: float


class RemoveGroup(Instruction, frozen=True, kw_only=True):
    """Remove the placement group with its warm hosts; the result is GroupGone."""

    group_id: str


class AnswerRequest(Instruction, frozen=True, kw_only=True):
    """Return the outcome of this request, which is final, to its caller."""

    request_id: str


AnyInstruction = Union[
    StartAgent,
    RunTask,
    EvictAgent,
    EvictTask,
    StopAgent,
    ProbeClass,
    CreateGroup,
    RemoveGroup,
    AnswerRequest,
]
