"""The rules of a state machine that any tasks obey: they start, end in every way, are evicted and leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.engine.messages.instructions import EvictAgent
from schedulemesh.engine.state.agents import Running
from tests.engine.builders import Mesh, differences


def _one_of(names: Callable[[TaskLives], Iterable[str]]) -> st.SearchStrategy[str]:
    """One of these tasks of the machine as it is now, of which there are some."""
    return st.runner().flatmap(lambda machine: st.sampled_from(sorted(names(machine))))


_starting = _one_of(lambda machine: machine.mesh.starts)
_leaving = _one_of(lambda machine: machine.mesh.ends)
_running = _one_of(lambda machine: filter(machine.runs, machine.RUNS))


class TaskLives(RuleBasedStateMachine):
    """After each rule that may have changed something ``follow`` compares it with what is expected."""

    #: The tasks that there may be whose agents run a method.
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

    @precondition(lambda self: self.mesh.starts)
    @rule(name=_starting)
    def report(self, name):
        self.mesh.report(name)
        self.follow()

    @precondition(lambda self: self.mesh.starts)
    @rule()
    def report_all(self):
        for name in sorted(self.mesh.starts):
            if name in self.mesh.starts:
                self.mesh.report(name)
                self.follow()

    @precondition(lambda self: any(map(self.runs, self.RUNS)))
    @rule(name=_running)
    def fail(self, name):
        self.mesh.run_ends(name, reason=TaskEndReason.RUN_RAISED, error="it raised")
        self.follow()

    @precondition(lambda self: any(map(self.runs, self.RUNS)))
    @rule(name=_running)
    def lose(self, name):
        self.mesh.die(name)
        self.follow()

    @precondition(lambda self: self.mesh.ends)
    @rule(name=_leaving)
    def leave(self, name):
        self.mesh.leave(name, saved=isinstance(self.mesh.ends[name], EvictAgent))
        self.follow()

    @precondition(lambda self: any(map(self.runs, self.RUNS)))
    @rule(name=_running)
    def evict(self, name):
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
