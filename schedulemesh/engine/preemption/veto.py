"""PluginVeto: what strategies say of the single candidates of one decision, asked lazily and once each.

A strategy may keep a candidate from being evicted. It may also allow a task that rule 3 or 4 refused,
unless a label rule says that this task dominates the incoming one, and unless the reverse eviction would
be permitted, by the rules or by the strategy itself: else two tasks could evict each other for ever.
"""

from __future__ import annotations

from schedulemesh.engine.placement.plugin_views import running_view
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.preemption.rules import Incoming, Preemption, Verdict, judge
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.plugins.scheduling import TaskView


def ask(
    strategies: Strategies,
    preemption: Preemption,
    incoming: Incoming,
    view: TaskView,
    now: float,
) -> Asked | None:
    """The say of the strategies in this decision; None: none of them has one."""
    if not strategies.asks("preemption_policy"):
        return None
    return Asked(strategies, preemption, incoming, view, now)


class Asked:
    """The say of the strategies in one decision; see ``preemption.PluginVeto``."""

    def __init__(
        self,
        strategies: Strategies,
        preemption: Preemption,
        incoming: Incoming,
        view: TaskView,
        now: float,
    ) -> None:
        self._strategies = strategies
        self._preemption = preemption
        self._incoming = incoming
        self._view = view
        self._now = now
        self._given: dict[str, bool] = {}
        self._vetoed = 0

    @property
    def vetoed(self) -> int:
        """See PluginVeto."""
        return self._vetoed

    def gives(self, task: RunningTask, verdict: Verdict) -> bool:
        """See PluginVeto."""
        task_id = task.spec.task_id
        given = self._given.get(task_id)
        if given is None:
            low = running_view(task, self._now)
            if verdict.refused:
                given = self._opens(task, low)
            else:
                given = self._strategies.may_evict(self._view, low) is not False
                self._vetoed += not given
            self._given[task_id] = given
        return given

    def _opens(self, task: RunningTask, low: TaskView) -> bool:
        """Whether a strategy allows what rule 3 or 4 refused, and may."""
        if self._dominates(task) or self._strategies.may_evict(self._view, low) is not True:
            return False
        return not self._reverse(task, low)

    def _dominates(self, task: RunningTask) -> bool:
        """Whether the running task dominates the incoming one by label, and not the other way round."""
        policy, ranks = self._preemption.policy, self._preemption.ranks
        high, low = self._incoming.labels, task.spec.labels
        return policy.enable_label_preemption and ranks.rank(low, high) > 0 == ranks.rank(high, low)

    def _reverse(self, task: RunningTask, low: TaskView) -> bool:
        """Whether the running task, were it incoming, might evict the incoming one, were it running."""
        spec, mine = task.spec, self._incoming
        verdict = judge(
            self._preemption.policy,
            self._preemption.ranks,
            Incoming(priority=spec.priority, pool_name=spec.pool_name, labels=spec.labels),
            mine.pool_name,
            mine.priority,
            mine.labels,
        )
        answer = self._strategies.may_evict(low, self._view)
        return answer is not False if verdict.rule else answer is True
