"""Starts a task that waits by evicting others, as far as that delays no reserved start before it."""

from __future__ import annotations

from enum import Enum
from math import inf

import msgspec

from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.decide import admit_by, each_way, veto_for
from schedulemesh.engine.admission.evictions import plan_for, plan_without_delay, unprobed
from schedulemesh.engine.messages.instructions import ProbeClass
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.sites import KnownNodes
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.transaction import Transaction


class Tried(Enum):
    """What came of trying to start a task with evictions."""

    STARTED = "started"
    #: Nobody's eviction would make room for it; those behind it in its pool may be helped.
    IN_VAIN = "in_vain"
    #: The same, and there were candidates.
    SEARCHED_IN_VAIN = "searched_in_vain"
    #: Evictions would make room for it, and delay the reserved start of a task before it.
    WOULD_DELAY = "would_delay"
    #: Evictions would make room for it, and are made when its class has loaded.
    LOADING = "loading"


def start_with_evictions(tx: Transaction, task: QueuedTask, request: Request) -> Tried:
    """Start a task for which others are evicted, in the first of its alternatives for which that helps, and
    delays no reserved start of a task that comes before it.
    """
    tried, known_nodes = Tried.IN_VAIN, KnownNodes()
    until, has_veto = inf, False
    for each in each_way(tx, request):
        if each.fits_now:
            continue
        veto, known_nodes.until = veto_for(tx, each), inf
        has_veto = has_veto or veto is not None
        tried_request = msgspec.structs.replace(each, only_reclaims=request.only_reclaims)
        plan = plan_for(tx, tried_request, veto, each.limits(tx.state, tx.now), known_nodes)
        until = min(until, known_nodes.until)
        if plan is None:
            continue
        permitted = plan_without_delay(tx, tried_request, plan, veto, keep=True)
        if permitted is not None:
            return _start_by(tx, task, tried_request, permitted)
        tried = Tried.WOULD_DELAY
    if tried is Tried.WOULD_DELAY:
        return tried
    by_time = bool(tx.state.cluster.set_aside)  # whose windows close without a fact
    if not (request.fits_now or has_veto or request.only_reclaims or by_time):
        tx.state.spared.note_in_vain(task.task_id, tx.now, until, searched=known_nodes.searched)
    return Tried.SEARCHED_IN_VAIN if known_nodes.searched else Tried.IN_VAIN


def _start_by(tx: Transaction, task: QueuedTask, request: Request, plan: EvictionPlan) -> Tried:
    """Start a task for which others are evicted by a plan."""
    if (class_key := unprobed(tx.state, request, plan)) is not None:
        tx.instruct(
            ProbeClass(task_id=task.task_id, class_key=class_key, agent=task.submission.agent)
        )
        return Tried.LOADING
    admitted = admit_by(tx, request, plan)
    return Tried.IN_VAIN if isinstance(admitted, Refused) else Tried.STARTED
