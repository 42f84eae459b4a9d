"""Candidates: the running tasks that may be evicted for one incoming task, in the order of victims.

The order of victims, unless the policy's ``victim_order`` says otherwise (``score``):

1. the higher preempt score (Δ + κ · R, see ``engine.state.preemption_rules``);
2. of equal scores the task that started last;
3. then the lower task id.

With ``priority_first`` the lower priority of the running task comes before all that, so that no remaining
time outweighs a priority: Borg and Kubernetes choose victims like this (Verma et al., EuroSys 2015). With
``least_lost_work`` the order is:

1. the least work lost, that is since the start or the last saved state, in GPU-seconds, and for an hour what
   becomes idle because the incoming task does not need it;
2. the higher effective difference of priority;
3. then the lower task id.

Losing the least work is the aim of Tiresias (NSDI 2019), too, and of Kueue's preference for the newest.

Where the policy asks for it, agents whose GPUs are idle come first in each of these orders, with
``priority_first`` among those of the same priority: their eviction costs the cluster least.

The other orders do not count the size of a task. Where a single victim is enough, of those with the same
effective difference of priority the one is taken that leaves least idle (``alike``, ``search``).

Every order is total. An agent is evicted with all its tasks and is ranked where the last of them is
(``victims``). How many victims are taken from the order, and which, is decided in ``search``.

Tasks are kept in classes within which only time differs, each in its own order (``engine.state.tasks``), so
the order of all is a lazy merge of a few sorted lists. Strategies are asked for a task when its turn comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain, groupby

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.preemption.veto import PluginVeto
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.class_order import VICTIM_RANKINGS
from schedulemesh.engine.state.preemption_rules import Incoming, PreemptionRules, Verdict
from schedulemesh.engine.state.tasks import RunningTask, RunningTasks, TaskClass

_COOLING = Verdict(refused=Reason.IN_PREEMPTION_COOLDOWN)

#: Seconds for which capacity that becomes idle by an eviction counts as lost work.
IDLE_S = 3600.0

#: Tasks of a class that strategies are asked about for the counts; the others count under the rule.
_ASKED = 1000

_Judged = list[tuple[TaskClass, Verdict]]
#: A task of a class: seconds left, minus its start, id.
_Entry = tuple[float, float, str]
#: The place of an agent in the order of victims, ascending; see ``order_of``.
Order = tuple[float, bool, float, float, float, str]
#: A task's place and id, its class with the verdict, and the tasks of the class after it.
_Head = tuple[float, float, str, TaskClass, Verdict, Iterator[_Entry]]


class Candidates:
    """The running tasks that may be evicted for one incoming task."""

    #: Whether of several nodes the one is taken whose victims have the lowest priority.
    by_priority = True
    #: Whether what they free of the quota of other pools is lent to the incoming task.
    lends = True

    def __init__(
        self,
        rules: PreemptionRules,
        running: RunningTasks,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None = None,
        limits: Limits | None = None,
    ) -> None:
        #: ``veto``: what strategies decide about individual tasks; None: nothing. ``limits``: which tasks are
        #: spared whatever the rules say; None: none are.
        self._rules = rules
        self._policy = rules.policy
        self._running = running
        self._incoming = incoming
        self._now = now
        #: Whether only extra members of elastic gangs are candidates.
        self.only_extras = False
        #: What the incoming task uses of what its victims free; None: it is not known, and nothing counts as
        #: idle without them.
        self.need: Resources | None = None
        self._veto = veto
        self._cooling = limits is not None and limits.cooling
        self._limits = limits if limits is not None and limits.any_per_task else None
        #: The tasks that the incoming one spares because they came before it in the order of the queue.
        self._came_first = frozenset() if limits is None else limits.came_first
        #: What the order of victims ranks by.
        self._ranking = VICTIM_RANKINGS[rules.policy.victim_order]

    def extras(self) -> Candidates:
        """Those of these candidates that are extra members of elastic gangs."""
        extras = copy(self)
        extras.only_extras = True
        for name in ("allowed", "tiers", "_judged", "_ranks"):
            vars(extras).pop(name, None)  # what was found out for all
        return extras

    @property
    def may_grow(self) -> bool:
        """Whether more tasks may be evicted later on while the state stays as it is."""
        return self._limits is not None or bool(self._came_first)

    @cached_property
    def allowed(self) -> dict[TaskClass, Verdict]:
        """The classes whose tasks a rule allows to evict; some may have become empty."""
        if self.only_extras or self._cooling:
            return {task_class: verdict for task_class, verdict in self._verdicts() if verdict.rule}
        return self._rules.allowed(self._running, self._incoming, opened=self._veto is not None)

    def candidate_of(self, task: RunningTask) -> Candidate | None:
        """The task as a candidate; None: it may not be evicted."""
        verdict = None if task.task_class is None else self.allowed.get(task.task_class)
        if verdict is None:
            return None
        candidate = self._scored(task, verdict)
        return candidate if candidate and self._may_leave(task, verdict) else None

    def in_order(
        self,
        keep: Callable[[TaskClass], bool] = TaskClass.has_tasks,
        first: int | None = None,
    ) -> Iterator[Candidate]:
        """The candidates in the order of victims, found lazily. ``keep`` is asked again for a class before
        each of its tasks; once it says no, the class is skipped. ``first``: no more than this many.
        """
        # There may be as many classes as tasks, so no function is called for each.
        likely = [entry for entry in self._verdicts() if entry[1].rule and entry[0].count]
        if keep is not TaskClass.has_tasks:
            likely = [entry for entry in likely if keep(entry[0])]
        each_may_leave = self._veto is None and not self._incoming.ancestors
        each_may_leave = each_may_leave and not self._came_first
        only = first if each_may_leave and not self._policy.lost_work_budget else None
        count = 0
        for group in self._groups(likely):
            for candidate in self._merged(self._heads(group, only), keep):
                if count == first:
                    return
                count += 1
                yield candidate

    def order_of(self, tasks: Sequence[Candidate]) -> Order:
        """Where an agent with these tasks stands: where the last of them does."""
        by_id = self._running.by_id
        first = lost = 0.0
        if self._ranking.priority_first:
            first = max(task.priority for task in tasks)
        if self._ranking.by_lost_work:
            rate = by_id[tasks[0].task_id].resources.work_rate
            lost = max(task.lost_work for task in tasks) * rate
            lost += idle_cost(by_id[tasks[0].task_id].resources, self.need)
        best = tasks[0]
        if len(tasks) > 1:
            best = min(tasks, key=lambda task: (-task.preempt_score, task.task_id))
        newest = max(by_id[task.task_id].started_at for task in tasks)
        busy = tasks[0].agent_name not in self._running.idle
        score = min(task.preempt_score for task in tasks)
        return (first, busy, lost, -score, -newest, best.task_id)

    def alike(self, candidate: Candidate) -> list[TaskClass]:
        """The classes whose tasks have the same effective difference of priority as this candidate, and which
        the policy puts on a par with it otherwise; none where the order counts what is lost.
        """
        if not self.by_priority or self._ranking.by_lost_work:
            return []
        own_class = self._running.by_id[candidate.task_id].task_class
        if own_class is None:
            return []
        priority_first = self._ranking.priority_first
        return [
            task_class
            for task_class, verdict in self.allowed.items()
            if verdict.delta == candidate.effective_delta
            and task_class.idle == own_class.idle
            and (not priority_first or task_class.priority == own_class.priority)
        ]

    def tier_of(self, tasks: Sequence[Candidate]) -> float:
        """What sites are compared by first, ascending: the highest priority of these tasks of an agent."""
        return max(task.priority for task in tasks)

    @property
    def tiers(self) -> Mapping[TaskClass, float]:
        """The tier of each class where sites are not compared by priority."""
        return {}

    def quota_of(self, agent: Agent) -> Resources:
        """What quota its eviction frees for the incoming task."""
        return agent.spec.quota

    def turned_away(self) -> dict[Reason, int]:
        """How many tasks each rule turns away, most first, where nobody is evicted: candidates, too, because
        their eviction would not make room. Strategies are asked once for each task: about tasks that the
        rules allow they have been asked already, about others that a strategy may allow they are asked here.
        """
        counts = {Reason.ALREADY_BEING_PREEMPTED: len(self._running)}

        def count(reason: Reason, tasks: int) -> None:
            counts[reason] = counts.get(reason, 0) + tasks

        for task_class, verdict in self._verdicts():
            size = len(task_class)
            count(Reason.ALREADY_BEING_PREEMPTED, -size)
            if verdict.rule is not None and verdict.refused is not None:
                self._count_opened(task_class, verdict, count)
                continue
            if verdict.refused is not None:
                count(verdict.refused, size)
                continue
            if self._came_first:
                self._count_each(task_class.task_ids(), verdict, count)
                continue
            size -= self._count_spared(task_class, count)
            below = self._below_score(task_class, verdict)
            count(Reason.BELOW_MIN_PREEMPT_SCORE, below)
            count(Reason.WOULD_NOT_MAKE_ROOM, size - below)
        if self._veto is not None:
            count(Reason.VETOED_BY_STRATEGY, self._veto.vetoed)
            count(Reason.WOULD_NOT_MAKE_ROOM, -self._veto.vetoed)
        order = sorted((-tasks, reason) for reason, tasks in counts.items() if tasks)
        return {reason: -tasks for tasks, reason in order}

    def _count_opened(
        self, task_class: TaskClass, verdict: Verdict, count: Callable[[Reason, int], None]
    ) -> None:
        """Count the tasks of a class that a rule refused and a strategy may allow: those that it allows are
        turned away by something else.
        """
        task_ids = sorted(task_class.task_ids())
        refused = verdict.refused or Reason.BELOW_SAME_POOL_THRESHOLD
        count(refused, len(task_ids[_ASKED:]))
        opened = []
        for task_id in task_ids[:_ASKED]:
            task = self._running.by_id[task_id]
            if self._veto is None or not self._veto.allows(task, verdict):
                count(refused, 1)
            else:
                opened.append(task_id)
        self._count_each(opened, verdict, count)

    def _count_each(
        self, task_ids: Iterable[str], verdict: Verdict, count: Callable[[Reason, int], None]
    ) -> None:
        """Count tasks that a rule or a strategy allows to evict, one by one."""
        for task_id in task_ids:
            task = self._running.by_id[task_id]
            if self._limits is not None and self._limits.spares(task):
                young = self._limits.is_young(task)
                count(Reason.BELOW_MIN_RUNTIME if young else Reason.EXCEEDS_LOST_WORK_BUDGET, 1)
            elif task_id in self._came_first:
                count(Reason.CAME_FIRST, 1)
            elif self._scored(task, verdict) is None:
                count(Reason.BELOW_MIN_PREEMPT_SCORE, 1)
            else:
                count(Reason.WOULD_NOT_MAKE_ROOM, 1)

    def _count_spared(self, task_class: TaskClass, count: Callable[[Reason, int], None]) -> int:
        """Count the tasks of an allowed class that are spared one by one; how many they are."""
        if self._limits is None:
            return 0
        spared = len(task_class) - self._limits.evictable(task_class)
        count(Reason.BELOW_MIN_RUNTIME, len(task_class.young))
        count(Reason.EXCEEDS_LOST_WORK_BUDGET, spared - len(task_class.young))
        return spared

    def _verdicts(self) -> _Judged:
        verdicts = self._rules.verdicts(
            self._running, self._incoming, opened=self._veto is not None
        )
        if self.only_extras:
            verdicts = [entry for entry in verdicts if entry[0].extra]
        if not self._cooling:
            return verdicts
        return [(task_class, _COOLING if v.rule else v) for task_class, v in verdicts]

    def _scored(self, task: RunningTask, verdict: Verdict) -> Candidate | None:
        """The task with its score; None: no rule allows its eviction, or the score is too low."""
        remaining = task.remaining(self._now)
        score = verdict.delta + self._policy.remaining_time_weight * remaining
        if verdict.rule is None or score < self._least_score:
            return None
        return Candidate(
            task=task.spec,
            agent_name=task.agent_name,
            preempt_score=score,
            priority_delta=self._incoming.priority - task.spec.priority,
            effective_delta=verdict.delta,
            remaining_time=remaining,
            reason=verdict.rule,
            lost_work=task.lost_work(self._now),
        )

    def _may_leave(self, task: RunningTask, verdict: Verdict) -> bool:
        """Whether neither a limit nor a strategy keeps this task, which the rules allow to evict, and it has
        not started the incoming one.
        """
        task_id = task.spec.task_id
        if task_id in self._incoming.ancestors or task_id in self._came_first:
            return False
        if self._limits is not None and self._limits.spares(task):
            return False
        return self._veto is None or self._veto.allows(task, verdict)

    @property
    def _least_score(self) -> float:
        return self._policy.min_preempt_score

    def _groups(self, likely: _Judged) -> Iterable[_Judged]:
        """The classes in groups, each of which comes before the next as a whole."""
        priority_first = self._ranking.priority_first
        if not priority_first and not self._running.idle:
            return (likely,)
        group_of = _priority_of if priority_first else _busy
        likely.sort(key=group_of)
        return (list(group) for _, group in groupby(likely, key=group_of))

    def _heads(self, likely: _Judged, first: int | None) -> list[_Head]:
        """One entry per class: its best task, and an iterator over the others.

        Of the classes only the ``first`` best can contribute, so the others are not opened.
        """
        now, weight = self._now, self._policy.remaining_time_weight
        if self._limits is not None:
            likely = [entry for entry in likely if self._limits.evictable(entry[0])]
        best = []
        for task_class, verdict in likely:
            if task_class.soonest <= now or now < task_class.advanced_to:
                task_class.advance(now)
            remaining_s = task_class.latest - now
            best.append(
                verdict.delta + weight * remaining_s if remaining_s > 0.0 else verdict.delta
            )
        if first is not None and not self._ranking.by_lost_work and len(likely) > first:
            least = heapq.nlargest(first, best)[-1]
            likely = [entry for entry, score in zip(likely, best, strict=True) if score >= least]
        heads = []
        for task_class, verdict in likely:
            rest = self._ties_by_start(verdict, task_class.ordered(now))
            rank = self._rank(task_class, verdict, next(rest))
            heads.append((*rank, task_class, verdict, rest))
        return heads

    def _merged(self, heap: list[_Head], keep: Callable[[TaskClass], bool]) -> Iterator[Candidate]:
        """The candidates of several classes in one order."""
        heapq.heapify(heap)
        while heap:
            _, _, task_id, task_class, verdict, rest = heap[0]
            if not keep(task_class):
                heapq.heappop(heap)
                continue
            task = self._running.by_id[task_id]
            candidate = self._scored(task, verdict)
            if candidate is None and not self._ranking.by_lost_work:
                return
            if candidate is not None and self._may_leave(task, verdict):
                yield candidate
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                rank = self._rank(task_class, verdict, following)
                heapq.heapreplace(heap, (*rank, task_class, verdict, rest))

    def _ties_by_start(self, verdict: Verdict, entries: Iterator[_Entry]) -> Iterator[_Entry]:
        """The tasks of a class, those whose scores rounding made equal by newest start.

        The tasks without time left are in that order already; they are not read before their turn.
        """
        tied: list[_Entry] = []
        for entry in entries:
            same = tied and self._score(verdict, entry) == self._score(verdict, tied[0])
            if tied and not same:
                yield from sorted(tied, key=_newest)
                tied = []
            if entry[0] == 0.0:
                rest = chain((entry,), entries)
                yield from heapq.merge(sorted(tied, key=_newest), rest, key=_newest)
                return
            tied.append(entry)
        yield from sorted(tied, key=_newest)

    def _score(self, verdict: Verdict, entry: _Entry) -> float:
        return verdict.delta + self._policy.remaining_time_weight * entry[0]

    def _rank(
        self, task_class: TaskClass, verdict: Verdict, entry: _Entry
    ) -> tuple[float, float, str]:
        """The place of a task among the others of its group, ascending: the numbered list above.

        With ``least_lost_work`` the second element of an entry is minus the time from which work is lost.
        """
        _, start, task_id = entry
        if self._ranking.by_lost_work:
            lost = max(0.0, self._now + start) * task_class.resources.work_rate
            lost += idle_cost(task_class.resources, self.need)
            return (lost, -verdict.delta, task_id)
        return (-self._score(verdict, entry), start, task_id)

    def _below_score(self, task_class: TaskClass, verdict: Verdict) -> int:
        """How many tasks of an allowed class that are not spared miss the least score: the last ones in its
        order.
        """
        policy, now = self._policy, self._now
        if verdict.delta >= policy.min_preempt_score:
            return 0
        if task_class.is_stale(now):
            task_class.advance(now)
        if self._limits is not None and self._limits.losing_too_much(task_class):
            tasks = (self._running.by_id[task_id] for _, _, task_id in task_class.ordered(now))
            return sum(
                not self._limits.is_beyond_budget(task) and self._scored(task, verdict) is None
                for task in tasks
            )
        weight = policy.remaining_time_weight
        if not task_class.order.by_time and weight:
            times = (max(0.0, end - now) for _, _, end in task_class.overdue)
            return sum(
                verdict.delta + weight * remaining_s < policy.min_preempt_score
                for remaining_s in times
            )
        timed = task_class.timed
        least, most = 0, len(timed)
        while least < most:
            middle = (least + most) // 2
            remaining = -timed[middle][0] - now
            if verdict.delta + weight * remaining < policy.min_preempt_score:
                most = middle
            else:
                least = middle + 1
        return len(timed) + len(task_class.overdue) - least


def idle_beyond(freed: Resources, need: Resources) -> float:
    """What becomes idle where so much is freed and no more than the need is used, in GPUs."""
    return freed.beyond(need).gpu_equivalents


def idle_cost(freed: Resources, need: Resources | None) -> float:
    """What it costs that this is freed and no more than the need is used, in GPU-seconds."""
    return 0.0 if need is None else idle_beyond(freed, need) * IDLE_S


def _newest(entry: _Entry) -> tuple[float, str]:
    return entry[1:]


def _priority_of(entry: tuple[TaskClass, Verdict]) -> tuple[float, bool]:
    return entry[0].priority, not entry[0].idle


def _busy(entry: tuple[TaskClass, Verdict]) -> tuple[float, bool]:
    return 0.0, not entry[0].idle


def dominant(turned_away: Iterable[Reason]) -> Reason:
    """The rule that turned away most tasks; the counts are in that order."""
    return next(iter(turned_away), Reason.NO_RUNNING_TASKS)
