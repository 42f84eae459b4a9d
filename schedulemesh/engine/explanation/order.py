"""The place of a task in the queue: by what it is compared with others, and what counts of it.

The factors come in the order in which they are compared: of two tasks the first that differs decides. They
are those of Slurm's ``sprio``, which adds them up; here each stands before all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from schedulemesh.config.queueing import BY_REMAINING
from schedulemesh.domain.numbers import span_text
from schedulemesh.domain.priorities import class_of
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.admission.needs import need_of
from schedulemesh.engine.admission.owner_limits import named_owner
from schedulemesh.engine.messages.explanation import Finding, OrderFactor
from schedulemesh.engine.state.fair_order import FairOrder
from schedulemesh.engine.state.long_waits import PROMOTED
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask, remaining_s
from schedulemesh.engine.state.shares import dominant_usage, raised_weight, share_key


def order_of(state: MeshState, task: QueuedTask, now: float) -> tuple[OrderFactor, ...]:
    """By what a task that waits is compared with others, the first to be compared first."""
    factors = [_front(state, task)]
    factors += _of_pool(state, task, now)
    factors += _of_owner(state, task)
    factors += _of_policy(state, task, now)
    number = OrderFactor(
        factor="number",
        value=float(task.number),
        detail="the position of its first submission among all; the lower comes first",
    )
    return (*factors, number)


def _front(state: MeshState, task: QueuedTask) -> OrderFactor:
    policy = state.queue.policy
    detail = "not moved to the front"
    if task.front == PROMOTED:
        detail = f"promoted, as it has waited for {span_text(policy.promote_after_s)}"
    elif task.front:
        detail = "moved to the front; whoever was moved last comes first"
    elif policy.promote_after_s:
        detail += f"; promoted after {span_text(policy.promote_after_s)} of waiting"
    return OrderFactor(factor="promotion", value=float(task.front), detail=detail)


def _of_pool(state: MeshState, task: QueuedTask, now: float) -> Iterator[OrderFactor]:
    """The share of its pool, where pools are compared."""
    pool_name = task.pool_name
    raised = raised_weight(state, pool_name, now)
    suffix = "" if raised == 1.0 else f"; its weight counts {raised:.3g} times, for its wait"
    if state.queue.policy.order == "dominant_share":
        usage = dominant_usage(state, pool_name) / raised
        detail = f"the part of all quota that pool {pool_name!r} uses, by its weight{suffix}"
        yield OrderFactor(factor="pool's use", value=usage, detail=detail)
    account = state.ledger.accounts[pool_name]
    neighbours = state.ledger.cohorts.neighbours(pool_name).names
    if neighbours and not need_of(state, task).fits(account.free):
        share = share_key(state, pool_name, now)[-1] / raised
        detail = f"what pool {pool_name!r} has borrowed of its cohorts, by its weight{suffix}"
        yield OrderFactor(factor="pool's share", value=share, detail=detail)


def _of_owner(state: MeshState, task: QueuedTask) -> Iterator[OrderFactor]:
    """The share of its owner, in a fair pool."""
    order = state.queue.entry(task)[0]
    if state.owners.is_fair(task.pool_name) and isinstance(order, FairOrder):
        detail = f"what {named_owner(task.spec.owner)} has used of pool {task.pool_name!r}"
        yield OrderFactor(factor="owner's share", value=order.rank.share, detail=detail)


def _of_policy(state: MeshState, task: QueuedTask, now: float) -> Iterator[OrderFactor]:
    """What the order of the queue's policy counts."""
    policy = state.queue.policy
    if policy.order == "fifo":
        return
    if policy.order in BY_REMAINING:
        seconds = remaining_s(task, policy)
        detail = "not known" if seconds == inf else f"{span_text(seconds)} to run"
        value = None if seconds == inf else seconds
        yield OrderFactor(factor="remaining", value=value, detail=detail)
        return
    if policy.las_limit_s is not None:
        gpu_s = task.attempts.gpu_s
        detail = f"{gpu_s / 3600:.3g} GPU-hours used; the lower level comes first"
        yield OrderFactor(factor="level", value=float(policy.las_level(gpu_s)), detail=detail)
        gpus = task.submission.agent.resources.gpus
        yield OrderFactor(factor="size", value=gpus, detail="GPUs; the fewer come first")
        return
    name = class_of(task.spec.priority)
    priority = task.spec.priority
    yield OrderFactor(factor="priority", value=priority, detail=f"class {name}" if name else "")
    if policy.ageing_per_hour:
        since = task.queued_at if task.attempts.time_limits else task.arrived_at
        aged = policy.ageing_per_hour * (now - since) / 3600.0
        detail = (
            f"{policy.ageing_per_hour:g} for each hour, {span_text(now - since)} so far; added to the "
            "priority"
        )
        yield OrderFactor(factor="age", value=aged, detail=detail)


def behind_owner(state: MeshState, task: QueuedTask) -> Finding | None:
    """That tasks of an owner come before it in a fair pool who has used less; None: none do."""
    pool_name, own_order = task.pool_name, state.queue.entry(task)[0]
    first = state.queue.first_of(pool_name) if state.owners.is_fair(pool_name) else None
    if first is None or task.queue_class is None or not isinstance(own_order, FairOrder):
        return None
    first_order = state.queue.entry(first)[0]
    if not isinstance(first_order, FairOrder) or first_order.rank.share >= own_order.rank.share:
        return None
    other = first.spec.owner or "the owner of tasks without one"
    least, own_share = first_order.rank.share, own_order.rank.share
    return Finding(
        reason=Reason.BEHIND_OWNER,
        error=(
            f"behind {other}, who has used less of pool {pool_name!r}: {least:.1%}, and "
            f"{named_owner(task.spec.owner)} {own_share:.1%}"
        ),
        hint=f"it comes first when that has changed; move_to_front({task.task_id!r}) puts it first",
    )
