"""The rules of preemption: whether a running task may be evicted for an incoming one, and with what score.

    score = Δ + κ · R

Δ is the priority of the incoming task less that of the running one, or the rank of a label match where that
is more; κ is the policy's ``remaining_time_weight``; R is the running task's remaining time in seconds.
Four rules are asked in this order, and the first that answers decides (``judge``):

1. protected pool: only tasks of the same pool may evict its tasks; and a task evicts in the pools only that
   the token of its submitter names, if it names any;
2. label: the incoming task dominates by label and may evict, or is dominated and may not; where dominance
   does not protect, a match counts only if the running task could not evict the incoming one by rule 3 or 4;
3. same pool: the difference of priority reaches the threshold within a pool;
4. other pool: it reaches the threshold across pools, where that is enabled; within a cohort, and for an
   incoming task that borrows within one, only for tasks that run on borrowed quota alone.

An owner reclaims whatever the priorities. So a task that borrows may not evict by priority where nobody
borrows: else an owner could reclaim from it, a task of a third pool evict the owner's, and it that one, in a
circle.

A task that was evicted as often as ``max_preemptions`` allows is immune to all of them. The score must reach
``min_preempt_score``, too (``candidates``), and other limits apply whatever the rules say (``limits``). What
rule 3 or 4 refuses, a plugin may allow, and it may keep from eviction what the rules allow (``veto``).

The rules judge classes of tasks, not single ones (``engine.state.tasks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import msgspec

from schedulemesh.config.label_rules import LabelRules, Ranks, ranks_of
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.state.tasks import RunningTasks, TaskClass


class Incoming(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The task for which others may be evicted."""

    priority: float
    pool_name: str
    labels: Labels = {}
    #: The other pools of its pool's tree of cohorts.
    neighbours: frozenset[str] = frozenset()
    #: The tasks that started it, directly or through others; it does not evict them.
    ancestors: frozenset[str] = frozenset()
    #: The pools whose tasks it may evict, by the token of its submitter; None: any.
    evict_pools: tuple[str, ...] | None = None
    #: Whether it would run on quota that one of its neighbours could reclaim.
    borrows: bool = False


#: What of an incoming task decides about verdicts: its priority, its pool, those of its labels that rules
#: name, whether strategies are asked, and ``neighbours``, ``evict_pools`` and ``borrows``.
_IncomingKind = tuple[
    float,
    str,
    tuple[tuple[str, str], ...],
    bool,
    frozenset[str],
    tuple[str, ...] | None,
    bool,
]

#: What rules 3 and 4 refuse, a strategy may allow.
_MAY_BE_OPENED = (
    Reason.BELOW_SAME_POOL_THRESHOLD,
    Reason.CROSS_POOL_DISABLED,
    Reason.BELOW_CROSS_POOL_THRESHOLD,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The verdict of the rules on one class of running tasks."""

    #: The rule that allows their eviction; None: none does.
    rule: PreemptionReason | None = None
    #: Effective difference of priority; 0 where no rule allows an eviction.
    delta: float = 0.0
    #: The rule that refused it; beside ``rule``, a strategy decides on each task.
    refused: Reason | None = None


_IMMUNE = Verdict(refused=Reason.PREEMPTED_TOO_OFTEN)


class LabelRanks:
    """The label rules of a policy, with the rank of each pair: the steps of the longest chain."""

    def __init__(self, rules: LabelRules) -> None:
        self.rules = rules
        self.ranks: dict[str, Ranks] = {key: ranks_of(of_key) for key, of_key in rules.items()}

    def named(self) -> dict[str, frozenset[str]]:
        """The values that any rule names, by key; sorted by key."""
        return {
            key: frozenset(value for pair in self.ranks[key] for value in pair)
            for key in sorted(self.ranks)
        }

    def rank(self, high: Mapping[str, str], low: Mapping[str, str]) -> int:
        """The rank by which ``high`` dominates ``low``, the highest of all keys; 0: it does not."""
        highest = 0
        for key in min(self.ranks, high, low, key=len):
            if key in self.ranks and key in high and key in low:
                highest = max(highest, self.ranks[key].get((high[key], low[key]), 0))
        return highest


def judge(
    policy: PreemptionPolicy,
    ranks: LabelRanks,
    incoming: Incoming,
    pool_name: str,
    priority: float,
    labels: Mapping[str, str],
    payers: tuple[str, ...] = (),
) -> Verdict:
    """The verdict of the rules on a running task of this pool, priority and labels, for which these pools pay
    (none: its own).

    The least score is checked by the caller, because it depends on the remaining time.
    """
    delta = incoming.priority - priority
    if policy.protects(pool_name) and pool_name != incoming.pool_name:
        return Verdict(refused=Reason.PROTECTED_POOL)
    if incoming.evict_pools is not None and pool_name not in incoming.evict_pools:
        return Verdict(refused=Reason.BEYOND_TOKEN)
    if policy.enable_label_preemption and ranks.ranks:
        rank = ranks.rank(incoming.labels, labels)
        counter = ranks.rank(labels, incoming.labels)
        if rank and not counter:
            effective = max(delta, float(rank))
            void = _may_evict_in_return(policy, incoming, pool_name, -delta)
            if effective >= policy.label_priority_threshold and not void:
                return Verdict(rule=PreemptionReason.LABEL, delta=effective)
        if counter and not rank and policy.label_dominance_protects:
            return Verdict(refused=Reason.DOMINATES_BY_LABEL)
    if pool_name == incoming.pool_name:
        if delta >= policy.same_pool_priority_threshold:
            return Verdict(rule=PreemptionReason.SAME_POOL, delta=delta)
        return Verdict(refused=Reason.BELOW_SAME_POOL_THRESHOLD)
    if not policy.enable_cross_pool_preemption:
        return Verdict(refused=Reason.CROSS_POOL_DISABLED)
    has_own_quota = not payers or pool_name in payers
    if has_own_quota and (incoming.borrows or pool_name in incoming.neighbours):
        return Verdict(refused=Reason.OWN_QUOTA)
    if delta >= policy.cross_pool_priority_threshold:
        return Verdict(rule=PreemptionReason.CROSS_POOL, delta=delta)
    return Verdict(refused=Reason.BELOW_CROSS_POOL_THRESHOLD)


def _may_evict_in_return(
    policy: PreemptionPolicy, incoming: Incoming, pool_name: str, delta: float
) -> bool:
    """Whether a running task of this pool that the incoming one dominates by label might evict it in return,
    by ``delta`` more priority. A label match does not count then, or the two could evict each other for ever.
    """
    if policy.label_dominance_protects:
        return False
    if pool_name == incoming.pool_name:
        return delta >= policy.same_pool_priority_threshold
    return (
        policy.enable_cross_pool_preemption
        and not policy.protects(incoming.pool_name)
        and delta >= policy.cross_pool_priority_threshold
    )


class PreemptionRules:
    """The rules of one policy. Judges running tasks by class, and keeps the verdicts until the policy changes
    or classes are removed.
    """

    #: Verdict lists kept, one per kind of incoming task.
    _REMEMBERED = 64

    def __init__(self, policy: PreemptionPolicy) -> None:
        self.policy = policy
        self.ranks = LabelRanks(policy.label_preemption_rules)
        self._version = -1
        self._judged: dict[_IncomingKind, list[tuple[TaskClass, Verdict]]] = {}
        #: By the same keys: those classes of them that may be evicted.
        self._allowed: dict[_IncomingKind, dict[TaskClass, Verdict]] = {}

    def verdicts(
        self, running: RunningTasks, incoming: Incoming, *, opened: bool = False
    ) -> list[tuple[TaskClass, Verdict]]:
        """Every class with its verdict; classes may be empty by now. ``opened``: strategies are asked, so
        a class that rule 3 or 4 refused is allowed, and they decide on each of its tasks.
        """
        return self._judge_new(self._key(running, incoming, opened=opened), running, incoming)

    def allowed(
        self, running: RunningTasks, incoming: Incoming, *, opened: bool = False
    ) -> dict[TaskClass, Verdict]:
        """Of the verdicts those that allow an eviction, by class; not to be changed."""
        key = self._key(running, incoming, opened=opened)
        self._judge_new(key, running, incoming)
        return self._allowed[key]

    def _judge_new(
        self, key: _IncomingKind, running: RunningTasks, incoming: Incoming
    ) -> list[tuple[TaskClass, Verdict]]:
        """Every class with its verdict, of which those are judged that are new: classes are added behind the
        others.
        """
        verdicts = self._judged.setdefault(key, [])
        allowed, opened = self._allowed.setdefault(key, {}), key[3]
        for task_class in islice(running.classes.values(), len(verdicts), None):
            verdict = self._judge(task_class, incoming)
            if opened:
                verdict = _opened(task_class, verdict, incoming)
            verdicts.append((task_class, verdict))
            if verdict.rule:
                allowed[task_class] = verdict
        return verdicts

    def _key(self, running: RunningTasks, incoming: Incoming, *, opened: bool) -> _IncomingKind:
        """The kind of incoming task, whose verdicts are kept; first forgets those that no longer hold."""
        if self._version != running.version or len(self._judged) > self._REMEMBERED:
            self._judged.clear()
            self._allowed.clear()
            self._version = running.version
        relevant = running.relevant(incoming.labels)
        return (
            incoming.priority,
            incoming.pool_name,
            relevant,
            opened,
            incoming.neighbours,
            incoming.evict_pools,
            incoming.borrows,
        )

    def _judge(self, task_class: TaskClass, incoming: Incoming) -> Verdict:
        verdict = judge(
            self.policy,
            self.ranks,
            incoming,
            task_class.pool_name,
            task_class.priority,
            task_class.labels,
            task_class.payers,
        )
        return _IMMUNE if task_class.immune and verdict.rule else verdict


def _opened(task_class: TaskClass, verdict: Verdict, incoming: Incoming) -> Verdict:
    """The verdict where strategies are asked, too."""
    if task_class.immune or verdict.refused not in _MAY_BE_OPENED:
        return verdict
    delta = incoming.priority - task_class.priority
    return Verdict(rule=PreemptionReason.STRATEGY, delta=delta, refused=verdict.refused)
