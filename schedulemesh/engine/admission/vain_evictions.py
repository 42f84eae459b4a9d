"""Which tasks surely cannot be helped by evictions in one pass over the queue, because others were not."""

from __future__ import annotations

from math import inf

from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.admission.needs import groups_asked, need_of
from schedulemesh.engine.placement.leaving import all_leaving
from schedulemesh.engine.preemption.limits import Limits
from schedulemesh.engine.state.need_index import Alike
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.ways import has_ways
from schedulemesh.engine.transaction import Transaction

#: The pool of a task, its labels that rules of preemption name, and the labels of the nodes that it asks for.
_Similar = tuple[str, tuple[tuple[str, str], ...], NodeLabels]


class VainEvictions:
    """Priorities and needs of tasks for which evictions were in vain."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._limits: dict[_Similar, list[tuple[float, Resources]]] = {}
        #: The highest priority for which there was nobody to evict, whatever was needed, and the number of
        #: facts then: any further one may change that.
        self._nobody: dict[_Similar, tuple[float, int]] = {}

    def of(self, pool_name: str, group: Alike) -> list[tuple[float, Resources]]:
        """Of the tasks of a group, those for which evictions were in vain. They help none that has no higher
        priority and needs no less than one of them.
        """
        labels, node_labels, *_ = group
        return self._limits.get((pool_name, labels, node_labels), [])

    def nobody_for(self, pool_name: str, group: Alike) -> float:
        """For the tasks of a group that have no higher priority than this, and lack quota or room, nobody may
        be evicted; see ``finds_nobody``.
        """
        labels, node_labels, *_ = group
        most, facts = self._nobody.get((pool_name, labels, node_labels), (-inf, 0))
        return most if facts == len(self._tx.facts) else -inf

    def includes(self, task: QueuedTask) -> bool:
        """Whether evictions surely do not help a task, because they do not help another one of its pool with
        the same labels, of no lower priority, that needs no more. What is divided among nodes may have room
        where none has enough of it for all.
        """
        if not self._limits:
            return False
        limits = self._limits.get(self._similar(task), ())
        if not limits or not self._takes_one_node(task):
            return False
        need, priority = need_of(self._tx.state, task), task.spec.priority
        return any(priority <= most and least.fits(need) for most, least in limits)

    def finds_nobody(self, task: QueuedTask) -> bool:
        """Whether surely nobody may be evicted for a task that lacks quota or room, and nothing is leaving
        that it might have, because that was so for another one of its pool with the same labels and no lower
        priority.
        """
        if not self._nobody or not self._takes_one_node(task):
            return False
        most, facts = self._nobody.get(self._similar(task), (-inf, 0))
        return task.spec.priority <= most and facts == len(self._tx.facts)

    def note(self, task: QueuedTask, *, searched: bool) -> None:
        """Note a task that evictions do not help, if that depends on nothing else of the task. ``searched``:
        there were candidates.
        """
        tx, spec, submission = self._tx, task.spec, task.submission
        policy, need = tx.state.queue.policy, need_of(tx.state, task)
        if policy.las_preempts or policy.shortest_preempts or tx.strategies.plugins:
            return
        if spec.parent or spec.evict_pools is not None or not submission.may_preempt:
            return
        if not self._takes_one_node(task):
            return
        if tx.state.running.ordered and Limits(tx.state, task.pool_name, tx.now, task).came_first:
            return
        similar, priority = self._similar(task), spec.priority
        others = self._limits.get(similar, ())
        self._limits[similar] = [
            (most, least) for most, least in others if most > priority or not need.fits(least)
        ] + [(priority, need)]
        if not searched and self._decide_candidates(task.pool_name):
            most, facts = self._nobody.get(similar, (-inf, 0))
            if priority > most or facts != len(tx.facts):
                self._nobody[similar] = (priority, len(tx.facts))

    def _decide_candidates(self, pool_name: str) -> bool:
        """Whether what helps a task of a pool that lacks quota or room is candidates for evictions alone, and
        no loans, groups, moves, or what is leaving anyway.
        """
        state = self._tx.state
        ledger = state.ledger
        if ledger.loans or ledger.promises or ledger.holds or state.elastic or state.groups.by_id:
            return False
        if ledger.accounts[pool_name].spec.cohort is not None or state.policy.defragment_after_s:
            return False
        return not all_leaving(state)

    def _takes_one_node(self, task: QueuedTask) -> bool:
        """Whether a task runs outside of placement groups, in one way alone, and its node is chosen here."""
        state, submission = self._tx.state, task.submission
        if has_ways(state.ledger, submission) or not submission.choose_node:
            return False
        need = need_of(state, task)
        return groups_asked(state, submission, task.pool_name, need) is None

    def _similar(self, task: QueuedTask) -> _Similar:
        labels = task.spec.labels
        relevant = self._tx.state.running.relevant(labels) if labels else ()
        return (task.pool_name, relevant, task.submission.agent.node_labels)
