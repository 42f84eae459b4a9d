"""The preemption decision: who may be evicted for an incoming task, and with what score.

    score = Δ + κ · R

Δ is the incoming priority less the running one, or a label match's rank where that is more; κ the
policy's weight; R the running task's remaining seconds. The first rule that speaks decides: protected
pool, label, same pool, other pool. Candidates are ordered by score (highest first), then newest start,
then task id: a total order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

import msgspec

from schedulemesh.config.policy import LabelRules, PreemptionPolicy
from schedulemesh.domain.labels import Labels
from schedulemesh.engine.outcomes import Candidate
from schedulemesh.engine.running import RunningTask, RunningTasks, TaskClass

#: Reasons of candidates, one per rule that may allow an eviction.
LABEL, SAME_POOL, CROSS_POOL, MANUAL = (
    "label_based_preemption",
    "same_pool_preemption",
    "cross_pool_preemption",
    "manual",
)

#: Reasons of refusals, one per rule that may turn a task away, in the order in which they speak.
PROTECTED, DOMINATES, BELOW_SAME, CROSS_OFF, BELOW_CROSS, BELOW_SCORE, LEAVING, NO_USE = (
    "protected_pool",
    "dominates_by_label",
    "below_same_pool_threshold",
    "cross_pool_disabled",
    "below_cross_pool_threshold",
    "below_min_preempt_score",
    "already_being_preempted",
    "would_not_make_room",
)


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """The task that wants room."""

    priority: float
    pool_name: str
    labels: Labels = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say of one class of running tasks."""

    #: Why they may go, or why not.
    reason: str
    allowed: bool
    #: Effective difference; 0 where not allowed.
    delta: float = 0.0


class LabelRanks:
    """The rules of a policy with the rank of each pair: the longest chain from high to low."""

    def __init__(self, rules: LabelRules) -> None:
        self.rules = rules
        self.ranks = {
            key: {(high, low): _rank(of_key, high, low) for high in of_key for low in of_key[high]}
            for key, of_key in rules.items()
        }

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


def _rank(rules: Mapping[str, tuple[str, ...]], high: str, low: str) -> int:
    """Steps of the longest chain of rules from high down to low; the rules have no cycle."""

    @cache
    def longest(value: str) -> float:
        if value == low:
            return 0
        return max((1 + longest(next_) for next_ in rules.get(value, ())), default=float("-inf"))

    return int(longest(high))


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
        return Verdict(reason=PROTECTED, allowed=False)
    if policy.enable_label_preemption and ranks.ranks:
        rank = ranks.rank(incoming.labels, labels)
        counter = ranks.rank(labels, incoming.labels)
        if rank and not counter:
            effective = max(delta, float(rank))
            if effective >= policy.label_priority_threshold:
                return Verdict(reason=LABEL, allowed=True, delta=effective)
        if counter and not rank and policy.label_dominance_protects:
            return Verdict(reason=DOMINATES, allowed=False)
    if pool_name == incoming.pool_name:
        if delta >= policy.same_pool_priority_threshold:
            return Verdict(reason=SAME_POOL, allowed=True, delta=delta)
        return Verdict(reason=BELOW_SAME, allowed=False)
    if not policy.enable_cross_pool_preemption:
        return Verdict(reason=CROSS_OFF, allowed=False)
    if delta >= policy.cross_pool_priority_threshold:
        return Verdict(reason=CROSS_POOL, allowed=True, delta=delta)
    return Verdict(reason=BELOW_CROSS, allowed=False)


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
        self, running: RunningTasks, incoming: Incoming
    ) -> list[tuple[TaskClass, Verdict]]:
        """Every class with what the rules say of it; classes may have become empty since."""
        if self._version != running.version or len(self._judged) > self._REMEMBERED:
            self._judged.clear()
            self._version = running.version
        key = (incoming.priority, incoming.pool_name, running.relevant(incoming.labels))
        found = self._judged.get(key)
        if found is None:
            found = self._judged[key] = [
                (c, self._judge_class(c, incoming)) for c in running.classes.values()
            ]
        return found

    def judge(self, task: RunningTask, incoming: Incoming) -> Verdict:
        """What the rules say of one task; a task that already leaves is no candidate."""
        if task.task_class is None:
            return Verdict(reason=LEAVING, allowed=False)
        return self._judge_class(task.task_class, incoming)

    def candidate(
        self, task: RunningTask, verdict: Verdict, incoming: Incoming, now: float
    ) -> Candidate | None:
        """The task with its score; None where the score is below the least."""
        remaining = task.remaining(now)
        score = verdict.delta + self.policy.remaining_time_weight * remaining
        if score < self.policy.min_preempt_score:
            return None
        return Candidate(
            task_id=task.spec.task_id,
            agent_name=task.agent_name,
            pool_name=task.spec.pool_name,
            priority=task.spec.priority,
            preempt_score=score,
            priority_delta=incoming.priority - task.spec.priority,
            effective_delta=verdict.delta,
            remaining_time=remaining,
            reason=verdict.reason,
            lost_work=task.lost_work(now),
        )

    def ordered(
        self,
        running: RunningTasks,
        incoming: Incoming,
        now: float,
        keep: Callable[[TaskClass], bool] = TaskClass.has_tasks,
        first: int | None = None,
    ) -> Iterator[Candidate]:
        """The candidates, best first, found lazily; ``keep`` is asked again for a class before each of
        its tasks, and once it says no the class is passed over. ``first``: no more than so many.
        """
        heap = self._heads(running, incoming, now, keep, first)
        heapq.heapify(heap)
        given = 0
        while heap and given != first:
            _, _, task_id, task_class, verdict, rest = heap[0]
            if not keep(task_class):
                heapq.heappop(heap)
                continue
            found = self.candidate(running.by_id[task_id], verdict, incoming, now)
            if found is None:
                return
            given += 1
            yield found
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(
                    heap, (*self._rank(verdict, following), task_class, verdict, rest)
                )

    def turned_away(self, running: RunningTasks, incoming: Incoming, now: float) -> dict[str, int]:
        """How many tasks each rule turns away, most first, where nobody is evicted: candidates, too,
        because their leaving would not make room.
        """
        counts: dict[str, int] = {}
        leaving = len(running)
        for task_class, verdict in self.verdicts(running, incoming):
            size = len(task_class)
            leaving -= size
            if verdict.allowed:
                below = self._below_score(task_class, verdict, now)
                counts[BELOW_SCORE] = counts.get(BELOW_SCORE, 0) + below
                counts[NO_USE] = counts.get(NO_USE, 0) + size - below
            else:
                counts[verdict.reason] = counts.get(verdict.reason, 0) + size
        counts[LEAVING] = leaving
        order = sorted((-n, reason) for reason, n in counts.items() if n)
        return {reason: -n for n, reason in order}

    def _below_score(self, task_class: TaskClass, verdict: Verdict, now: float) -> int:
        """How many tasks of an allowed class miss the least score: the last ones in its order."""
        policy = self.policy
        if verdict.delta >= policy.min_preempt_score:
            return 0
        if task_class.unsettled(now):
            task_class.settle(now)
        timed = task_class.timed
        least, most = 0, len(timed)
        while least < most:
            middle = (least + most) // 2
            remaining = -timed[middle][0] - now
            if verdict.delta + policy.remaining_time_weight * remaining < policy.min_preempt_score:
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

    def _heads(
        self,
        running: RunningTasks,
        incoming: Incoming,
        now: float,
        keep: Callable[[TaskClass], bool],
        first: int | None,
    ) -> list[tuple[float, float, str, TaskClass, Verdict, Iterator[tuple[float, float, str]]]]:
        """One entry per class that may go: its best task, and an iterator over the others.

        Of the classes only the ``first`` best can contribute, so the others are not opened.
        """
        weight = self.policy.remaining_time_weight
        scored = []
        for task_class, verdict in self.verdicts(running, incoming):
            if verdict.allowed and keep(task_class):
                if task_class.unsettled(now):
                    task_class.settle(now)
                best = verdict.delta
                if task_class.latest > now:
                    best += weight * (task_class.latest - now)
                scored.append((best, task_class, verdict))
        if first is not None and len(scored) > first:
            least = heapq.nlargest(first, [score for score, _, _ in scored])[-1]
            scored = [entry for entry in scored if entry[0] >= least]
        heads = []
        for _, task_class, verdict in scored:
            rest = task_class.ordered(now)
            heads.append((*self._rank(verdict, next(rest)), task_class, verdict, rest))
        return heads

    def _rank(self, verdict: Verdict, entry: tuple[float, float, str]) -> tuple[float, float, str]:
        """The place of a task among all candidates: ascending is best first."""
        remaining, start, task_id = entry
        return (-(verdict.delta + self.policy.remaining_time_weight * remaining), start, task_id)


def dominant(turned_away: Iterable[str]) -> str:
    """The rule that turned away most tasks; the counts are ordered so."""
    return next(iter(turned_away), "no_running_tasks")
