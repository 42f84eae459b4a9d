"""One step under way: facts become true as they are emitted, so the next decision sees them."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.messages.facts import AnyFact, RequestAnswered
from schedulemesh.engine.messages.instructions import AnswerRequest, AnyInstruction
from schedulemesh.engine.messages.outcomes import RequestOutcome
from schedulemesh.engine.messages.stimuli import AnyStimulus
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came of a stimulus. The facts must be durable before an instruction is carried out or the
    outcome is told.
    """

    facts: tuple[AnyFact, ...] = ()
    instructions: tuple[AnyInstruction, ...] = ()
    outcome: RequestOutcome | None = None
    #: None: nothing was decided.
    stimulus: AnyStimulus | None = None
    #: When the stimulus happened, in seconds since 1970.
    at: float = 0.0
    #: Whether it is the beginning of a tick that is to be continued; see ``TickContinued``.
    is_unfinished: bool = False


class Transaction:
    """Collects the facts and instructions of one stimulus, which happens ``now`` (seconds since 1970)."""

    __slots__ = (
        "estimated_ends",
        "facts",
        "had_elastic",
        "hosts",
        "instructions",
        "now",
        "portion",
        "resumed",
        "revoked",
        "state",
        "strategies",
        "woken",
    )

    def __init__(self, state: MeshState, now: float, strategies: Strategies) -> None:
        self.state = state
        self.now = now
        self.strategies = strategies
        #: How much of a pass over the queue is made at once, in classes that are tried; 0: all of it.
        self.portion = 0
        #: How often others had changed something when it was continued.
        self.resumed = 0
        #: Whether any elastic gang existed before the step.
        self.had_elastic = bool(state.elastic)
        #: When running tasks end by earlier runs, as far as that was asked for in this step; see
        #: ``admission.ends``.
        self.estimated_ends: dict[str, float | None] = {}
        #: Host names of nodes that were lost, by id, as far as they are known.
        self.hosts: dict[str, str] = {}
        self.facts: list[AnyFact] = []
        self.instructions: list[AnyInstruction] = []
        #: Waiting agents that may be able to continue. They are served after the handler: see
        #: ``lifecycle.capacity``.
        self.woken: dict[str, None] = {}
        #: Agents whose claims were revoked, each with its task where that came from the queue; they are put
        #: back when the claims for which they were revoked are made.
        self.revoked: list[tuple[Agent, RunningTask | None]] = []

    @property
    def may_be_interrupted(self) -> bool:
        """Whether others may be served between two portions of a tick: not before those are who wait for what
        was decided in it.
        """
        waits = self.woken or self.revoked or self.state.running.children.orphans
        return bool(self.portion) and not waits

    def resume(self, now: float) -> None:
        """Go on later, after others have changed something."""
        self.now = now
        self.resumed += 1
        self.estimated_ends.clear()

    def emit(self, fact: AnyFact) -> None:
        """Make a fact true."""
        # Noted first: where evolving fails half-way, the state is no longer what it was.
        self.facts.append(fact)
        self.state.evolve(fact)

    def instruct(self, instruction: AnyInstruction) -> None:
        """Ask the executor for something."""
        self.instructions.append(instruction)

    def wake(self, agent_name: str | None) -> None:
        """Have a waiting agent served after the handler. An agent that does not wait then is passed over, and
        so is None.
        """
        if agent_name is not None:
            self.woken[agent_name] = None

    def answer(self, request_id: str | None, outcome: RequestOutcome) -> RequestOutcome:
        """Remember the final outcome of a request, and report it to whoever waits; returns the outcome."""
        if request_id is not None:
            self.emit(RequestAnswered(request_id=request_id, at=self.now, outcome=outcome))
            self.instruct(AnswerRequest(request_id=request_id))
        return outcome
