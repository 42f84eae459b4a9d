"""A state machine of tasks that start tasks: compared with a plain record of who started whom.

HYPOTHESIS_EXAMPLES sets how many stories it tells; 100 where it is not set.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import EvictAgent
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Ending, Running
from schedulemesh.engine.state.task_phases import Preempting
from tests.engine.builders import Mesh, differences, node, pool

NAMES = tuple(f"t{number}" for number in range(10))

names = st.sampled_from(NAMES)


class FamilyMachine(RuleBasedStateMachine):
    """Tasks come, start others, and end in every way."""

    def __init__(self):
        super().__init__()
        self.mesh = Mesh(
            pool("p", cpu=10), nodes=[node("a", cpu=6), node("b", cpu=6)], min_preempt_score=0.5
        )
        # Evictions for it are not put off.
        self.mesh.handle(s.ClassProbed(class_key="k"))
        #: Of each task that runs or waits, by whom it was started, as far as that one is not completed.
        self.parents: dict[str, str] = {}
        self.alive: set[str] = set()

    @property
    def state(self):
        return self.mesh.state

    @rule(
        name=names,
        parent=st.sampled_from(["", *NAMES]),
        cpu=st.sampled_from([1, 2, 4]),
        priority=st.sampled_from([1.0, 5.0, 9.0]),
        queue=st.booleans(),
        retries=st.sampled_from([0, 2]),
        on_preempted=st.sampled_from(["requeue", "drop"]),
    )
    def submit(self, name, parent, cpu, priority, queue, retries, on_preempted):
        known = name in self.state.running.by_id or name in self.state.queue.by_id
        if known or name in self.state.agents or name == parent:
            return
        runs = parent in self.state.running.by_id
        waits = parent in self.state.queue.by_id
        past = self.state.ended.get(parent)
        outcome = self.mesh.submit(
            name,
            cpu=cpu,
            priority=priority,
            run="train",
            class_key="k",
            parent=parent,
            retries=retries,
            on_preempted=on_preempted,
            more={"queue": queue},
        )
        gone = waits or (not runs and past is not None and past.state is not EndState.COMPLETED)
        if parent and gone:
            assert isinstance(outcome, Refused)
            assert outcome.reason is Reason.PARENT_ENDED
        if isinstance(outcome, Refused):
            return
        agent = self.state.agents.get(name)
        if agent is not None and agent.submission is not None:
            evicted = {victim.task_id for victim in agent.submission.evicting}
            assert not evicted & self.ancestors(parent), "it evicts who started it"
        if parent and runs:
            self.parents[name] = parent
        self.follow()

    def ancestors(self, parent):
        """The task and all that started it."""
        found = set()
        while parent and parent not in found:
            found.add(parent)
            parent = self.parents.get(parent, "")
        return found

    @rule(name=names)
    def report(self, name):
        if name in self.mesh.starts:
            self.mesh.report(name)
            self.follow()

    @rule(name=names, fails=st.booleans())
    def run_ends(self, name, fails):
        agent = self.state.agents.get(name)
        if agent is None or not isinstance(agent.phase, Running) or name not in self.mesh.runs:
            return
        if self.mesh.runs[name][-1].incarnation != agent.incarnation:
            return
        if name not in self.state.running.by_id:
            return
        if not fails:
            self.release(name)
        reason = TaskEndReason.RUN_RAISED if fails else None
        self.mesh.run_ends(name, reason=reason)
        self.follow()

    @rule(name=names)
    def complete(self, name):
        task = self.state.running.by_id.get(name)
        agent = self.state.agents.get(name)
        if task is None or agent is None or isinstance(task.phase, Preempting):
            return
        if not isinstance(agent.phase, Ending):
            self.release(name)
        self.mesh.complete(name)
        self.follow()

    def release(self, parent):
        """The children of a completed task have none."""
        self.parents = {child: of for child, of in self.parents.items() if of != parent}

    @rule(name=names)
    def cancel(self, name):
        self.mesh.cancel(name)
        self.follow()

    @rule(name=names)
    def delete(self, name):
        self.mesh.delete(name)
        self.follow()

    @rule(name=names, whole=st.booleans())
    def preempt(self, name, whole):
        if whole:
            self.mesh.preempt(agent_name=name)
        else:
            self.mesh.preempt(task_id=name, end_agent=False)
        self.follow()

    @rule(name=names, saved=st.booleans())
    def save(self, name, saved):
        if saved:
            self.mesh.save(name)
        else:
            self.mesh.handle(s.StateNotSaved(task_id=name, error="no"))
        self.follow()

    @rule(name=names, ends=st.booleans())
    def cancel_answered(self, name, ends):
        if self.mesh.task_evictions.pop(name, None) is not None:
            self.mesh.handle(s.CancelAnswered(task_id=name, cancel_success=ends, runs_on=not ends))
            self.follow()

    @rule(name=names)
    def leave(self, name):
        if name in self.mesh.ends:
            self.mesh.leave(name)
            self.follow()

    @rule(name=names, saved=st.booleans())
    def die(self, name, saved):
        if name in self.state.agents:
            order = self.mesh.ends.get(name)
            if saved and isinstance(order, EvictAgent):
                self.mesh.save(name)
            if name in self.state.agents:
                self.mesh.die(name)
            self.follow()

    @rule(name=names)
    def start_fails(self, name):
        if name in self.mesh.starts:
            self.mesh.fail(name)
            self.follow()

    @rule(name=names)
    def rebuild(self, name):
        lost = self.state.lost.get(name)
        if lost is None:
            return
        parent = lost.tasks[0][0].parent if lost.tasks else ""
        self.mesh.handle(s.RebuildRequested(agent_name=name, request_id=None))
        if name in self.state.running.by_id and parent:
            assert parent in self.state.running.by_id
            self.parents[name] = parent
        self.follow()

    @rule(gone=st.sets(names, max_size=4))
    def recover(self, gone):
        living = {
            (name, agent.incarnation)
            for name, agent in self.state.agents.items()
            if name not in gone
        }
        self.mesh.handle(s.RecoveryObserved(living=frozenset(living)))
        self.follow()

    @rule(seconds=st.sampled_from([1.0, 5.0, 400.0]))
    def tick(self, seconds):
        self.mesh.tick(seconds)
        self.follow()

    def follow(self):
        """Compare: whoever is among the tasks has a parent that is, or none."""
        self.alive = {*self.state.running.by_id, *self.state.queue.by_id}
        for child, parent in list(self.parents.items()):
            if child in self.alive:
                assert parent in self.state.running.by_id, f"{child} has outlived {parent}"
            else:
                del self.parents[child]

    @invariant()
    def who_started_whom_is_known(self):
        specs = [task.spec for task in self.state.running.by_id.values()]
        specs += [task.spec for task in self.state.queue.by_id.values()]
        assert {spec.task_id: spec.parent for spec in specs if spec.parent} == self.parents

    def teardown(self):
        assert differences(self.state, self.mesh.refolded()) == []
        assert differences(self.state, self.mesh.rewritten()) == []


TestFamilies = FamilyMachine.TestCase
TestFamilies.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    stateful_step_count=60,
    deadline=None,
)
