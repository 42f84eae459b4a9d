"""Candidates that are ranked one by one, by what holds for each task alone, and not by rules of priority."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain

from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.candidates import Candidates, Order
from schedulemesh.engine.state.preemption_rules import Verdict
from schedulemesh.engine.state.tasks import RunningTask, TaskClass


class RankedCandidates(Candidates):
    """The running tasks that may be evicted for one incoming task, each with a place of its own.

    Subclasses say which classes may be evicted (``_judge_all``), and the place of a task (``_place``), whose
    first element is the tier of its class (``tiers``).
    """

    by_priority = False

    def in_order(
        self,
        keep: Callable[[TaskClass], bool] = TaskClass.has_tasks,
        first: int | None = None,
    ) -> Iterator[Candidate]:
        """See ``Candidates.in_order``."""
        count = 0
        for *_, task_id in self._ordered(keep):
            if count == first:
                return
            task = self._running.by_id[task_id]
            if task.task_class is None or not keep(task.task_class):
                continue
            candidate = self._candidate_of(task)
            if candidate is not None:
                count += 1
                yield candidate

    def order_of(self, tasks: Sequence[Candidate]) -> Order:
        """Where an agent with these tasks stands: where the last of them does."""
        return max(self._place(self._running.by_id[task.task_id]) for task in tasks)

    def _ordered(self, keep: Callable[[TaskClass], bool]) -> Iterator[Order]:
        """The places of all tasks of the classes that are allowed, ascending; computed tier by tier, when the
        turn of each comes.
        """
        by_tier: dict[float, list[TaskClass]] = {}
        for task_class, tier in self.tiers.items():
            by_tier.setdefault(tier, []).append(task_class)
        for tier in sorted(by_tier):
            places = map(self._places_in, filter(keep, by_tier[tier]))
            yield from sorted(chain.from_iterable(places))

    def _places_in(self, task_class: TaskClass) -> list[Order]:
        """The places of the tasks of a class, ascending."""
        places = self._places.get(task_class)
        if places is None:
            by_id = self._running.by_id
            tasks = (by_id[task_id] for task_id in task_class.task_ids())
            places = self._places[task_class] = sorted(map(self._place, tasks))
        return places

    def _candidate_of(self, task: RunningTask) -> Candidate | None:
        """See ``candidate_of``; asked once for each task."""
        task_id = task.spec.task_id
        if task_id not in self._known:
            self._known[task_id] = self.candidate_of(task)
        return self._known[task_id]

    @cached_property
    def _places(self) -> dict[TaskClass, list[Order]]:
        """What ``_places_in`` has found."""
        return {}

    @cached_property
    def _known(self) -> dict[str, Candidate | None]:
        """What ``_candidate_of`` has found."""
        return {}

    def _place(self, task: RunningTask) -> Order:
        """The place of a task."""
        raise NotImplementedError

    def _judge_all(self) -> list[tuple[TaskClass, Verdict]]:
        """Every class that comes into question, with its verdict."""
        raise NotImplementedError

    @property
    def _least_score(self) -> float:
        return float("-inf")

    @cached_property
    def allowed(self) -> dict[TaskClass, Verdict]:
        """See ``Candidates.allowed``."""
        return {task_class: verdict for task_class, verdict in self._judged if verdict.rule}

    def _verdicts(self) -> list[tuple[TaskClass, Verdict]]:
        return self._judged

    @cached_property
    def _judged(self) -> list[tuple[TaskClass, Verdict]]:
        judged = self._judge_all()
        return [entry for entry in judged if entry[0].extra] if self.only_extras else judged
