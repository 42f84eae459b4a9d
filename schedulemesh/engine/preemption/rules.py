"""The preemption decision: who may be evicted for an incoming task, and with what score.

    score = Δ + κ · R

Δ is the incoming priority less the running one, or a label match's rank where that is more; κ the
policy's weight; R the running task's remaining seconds. The first rule that speaks decides: protected
pool, label, same pool, other pool. Candidates are ordered by score (highest first), then newest start,
then task id: a total order. The policy's ``victim_order`` may say otherwise: ``priority_first`` by the
running tasks' priority (lowest first) before all that, so that no remaining time crosses a priority, as
Borg and Kubernetes choose victims (Verma et al., EuroSys 2015); ``least_lost_work`` by the seconds since
a task's start or last saved state, fewest first, then effective difference, then id (the least work lost
is what Tiresias, NSDI 2019, and Kueue's preference for the newest aim at).

Where strategies have a say, each candidate is put to them (``PluginVeto``) when its tx has come, and so is
each task that rule 3 or 4 refused.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import Protocol

import msgspec

from schedulemesh.config.label_rules import LabelRules, Ranks, ranks_of
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.state.tasks import RunningTask, RunningTasks, TaskClass


class Incoming(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The task that wants room."""

    priority: float
    pool_name: str
    labels: Labels = {}


#: Rules 3 and 4: what they refuse, a strategy may allow.
_MAY_BE_OPENED = (
    Reason.BELOW_SAME_POOL_THRESHOLD,
    Reason.CROSS_POOL_DISABLED,
    Reason.BELOW_CROSS_POOL_THRESHOLD,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the rules say of one class of running tasks."""

    #: The rule that allows their eviction; None: none does.
    rule: PreemptionReason | None = None
    #: Effective difference of priority; 0 where no rule allows an eviction.
    delta: float = 0.0
    #: The rule that refused it; beside ``rule``, a strategy decides on each task.
    refused: Reason | None = None


class PluginVeto(Protocol):
    """What strategies say of single candidates of one decision."""

    def gives(self, task: RunningTask, verdict: Verdict) -> bool:
        """Whether this task may go, whose class has this verdict."""

    @property
    def vetoed(self) -> int:
        """How many tasks it has kept from going that the rules allowed."""


class LabelRanks:
    """The rules of a policy with the rank of each pair: the longest chain from high to low."""

    def __init__(self, rules: LabelRules) -> None:
        self.rules = rules
        self.ranks: dict[str, Ranks] = {key: ranks_of(of_key) for key, of_key in rules.items()}

    def named(self) -> dict[str, frozenset[str]]:
        """Per key the values that any rule names, sorted by key."""
        return {
            key: frozenset(value for pair in self.ranks[key] for value in pair)
            for key in sorted(self.ranks)
        }

    def rank(self, high: Mapping[str, str], low: Mapping[str, str]) -> int:
        """How far ``high`` dominates ``low``: the highest rank of any key that matches; 0: not at all."""
        found = 0
        for key, ranks in self.ranks.items():
            if key in high and key in low:
                found = max(found, ranks.get((high[key], low[key]), 0))
        return found


def judge(
    policy: PreemptionPolicy,
    ranks: LabelRanks,
    incoming: Incoming,
    pool_name: str,
    priority: float,
    labels: Mapping[str, str],
) -> Verdict:
    """What the rules say of a running task of this pool, priority and labels.

    The least score is checked by the caller, because it depends on the remaining time.
    """
    delta = incoming.priority - priority
    if pool_name in policy.protected_pools and pool_name != incoming.pool_name:
        return Verdict(refused=Reason.PROTECTED_POOL)
    if policy.enable_label_preemption and ranks.ranks:
        rank = ranks.rank(incoming.labels, labels)
        counter = ranks.rank(labels, incoming.labels)
        if rank and not counter:
            effective = max(delta, float(rank))
            if effective >= policy.label_priority_threshold:
                return Verdict(rule=PreemptionReason.LABEL, delta=effective)
        if counter and not rank and policy.label_dominance_protects:
            return Verdict(refused=Reason.DOMINATES_BY_LABEL)
    if pool_name == incoming.pool_name:
        if delta >= policy.same_pool_priority_threshold:
            return Verdict(rule=PreemptionReason.SAME_POOL, delta=delta)
        return Verdict(refused=Reason.BELOW_SAME_POOL_THRESHOLD)
    if not policy.enable_cross_pool_preemption:
        return Verdict(refused=Reason.CROSS_POOL_DISABLED)
    if delta >= policy.cross_pool_priority_threshold:
        return Verdict(rule=PreemptionReason.CROSS_POOL, delta=delta)
    return Verdict(refused=Reason.BELOW_CROSS_POOL_THRESHOLD)


_Judged = list[tuple[TaskClass, Verdict]]
#: A task's place and id, its class with the verdict, and the tasks of the class after it.
_Head = tuple[float, float, str, TaskClass, Verdict, Iterator[tuple[float, float, str]]]


class Preemption:
    """Judges running tasks by class and remembers verdicts while policy and classes stay."""

    #: Verdict lists kept, one per kind of incoming task.
    _REMEMBERED = 64

    def __init__(self, policy: PreemptionPolicy) -> None:
        self.policy = policy
        self.ranks = LabelRanks(policy.label_preemption_rules)
        self._version = -1
        self._judged: dict[object, list[tuple[TaskClass, Verdict]]] = {}

    def verdicts(
        self, running: RunningTasks, incoming: Incoming, veto: PluginVeto | None = None
    ) -> list[tuple[TaskClass, Verdict]]:
        """Every class with what the rules say of it; classes may have become empty since. With veto,
        a class that rule 3 or 4 refused is allowed, and each of its tasks must be asked for.
        """
        if self._version != running.version or len(self._judged) > self._REMEMBERED:
            self._judged.clear()
            self._version = running.version
        relevant = running.relevant(incoming.labels)
        key = (incoming.priority, incoming.pool_name, relevant, veto is not None)
        found = self._judged.get(key)
        if found is None:
            found = self._judged[key] = [
                (c, self._judge_class(c, incoming)) for c in running.classes.values()
            ]
            if veto is not None:
                found[:] = [(c, self._opened(c, verdict, incoming)) for c, verdict in found]
        return found

    def _opened(self, task_class: TaskClass, verdict: Verdict, incoming: Incoming) -> Verdict:
        """The verdict where strategies are asked, too."""
        if verdict.refused not in _MAY_BE_OPENED:
            return verdict
        delta = incoming.priority - task_class.priority
        return Verdict(rule=PreemptionReason.STRATEGY, delta=delta, refused=verdict.refused)

    def judge(self, task: RunningTask, incoming: Incoming) -> Verdict:
        """What the rules say of one task; a task that already leaves is no candidate."""
        if task.task_class is None:
            return Verdict(refused=Reason.ALREADY_BEING_PREEMPTED)
        return self._judge_class(task.task_class, incoming)

    def candidate(
        self, task: RunningTask, verdict: Verdict, incoming: Incoming, now: float
    ) -> Candidate | None:
        """The task with its score; None where no rule allows its eviction or the score is too low."""
        remaining = task.remaining(now)
        score = verdict.delta + self.policy.remaining_time_weight * remaining
        if verdict.rule is None or score < self.policy.min_preempt_score:
            return None
        return Candidate(
            task=task.spec,
            agent_name=task.agent_name,
            preempt_score=score,
            priority_delta=incoming.priority - task.spec.priority,
            effective_delta=verdict.delta,
            remaining_time=remaining,
            reason=verdict.rule,
            lost_work=task.lost_work(now),
        )

    def ordered(
        self,
        running: RunningTasks,
        incoming: Incoming,
        now: float,
        keep: Callable[[TaskClass], bool] = TaskClass.has_tasks,
        first: int | None = None,
        veto: PluginVeto | None = None,
    ) -> Iterator[Candidate]:
        """The candidates in the policy's order of victims, found lazily; ``keep`` is asked again for a
        class before each of its tasks, and once it says no the class is passed over. ``first``: no more
        than so many. Strategies are asked for a candidate when its tx has come.
        """
        judged = self.verdicts(running, incoming, veto)
        # There may be as many classes as tasks, so no function is called for each.
        likely = [entry for entry in judged if entry[1].rule and entry[0].count]
        if keep is not TaskClass.has_tasks:
            likely = [entry for entry in likely if keep(entry[0])]
        only = first if veto is None else None
        given = 0
        for group in self._groups(likely):
            heap = self._heads(group, now, only)
            for found in self._merged(heap, running, incoming, now, keep, veto):
                if given == first:
                    return
                given += 1
                yield found

    def _groups(self, likely: _Judged) -> Iterable[_Judged]:
        """The classes in groups, of which one is done before the next is begun."""
        if self.policy.victim_order != "priority_first":
            return (likely,)
        likely.sort(key=_priority_of)
        return (list(group) for _, group in groupby(likely, key=_priority_of))

    def _merged(
        self,
        heap: list[_Head],
        running: RunningTasks,
        incoming: Incoming,
        now: float,
        keep: Callable[[TaskClass], bool],
        veto: PluginVeto | None,
    ) -> Iterator[Candidate]:
        """The candidates of several classes in one order."""
        heapq.heapify(heap)
        by_score = self.policy.victim_order != "least_lost_work"
        while heap:
            _, _, task_id, task_class, verdict, rest = heap[0]
            if not keep(task_class):
                heapq.heappop(heap)
                continue
            task = running.by_id[task_id]
            found = self.candidate(task, verdict, incoming, now)
            if found is not None and (veto is None or veto.gives(task, verdict)):
                yield found
            elif found is None and by_score:
                return
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(
                    heap, (*self._rank(verdict, following), task_class, verdict, rest)
                )

    def turned_away(
        self,
        running: RunningTasks,
        incoming: Incoming,
        now: float,
        veto: PluginVeto | None = None,
    ) -> dict[Reason, int]:
        """How many tasks each rule turns away, most first, where nobody is evicted: candidates, too,
        because their leaving would not make room. Strategies are not asked again: those they turned away
        are the ones they were asked for.
        """
        counts: dict[Reason, int] = {}
        leaving = len(running)
        for task_class, verdict in self.verdicts(running, incoming, veto):
            size = len(task_class)
            leaving -= size
            if verdict.refused is None:
                below = self._below_score(task_class, verdict, now)
                counts[Reason.BELOW_MIN_PREEMPT_SCORE] = (
                    counts.get(Reason.BELOW_MIN_PREEMPT_SCORE, 0) + below
                )
                counts[Reason.WOULD_NOT_MAKE_ROOM] = (
                    counts.get(Reason.WOULD_NOT_MAKE_ROOM, 0) + size - below
                )
            else:
                counts[verdict.refused] = counts.get(verdict.refused, 0) + size
        if veto is not None:
            counts[Reason.VETOED_BY_STRATEGY] = veto.vetoed
            counts[Reason.WOULD_NOT_MAKE_ROOM] = (
                counts.get(Reason.WOULD_NOT_MAKE_ROOM, 0) - veto.vetoed
            )
        counts[Reason.ALREADY_BEING_PREEMPTED] = leaving
        order = sorted((-n, reason) for reason, n in counts.items() if n)
        return {reason: -n for n, reason in order}

    def _below_score(self, task_class: TaskClass, verdict: Verdict, now: float) -> int:
        """How many tasks of an allowed class miss the least score: the last ones in its order."""
        policy = self.policy
        if verdict.delta >= policy.min_preempt_score:
            return 0
        if task_class.is_stale(now):
            task_class.advance(now)
        weight = policy.remaining_time_weight
        if not task_class.by_time and weight:
            times = (max(0.0, end - now) for _, _, end in task_class.overdue)
            return sum(verdict.delta + weight * left < policy.min_preempt_score for left in times)
        timed = task_class.timed
        least, most = 0, len(timed)
        while least < most:
            middle = (least + most) // 2
            remaining = -timed[middle][0] - now
            if verdict.delta + weight * remaining < policy.min_preempt_score:
                most = middle
            else:
                least = middle + 1
        return len(task_class) - least

    def _judge_class(self, task_class: TaskClass, incoming: Incoming) -> Verdict:
        return judge(
            self.policy,
            self.ranks,
            incoming,
            task_class.pool_name,
            task_class.priority,
            task_class.labels,
        )

    def _heads(self, likely: _Judged, now: float, first: int | None) -> list[_Head]:
        """One entry per class: its best task, and an iterator over the others.

        Of the classes only the ``first`` best can contribute, so the others are not opened.
        """
        weight = self.policy.remaining_time_weight
        best = []
        for task_class, verdict in likely:
            if task_class.soonest <= now or now < task_class.advanced_to:
                task_class.advance(now)
            left = task_class.latest - now
            best.append(verdict.delta + weight * left if left > 0.0 else verdict.delta)
        by_score = self.policy.victim_order != "least_lost_work"
        if first is not None and by_score and len(likely) > first:
            least = heapq.nlargest(first, best)[-1]
            likely = [entry for entry, score in zip(likely, best, strict=True) if score >= least]
        heads = []
        for task_class, verdict in likely:
            rest = self._ties_by_start(verdict, task_class.ordered(now))
            heads.append((*self._rank(verdict, next(rest)), task_class, verdict, rest))
        return heads

    def _ties_by_start(
        self, verdict: Verdict, entries: Iterator[tuple[float, float, str]]
    ) -> Iterator[tuple[float, float, str]]:
        """The tasks of a class, those whose scores rounding made equal by newest start.

        The tasks without time left are in that order already; they are not looked at before their turn.
        """
        tied: list[tuple[float, float, str]] = []
        for entry in entries:
            same = tied and self._score(verdict, entry) == self._score(verdict, tied[0])
            if tied and not same:
                yield from sorted(tied, key=_newest)
                tied = []
            if entry[0] == 0.0:
                yield from heapq.merge(
                    sorted(tied, key=_newest), chain((entry,), entries), key=_newest
                )
                return
            tied.append(entry)
        yield from sorted(tied, key=_newest)

    def _score(self, verdict: Verdict, entry: tuple[float, float, str]) -> float:
        return verdict.delta + self.policy.remaining_time_weight * entry[0]

    def _rank(self, verdict: Verdict, entry: tuple[float, float, str]) -> tuple[float, float, str]:
        """The place of a task among the others of its group: ascending is first.

        By score, then newest start, then id; by lost work the class's own order is it.
        """
        _, start, task_id = entry
        if self.policy.victim_order == "least_lost_work":
            return (start, -verdict.delta, task_id)
        return (-self._score(verdict, entry), start, task_id)


def _newest(entry: tuple[float, float, str]) -> tuple[float, str]:
    return entry[1:]


def _priority_of(entry: tuple[TaskClass, Verdict]) -> float:
    return entry[0].priority


def dominant(turned_away: Iterable[Reason]) -> Reason:
    """The rule that turned away most tasks; the counts are ordered so."""
    return next(iter(turned_away), Reason.NO_RUNNING_TASKS)
