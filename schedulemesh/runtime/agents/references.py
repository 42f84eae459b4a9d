"""Holds the object references in arguments of submissions as long as their agents may be restarted.

They are in memory only: Ray counts the references that a process holds, so they end with the supervisor.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.runtime.backend import Refs

NO_REFS: Refs = ([], [])

#: Ended agents whose references are held, so that their preempted tasks can be restored; the last ones.
_ENDED = 256


class _Held(msgspec.Struct, frozen=True):
    agent_name: str
    refs: Refs


class References:
    """By the id that a submission's agent carries in its spec. An agent made again from its spec, after an
    eviction, a failed start or a loss, finds them there; what no spec names any more is released.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        #: Of submissions that are being decided; how many of each, as a request may be sent again.
        self._deciding: list[str] = []

    def references_of(self, agent: AgentSpec) -> Refs:
        """The references to build this agent from; none: it has none, or they are lost."""
        entry = self._held.get(agent.references_id)
        return NO_REFS if entry is None else entry.refs

    def given_with(self, stimulus: TaskSubmitted, refs: Refs) -> TaskSubmitted:
        """The submission with an id for the references that came with it."""
        if not any(refs):
            return stimulus
        named = stimulus.request_id or secrets.token_hex(16)
        agent = msgspec.structs.replace(stimulus.agent, references_id=named)
        return msgspec.structs.replace(stimulus, agent=agent)

    @contextmanager
    def held_for(self, agent: AgentSpec, refs: Refs) -> Iterator[None]:
        """Within, hold the references of a submission, whatever becomes of it."""
        if not any(refs):
            yield
            return
        self._held[agent.references_id] = _Held(agent.name, refs)
        self._deciding.append(agent.references_id)
        try:
            yield
        finally:
            self._deciding.remove(agent.references_id)

    def release_unused(self, state: MeshState) -> None:
        """Release the references from which nothing can be built any more."""
        ended = [key for key, entry in self._held.items() if not self._may_live(state, key, entry)]
        if not ended:
            return
        specs = (past.fact.agent for past in state.preempted.values() if not past.ran_again)
        restorable = {spec.references_id for spec in specs if spec is not None}
        restorable_keys = [key for key in ended if key in restorable][-_ENDED:]
        for key in set(ended).difference(restorable_keys):
            del self._held[key]

    def __len__(self) -> int:
        """How many submissions' references are held."""
        return len(self._held)

    def _may_live(self, state: MeshState, key: str, entry: _Held) -> bool:
        """Whether its submission is being decided or is queued, or its agent exists or may be rebuilt."""
        if key in self._deciding:
            return True
        agent, lost = state.agents.get(entry.agent_name), state.lost.get(entry.agent_name)
        queued = state.queue.by_id.get(state.queue.agent_names.get(entry.agent_name, ""))
        specs = (
            None if agent is None else agent.spec,
            None if lost is None else lost.spec,
            None if queued is None else queued.submission.agent,
        )
        return any(spec is not None and spec.references_id == key for spec in specs)
