"""How long tasks that wait are expected to run, where the order of the queue depends on it.

An estimate changes with every run that ends, and a place in the queue with it. So it is a fact only where it
differs much from the one in force, and all tasks of a kind have the same: among them the first to arrive
comes first.
"""

from __future__ import annotations

import msgspec

from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.messages.queue_facts import QueuedTasksEstimated
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction

#: An estimate counts as another one if it differs by this part of the larger one.
_PART = 0.1


def estimate_new(tx: Transaction) -> None:
    """Estimate the kinds of tasks that have joined the queue."""
    kinds = tx.state.queue.kinds
    new, kinds.new = kinds.new, {}
    for kind in new:
        _estimate(tx, kind)


def estimate_all(tx: Transaction) -> None:
    """Estimate all kinds of tasks that wait anew, if runs have ended since the last time."""
    kinds, version = tx.state.queue.kinds, tx.state.past.estimates.version
    if kinds.seen == version:
        estimate_new(tx)
        return
    kinds.new, kinds.seen = {}, version
    for kind in tuple(kinds.by_kind):
        _estimate(tx, kind)


def _estimate(tx: Transaction, kind: TaskKind) -> None:
    estimate = tx.state.past.estimates.estimate(_sized(tx.state, kind))
    if estimate is None:
        return
    earlier_s = tx.state.queue.kinds.by_kind[kind].estimate_s
    if earlier_s is None or _differs(estimate.seconds, earlier_s):
        tx.emit(QueuedTasksEstimated(kind=kind, seconds=estimate.seconds))


def _sized(state: MeshState, kind: TaskKind) -> TaskKind:
    """The kind with what its pool gives by default, where its tasks ask for that."""
    if kind.gpu is not None:
        return kind
    need = state.ledger.accounts[kind.pool_name].spec.default_agent()
    return msgspec.structs.replace(kind, gpu=need.gpu, cpu=None if need.gpu else need.cpu)


def _differs(seconds: float, earlier_s: float) -> bool:
    return abs(seconds - earlier_s) > _PART * max(seconds, earlier_s)
