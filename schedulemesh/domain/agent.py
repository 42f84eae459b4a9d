"""An agent: a Ray actor that lives in a pool and holds a claim on its quota."""

from __future__ import annotations

from enum import Enum

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.resources import Resources


class AgentPhase(str, Enum):
    """Where an agent stands, from its reservation to its end."""

    #: Holds what is free of its claim; the rest comes from victims that are still leaving.
    WAITING = "waiting"
    #: Its whole claim is reserved and its actor is being made.
    STARTING = "starting"
    #: Its actor runs; the claim is committed.
    RUNNING = "running"
    #: Being ended; the claim is held until its process is gone.
    ENDING = "ending"


#: What may follow what; an agent that is gone is no longer on the book.
TRANSITIONS: dict[AgentPhase, tuple[AgentPhase, ...]] = {
    AgentPhase.WAITING: (AgentPhase.STARTING, AgentPhase.ENDING),
    AgentPhase.STARTING: (AgentPhase.RUNNING, AgentPhase.ENDING),
    AgentPhase.RUNNING: (AgentPhase.ENDING,),
    AgentPhase.ENDING: (),
}


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How an agent is made; enough to make it again."""

    name: str
    pool_name: str
    resources: Resources
    labels: Labels = {}
    #: The hash under which the class's bytes are stored; empty: made elsewhere, cannot be made again.
    class_key: str = ""
    #: The key of the stored constructor arguments; None: there are none.
    arguments_key: str | None = None
    #: The user's Ray options as JSON; the engine never looks inside.
    options: str = "{}"
    #: Whether the agent can be built again from what is stored (no object references within its arguments).
    restartable: bool = True
    #: What each bundle of its placement group holds, their sum being its resources; empty: one bundle of all.
    bundles: tuple[Resources, ...] = ()
    #: Object references among its arguments; they are lost with the supervisor that took them.
    references: int = 0
    #: Under which the supervisor that took them holds these references; empty: there are none.
    references_id: str = ""
