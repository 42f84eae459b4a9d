"""Tasks, their phases, and the classes of running tasks that decisions look at.

Tasks with the same pool, priority, resources, labels named by the policy's rules, and pools that pay for them
form a class: whether one of them may be evicted holds for all. Within a class only the remaining time
differs, so a class keeps two orders: by end while time remains, and by start once it is over or unknown. A
task moves from the first order to the second when a decision finds its time is up, at most once. Tasks that
have not run for the policy's ``min_runtime`` are in neither order, and join one when a decision finds that
they have. Tasks that were evicted as often as the policy allows are in classes of their own, none of whose
tasks may be evicted by the rules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

import msgspec
from sortedcontainers import SortedList

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.flavors import TakenFlavor
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.reasons import DRAINS, LIMITS, PreemptionReason
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.domain.task import FIRST_ATTEMPT, Attempts, TaskPhase, TaskSpec
from schedulemesh.engine.state.arrays import Arrays
from schedulemesh.engine.state.children import Children
from schedulemesh.engine.state.class_order import ClassOrder
from schedulemesh.engine.state.task_phases import (
    TRANSITIONS,
    AnyTaskPhase,
    Preempting,
    kind_of,
)
from schedulemesh.engine.state.transitions import ForbiddenTransitionError

_INFINITY = float("inf")
#: A task that outlives its end is expected to run on for this part of its duration, so many seconds at least.
_OVERRUN_PART, _OVERRUN_S = 0.05, 1.0
_FIRST_SWEEP = 1024
#: The owner of a task is warned so many seconds before its time limit, but no more than this part of it.
_WARNED_S, _WARNED_PART = 600.0, 0.1
#: The order of a class that does not keep it; there may be as many classes as tasks.
_EMPTY: SortedList[Any] = SortedList()


class RunningTask(msgspec.Struct, kw_only=True, gc=False):
    """A task, from its admission to its end."""

    spec: TaskSpec
    agent_name: str
    #: Seconds since 1970; the admission until it runs.
    started_at: float
    #: Changed by ``enter`` and ``note_saving`` only.
    phase: AnyTaskPhase = TaskPhase.RUNNING
    #: What ending its agent frees; nothing for a task on an agent that is not ours.
    resources: Resources
    #: See ``AgentSpec.flavor``.
    flavor: TakenFlavor | None = None
    #: See ``Agent.payers``.
    payers: tuple[str, ...] = ()
    #: When something was last saved, in this attempt, that it can be restored from; None: nothing was.
    saved_at: float | None = None
    #: The key of its last stored state, which may be of an earlier attempt.
    state_key: str | None = None
    #: The position of its first submission among all submissions; 0: it was only registered.
    number: int = 0
    #: What happened to it before this attempt.
    attempts: Attempts = FIRST_ATTEMPT
    #: False: the user's Ray options place it.
    choose_node: bool = True
    #: Its order value in the queue when it started; None: it passed nobody there that might evict it, or the
    #: order has changed since.
    order_value: float | None = None
    #: When it ends by the progress that it has reported, in seconds since 1970; None: its estimate counts.
    measured_end: float | None = None
    #: Seconds that this attempt may run, as its task and its pool said when it began, or as was changed
    #: since; None: no limit.
    max_run_s: float | None = None
    #: When its owner was warned of that; None: not yet.
    limit_warned_at: float | None = None
    #: Since when its GPUs were idle when its owner was warned of that, in seconds since 1970; None: they
    #: were not, or not for long enough.
    idle_since: float | None = None
    #: When it is being ended if they stay so.
    idle_ends_at: float | None = None
    #: Its class while it runs.
    task_class: TaskClass | None = None

    def enter(self, phase: AnyTaskPhase) -> None:
        """Change the phase; raises ForbiddenTransitionError where ``TRANSITIONS`` does not allow it."""
        if kind_of(phase) not in TRANSITIONS[kind_of(self.phase)]:
            who = f"task {self.spec.task_id!r}"
            raise ForbiddenTransitionError(who, self.phase.value, phase.value)
        self.phase = phase

    def note_saving(self, error: str) -> None:
        """Record whether the state of a task that is being preempted could be saved; empty: it could."""
        if not isinstance(self.phase, Preempting):
            who, needed = f"task {self.spec.task_id!r}", "one that is saved to be preempted"
            raise ForbiddenTransitionError(who, self.phase.value, needed)
        self.phase = msgspec.structs.replace(self.phase, save_error=error)

    def replace_state(self) -> None:
        """Note that another state takes the place of its last one, which is kept where it may be started from
        it.
        """
        keeps_two = self.spec.on_restore_failure == "previous"
        if keeps_two or self.attempts.fell_back:
            previous = self.state_key if keeps_two else None
            self.attempts = msgspec.structs.replace(
                self.attempts, previous_state=previous, fell_back=False
            )

    @property
    def ends_at(self) -> float | None:
        """When it ends by its progress, else by its estimated duration; None: unknown."""
        if self.measured_end is not None:
            return self.measured_end
        if self.spec.estimated_duration is None:
            return None
        return self.started_at + self.spec.estimated_duration

    @property
    def has_end(self) -> bool:
        """Whether it is known when it ends, or when at the latest."""
        if self.max_run_s is not None or self.measured_end is not None:
            return True
        return self.spec.estimated_duration is not None

    @property
    def limit_at(self) -> float | None:
        """When it has run for as long as it may, from when on it is being ended; None: no limit."""
        return None if self.max_run_s is None else self.started_at + self.max_run_s

    @property
    def limit_due_at(self) -> float | None:
        """When its owner is to be warned, or then when it is to be ended; None: it has no limit or does not
        run.
        """
        if self.limit_at is None or self.max_run_s is None or self.phase is not TaskPhase.RUNNING:
            return None
        if self.limit_warned_at is not None:
            return self.limit_at
        return self.limit_at - min(_WARNED_S, _WARNED_PART * self.max_run_s)

    def expected_end(self, now: float) -> float | None:
        """When it is expected to end, which is never in the past; None: unknown. One that has outlived
        ``ends_at`` runs on for a part of its duration, doubled as often as needed: so the time changes
        seldom, and is no further away than the task has run on already, or than that part.
        """
        ends_at = self.ends_at
        if ends_at is None or ends_at > now:
            return ends_at
        overrun_s = max(_OVERRUN_S, _OVERRUN_PART * (ends_at - self.started_at))
        while ends_at + overrun_s <= now:
            overrun_s *= 2.0
        return ends_at + overrun_s

    def remaining(self, now: float) -> float:
        """Seconds left until it ends, at least 0; 0 where unknown."""
        ends_at = self.ends_at
        return 0.0 if ends_at is None else max(0.0, ends_at - now)

    def lost_work(self, now: float) -> float:
        """Seconds since its start or its last saved state."""
        return max(0.0, now - self.unsaved_since)

    def gpu_s(self, now: float) -> float:
        """The GPU-seconds that it has used, in all attempts."""
        ran_s = now - self.started_at if self.phase is TaskPhase.RUNNING else 0.0
        return self.attempts.gpu_s + ran_s * self.resources.gpu / UNIT

    @property
    def evicted_by(self) -> PreemptionReason | None:
        """The rule by which it is being evicted; None: it is not."""
        return self.phase.reason if isinstance(self.phase, Preempting) else None

    @property
    def is_drained(self) -> bool:
        """Whether it is evicted because its node or pool is drained, or its node for a window, which counts
        as no preemption.
        """
        return self.evicted_by in DRAINS

    @property
    def reached_limit(self) -> bool:
        """Whether it is evicted because it reached a limit in time, which counts as no preemption."""
        return self.evicted_by in LIMITS

    @property
    def unsaved_since(self) -> float:
        """The time from which an eviction loses its work: its start, or when its state was last saved."""
        return self.started_at if self.saved_at is None else max(self.started_at, self.saved_at)


#: Pool, priority, resources, labels that rules name; whether immune; whether extra members of elastic gangs;
#: the payers; whether their agents' GPUs are idle; and the flavor in which they run.
ClassKey = tuple[
    str,
    float,
    Resources,
    tuple[tuple[str, str], ...],
    bool,
    bool,
    tuple[str, ...],
    bool,
    "TakenFlavor | None",
]


class TaskClass:
    """Tasks that differ for the policy only in their times: remaining time, run time and lost work."""

    __slots__ = (
        "_tasks",
        "advanced_to",
        "count",
        "extra",
        "idle",
        "immune",
        "key",
        "labels",
        "latest",
        "limits",
        "order",
        "overdue",
        "payers",
        "pool_name",
        "priority",
        "quota",
        "resources",
        "since",
        "soonest",
        "timed",
        "young",
    )

    def __init__(self, key: ClassKey, order: ClassOrder, tasks: Mapping[str, RunningTask]) -> None:
        #: ``tasks``: all tasks by id, of which the class refers to its own.
        self.key = key
        self.order = order
        self._tasks = tasks
        self.pool_name, self.priority, self.resources, labels = key[:4]
        self.immune, self.extra, self.payers, self.idle, flavor = key[4:]
        #: What ending an agent frees of quota.
        self.quota = self.resources if flavor is None else flavor.quota_of(self.resources)
        self.labels: Labels = dict(labels)
        #: (-end, -start, task id): most time left first, then newest start, then id.
        self.timed: SortedList[tuple[float, float, str]] = SortedList()
        #: (-start, task id, end) of tasks with no time left or none known (end -inf): newest start
        #: first, then id. By lost work a last saved state counts as a start.
        self.overdue: SortedList[tuple[float, str, float]] = SortedList()
        #: (when it has run for ``min_runtime``, task id): tasks that may not be evicted yet.
        self.young: SortedList[tuple[float, str]] = SortedList() if order.min_runtime else _EMPTY
        #: Of each task that is not young, from when an eviction loses work; kept only with a budget of it.
        self.since: SortedList[float] = SortedList() if order.has_budget else _EMPTY
        #: How many tasks are in the class now, young ones included.
        self.count = 0
        #: When each of them that has a time limit reaches it, and its id.
        self.limits: SortedList[tuple[float, str]] = _EMPTY
        #: The last end among ``timed``; -inf where it is empty.
        self.latest = -_INFINITY
        #: No task leaves ``timed`` or ``young`` before this.
        self.soonest = _INFINITY
        #: The time for which the orders are right; an earlier time moves some tasks back.
        self.advanced_to = -_INFINITY

    def __len__(self) -> int:
        return self.count

    def has_tasks(self) -> bool:
        """Whether any task is in the class now."""
        return self.count > 0

    def add(self, task: RunningTask) -> None:
        """Add a task to its order."""
        self.count += 1
        if task.max_run_s is not None:
            if self.limits is _EMPTY:
                self.limits = SortedList()
            self.limits.add((task.limit_at, task.spec.task_id))
        if self.order.min_runtime and (ready_at := self._ready_at(task)) > self.advanced_to:
            self.young.add((ready_at, task.spec.task_id))
            self.soonest = min(self.soonest, ready_at)
        else:
            self._place(task)

    def discard(self, task: RunningTask) -> None:
        """Remove a task from its order."""
        self.count -= 1
        if task.max_run_s is not None:
            self.limits.remove((task.limit_at, task.spec.task_id))
        if (
            self.order.min_runtime
            and (entry := (self._ready_at(task), task.spec.task_id)) in self.young
        ):
            self.young.remove(entry)
            return
        if self.order.has_budget:
            self.since.remove(task.unsaved_since)
        known_end, start = task.ends_at, -self._start(task)
        known_end = -_INFINITY if known_end is None else known_end
        ends_at = known_end if self.order.by_time else -_INFINITY
        try:
            self.timed.remove((-ends_at, start, task.spec.task_id))
        except ValueError:
            self.overdue.remove((start, task.spec.task_id, known_end))
            return
        if ends_at == self.latest:
            self.latest = -self.timed[0][0] if self.timed else -_INFINITY

    def is_stale(self, now: float) -> bool:
        """Whether some task may be in the wrong order for this time."""
        return self.soonest <= now or now < self.advanced_to

    def advance(self, now: float) -> None:
        """Move the tasks that are no longer young to their order, and those whose time is up to the second
        one; and back, if the time is an earlier one.
        """
        timed, young = self.timed, self.young
        if now < self.advanced_to:
            self._begin_again(now)
        while young and young[0][0] <= now:
            self._place(self._tasks[young.pop(0)[1]])
        while timed and -timed[-1][0] <= now:
            end, start, task_id = timed.pop()
            self.overdue.add((start, task_id, -end))
        self.advanced_to = now
        self.soonest = -timed[-1][0] if timed else _INFINITY
        if young:
            self.soonest = min(self.soonest, young[0][0])
        self.latest = -timed[0][0] if timed else -_INFINITY

    def ordered(self, now: float) -> Iterator[tuple[float, float, str]]:
        """Each task that is not young as (remaining seconds, -start, task id), most remaining first; after
        ``advance``.
        """
        for end, start, task_id in self.timed:
            yield (-end - now, start, task_id)
        for start, task_id, _ in self.overdue:
            yield (0.0, start, task_id)

    def task_ids(self) -> list[str]:
        """The ids of all its tasks, in no order."""
        task_ids = [task_id for _, _, task_id in self.timed]
        task_ids += [task_id for _, task_id, _ in self.overdue]
        return task_ids + [task_id for _, task_id in self.young]

    def ending(self, now: float) -> Iterator[tuple[float, str]]:
        """The estimated ends of its tasks, with their ids, ascending; without unknown and past ones."""
        if self.order.by_time and not self.young and now >= self.advanced_to:
            return ((-end, task_id) for end, _, task_id in reversed(self.timed) if -end > now)
        ends = ((self._tasks[i].ends_at or 0.0, i) for i in self.task_ids())
        return iter(sorted(entry for entry in ends if entry[0] > now))

    def outliving(self, now: float) -> Iterator[RunningTask]:
        """Its tasks whose known end has passed, in no order."""
        if self.order.by_time and not self.young and now >= self.advanced_to:
            passed = takewhile(lambda entry: -entry[0] <= now, reversed(self.timed))
            yield from (self._tasks[task_id] for _, _, task_id in passed)
            overdue = (task_id for _, task_id, end in self.overdue if end != -_INFINITY)
            yield from map(self._tasks.__getitem__, overdue)
            return
        for task in map(self._tasks.__getitem__, self.task_ids()):
            if task.ends_at is not None and task.ends_at <= now:
                yield task

    def losing_more(self, least: float, now: float) -> int:
        """How many tasks that are not young would lose more than these seconds of work; after ``advance``.
        Only where there is a budget of lost work.
        """
        return bisect_left(self.since, True, key=lambda since: now - since <= least)

    def _place(self, task: RunningTask) -> None:
        """Add a task that is not young to one of the two orders."""
        if self.order.has_budget:
            self.since.add(task.unsaved_since)
        known_end = task.ends_at
        if known_end is None or not self.order.by_time:
            known_end = -_INFINITY if known_end is None else known_end
            self.overdue.add((-self._start(task), task.spec.task_id, known_end))
            return
        self.timed.add((-known_end, -task.started_at, task.spec.task_id))
        self.latest = max(self.latest, known_end)
        self.soonest = min(self.soonest, known_end)

    def _begin_again(self, now: float) -> None:
        """Order all tasks from scratch, for a time that is before the last one."""
        task_ids = self.task_ids()
        for entries in (self.timed, self.overdue, self.young, self.since):
            entries.clear()
        self.count, self.limits, self.advanced_to = 0, _EMPTY, now
        for task_id in task_ids:
            self.add(self._tasks[task_id])

    def _ready_at(self, task: RunningTask) -> float:
        """When it has run for the least time."""
        return task.started_at + self.order.min_runtime

    def _start(self, task: RunningTask) -> float:
        return task.unsaved_since if self.order.by_lost_work else task.started_at


class RunningTasks:
    """All tasks by id and by agent, and those that run by class; occupied classes are those with tasks."""

    def __init__(self) -> None:
        self.by_id: dict[str, RunningTask] = {}
        #: The id of the agent's only task, or the ids of all of them: most agents have one.
        self._by_agent: dict[str, str | dict[str, None]] = {}
        self.classes: dict[ClassKey, TaskClass] = {}
        self.occupied: dict[TaskClass, None] = {}
        #: Agents whose GPUs are idle, each with the time since when.
        self.idle: dict[str, float] = {}
        #: Ids of the tasks whose agents do not run yet.
        self.starting: dict[str, None] = {}
        #: Ids of the tasks with an order value.
        self.ordered: dict[str, None] = {}
        #: How many tasks have a known end, or a time limit.
        self.with_end = 0
        #: When something is due by the time limit of each task that has one, and runs; with its id.
        self.limits_due: SortedList[tuple[float, str]] = SortedList()
        #: The same times by task.
        self._due_at: dict[str, float] = {}
        #: Ids of the tasks whose owners were warned that their GPUs are idle.
        self.idle_warned: dict[str, None] = {}
        #: Of these tasks and of those that wait in the queue.
        self.children = Children()
        #: The arrays of which some of them are members.
        self.arrays = Arrays()
        #: {key: values} that label rules name; only these tell classes apart.
        self._named: Mapping[str, frozenset[str]] = {}
        self._order = ClassOrder()
        #: Increases as classes are removed, or made anew; one that is added comes behind the others. What is
        #: cached per class is valid while this is the same.
        self.version = 0
        #: Empty classes are removed when there are this many, so that one that is needed again costs little.
        self._next_sweep = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self.by_id)

    def on_agent(self, agent_name: str) -> tuple[str, ...]:
        """The ids of the tasks on this agent."""
        entry = self._by_agent.get(agent_name, ())
        return (entry,) if isinstance(entry, str) else tuple(entry)

    def add(self, task: RunningTask) -> None:
        """Add a task."""
        task_id = task.spec.task_id
        self.by_id[task_id] = task
        self.with_end += task.has_end
        if task.max_run_s is not None:
            self._note_due(task)
        if task.idle_since is not None:
            self.idle_warned[task_id] = None
        if task.spec.parent:
            self.children.add(task.spec)
        if task.spec.array_id:
            self.arrays.note_running(task.spec)
        others = self._by_agent.setdefault(task.agent_name, task_id)
        if isinstance(others, dict):
            others[task_id] = None
        elif others != task_id:
            self._by_agent[task.agent_name] = {others: None, task_id: None}
        if task.phase is TaskPhase.STARTING:
            self.starting[task_id] = None
        if task.order_value is not None:
            self.ordered[task_id] = None
        if task.phase is TaskPhase.RUNNING:
            self._classify(task)

    def remove(self, task_id: str) -> RunningTask:
        """Remove a task; what it has started ends, too."""
        task = self.by_id.pop(task_id)
        self.with_end -= task.has_end
        if task_id in self._due_at:
            self._forget_due(task_id)
        self.idle_warned.pop(task_id, None)
        if task.spec.parent or task_id in self.children.by_parent:
            self.children.leave(task.spec)
        if task.spec.array_id:
            self.arrays.note_left(task.spec)
        self.starting.pop(task_id, None)
        self.ordered.pop(task_id, None)
        self._declassify(task)
        on_agent = self._by_agent[task.agent_name]
        if isinstance(on_agent, str):
            del self._by_agent[task.agent_name]
            return task
        del on_agent[task_id]
        if len(on_agent) == 1:
            self._by_agent[task.agent_name] = next(iter(on_agent))
        return task

    def remove_agent(self, agent_name: str) -> list[RunningTask]:
        """Remove all tasks of an agent that has ended."""
        self.idle.pop(agent_name, None)
        if agent_name not in self._by_agent:
            return []
        return [self.remove(task_id) for task_id in self.on_agent(agent_name)]

    def note_order(self, task_id: str, order_value: float | None) -> None:
        """Note the order value with which a task has started from the queue; None: it counts no longer."""
        self.by_id[task_id].order_value = order_value
        if order_value is None:
            self.ordered.pop(task_id, None)
        else:
            self.ordered[task_id] = None

    def start(self, task_id: str, now: float, payers: tuple[str, ...] = ()) -> None:
        """The task runs from now on, on an agent that these pools pay for."""
        task = self.by_id[task_id]
        task.started_at, task.payers = now, payers
        if task.attempts.lost_starts:
            task.attempts = msgspec.structs.replace(task.attempts, lost_starts=0)
        task.enter(TaskPhase.RUNNING)
        del self.starting[task_id]
        if task.max_run_s is not None:
            self._note_due(task)
        self._classify(task)

    def enter(self, task_id: str, phase: AnyTaskPhase) -> None:
        """Change the phase of a task; only a running one is a candidate."""
        task = self.by_id[task_id]
        self._declassify(task)
        task.enter(phase)
        self._note_due(task)
        self._classify(task)

    def save(self, task_id: str, saved_at: float | None, state_key: str | None = None) -> None:
        """Record that the task's state is stored; ``state_key`` None: the task keeps it by itself. Work up to
        ``saved_at`` would not be lost; None: none of it can be restored.
        """
        task = self.by_id[task_id]
        self._declassify(task)
        if saved_at is not None:
            task.saved_at = saved_at
        if state_key is not None:
            if saved_at is not None:
                task.replace_state()
            task.state_key = state_key
        if isinstance(task.phase, Preempting):
            task.note_saving("")
        self._classify(task)

    def change_spec(self, task_id: str, spec: TaskSpec) -> None:
        """Give a task another priority: the one of this specification, which is the same but for that."""
        task = self.by_id[task_id]
        self._declassify(task)
        task.spec = spec
        self._classify(task)

    def measure_end(self, task_id: str, ends_at: float | None) -> None:
        """Set when the task ends by its progress; None: not known."""
        task = self.by_id[task_id]
        self._declassify(task)
        self.with_end -= task.has_end
        task.measured_end = ends_at
        self.with_end += task.has_end
        self._classify(task)

    def limit(self, task_id: str, max_run_s: float | None) -> None:
        """Set how many seconds a task may run in this attempt; its owner is warned of that again."""
        task = self.by_id[task_id]
        self._declassify(task)
        self.with_end -= task.has_end
        task.max_run_s, task.limit_warned_at = max_run_s, None
        self.with_end += task.has_end
        self._note_due(task)
        self._classify(task)

    def warn_of_limit(self, task_id: str, at: float) -> None:
        """Note that the owner of a task was warned of its time limit."""
        task = self.by_id[task_id]
        task.limit_warned_at = at
        self._note_due(task)

    def warn_of_idle(self, task_id: str, since: float | None, ends_at: float | None) -> None:
        """Note since when the GPUs of a task are idle, and when it is ended for that; None: they are used."""
        task = self.by_id[task_id]
        task.idle_since, task.idle_ends_at = since, ends_at
        if since is None:
            self.idle_warned.pop(task_id, None)
        else:
            self.idle_warned[task_id] = None

    def _note_due(self, task: RunningTask) -> None:
        """Keep when something is due by the time limit of a task."""
        task_id, due_at = task.spec.task_id, task.limit_due_at
        self._forget_due(task_id)
        if due_at is not None:
            self._due_at[task_id] = due_at
            self.limits_due.add((due_at, task_id))

    def _forget_due(self, task_id: str) -> None:
        due_at = self._due_at.pop(task_id, None)
        if due_at is not None:
            self.limits_due.remove((due_at, task_id))

    def note_idle(self, agent_name: str, since: float | None) -> None:
        """Note since when the agent's GPUs are idle; None: they are not."""
        if since is None:
            self.idle.pop(agent_name, None)
        else:
            self.idle[agent_name] = since
        for task in map(self.by_id.__getitem__, self.on_agent(agent_name)):
            self._declassify(task)
            self._classify(task)

    def adopt(self, task_id: str, spec: AgentSpec, payers: tuple[str, ...] = ()) -> None:
        """Set the agent, and who pays for it, of a task whose agent was unknown so far."""
        task = self.by_id[task_id]
        self._declassify(task)
        task.resources, task.flavor, task.payers = spec.resources, spec.flavor, payers
        self._classify(task)

    def partition_by(
        self,
        named: Mapping[str, frozenset[str]],
        order: ClassOrder = ClassOrder(),  # noqa: B008  # it is immutable
    ) -> None:
        """Define what separates classes (these labels) and orders the tasks in them; does nothing where that
        is unchanged.
        """
        if (named, order) == (self._named, self._order):
            return
        self._named, self._order = named, order
        self.partition_anew()

    def partition_anew(self) -> None:
        """Put all running tasks into classes again, because what separates them has changed."""
        self.classes, self.occupied = {}, {}
        self.version += 1
        for task in self.by_id.values():
            task.task_class = None
            self._classify(task)

    def relevant(self, labels: Labels) -> tuple[tuple[str, str], ...]:
        """Those labels that a rule names, sorted by key; neither many rules nor many labels take long."""
        named = self._named
        keys = named if len(named) <= len(labels) else sorted(labels)
        return tuple(
            (key, labels[key]) for key in keys if labels.get(key) in named.get(key, frozenset())
        )

    def _classify(self, task: RunningTask) -> None:
        if task.phase is not TaskPhase.RUNNING or task.task_class is not None:
            return
        spec = task.spec
        labels = self.relevant(spec.labels) if self._named else ()
        kind = (self._is_immune(task), bool(spec.extra_of), task.payers)
        idle = task.agent_name in self.idle
        key = (spec.pool_name, spec.priority, task.resources, labels, *kind, idle, task.flavor)
        task_class = self.classes.get(key)
        if task_class is None:
            self._sweep()
            task_class = self.classes[key] = TaskClass(key, self._order, self.by_id)
        task.task_class = task_class
        task_class.add(task)
        self.occupied[task_class] = None

    def _is_immune(self, task: RunningTask) -> bool:
        """Whether it has been evicted as often as it may be."""
        limit = task.spec.max_preemptions
        most = self._order.max_preemptions if limit is None else limit
        return task.attempts.preemptions >= most

    def _declassify(self, task: RunningTask) -> None:
        task_class, task.task_class = task.task_class, None
        if task_class is not None:
            task_class.discard(task)
            if not task_class.count:
                del self.occupied[task_class]

    def _sweep(self) -> None:
        """Remove empty classes whenever the number of classes has doubled."""
        if len(self.classes) < self._next_sweep:
            return
        self.classes = {
            key: task_class for key, task_class in self.classes.items() if task_class.count
        }
        self._next_sweep = max(_FIRST_SWEEP, 2 * len(self.classes))
        self.version += 1
