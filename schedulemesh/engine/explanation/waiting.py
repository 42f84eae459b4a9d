"""Why queued tasks wait, for listings: the dominant reason of each as ``explain`` gives it.

A listing has very many rows, so nothing is searched for a row: neither who could be evicted, nor what a start
would delay. Where a search decides which reason is the dominant one, the listing has what ``explain`` found
lately, else what the last tick has left: a task that fits and waits behind a reserved start was held back by
it. What depends only on what a task asks for is found out once for all tasks that ask for the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.backfill import first_in_order
from schedulemesh.engine.admission.budgets import held_until
from schedulemesh.engine.admission.decide import understand
from schedulemesh.engine.admission.needs import need_of
from schedulemesh.engine.admission.owner_limits import excess, limit_in_each_way
from schedulemesh.engine.admission.windows import outside_windows
from schedulemesh.engine.explanation.order import behind_owner
from schedulemesh.engine.explanation.shortage import cause_of_shortage
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction

#: Reasons that only a search finds, and that come before what is short.
OF_SEARCH = frozenset(
    (
        Reason.BEHIND_QUEUE_HEAD,
        Reason.CLASS_NOT_LOADED,
        Reason.EXTERNAL_DEMAND,
        Reason.HELD_FOR_QUEUE,
        Reason.NEXT_SCHEDULING_PASS,
    )
)
_SEARCHED = {reason.value: reason for reason in OF_SEARCH}
#: Seconds for which such a reason is believed.
_RECENT_S = 60.0
#: Explained tasks beyond those that wait, from which on those that wait no more are forgotten.
_FORGET_AT = 1_000


class WaitCause(msgspec.Struct, frozen=True, gc=False):
    """Why a task waits, in short."""

    reason: Reason
    #: What its pool's quota lacks, or else the closest node; nothing where neither is why it waits.
    short: Resources = NOTHING


class ExplainedReasons:
    """The reasons that explanations of queued tasks have given lately. They are not durable."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[Reason, float]] = {}

    def note(self, state: MeshState, task_id: str, code: str, now: float) -> None:
        """Remember the dominant reason of a queued task."""
        if len(self._reasons) > len(state.queue) + _FORGET_AT:
            waiting = state.queue.by_id
            self._reasons = {t: entry for t, entry in self._reasons.items() if t in waiting}
        reason = _SEARCHED.get(code)
        if reason is None:
            self._reasons.pop(task_id, None)
        else:
            self._reasons[task_id] = (reason, now)

    def of_search(self, task: QueuedTask, now: float) -> Reason | None:
        """The reason that a recent search has found for this task; None: there is none."""
        reason, at = self._reasons.get(task.task_id, (None, 0.0))
        is_recent = at >= task.queued_at and now - at <= _RECENT_S
        return reason if is_recent else None


class WaitCauses:
    """Why tasks wait, as things are now. For one listing."""

    def __init__(self, tx: Transaction, explained: ExplainedReasons) -> None:
        self._tx, self._explained = tx, explained
        #: By what is asked for: the request, and what it is short of where it does not fit.
        self._requests: dict[Hashable, Request | WaitCause] = {}
        self._shortages: dict[Hashable, WaitCause] = {}
        #: By pool: the place of the task that has to start first.
        self._firsts: dict[str, Entry | None] = {}
        queue = tx.state.queue
        #: The first place with a reserved start.
        self._first_reserved = min(
            (queue.entry(queue.by_id[name]) for name in queue.reserved), default=None
        )

    def cause_of(self, task: QueuedTask) -> WaitCause:
        """Why a task waits; in the order of ``explanation.queued``."""
        if task.held:
            return WaitCause(Reason.HELD_BY_USER)
        state = self._tx.state
        if not state.windows.by_name and not state.cluster.set_aside:
            return self._cause_of(task)
        with outside_windows(state, task.submission, self._tx.now):
            return self._cause_of(task)

    def _cause_of(self, task: QueuedTask) -> WaitCause:
        kind = self.kind_of(task)
        request = self._request(kind, task)
        if isinstance(request, WaitCause):
            return request
        if not self._waits_as_its_class(task):
            own_cause = self._own_cause(task, request)
            if own_cause is not None:
                return own_cause
        cause = self._cause_now(kind, request, task)
        reason = self._explained.of_search(task, self._tx.now)
        return cause if reason is None else WaitCause(reason, cause.short)

    def _waits_as_its_class(self, task: QueuedTask) -> bool:
        """Whether a task may start, and nothing but what its class asks for can be why it has not."""
        state, pool_name = self._tx.state, task.pool_name
        spec = task.common_spec
        return (
            task.queue_class is not None
            and not (spec.array or spec.array_id)
            and pool_name not in state.owners.pools
            and pool_name not in state.budgets.spent
            and state.ledger.accounts[pool_name].spec.queueing != "strict"
        )

    def _own_cause(self, task: QueuedTask, request: Request) -> WaitCause | None:
        """Why a task waits though others that ask for the same may start; None: it may, too."""
        if task.depends:
            return WaitCause(Reason.DEPENDENCY)
        if self._tx.state.queue.is_of_full_array(task):
            return WaitCause(Reason.ARRAY_LIMIT)
        if task.not_before > self._tx.now:
            return WaitCause(Reason.BACK_OFF)
        if held_until(self._tx.state, task) is not None:
            return WaitCause(Reason.BUDGET_SPENT)
        if (short := self._beyond_owner_limit(task)) is not None:
            return WaitCause(Reason.OWNER_LIMIT, short)
        if not request.fits_now and behind_owner(self._tx.state, task) is not None:
            return WaitCause(Reason.BEHIND_OWNER)
        if self._is_behind_in_strict_pool(task):
            return WaitCause(Reason.BEHIND_QUEUE_HEAD)
        return None

    def _cause_now(self, kind: Hashable, request: Request, task: QueuedTask) -> WaitCause:
        """Why a request that is possible has not started, without a search."""
        if request.fits_now:
            first = self._first_reserved
            passes = first is not None and first < self._tx.state.queue.entry(task)
            return WaitCause(Reason.HELD_FOR_QUEUE if passes else Reason.NEXT_SCHEDULING_PASS)
        if kind not in self._shortages:
            self._shortages[kind] = WaitCause(
                *cause_of_shortage(self._tx.state, request, self._tx.now)
            )
        return self._shortages[kind]

    def kind_of(self, task: QueuedTask) -> Hashable:
        """What a request depends on beside its place in the queue. The class of a task that has one says most
        of it, and is compared by identity.
        """
        state, submission, payload = self._tx.state, task.common, task.common.agent.payload
        return (
            task.queue_class or self._asked(task),
            type(payload),
            bool(payload.adopts),
            submission.for_group,
            submission.client if state.ledger.holds else None,
            task.common_spec.owner if task.pool_name in state.owners.pools else None,
            frozenset(state.cluster.set_aside) if state.cluster.set_aside else None,
        )

    def _asked(self, task: QueuedTask) -> Hashable:
        """The same of a task that is in no class, as far as a class would say it."""
        state, submission, spec = self._tx.state, task.common, task.common_spec
        agent = submission.agent
        own_group, payload = agent.own_group, agent.payload
        return (
            task.pool_name,
            need_of(state, task),
            agent.bundles,
            None if own_group is None else (own_group.strategy, own_group.same_label),
            (payload.parts, payload.strategy if isinstance(payload, JobPayload) else None),
            (spec.topology, agent.node_labels, agent.alternatives),
            submission.choose_node,
            tuple(spec.labels.items()) if self._tx.strategies.plugins else None,
        )

    def _beyond_owner_limit(self, task: QueuedTask) -> Resources | None:
        """By how much its owner would exceed its limits in the pool; None: it would not."""
        exceeded = limit_in_each_way(self._tx.state, task)
        if exceeded is None:
            return None
        use = self._tx.state.owners.use_of(task.pool_name, task.common_spec.owner)
        return excess(exceeded[0], use.held, exceeded[1])

    def _request(self, kind: Hashable, task: QueuedTask) -> Request | WaitCause:
        """What is asked for; a cause where that can never be as things are."""
        if kind not in self._requests:
            request = understand(self._tx, task.submission, limits_owner=False)
            if isinstance(request, Refused) and request.reason is Reason.MEMBERS_ENDING:
                return WaitCause(request.reason)  # another task like it has ended altogether
            self._requests[kind] = (
                WaitCause(request.reason, request.short_quota or request.short_node)
                if isinstance(request, Refused)
                else request
            )
        return self._requests[kind]

    def _is_behind_in_strict_pool(self, task: QueuedTask) -> bool:
        state, pool_name = self._tx.state, task.pool_name
        if task.queue_class is None or state.ledger.accounts[pool_name].spec.queueing != "strict":
            return False
        if pool_name not in self._firsts:
            self._firsts[pool_name] = first_in_order(state, pool_name)
        first = self._firsts[pool_name]
        return first is not None and first < state.queue.entry(task)
