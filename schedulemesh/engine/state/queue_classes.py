"""The classes of tasks that wait in one pool: those of a class differ only in their order and duration."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from sortedcontainers import SortedList

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec

#: (order value, number, task id): the smallest is the first.
Entry = tuple[float, int, str]
ClassKey = tuple[
    str,
    float,
    Resources | None,
    tuple[Resources, ...],
    tuple[str, str, int] | None,
    bool,
    tuple[tuple[str, str], ...],
    str | None,
    tuple[str, ...] | None,
    NodeLabels,
    tuple[NodeLabels, ...],
    bool,
]


class QueueClass:
    """Tasks of one pool that differ only in their order and duration: if one does not fit, none does."""

    __slots__ = ("entries", "extra", "key", "labels", "need", "pool_name", "priority", "shortest")

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.pool_name, self.priority = key[:2]
        self.labels: Labels = dict(key[6])
        #: What each of them asks for; None: what is usual in the pool.
        self.need = key[2]
        #: Whether they are extra members of elastic gangs, for which nobody waits.
        self.extra = key[-1]
        self.entries: SortedList[Entry] = SortedList()
        #: No task of it has declared a shorter duration, or time limit, in seconds since it last was empty.
        self.shortest = inf

    @property
    def first(self) -> Entry:
        """The entry of the task that is served first."""
        entry: Entry = self.entries[0]
        return entry

    def note_length(self, spec: TaskSpec) -> None:
        """Note for how long a task of it runs, as it says itself."""
        for seconds in (spec.estimated_duration, spec.max_run_s):
            if seconds is not None:
                self.shortest = min(self.shortest, seconds)


class PoolQueue:
    """The queue of one pool."""

    __slots__ = ("classes", "firsts", "later", "ready")

    def __init__(self) -> None:
        self.classes: dict[ClassKey, QueueClass] = {}
        #: The first entry of each class but those of extra members.
        self.firsts: SortedList[Entry] = SortedList()
        #: The entries of all classes.
        self.ready: SortedList[Entry] = SortedList()
        #: (number, task id) of tasks that may not start yet.
        self.later: SortedList[tuple[int, str]] = SortedList()

    @property
    def size(self) -> int:
        """Tasks of the pool that wait, those that may not start included."""
        return len(self.ready) + len(self.later)

    def in_order(self, begin: int, end: int | None) -> Iterator[str]:
        """The ids of the tasks from the place ``begin`` on, the first of all being 0, and before ``end``;
        those that may not start yet come last. Takes no longer for the last ones than for the first.
        """
        count = len(self.ready)
        last = None if end is None else max(0, end - count)
        yield from (task_id for *_, task_id in self.ready.islice(begin, end))
        yield from (task_id for _, task_id in self.later.islice(max(0, begin - count), last))

    def place(self, queue_class: QueueClass, entry: Entry) -> None:
        """Add an entry to a class."""
        self.ready.add(entry)
        entries = queue_class.entries
        if not queue_class.extra and (not entries or entry < entries[0]):
            if entries:
                self.firsts.remove(entries[0])
            self.firsts.add(entry)
        entries.add(entry)

    def displace(self, queue_class: QueueClass, entry: Entry) -> None:
        """Remove an entry from its class."""
        self.ready.remove(entry)
        entries = queue_class.entries
        was_first = entry == entries[0]
        entries.remove(entry)
        if was_first and not queue_class.extra:
            self.firsts.remove(entry)
            if entries:
                self.firsts.add(entries[0])
