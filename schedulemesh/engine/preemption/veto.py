"""What strategies decide about individual candidates; asked lazily, and once for each task.

A strategy may keep a candidate from being evicted. It may also allow what rule 3 or 4 refused, with two
exceptions, because otherwise two tasks could evict each other for ever: the running task dominates the
incoming one by label, or the reverse eviction would be permitted, by the rules or by the strategy itself.
"""

from __future__ import annotations

from schedulemesh.engine.placement.plugin_views import running_view
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.preemption_rules import Incoming, PreemptionRules, Verdict, judge
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.plugins.scheduling import TaskView


def plugin_veto(
    strategies: Strategies,
    rules: PreemptionRules,
    incoming: Incoming,
    view: TaskView,
    now: float,
) -> PluginVeto | None:
    """What the strategies decide for this incoming task; None: no strategy decides about evictions."""
    if not strategies.asks("preemption_policy"):
        return None
    return PluginVeto(strategies, rules, incoming, view, now)


class PluginVeto:
    """What strategies decide about individual tasks for one incoming task."""

    def __init__(
        self,
        strategies: Strategies,
        rules: PreemptionRules,
        incoming: Incoming,
        view: TaskView,
        now: float,
    ) -> None:
        #: ``view``: the incoming task as strategies see it.
        self._strategies = strategies
        self._rules = rules
        self._incoming = incoming
        self._view = view
        self._now = now
        self._answers: dict[str, bool] = {}
        #: How many tasks strategies have refused that the rules allowed to evict.
        self.vetoed = 0

    def allows(self, task: RunningTask, verdict: Verdict) -> bool:
        """Whether this task, whose class has this verdict, may be evicted."""
        task_id = task.spec.task_id
        answer = self._answers.get(task_id)
        if answer is None:
            low = running_view(task, self._now)
            if verdict.refused:
                answer = self._opens(task, low)
            else:
                answer = self._strategies.may_evict(self._view, low) is not False
                self.vetoed += not answer
            self._answers[task_id] = answer
        return answer

    def _opens(self, task: RunningTask, low: TaskView) -> bool:
        """Whether a strategy allows what rule 3 or 4 refused, and may do so."""
        if self._dominates(task) or self._strategies.may_evict(self._view, low) is not True:
            return False
        return not self._reverse(task, low)

    def _dominates(self, task: RunningTask) -> bool:
        """Whether the running task dominates the incoming one by label, and not the other way round."""
        policy, ranks = self._rules.policy, self._rules.ranks
        high, low = self._incoming.labels, task.spec.labels
        return policy.enable_label_preemption and ranks.rank(low, high) > 0 == ranks.rank(high, low)

    def _reverse(self, task: RunningTask, low: TaskView) -> bool:
        """Whether the running task, were it incoming, might evict the incoming one, were that running."""
        spec, incoming = task.spec, self._incoming
        related = spec.pool_name in incoming.neighbours
        verdict = judge(
            self._rules.policy,
            self._rules.ranks,
            Incoming(
                priority=spec.priority,
                pool_name=spec.pool_name,
                labels=spec.labels,
                neighbours=frozenset((incoming.pool_name,) if related else ()),
            ),
            incoming.pool_name,
            incoming.priority,
            incoming.labels,
        )
        answer = self._strategies.may_evict(low, self._view)
        return answer is not False if verdict.rule else answer is True
