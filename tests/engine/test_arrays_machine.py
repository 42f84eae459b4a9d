"""A state machine of arrays, compared with a plain record of each member, as docs/arrays.md says it, and with
what would become of the same members if they were tasks that nothing joins.

HYPOTHESIS_EXAMPLES sets how many stories it tells; 100 where it is not set.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from tests.engine.builders import Mesh, differences, node, pool
from tests.engine.task_lives import TaskLives

ARRAYS = ("a", "b")
INDICES = {"a": range(6), "b": range(0, 12, 3)}
FORMS = {"a": ("0-5", "0-5%2", "0-5%1"), "b": ("0-9:3", "0,3,6,9%3")}
MEMBERS = [f"{name}[{index}]" for name in ARRAYS for index in INDICES[name]]

arrays = st.sampled_from(ARRAYS)
members = st.sampled_from(MEMBERS)
some = st.sampled_from(["a", "b", "a[1-3]", "a[0,5]", "b[0-9:3]", "b[3,9]", "a[4]"])


def named(word):
    """The members that a word means."""
    if "[" not in word:
        return {member for member in MEMBERS if member.startswith(f"{word}[")}
    name, indices = word[:-1].split("[")
    chosen = set()
    for part in indices.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        chosen |= {*range(int(first), int(last or first) + 1, int(step or 1))}
    return {f"{name}[{index}]" for index in chosen}


class ArrayMachine(TaskLives):
    """Arrays come, their members end in every way, and they are changed whole and in part."""

    RUNS = MEMBERS

    def __init__(self):
        super().__init__()
        self.mesh = Mesh(
            pool("p", cpu=5), nodes=[node("n", cpu=4), node("m", cpu=4)], min_preempt_score=0.5
        )
        self.mesh.handle(s.ClassProbed(class_key="k"))
        #: The arrays that have been accepted.
        self.submitted: set[str] = set()
        #: How many members of each array that has not ended run at once.
        self.most: dict[str, int] = {}
        #: How each member of these has ended; None: it has not.
        self.ends: dict[str, EndState | None] = {}

    @rule(
        name=arrays,
        form=st.integers(0, 2),
        cpu=st.sampled_from([1, 2]),
        priority=st.sampled_from([1.0, 5.0]),
        retries=st.sampled_from([0, 1]),
        on_preempted=st.sampled_from(["requeue", "drop"]),
        after=st.sampled_from([(), (), ("any:a",), ("ok:a[1]",), ("fail:b",)]),
        unknown=st.sampled_from([True, *[False] * 7]),
    )
    def submit(self, name, form, cpu, priority, retries, on_preempted, after, unknown):
        if not unknown and not all(text.partition(":")[2][0] in self.submitted for text in after):
            after = ()  # most of them have to be accepted
        written = FORMS[name][form % len(FORMS[name])]
        taken = name in self.most or any(m in self.state.agents for m in self.of(name))
        outcome = self.mesh.queue(
            name,
            cpu=cpu,
            priority=priority,
            run="train",
            class_key="k",
            retries=retries,
            on_preempted=on_preempted,
            limits={"array": written, "after": after},
        )
        if taken:
            assert isinstance(outcome, Refused)
        if isinstance(outcome, Refused):
            return
        self.submitted.add(name)
        self.most[name] = int(written.partition("%")[2] or 0)
        self.ends |= dict.fromkeys(self.of(name))
        self.follow()

    def of(self, name):
        return [member for member in MEMBERS if member.startswith(f"{name}[")]

    @rule(cpu=st.sampled_from([1, 3]), priority=st.sampled_from([3.0, 9.0]))
    def intrude(self, cpu, priority):
        if "x" not in self.state.running.by_id and "x" not in self.state.agents:
            self.mesh.submit("x", cpu=cpu, priority=priority, class_key="k")
            self.follow()

    @rule(name=st.sampled_from([*MEMBERS, "x"]))
    def complete(self, name):
        if self.runs(name):
            if name == "x":
                self.mesh.handle(s.TaskFinished(task_id=name, end_agent=True))
            else:
                self.mesh.run_ends(name)
            self.follow()

    @rule(word=some)
    def cancel(self, word):
        name = word.partition("[")[0]
        self.mesh.cancel(word)
        if name in self.most:
            for member in named(word):
                alive = member in self.state.running.by_id or member in self.state.queue.by_id
                assert not alive, "it was cancelled"
                if self.ends[member] is None:
                    self.ends[member] = EndState.CANCELLED
        self.follow()

    @rule(word=some, held=st.booleans())
    def hold(self, word, held):
        self.mesh.change(word, held=held)
        for member in named(word) & self.state.queue.by_id.keys():
            assert self.state.queue.by_id[member].held == held
        self.follow()

    @rule(word=some, priority=st.sampled_from([1.0, 5.0, 8.0]))
    def rank(self, word, priority):
        self.mesh.change(word, priority=priority)
        tables = (self.state.queue.by_id, self.state.running.by_id)
        for member in named(word):
            for table in tables:
                assert member not in table or table[member].spec.priority == priority
        self.follow()

    @rule(word=some)
    def first(self, word):
        self.mesh.change(word, to_front=True)
        self.follow()

    def follow(self):
        """Which members have ended since, and which arrays with them."""
        for name in [*self.most]:
            remaining = self.state.arrays.by_id[name].remaining
            for member in self.of(name):
                index = int(member[2:-1])
                alive = (
                    member in self.state.running.by_id
                    or member in self.state.queue.by_id
                    or index in remaining
                )
                if alive:
                    assert self.ends[member] is None, "it has ended, and is there"
                elif self.ends[member] is None:
                    past = self.state.ended.get(member)
                    # That of one that was no task is known to the array alone.
                    self.ends[member] = (
                        self.state.arrays.by_id[name].end_of(index) if past is None else past.state
                    )
            ends = [self.ends[member] for member in self.of(name)]
            if None not in ends:
                bad = {EndState.FAILED, EndState.LOST} & set(ends)
                cancelled = EndState.CANCELLED in ends
                expected = (
                    EndState.FAILED
                    if bad
                    else EndState.CANCELLED
                    if cancelled
                    else EndState.COMPLETED
                )
                assert self.state.ended[name].state is expected
                del self.most[name]

    @invariant()
    def no_more_run_than_may_and_the_rest_is_one_entry(self):
        for name, most in self.most.items():
            one = self.state.arrays.by_id[name]
            assert not most or self.with_agent(name) <= most
            known = [self.ends[m] for m in self.of(name) if self.ends[m] is not None]
            assert len(known) == sum(map(len, one.ended.values()))
            assert (name in self.state.queue.by_id) == bool(one.remaining)

    @invariant()
    def nothing_that_fits_and_may_start_waits_after_a_tick(self):
        """By brute force: with room for a member, none waits that may start and that nothing comes before."""
        self.mesh.tick()
        self.follow()
        waiting = [
            task
            for task in self.state.queue.by_id.values()
            if not (task.held or task.depends or task.not_before > self.mesh.now)
        ]
        free = self.state.ledger.accounts["p"].free
        rooms = [found.free for found in self.state.cluster.nodes.values()]
        for task in waiting:
            name = task.spec.array_id or task.task_id
            one = self.state.arrays.by_id[name]
            full = one.most and self.with_agent(name) >= one.most
            need = task.submission.agent.resources
            fits = need.fits(free) and any(need.fits(room) for room in rooms)
            reserved = bool(self.state.queue.reserved)
            assert full or not fits or reserved, f"{task.task_id} could start"

    def with_agent(self, name):
        """How many members of an array have an agent, which may have no task any more."""
        return sum(member in self.state.agents for member in self.of(name))

    def teardown(self):
        assert differences(self.state, self.mesh.refolded()) == []


TestArrays = ArrayMachine.TestCase
TestArrays.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    stateful_step_count=30,
    deadline=None,
)
