"""Tasks that wait in the queue, in the order in which they are served.

Tasks with the same pool, priority, labels and request form a class: if the first of them does not fit, none
does; but a shorter one may end before a start that is reserved for another task. Within a pool tasks come by
their order value, then by number; the order value never changes while they wait, so each class is a sorted
list. Ageing fits into it: it raises all waiting tasks at the same rate, so what counts is the priority minus
the rate times the time of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

import msgspec
from sortedcontainers import SortedList

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.arrays import member_id
from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.flavors import counted, flavors_for
from schedulemesh.domain.payloads import GangPayload, JobPayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import EndState, TaskSpec
from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.arrays import Arrays
from schedulemesh.engine.state.budgets import Budgets
from schedulemesh.engine.state.children import Children
from schedulemesh.engine.state.dependents import Dependents
from schedulemesh.engine.state.fair_order import Entry, FairFirsts
from schedulemesh.engine.state.long_waits import LongWaits
from schedulemesh.engine.state.no_room import NoRoom
from schedulemesh.engine.state.owners import Owners
from schedulemesh.engine.state.queue_classes import (
    ClassKey,
    OwnerEntries,
    PoolQueue,
    QueueClass,
    Relevant,
)
from schedulemesh.engine.state.queue_kinds import QueueKinds
from schedulemesh.engine.state.queued_tasks import (
    FRONT,
    QueuedTask,
    Reservation,
    common_order_value,
    order_value,
)

#: What an owner has of whom nothing waits.
_NO_ENTRIES: Mapping[QueueClass, OwnerEntries] = {}


class _Alike(msgspec.Struct, kw_only=True):
    """What tasks have in common that are added together."""

    queue_class: QueueClass
    #: Their entries so far.
    entries: list[Entry]
    #: See ``common_order_value``.
    order_value: float | None
    #: The largest of their numbers, and the shortest of the durations that they declare, in seconds.
    last: int = 0
    shortest: float = inf


class Turns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """With which pool, in the order of their names, the next tick begins where it cannot search for all."""

    evictions: str = ""
    starts: str = ""


class Queue:
    """All tasks that wait, by id, by pool and by class."""

    def __init__(
        self,
        children: Children,
        dependents: Dependents,
        owners: Owners,
        arrays: Arrays,
        budgets: Budgets,
        relevant: Relevant,
    ) -> None:
        #: What owners hold, in the pools that count them.
        self.owners = owners
        #: What is used of the budgets of pools and owners.
        self.budgets = budgets
        self.by_id: dict[str, QueuedTask] = {}
        #: Those whose members are in the queue as one entry, and what their members do.
        self.arrays = arrays
        #: Those that wait for other tasks to end.
        self.dependents = dependents
        #: Those of running tasks, which may wait here.
        self.children = children
        #: Which labels tell tasks apart in preemption.
        self._relevant = relevant
        #: Queues that are not empty, by the names of their pools.
        self.pools: dict[str, PoolQueue] = {}
        #: The task whose agent will have this name.
        self.agent_names: dict[str, str] = {}
        #: Pools in which there may be classes that the next pass tries: which, they note themselves. This and
        #: the next five only spare work: to know less is slower, and changes no decision.
        self.open_pools: dict[str, None] = {}
        #: How many classes were opened by themselves, so that a pass leaves out those that are opened while
        #: it lasts.
        self.opened = 0
        #: The roots of the trees of cohorts in which quota was freed since the last pass.
        self.freed_trees: set[str] = set()
        #: What single agents asked for that fitted on no node, since room was freed last.
        self.no_room = NoRoom()
        #: What tasks asked for that found no placement group, since room was freed or a group changed last:
        #: the pool, the shape of a new group, and the reserved shape that they may have.
        self.no_group: set[tuple[str, GroupShape, GroupShape | None]] = set()
        #: How many tasks may start whose time has come, which is no fact.
        self.advanced = 0
        #: Whether a class may fit that did not before.
        self.changed = False
        #: Ids of the tasks with a reserved start.
        self.reserved: dict[str, None] = {}
        #: Ids of the tasks with ``impossible_since``.
        self.impossible: dict[str, None] = {}
        self.policy = QueuePolicy()
        #: Where the order depends on estimates; else empty.
        self.kinds = QueueKinds()
        #: The number of the next submission.
        self.next_number = 1
        self.turns = Turns()
        #: The ``front`` of each task that has one.
        self._fronts: SortedList[int] = SortedList()
        #: (not_before, task id) of tasks that wait for a time.
        self._delayed: SortedList[tuple[float, str]] = SortedList()
        #: (expires_at, task id).
        self._expiring: SortedList[tuple[float, str]] = SortedList()
        self.long_waits = LongWaits()

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def last_front(self) -> int:
        """The largest ``front`` of a task that waits; 0: none was moved to the front."""
        return self._fronts[-1] if self._fronts else 0

    def add(self, task: QueuedTask) -> None:
        """Add a task at its place."""
        task_id, name, spec = task.task_id, task.pool_name, task.common_spec
        if name in self.budgets.spent or spec.full_priority is not None:
            task.submission = msgspec.structs.replace(task.submission, task=self._priced(task))
        self.by_id[task_id] = task
        if spec.parent:
            self.children.add(task.spec)
        if spec.array_id:
            self.arrays.note_queued(task.spec)
        for agent_name in _names(task):
            self.agent_names[agent_name] = task_id
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = PoolQueue(is_fair=self.owners.is_fair(name))
        self.next_number = max(self.next_number, task.number + 1)
        if self.policy.orders_by_estimates:
            self._note_kind(task)
        if task.front:
            self._fronts.add(task.front)
        if task.reservation is not None:
            self.reserved[task_id] = None
        if task.impossible_since is not None:
            self.impossible[task_id] = None
        if task.depends:
            self.dependents.add(task_id, task.waits_for, broken=task.broken_by is not None)
        if task.expires_at is not None:
            self._expiring.add((task.expires_at, task_id))
        if task.not_before:
            self._delayed.add((task.not_before, task_id))
            pool.add_later(task.number, task.spec)
        else:
            self._enter(task)

    def add_all(self, tasks: Iterable[QueuedTask]) -> None:
        """Add many tasks, as ``add`` would one after the other; the orders of most are made at the end. It
        takes least where many have the same object in common.
        """
        entries: dict[str, dict[QueueClass, list[Entry]]] = {}
        alike: dict[int, _Alike | None] = {}
        for task in tasks:
            if not _is_plain(task):
                self.add(task)
                continue
            common, task_id, agent_name, seconds = task.outline
            key = id(common)
            if key not in alike:
                alike[key] = self._alike(task, entries)
            same = alike[key]
            if same is None:
                self.add(task)
                continue
            number = task.number
            self.by_id[task_id] = task
            self.agent_names[agent_name] = task_id
            task.queue_class = same.queue_class
            if seconds is not None and seconds < same.shortest:
                same.shortest = seconds
            value = same.order_value
            if value is None:
                value = order_value(task, self.policy)
            task.entry = entry = (value, number, task_id)
            same.entries.append(entry)
            if number > same.last:
                same.last = number
        for same in filter(None, alike.values()):
            self.next_number = max(self.next_number, same.last + 1)
            same.queue_class.shortest = min(same.queue_class.shortest, same.shortest)
        for pool_name, of_pool in entries.items():
            self.pools[pool_name].place_all(of_pool)

    def _alike(
        self, task: QueuedTask, entries: dict[str, dict[QueueClass, list[Entry]]]
    ) -> _Alike | None:
        """What is the same for all tasks that have this in common with a task, whose entries are to be among
        ``entries``; None: such tasks are in other lists, too.
        """
        spec, pool_name, policy = task.common_spec, task.pool_name, self.policy
        in_other_lists = (
            policy.orders_by_estimates
            or policy.promote_after_s
            or self.budgets.by_pool
            or pool_name in self.owners.pools
            or spec.full_priority is not None
            or spec.parent
            or spec.array
            or spec.array_id
            or task.common.wait_s is not None
            or isinstance(task.common.agent.payload, GangPayload)
        )
        if in_other_lists:
            return None
        pool = self.pools.get(pool_name)
        if pool is None:
            pool = self.pools[pool_name] = PoolQueue()
        queue_class = self._class_in(pool, _class_of(task, owner="", exceeds=False))
        queue_class.note_length(spec)
        return _Alike(
            queue_class=queue_class,
            entries=entries.setdefault(pool_name, {}).setdefault(queue_class, []),
            order_value=common_order_value(task, policy),
        )

    def remove(self, task_id: str, *, starts: bool = False) -> QueuedTask:
        """Remove a task. ``starts``: its owner holds more from now on; ``note_use`` follows at once, and has
        those of its tasks in their classes that may start then.
        """
        task = self.by_id.pop(task_id)
        spec = task.common_spec
        if spec.parent:
            self.children.remove(task.spec)
        if spec.array_id:
            self.arrays.note_not_queued(task.spec)
        if task.reservation is not None:
            del self.reserved[task_id]
            self.changed = True
        self.impossible.pop(task_id, None)
        if task.depends:
            self.dependents.remove(task_id, task.waits_for)
        self._leave(task, starts=starts)
        if self.kinds.by_kind:
            self.kinds.remove(task.submission, task_id)
        self._delayed.discard((task.not_before, task_id))
        self._fronts.discard(task.front)
        if task.expires_at is not None:
            self._expiring.remove((task.expires_at, task_id))
        for agent_name in _names(task):
            del self.agent_names[agent_name]
        if not self.pools[task.pool_name].size:
            del self.pools[task.pool_name]
        return task

    def change(self, task_id: str, *, held: bool, priority: float, front: int) -> None:
        """Change how a task waits."""
        task = self.by_id[task_id]
        self._leave(task)
        if priority != task.spec.priority:
            spec = task.spec.with_priority(priority)
            task.submission = msgspec.structs.replace(task.submission, task=spec)
            if task.pool_name in self.budgets.spent:
                task.submission = msgspec.structs.replace(task.submission, task=self._priced(task))
        if front != task.front:
            self._fronts.discard(task.front)
            self._fronts.add(front)
        task.held, task.front = held, front
        if held and task.reservation is not None:
            self.reserve(task_id, None)
        if (task.not_before, task_id) in self._delayed:
            self.pools[task.pool_name].add_later(task.number, task.spec)
        else:
            self._enter(task)

    def note_end(self, task_id: str, state: EndState, ready: Iterable[str], at: float) -> None:
        """A task has ended in this state that others start after; those that are ``ready`` wait for no other
        from ``at`` on, and are in the queue since then.
        """
        for dependent_id in self.dependents.pop(task_id):
            task = self.by_id[dependent_id]
            text = next(word for word in task.waits_for if dependency(word).task_id == task_id)
            task.waits_for = tuple(word for word in task.waits_for if word != text)
            if not dependency(text).is_met_by(state.value) and task.broken_by is None:
                task.broken_by = text, state
                self.dependents.broken[dependent_id] = None
        for dependent_id in ready:
            self._enter_anew(self.by_id[dependent_id], at)

    def _enter_anew(self, task: QueuedTask, at: float) -> None:
        """Have a task come in the queue as if it were submitted now."""
        self._leave(task)
        task.queued_at, task.number = at, self.number_of(task.spec)
        self.next_number = task.number + 1
        if task.expires_at is not None:
            self._expiring.add((task.expires_at, task.task_id))
        self._enter(task)
        if task.queue_class is not None:
            self.open_class(task.queue_class)
            self.changed = True

    def number_of(self, spec: TaskSpec) -> int:
        """The number of a submission that joins the queue now. That of an array leaves one free before it,
        with which its members come before those that have not been tried yet.
        """
        return self.next_number + bool(spec.array)

    def split(self, array_id: str, indices: Iterable[int]) -> None:
        """Have members of an array wait as tasks of their own."""
        entry = self.by_id[array_id]
        for index in indices:
            self.add(_member_of(entry, index))
            self.arrays.by_id[array_id].remaining.discard(index)
        if entry.reservation is not None:
            # It was for one of them.
            self.reserve(array_id, None)
            entry.first_at = None
        if not self.arrays.by_id[array_id].remaining:
            self.remove(array_id)

    def sort_array(self, array_id: str) -> None:
        """As many members of an array run as may at once, or no longer: its entries may start, or may not."""
        one = self.arrays.by_id[array_id]
        task_ids = [array_id, *(member_id(array_id, index) for index in one.waiting)]
        for task in (self.by_id[task_id] for task_id in task_ids if task_id in self.by_id):
            self._sort(task)

    def enter_again(self, pool_name: str, owner: str | None = None) -> None:
        """The budget of a pool, or of an owner in it, is spent or is so no longer: its tasks may not start
        or may, and have other priorities.
        """
        pool = self.pools.get(pool_name)
        for task_id in [] if pool is None else [*pool.in_order(0, None)]:
            task = self.by_id[task_id]
            if owner not in (None, task.spec.owner):
                continue
            spec = self._priced(task)
            is_ready = task.queue_class is not None
            if spec is not task.spec or self.is_withheld(task) == is_ready:
                self._sort(task, spec)

    def _priced(self, task: QueuedTask) -> TaskSpec:
        """A task with the priority that budgets leave it."""
        return self.budgets.priced(task.spec, task.pool_name, task.need_of_class)

    def _sort(self, task: QueuedTask, spec: TaskSpec | None = None) -> None:
        """Have a task be among those that may start, or not, as things are now, and at its place. ``spec``:
        with another priority.
        """
        self._leave(task)
        if spec is not None:
            task.submission = msgspec.structs.replace(task.submission, task=spec)
        if task.reservation is not None and self.is_withheld(task):
            self.reserve(task.task_id, None)
        if (task.not_before, task.task_id) in self._delayed:
            self.pools[task.pool_name].add_later(task.number, task.spec)
            return
        self._enter(task)
        if task.queue_class is not None:
            self.open_class(task.queue_class)
            self.changed = True

    def limit(self, task_id: str, max_run_s: float | None) -> None:
        """Change for how long a task may run that waits, which does not change its place."""
        task = self.by_id[task_id]
        spec = msgspec.structs.replace(task.spec, max_run_s=max_run_s)
        task.submission = msgspec.structs.replace(task.submission, task=spec)
        if task.queue_class is not None:
            self.pools[task.pool_name].note_length(task.queue_class, spec)

    def reserve(self, task_id: str, reservation: Reservation | None) -> None:
        """Reserve a task's start, or drop its reservation. What was held back before may fit now."""
        self.changed = True
        task = self.by_id[task_id]
        task.reservation = reservation
        if reservation is None:
            self.reserved.pop(task_id, None)
        else:
            self.reserved[task_id] = None
            task.first_at = reservation.first_at if task.first_at is None else task.first_at

    def note_impossible(self, task_id: str, since: float | None) -> None:
        """Note since when a task could not start even if nothing else ran; None: it could."""
        self.by_id[task_id].impossible_since = since
        if since is None:
            self.impossible.pop(task_id, None)
        else:
            self.impossible[task_id] = None

    def order_by(self, policy: QueuePolicy) -> None:
        """Serve the tasks in the order of this policy from now on."""
        ready = [task for task in self.by_id.values() if task.queue_class is not None]
        for task in ready:
            self._leave(task)
        self.policy = policy
        self.kinds = QueueKinds()
        if policy.orders_by_estimates:
            for task in self.by_id.values():
                self._note_kind(task)
        for task in ready:
            self._enter(task)

    def expect(self, kind: TaskKind, seconds: float) -> None:
        """The tasks of a kind are expected to run so long; they come at another place."""
        self.changed = True
        alike = self.kinds.by_kind[kind]
        alike.estimate_s = seconds
        for task in map(self.by_id.__getitem__, alike.task_ids):
            if task.queue_class is None:
                task.estimate_s = seconds
                continue
            self._leave(task)
            task.estimate_s = seconds
            self._enter(task)

    def reopen(self, pool_name: str) -> None:
        """Have the next pass try all classes of a pool."""
        pool = self.pools.get(pool_name)
        if pool is None:
            return
        self.changed = True
        self.open_pools[pool_name] = None
        if pool.alike is None:
            pool.closed.clear()
            return
        for alike in pool.alike.values():
            alike.open_all()

    def open_class(self, queue_class: QueueClass) -> None:
        """Have passes try a class. Whether there is to be another pass for it is ``changed``."""
        pool_name = queue_class.pool_name
        self.open_pools[pool_name] = None
        closed = self.pools[pool_name].closed
        if queue_class.alike is not None:
            queue_class.alike.open[queue_class] = None
        elif queue_class in closed:
            del closed[queue_class]
        elif queue_class.opened:
            return  # it is open
        self.opened += 1
        queue_class.opened = self.opened

    def closed_of(self, pool_name: str) -> list[QueueClass]:
        """The classes of a pool that no pass tries."""
        pool = self.pools.get(pool_name)
        if pool is None:
            return []
        if pool.alike is None:
            return [*pool.closed]
        return [c for alike in pool.alike.values() for c in alike.classes if c not in alike.open]

    def reopen_all(self) -> None:
        """Have the next pass try all classes."""
        for pool_name in self.pools:
            self.reopen(pool_name)

    def close(self, queue_class: QueueClass) -> None:
        """The pool's quota is short for a class: no pass tries it until some becomes free."""
        if queue_class.alike is None:
            self.pools[queue_class.pool_name].closed[queue_class] = None
        else:
            queue_class.alike.close(queue_class)

    def first_of(self, pool_name: str) -> QueuedTask | None:
        """The first task of a pool that may start; extra members are passed over. None: there is none."""
        pool = self.pools.get(pool_name)
        return self.by_id[pool.firsts[0][-1]] if pool is not None and pool.firsts else None

    def firsts_of(self, pool_name: str, begin: Entry | None = None) -> Iterator[QueuedTask]:
        """The first task of each class of a pool that may start, in their order and from this place on,
        without extra members.
        """
        pool = self.pools.get(pool_name)
        for *_, task_id in () if pool is None else pool.firsts.irange(begin):
            yield self.by_id[task_id]

    def advance(self, now: float) -> None:
        """Let the tasks start whose time has come."""
        while self.is_due(now):
            _, task_id = self._delayed.pop(0)
            self.advanced += 1
            task = self.by_id[task_id]
            self._leave(task)
            self._enter(task)

    def is_due(self, now: float) -> bool:
        """Whether the time of a task has come since the last ``advance``."""
        return bool(self._delayed) and self._delayed[0][0] <= now

    def expired(self, now: float) -> list[QueuedTask]:
        """The tasks that have waited for as long as they may."""
        expired = []
        for expires_at, task_id in self._expiring:
            if expires_at > now:
                break
            expired.append(self.by_id[task_id])
        return expired

    def times(self) -> Iterator[float]:
        """When the next task may start that waits for a time, is cancelled, or has waited for long."""
        yield from (at for at, _ in self._delayed[:1])
        yield from (at for at, _ in self._expiring[:1])
        yield from self.long_waits.next_at(self.policy.promote_after_s)

    def position(self, task: QueuedTask) -> int:
        """How many tasks of its pool come before it, plus one. Those that may not start yet come last."""
        pool = self.pools[task.pool_name]
        if task.queue_class is None:
            return len(pool.ready) + int(pool.later.index((task.number, task.task_id))) + 1
        return int(pool.ready.index(self.entry(task))) + 1

    def size(self, pool_name: str) -> int:
        """How many tasks of a pool wait, those that may not start included."""
        pool = self.pools.get(pool_name)
        return 0 if pool is None else pool.size

    def count_of_owner(self, pool_name: str, owner: str) -> int:
        """How many tasks of an owner wait in a pool that counts owners, without extra members of gangs."""
        pool = self.pools.get(pool_name)
        if pool is None:
            return 0
        classes = pool.of_owner.get(owner, _NO_ENTRIES)
        ready = sum(of_owner.size for c, of_owner in classes.items() if not c.extra)
        waiting = ready + pool.later_of_owner.get(owner, 0)
        # An array is one entry, and each of its members that wait in it counts.
        return waiting + sum(
            len(array.remaining) - 1
            for array in self.arrays.by_id.values()
            if (entry := self.by_id.get(array.array_id)) is not None
            and (entry.pool_name, entry.spec.owner) == (pool_name, owner)
        )

    def of_pool(
        self, pool_name: str, begin: int = 0, end: int | None = None
    ) -> Iterator[QueuedTask]:
        """The tasks of a pool in their order, then those that may not start yet; ``begin``, ``end``: see
        ``PoolQueue.in_order``.
        """
        pool = self.pools.get(pool_name)
        if pool is not None:
            yield from map(self.by_id.__getitem__, pool.in_order(begin, end))

    def entry(self, task: QueuedTask) -> Entry:
        """The place of a task in its class."""
        if task.entry is not None:
            return task.entry
        if task.front:
            return (-FRONT * task.front, task.number, task.task_id)
        value = order_value(task, self.policy)
        if self.owners.fair and task.pool_name in self.owners.fair:
            rank = self.owners.rank_of(task.pool_name, task.common_spec.owner)
            value = rank.order(value)
        return (value, task.number, task.task_id)

    def entry_now(self, submission: TaskSubmitted, now: float) -> Entry | None:
        """The place that a submission would have if it joined the queue now; None: it has no task."""
        if submission.task is None:
            return None
        return self.entry(QueuedTask(submission=submission, queued_at=now, number=self.next_number))

    def entry_of(self, submission: TaskSubmitted, now: float) -> Entry | None:
        """The place of a submission that waits, or that it would have now; None: it has no task."""
        waiting = submission.task and self.by_id.get(submission.task.task_id)
        return self.entry(waiting) if waiting else self.entry_now(submission, now)

    def any_before(self, entry: Entry) -> bool:
        """Whether any task that waits, in whatever pool, comes before this place."""
        return any(pool.firsts and pool.firsts[0] < entry for pool in self.pools.values())

    def _note_kind(self, task: QueuedTask) -> None:
        """Give a task that is in no class the estimate of its kind."""
        task.estimate_s = self.kinds.add(task.submission, task.task_id, task.estimate_s)

    def _enter(self, task: QueuedTask) -> None:
        task.entry = None
        pool = self.pools[task.pool_name]
        if self.is_withheld(task):
            pool.add_later(task.number, task.spec)
            return
        counts_owners, owner = task.pool_name in self.owners.pools, task.common_spec.owner
        queue_class = self._class_in(pool, self.key_of(task))
        entry = task.entry = self.entry(task)
        if counts_owners:
            room = (
                None
                if queue_class.exceeds
                else self.room_of_class(task.pool_name, owner, queue_class)
            )
            pool.place_of_owner(queue_class, entry, owner, room)
            self._note_withheld(pool, queue_class)
        else:
            pool.place(queue_class, entry)
        if pool.by_need is None:
            queue_class.note_length(task.spec)
        else:
            pool.note_length(queue_class, task.spec)
        task.queue_class = queue_class
        if self.policy.promote_after_s and not task.front and not queue_class.extra:
            self.long_waits.add(task.queued_at, task.task_id)

    def is_withheld(self, task: QueuedTask) -> bool:
        """Whether a task may not start whatever is free and whenever it is."""
        if task.held or task.depends or self.is_of_full_array(task):
            return True
        name = task.pool_name
        return name in self.budgets.spent and self.budgets.holds(
            name, task.common_spec.owner, task.need_of_class
        )

    def is_of_full_array(self, task: QueuedTask) -> bool:
        """Whether it is an array, or a member of one, of which as many have an agent as may at once."""
        spec = task.common_spec
        return bool(spec.array or spec.array_id) and self.arrays.is_full(task.spec)

    def key_of(self, task: QueuedTask) -> ClassKey:
        """The key of the class that a task joins."""
        name = task.pool_name
        if name not in self.owners.pools:
            return _class_of(task, owner="", exceeds=False)
        # With alternatives or flavors it depends on its owner which of them is within the limits.
        alone = (
            bool(task.common.agent.alternatives)
            or self.owners.is_fair(name)
            or bool(self.owners.pools[name].flavors)
        )
        owner = task.common_spec.owner if alone else ""
        return _class_of(task, owner=owner, exceeds=self._exceeds_limit(task))

    def _class_in(self, pool: PoolQueue, key: ClassKey) -> QueueClass:
        """The class with a key, which is opened where it is new."""
        queue_class = pool.classes.get(key) or pool.withheld.get(key)
        if queue_class is None:
            queue_class = pool.new_class(key)
            if queue_class.relevant:
                queue_class.relevant = self._relevant(queue_class.labels)
            self.open_class(queue_class)
            self.changed = True
        return queue_class

    def _leave(self, task: QueuedTask, *, starts: bool = False) -> None:
        """``starts``: see ``remove``."""
        queue_class, task.queue_class = task.queue_class, None
        pool = self.pools[task.pool_name]
        if queue_class is None:
            pool.remove_later(task.number, task.spec)
            return
        entry = self.entry(task)
        task.entry = None
        if queue_class.owners:
            self._leave_as_owned(pool, queue_class, entry, task.common_spec.owner, starts=starts)
        else:
            pool.displace(queue_class, entry)
        if self.policy.promote_after_s:
            self.long_waits.discard(task.queued_at, entry[-1])
        if not queue_class.entries and queue_class.is_empty:
            pool.remove_class(queue_class)

    def _leave_as_owned(
        self, pool: PoolQueue, queue_class: QueueClass, entry: Entry, owner: str, *, starts: bool
    ) -> None:
        """An entry leaves a class of a pool that counts owners."""
        pool.displace_of_owner(queue_class, entry, owner)
        of_owner = queue_class.owners.get(owner)
        if of_owner is not None and starts:
            return
        if of_owner is not None and of_owner.room is not None:
            pool.set_room(queue_class, of_owner, of_owner.room)
        if not queue_class.entries and queue_class.owners:
            self._note_withheld(pool, queue_class)

    def _exceeds_limit(self, task: QueuedTask) -> bool:
        """Whether a task alone exceeds its owner's limits, so that it can never start."""
        need = self._need(task.pool_name, task.need_of_class)
        return self.owners.exceeds(task.pool_name, task.common_spec.owner, need) is not None

    def _need(self, pool_name: str, need: Resources | None) -> Resources:
        return self.owners.pools[pool_name].default_agent() if need is None else need

    def room_of_class(self, pool_name: str, owner: str, queue_class: QueueClass) -> int | None:
        """How many tasks of a class its owner's limits permit to start now, in the flavor in which it may
        start most; None: any number.
        """
        need, spec = self._need(pool_name, queue_class.need), self.owners.pools[pool_name]
        flavors = spec.flavors and {
            flavor.name: flavor
            for labels in queue_class.each_labels
            for flavor in flavors_for(spec.flavors, need, labels)
        }
        if not flavors:
            return self.owners.room(pool_name, owner, need)
        rooms = [
            self.owners.room(pool_name, owner, counted(need, flavor.quota_of(need)))
            for flavor in flavors.values()
        ]
        return None if None in rooms else max(room for room in rooms if room is not None)

    def _note_withheld(self, pool: PoolQueue, queue_class: QueueClass) -> None:
        """Have passes try a class as long as not all of its entries are withheld."""
        if queue_class.entries:
            if pool.withheld and queue_class.key in pool.withheld:
                pool.withhold_no_more(queue_class)
                self.open_class(queue_class)
                self.changed = True
        elif queue_class.key in pool.classes:
            pool.withhold(queue_class)

    def forget_ways(self, pool_name: str) -> None:
        """The flavors of a pool have changed, and with them the ways in which its tasks may run."""
        pool = self.pools.get(pool_name)
        for queue_class in (
            () if pool is None else (*pool.classes.values(), *pool.withheld.values())
        ):
            queue_class.forget_ways()

    def note_use(self, pool_name: str, owner: str) -> None:
        """An owner holds more or less of a pool: other entries of its tasks are withheld."""
        pool = self.pools.get(pool_name)
        if pool_name in self.owners.fair:
            self.owners.rank_anew(pool_name, owner, () if pool is None else pool.of_owner)
            if pool is not None and isinstance(pool.firsts, FairFirsts):
                pool.firsts.sort_anew(owner)
        if pool is None or pool_name not in self.owners.limited:
            return
        for queue_class, of_owner in pool.of_owner.get(owner, _NO_ENTRIES).items():
            if of_owner.room is None:
                continue
            room = self.room_of_class(pool_name, owner, queue_class) or 0
            if of_owner.admitted == of_owner.size <= room:
                of_owner.room = room
            elif room != of_owner.room or of_owner.admitted < room:
                pool.set_room(queue_class, of_owner, room)
                self._note_withheld(pool, queue_class)

    def name_labels(self) -> None:
        """The rules of preemption name other labels than before."""
        for pool in self.pools.values():
            pool.name_labels(self._relevant)

    def rank_owners(self, pool_name: str) -> None:
        """Have the owners of a fair pool come in another order, as past use counts in another way."""
        self.owners.rank_all_anew(pool_name)
        pool = self.pools.get(pool_name)
        if pool is not None and isinstance(pool.firsts, FairFirsts):
            pool.firsts.sort_anew(None)

    def sort_anew(self, pool_name: str) -> None:
        """The pool counts owners in another way than before."""
        before = self.pools.get(pool_name)
        if before is None:
            return
        pool = self.pools[pool_name] = PoolQueue(is_fair=self.owners.is_fair(pool_name))
        pool.later, pool.later_of_owner = before.later, before.later_of_owner
        for task in [self.by_id[task_id] for *_, task_id in before.ready]:
            self.long_waits.discard(task.queued_at, task.task_id)
            self._enter(task)


def _is_plain(task: QueuedTask) -> bool:
    """Whether the way in which a task waits puts it in no list but the queue's order."""
    if task.held or task.front or task.not_before or task.waits_for or task.broken_by is not None:
        return False
    return task.reservation is None and task.impossible_since is None


def _member_of(entry: QueuedTask, index: int) -> QueuedTask:
    """A member of an array as a task of its own, at the array's place."""
    submission = entry.submission
    agent = msgspec.structs.replace(submission.agent, name=member_id(submission.agent.name, index))
    spec = msgspec.structs.replace(
        entry.spec,
        task_id=member_id(entry.task_id, index),
        array="",
        array_id=entry.task_id,
        array_index=index,
        after=(),
    )
    return QueuedTask(
        submission=msgspec.structs.replace(submission, agent=agent, task=spec, request_id=None),
        queued_at=entry.queued_at,
        number=entry.number - 1,
        held=entry.held,
        front=entry.front,
        waits_for=entry.waits_for,
        estimate_s=entry.estimate_s,
    )


def _names(task: QueuedTask) -> tuple[str, ...]:
    """The names that its agent will have: of a gang also those of its members."""
    if isinstance(task.common.agent.payload, GangPayload):
        agent = task.submission.agent
        return (agent.name, *agent.process_names)
    return (task.agent_name,)


def _class_of(task: QueuedTask, *, owner: str, exceeds: bool) -> ClassKey:
    """What a decision about the task depends on."""
    submission, spec = task.common, task.common_spec
    agent = submission.agent
    labels = tuple(sorted(spec.labels.items())) if spec.labels else ()
    placed = submission.choose_node
    own_group = agent.own_group
    payload = agent.payload
    group = None if own_group is None else (own_group.strategy, own_group.same_label, payload.parts)
    job_strategy = payload.strategy if isinstance(payload, JobPayload) else None
    return (
        agent.pool_name,
        spec.priority,
        task.need_of_class,
        agent.bundles,
        group,
        placed,
        labels,
        job_strategy,
        spec.evict_pools,
        agent.node_labels,
        agent.alternatives,
        "" if agent.flavor is None else agent.flavor.name,
        spec.topology,
        owner,
        exceeds,
        bool(spec.extra_of),
    )
