"""Instructions: what the executor is to do once the step's facts are durable."""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.placement import GroupShape


class Instruction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all instructions."""


class StartAgent(Instruction, frozen=True, kw_only=True):
    """Make the actor; answer with AgentReported or AgentStartFailed."""

    agent: AgentSpec
    incarnation: int
    #: Where it must run; None: wherever the user's options lead.
    node_id: str | None
    state_key: str | None
    #: Whether its actor lives already, made by a former supervisor.
    adopt: bool = False
    #: The placement group whose first bundle it lives in; None: it lives on a node.
    group_id: str | None = None


class EvictAgent(Instruction, frozen=True, kw_only=True):
    """Give notice, save and cancel each task, then end the actor; answer with StateStored per task,
    then AgentGone.
    """

    agent_name: str
    incarnation: int
    task_ids: tuple[str, ...]
    #: Seconds from notice to eviction.
    grace_s: float


class EvictTask(Instruction, frozen=True, kw_only=True):
    """Save and cancel one task; the agent stays. Answer with StateStored, then CancelAnswered."""

    task_id: str
    agent_name: str


class StopAgent(Instruction, frozen=True, kw_only=True):
    """End the actor, whatever it does; answer with AgentGone."""

    agent_name: str
    incarnation: int


class CreateGroup(Instruction, frozen=True, kw_only=True):
    """Make the placement group, or take over one of this id; answer GroupCreated or GroupCreateFailed."""

    group_id: str
    shape: GroupShape
    #: The node of each bundle.
    node_ids: tuple[str, ...]
    #: Seconds after which it is withdrawn.
    wait_s: float


class RemoveGroup(Instruction, frozen=True, kw_only=True):
    """Remove the placement group, with whatever stands ready in it; answer with GroupGone."""

    group_id: str


class AnswerRequest(Instruction, frozen=True, kw_only=True):
    """The outcome of this request is final."""

    request_id: str


AnyInstruction = Union[
    StartAgent, EvictAgent, EvictTask, StopAgent, CreateGroup, RemoveGroup, AnswerRequest
]
