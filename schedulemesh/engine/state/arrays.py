"""Arrays: which members of each wait, run and have ended.

The members that have not been tried yet are indices of one entry in the queue, the array's. A member becomes
a task when it is to start, or when it alone is changed; from then on it waits, runs, fails and returns as any
task, and counts here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.arrays import Indices, array_form, member_id, members_named, parse_indices
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.domain.task import EndState, TaskSpec

#: How many ranges of indices a sentence names of those that have ended in one way.
_NAMED = 10


class StoredArray(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An array as a snapshot has it. What its members do that are tasks now is derived from these."""

    spec: TaskSpec
    kind: str
    agent_name: str
    #: Indices of the members that are no tasks yet, as ``Indices.written`` has them; empty: none.
    remaining: str = ""
    #: The same of those that have ended, by how.
    ended: dict[EndState, str] = {}
    #: When all have ended, in seconds since 1970; None: they have not.
    ended_at: float | None = None


class TaskArray:
    """One array, until it is forgotten after its end."""

    __slots__ = (
        "agent_name",
        "ended",
        "ended_at",
        "kind",
        "leaving",
        "most",
        "remaining",
        "running",
        "spec",
        "waiting",
    )

    def __init__(self, spec: TaskSpec, kind: str, agent_name: str) -> None:
        form = array_form(spec.array)
        #: The task as it was submitted, whose id is the array's.
        self.spec = spec
        #: What its members are: "agent", "gang" or "job"; and the name that those of their agents begin with.
        self.kind, self.agent_name = kind, agent_name
        #: How many members run at once; 0: as many as there is room for.
        self.most = form.most
        #: Members that are no tasks yet.
        self.remaining = form.indices()
        #: Members that are tasks with an agent.
        self.running: dict[int, None] = {}
        #: Members that run no longer, whose agents have not ended yet.
        self.leaving: dict[int, None] = {}
        #: Members that are tasks and wait in the queue.
        self.waiting: dict[int, None] = {}
        #: Members that have ended, by how.
        self.ended = {state: Indices() for state in EndState}
        #: When all have ended; None: they have not.
        self.ended_at: float | None = None

    @property
    def array_id(self) -> str:
        """Its id."""
        return self.spec.task_id

    @property
    def with_agent(self) -> int:
        """How many members have an agent."""
        return len(self.running) + len(self.leaving)

    @property
    def is_full(self) -> bool:
        """Whether as many members have an agent as may at once."""
        return bool(self.most) and self.with_agent >= self.most

    @property
    def is_over(self) -> bool:
        """Whether no member waits or runs."""
        return not (self.remaining or self.running or self.waiting)

    @property
    def size(self) -> int:
        """How many members it has."""
        return array_form(self.spec.array).size

    def has(self, index: int) -> bool:
        """Whether it has a member with this index."""
        return array_form(self.spec.array).has(index)

    def member(self, index: int) -> TaskSpec:
        """A member as a task."""
        return msgspec.structs.replace(
            self.spec,
            task_id=member_id(self.array_id, index),
            array="",
            array_id=self.array_id,
            array_index=index,
            after=(),
        )

    def end_of(self, index: int) -> EndState | None:
        """How a member has ended; None: it has not."""
        return next((state for state, indices in self.ended.items() if index in indices), None)

    def described(self) -> Sentence:
        """How many of its members wait, run, and have ended in which way, and which were not completed."""
        counts: list[Sentence] = []
        if not self.is_over:
            counts.append(say("members_wait", count=len(self.remaining) + len(self.waiting)))
            counts.append(say("members_run", count=len(self.running)))
        for state, indices in self.ended.items():
            if indices:
                is_success = state is EndState.COMPLETED
                which = "" if is_success else say("in_brackets", what=indices.written(_NAMED))
                counts.append(
                    say("members_ended", count=len(indices), state=state.value, which=which)
                )
        return say("members", size=self.size, counts=counts)

    def stored(self) -> StoredArray:
        """It as a snapshot has it."""
        return StoredArray(
            spec=self.spec,
            kind=self.kind,
            agent_name=self.agent_name,
            remaining=self.remaining.written(),
            ended={state: indices.written() for state, indices in self.ended.items() if indices},
            ended_at=self.ended_at,
        )


class Arrays:
    """All arrays that have not ended, or whose end is on record."""

    def __init__(self) -> None:
        self.by_id: dict[str, TaskArray] = {}
        #: Arrays of which as many members have an agent as may at once since this fact, or no longer.
        self.turned: dict[str, None] = {}
        #: The array and the index of members that are leaving, by the names of their agents.
        self.leaving: dict[str, tuple[str, int]] = {}
        #: Arrays whose last member has ended in this step, for good unless it joins the queue again in it.
        self.over: dict[str, None] = {}

    def add(self, spec: TaskSpec, kind: str, agent_name: str) -> None:
        """An array waits from now on."""
        self.by_id[spec.task_id] = TaskArray(spec, kind, agent_name)

    def restore(self, stored: StoredArray) -> None:
        """Add an array as a snapshot has it, before its members."""
        one = self.by_id[stored.spec.task_id] = TaskArray(
            stored.spec, stored.kind, stored.agent_name
        )
        one.remaining = parse_indices(stored.remaining) if stored.remaining else Indices()
        for state, indices in stored.ended.items():
            one.ended[state] = parse_indices(indices)
        one.ended_at = stored.ended_at

    def forget(self, array_id: str) -> None:
        """The end of an array is on record no more, or its id is another task's, perhaps another array's."""
        one = self.by_id.get(array_id)
        if one is not None and one.ended_at is not None:
            del self.by_id[array_id]

    def alive(self, task_id: str) -> TaskArray | None:
        """The array with this id that has not ended; None: there is none."""
        one = self.by_id.get(task_id)
        return None if one is None or one.ended_at is not None else one

    def member_of(self, task_id: str) -> tuple[TaskArray, int] | None:
        """The array on record and the index of the member that has this id; None: it is none's."""
        named = members_named(task_id)
        one = None if named is None else self.by_id.get(named[0])
        if named is None or one is None or not named[1].isdecimal():
            return None
        index = int(named[1])
        return (one, index) if one.has(index) and member_id(named[0], index) == task_id else None

    def is_full(self, spec: TaskSpec) -> bool:
        """Whether an array, or a member of it, may not start, because as many members have an agent as may at
        once.
        """
        one = self.by_id.get(spec.array_id or spec.task_id) if spec.array or spec.array_id else None
        return one is not None and one.is_full

    def variables(self, spec: TaskSpec) -> dict[str, str]:
        """Variables of the environment of a member's processes; of another task none."""
        one = self.by_id.get(spec.array_id)
        if one is None:
            return {}
        lowest, highest = array_form(one.spec.array).ends
        return {
            "SCHEDULEMESH_ARRAY_ID": one.array_id,
            "SCHEDULEMESH_ARRAY_INDEX": str(spec.array_index),
            "SCHEDULEMESH_ARRAY_COUNT": str(one.size),
            "SCHEDULEMESH_ARRAY_MIN": str(lowest),
            "SCHEDULEMESH_ARRAY_MAX": str(highest),
        }

    def note_queued(self, spec: TaskSpec) -> None:
        """A member is a task that waits from now on."""
        one, index = self._of_member(spec)
        if one is not None:
            one.waiting[index] = None
            self.over.pop(spec.array_id, None)

    def note_not_queued(self, spec: TaskSpec) -> None:
        """A member waits no more."""
        one, index = self._of_member(spec)
        if one is not None:
            one.waiting.pop(index, None)
            self.note_if_over(one)

    def note_running(self, spec: TaskSpec) -> None:
        """A member has an agent from now on."""
        one, index = self._of_member(spec)
        if one is not None:
            one.running[index] = None
            self.over.pop(spec.array_id, None)
            if one.with_agent == one.most:
                self.turned[spec.array_id] = None

    def note_left(self, spec: TaskSpec) -> None:
        """A member is no task with an agent any more; its agent ends later."""
        one, index = self._of_member(spec)
        if one is not None:
            del one.running[index]
            self._note_leaving(one, index)
            self.note_if_over(one)

    def _note_leaving(self, one: TaskArray, index: int) -> None:
        one.leaving[index] = None
        self.leaving[member_id(one.agent_name, index)] = one.array_id, index
        if one.with_agent == one.most:
            self.turned[one.array_id] = None

    def note_agent_ended(self, agent_name: str) -> None:
        """The agent of a member that was leaving has ended."""
        array_id, index = self.leaving.pop(agent_name)
        one = self.by_id.get(array_id)
        if one is not None:
            if one.with_agent == one.most:
                self.turned[array_id] = None
            one.leaving.pop(index, None)

    def restore_leaving(self, agent_names: Iterable[str]) -> None:
        """Some of these agents are those of members that run no longer. All tasks are there by now."""
        by_agent = {one.agent_name: one for one in self.by_id.values() if one.ended_at is None}
        for agent_name in agent_names:
            named = members_named(agent_name)
            one = None if named is None else by_agent.get(named[0])
            if named is not None and one is not None and int(named[1]) not in one.running:
                self._note_leaving(one, int(named[1]))

    def note_if_over(self, one: TaskArray) -> None:
        """Note an array of which no member waits or runs."""
        if one.is_over:
            self.over[one.array_id] = None

    def note_end(self, spec: TaskSpec, state: EndState) -> None:
        """A member has ended, and may still join the queue again."""
        one, index = self._of_member(spec)
        if one is not None:
            one.ended[state].add(index)

    def note_alive(self, task_id: str) -> None:
        """A member exists again that had ended."""
        member = self.member_of(task_id)
        if member is not None and member[0].ended_at is None:
            one, index = member
            for indices in one.ended.values():
                indices.discard(index)

    def _of_member(self, spec: TaskSpec) -> tuple[TaskArray | None, int]:
        """The array of a member, and its index. None: the array has ended. A member that was lost before, and
        is rebuilt after that, is a task by itself.
        """
        return self.alive(spec.array_id), spec.array_index or 0
