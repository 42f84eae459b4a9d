"""A state machine of tasks that start after others, compared with a plain record of who waits for whom, as
docs/arrays.md says it.

HYPOTHESIS_EXAMPLES sets how many stories it tells; 100 where it is not set.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from tests.engine.builders import Mesh, node, pool
from tests.engine.task_lives import TaskLives

NAMES = tuple(f"t{number}" for number in range(9))

names = st.sampled_from(NAMES)
dependencies = st.dictionaries(names, st.sampled_from(["ok", "any", "fail"]), max_size=3)


def is_met(condition: str, end: EndState) -> bool:
    """The table of the page: how a task has to end."""
    completed = end is EndState.COMPLETED
    return {"ok": completed, "any": True, "fail": not completed}[condition]


class OrderMachine(TaskLives):
    """Tasks come, wait for others, and end in every way."""

    RUNS = NAMES

    def __init__(self):
        super().__init__()
        self.mesh = Mesh(
            pool("p", cpu=6), nodes=[node("a", cpu=4), node("b", cpu=4)], min_preempt_score=0.5
        )
        self.mesh.handle(s.ClassProbed(class_key="k"))
        #: Of each task that waits for others, how each of these has to end.
        self.awaited: dict[str, dict[str, str]] = {}
        self.alive: set[str] = set()
        self.pool_name = "p"

    @rule(
        name=names,
        after=dependencies,
        cpu=st.sampled_from([1, 2, 4]),
        priority=st.sampled_from([1.0, 5.0, 9.0]),
        retries=st.sampled_from([0, 1]),
        on_preempted=st.sampled_from(["requeue", "drop"]),
        wait_s=st.sampled_from([None, 5.0]),
        unknown=st.sampled_from([True, *[False] * 7]),
    )
    def submit(self, name, after, cpu, priority, retries, on_preempted, wait_s, unknown):
        if name in self.alive or name in self.state.agents:
            return
        if not unknown:  # most of them have to be accepted
            others = self.alive | self.state.ended.keys()
            after = {task_id: how for task_id, how in after.items() if task_id in others - {name}}
        ended = {
            task_id: self.state.ended[task_id].state
            for task_id in after
            if task_id in self.state.ended
        }
        unknown = {t for t in after if t not in self.alive and t not in ended} | (
            after.keys() & {name}
        )
        unmet = {t for t in ended.keys() - {name} if not is_met(after[t], ended[t])}
        outcome = self.mesh.queue(
            name,
            self.pool_name,
            cpu=cpu,
            priority=priority,
            run="train",
            class_key="k",
            retries=retries,
            on_preempted=on_preempted,
            limits={"after": tuple(f"{how}:{task_id}" for task_id, how in after.items())},
            more={"wait_s": wait_s},
        )
        if unknown or unmet:
            assert isinstance(outcome, Refused)
            reasons = {Reason.INVALID_DEPENDENCY} if unknown else set()
            assert outcome.reason in reasons | ({Reason.DEPENDENCY_NOT_MET} if unmet else set())
            return
        assert not isinstance(outcome, Refused), outcome
        self.alive.add(name)
        waits_for = {t: how for t, how in after.items() if t in self.alive}
        if waits_for:
            self.awaited[name] = waits_for
        self.follow()

    @rule(name=names)
    def complete(self, name):
        if name in self.state.running.by_id:
            self.mesh.handle(s.TaskFinished(task_id=name, end_agent=True))
            self.follow()

    @rule(name=names)
    def cannot_start(self, name):
        if name in self.mesh.starts:
            self.mesh.fail(name)
            self.follow()

    @rule(name=names)
    def cancel(self, name):
        self.mesh.cancel(name)
        self.follow()

    @rule(name=names, held=st.booleans(), front=st.booleans())
    def change(self, name, held, front):
        if name in self.state.queue.by_id:
            self.mesh.change(name, held=held, to_front=front)
            self.follow()

    @rule()
    def rename(self):
        before, self.pool_name = self.pool_name, "q" if self.pool_name == "p" else "p"
        self.mesh.rename_pool(before, self.pool_name)
        self.follow()

    def follow(self):
        """What this step has ended is ended for those that wait for it, and so on."""
        gone = self.alive - self.state.running.by_id.keys() - self.state.queue.by_id.keys()
        never = set()
        for name in gone:
            for waiting, awaited in self.awaited.items():
                how = awaited.pop(name, None)
                if how is not None and not is_met(how, self.state.ended[name].state):
                    never.add(waiting)
        self.alive -= gone
        assert never <= gone, "it can never start, and waits still"
        for name in never - {
            n for n in never if self.state.ended[n].reason == "cancelled_by_request"
        }:
            assert self.state.ended[name].state is EndState.CANCELLED
        self.awaited = {
            name: awaited
            for name, awaited in self.awaited.items()
            if name in self.alive and awaited
        }

    @invariant()
    def those_wait_whose_dependencies_have_not_ended(self):
        for name, awaited in self.awaited.items():
            assert name in self.state.queue.by_id, "it has started before others have ended"
            waits_for = self.state.queue.by_id[name].waits_for
            assert set(waits_for) == {f"{how}:{task_id}" for task_id, how in awaited.items()}
        for name, task in self.state.queue.by_id.items():
            assert task.depends == (name in self.awaited), "it waits for others in vain"


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    stateful_step_count=30,
    deadline=None,
)
