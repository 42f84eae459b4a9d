"""When running tasks end: as measured, as declared or, where asked, as earlier runs of the same sort did.

An agent frees what it holds when the last of its tasks ends; one with a task whose end is unknown frees
nothing at a known time. A task that has outlived what was measured or declared runs on, as is expected, for a
time that grows with its overrun (``RunningTask.expected_end``); such ends count only where asked, because
they may be outlived again and again. A time limit is certain: whatever else is known, a task has ended by
then (``time_limits``). Agents that are being terminated are left out: what they free is free in
a moment, apart from what others have claimed of it, and counts as free already (``projection``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge

from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.admission.time_limits import leaving_s
from schedulemesh.engine.state.agents import Ending
from schedulemesh.engine.state.estimates import Estimate
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.tasks import RunningTask, TaskClass


def estimate_of(state: MeshState, task: RunningTask, now: float) -> Estimate | None:
    """How long a task runs in all, by earlier runs; None: too few are known, or it says so itself."""
    if task.ends_at is not None:
        return None
    age_s = task.attempts.ran_s + max(0.0, now - task.started_at)
    return state.past.estimates.estimate(TaskKind.of(task.spec, task.resources), age_s)


#: A task that has reached its limit ends no sooner than after so many seconds.
_LEAST_S = 1.0


class Ends:
    """The ends of running tasks, agents and groups, at one time."""

    def __init__(
        self,
        state: MeshState,
        now: float,
        *,
        estimated: bool,
        overruns: bool = True,
        estimated_ends: dict[str, float | None] | None = None,
    ) -> None:
        #: ``estimated``: whether earlier runs say when tasks end that declare no duration. ``overruns``:
        #: whether tasks that have outlived their ends are expected to end; else nobody knows when they do.
        #: ``estimated_ends``: where the estimates are kept that were made before at this time.
        self.now = now
        self.estimated = estimated
        self.overruns = overruns
        #: The expected ends of tasks that have outlived theirs, as far as they were asked for.
        self.guessed: set[float] = set()
        #: The tasks that end by their time limits, by these ends, as far as they were asked for.
        self.by_limit: dict[float, str] = {}
        self._state = state
        self._outliving: dict[TaskClass, list[tuple[float, str]]] = {}
        #: The ends that were asked for and estimated, by task.
        self.looked_at: dict[str, float | None] = {} if estimated_ends is None else estimated_ends

    def of_task(self, task: RunningTask) -> float | None:
        """When a task ends, by its limit at the latest; None: nobody knows."""
        end, latest = self._of_duration(task), self._of_limit(task)
        if latest is None or (end is not None and end <= latest):
            return end
        self.by_limit[latest] = task.spec.task_id
        return latest

    def _of_limit(self, task: RunningTask) -> float | None:
        """When a task has ended by its limit for certain; None: it has none."""
        if task.limit_at is None:
            return None
        agent = self._state.agents.get(task.agent_name)
        takes = 0.0 if agent is None else leaving_s(self._state, agent.spec)
        return max(task.limit_at, self.now) + max(takes, _LEAST_S)

    def _of_duration(self, task: RunningTask) -> float | None:
        """When it ends as measured, declared or estimated; None: nobody knows."""
        if task.ends_at is not None:
            return task.ends_at if task.ends_at > self.now else self._overrun(task)
        if not self.estimated:
            return None
        task_id = task.spec.task_id
        if task_id not in self.looked_at:
            self.looked_at[task_id] = self._estimated(task)
        return self.looked_at[task_id]

    def _estimated(self, task: RunningTask) -> float | None:
        estimate = estimate_of(self._state, task, self.now)
        if estimate is None:
            return None
        return task.started_at + estimate.seconds - task.attempts.ran_s

    def _overrun(self, task: RunningTask) -> float | None:
        end = task.expected_end(self.now) if self.overruns else None
        if end is not None:
            self.guessed.add(end)
        return end

    @property
    def none_known(self) -> bool:
        """Whether surely no end is known, so that tasks need not be looked at one by one."""
        return not self.estimated and not self._state.running.with_end

    def of_agent(self, agent_name: str) -> float | None:
        """When the last task of an agent ends; None: nobody knows."""
        running, last = self._state.running, None
        if not self.estimated and not running.with_end:
            return None
        agent = self._state.agents.get(agent_name)
        if agent is None or isinstance(agent.phase, Ending):
            return None
        for task_id in running.on_agent(agent_name):
            task = running.by_id[task_id]
            end = task.ends_at
            if end is None or end <= self.now or task.max_run_s is not None:
                end = self.of_task(task)
            if end is None or end <= self.now:
                return None
            if last is None or end > last:
                last = end
        return last

    def of_group(self, group: Group) -> float | None:
        """When nobody uses a dynamic group, so that it can be removed; None: not known, or it is reserved."""
        if group.reserved or group.promised_to is not None or group.leaves_for is not None:
            return None
        if group.agent is None:
            return self.now if group.free else None
        return self.of_agent(group.agent)

    def of_class(self, task_class: TaskClass) -> Iterator[tuple[float, str]]:
        """The ends of the tasks of a class, with their ids, ascending; without unknown and past ones. A task
        with a time limit may come twice: it ends at the first of the two.
        """
        if self.estimated:
            by_id = self._state.running.by_id
            return iter(sorted(self._known(by_id[i] for i in task_class.task_ids())))
        limited = self._limited(task_class) if task_class.limits else iter(())
        if not self.overruns:
            return merge(task_class.ending(self.now), limited)
        outliving = self._outliving.get(task_class)
        if outliving is None:
            outliving = sorted(self._known(task_class.outliving(self.now)))
            self._outliving[task_class] = outliving
        return merge(outliving, task_class.ending(self.now), limited)

    def _limited(self, task_class: TaskClass) -> Iterator[tuple[float, str]]:
        """When the tasks of a class have ended by their limits, ascending. How long an end takes differs, so
        each comes when no later one can end before it.
        """
        by_id, policy = self._state.running.by_id, self._state.policy
        takes_least = max(policy.save_timeout + policy.cancel_timeout, _LEAST_S)
        ends: list[tuple[float, str]] = []
        for limit_at, task_id in task_class.limits:
            while ends and ends[0][0] <= max(limit_at, self.now) + takes_least:
                yield heappop(ends)
            end = self._of_limit(by_id[task_id])
            if end is not None:
                heappush(ends, (end, task_id))
        while ends:
            yield heappop(ends)

    def of_starting(self) -> list[tuple[float, str]]:
        """The same for the tasks whose agents do not run yet, which are in no class."""
        running = self._state.running
        return sorted(self._known(running.by_id[i] for i in running.starting))

    def _known(self, tasks: Iterable[RunningTask]) -> Iterator[tuple[float, str]]:
        for task in tasks:
            end = self.of_task(task)
            if end is not None and end > self.now:
                yield end, task.spec.task_id
