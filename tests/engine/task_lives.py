"""The rules of a state machine that any tasks obey: they start, end in every way, are evicted and leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.engine.messages.instructions import EvictAgent
from schedulemesh.engine.state.agents import Running
from tests.engine.builders import Mesh, differences

_any_name = st.runner().flatmap(lambda machine: st.sampled_from(machine.NAMES))
_name_of_run = st.runner().flatmap(lambda machine: st.sampled_from(machine.RUNS))


class TaskLives(RuleBasedStateMachine):
    """After each rule that may have changed something ``follow`` compares it with what is expected."""

    #: The tasks that there may be, and those of them whose agents run a method.
    NAMES: ClassVar[Sequence[str]]
    RUNS: ClassVar[Sequence[str]]
    mesh: Mesh

    def follow(self):
        raise NotImplementedError

    @property
    def state(self):
        return self.mesh.state

    def runs(self, name):
        agent = self.state.agents.get(name)
        return name in self.state.running.by_id and isinstance(agent.phase, Running)

    @rule(name=_any_name)
    def report(self, name):
        if name in self.mesh.starts:
            self.mesh.report(name)
            self.follow()

    @rule(name=_name_of_run)
    def fail(self, name):
        if self.runs(name):
            self.mesh.run_ends(name, reason=TaskEndReason.RUN_RAISED, error="it raised")
            self.follow()

    @rule(name=_name_of_run)
    def lose(self, name):
        if self.runs(name):
            self.mesh.die(name)
            self.follow()

    @rule(name=_any_name)
    def leave(self, name):
        if name in self.mesh.ends:
            self.mesh.leave(name, saved=isinstance(self.mesh.ends[name], EvictAgent))
            self.follow()

    @rule(name=_name_of_run)
    def evict(self, name):
        if self.runs(name):
            self.mesh.preempt(agent_name=name)
            self.follow()

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0]))
    def tick(self, seconds):
        self.mesh.tick(seconds)
        self.follow()

    @rule(by_snapshot=st.booleans())
    def restart(self, by_snapshot):
        self.mesh.engine.state = self.mesh.rewritten() if by_snapshot else self.mesh.refolded()

    @invariant()
    def a_restored_state_is_the_same(self):
        assert differences(self.state, self.mesh.rewritten()) == []
