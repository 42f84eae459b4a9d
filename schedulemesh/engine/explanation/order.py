"""The place of a task in the queue: by what it is compared with others, and what counts of it.

The factors come in the order in which they are compared: of two tasks the first that differs decides. They
are those of Slurm's ``sprio``, which adds them up; here each stands before all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from schedulemesh.config.queueing import BY_REMAINING
from schedulemesh.domain.priorities import class_of, own_class_of
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.admission.needs import quota_need_of
from schedulemesh.engine.admission.owner_limits import named_owner
from schedulemesh.engine.messages.explanation import Finding, OrderFactor
from schedulemesh.engine.state.fair_order import FairOrder
from schedulemesh.engine.state.long_waits import PROMOTED
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask, remaining_s, scaled
from schedulemesh.engine.state.shares import dominant_usage, raised_weight, share_key
from schedulemesh.engine.state.ways import ways_of_task


def order_of(state: MeshState, task: QueuedTask, now: float) -> tuple[OrderFactor, ...]:
    """By what a task that waits is compared with others, the first to be compared first."""
    factors = [_front(state, task)]
    factors += _of_pool(state, task, now)
    factors += _of_owner(state, task)
    factors += _of_policy(state, task, now)
    number = OrderFactor(
        factor="number",
        value=float(task.number),
        detail_text=say("order_number"),
    )
    return (*factors, number)


def _front(state: MeshState, task: QueuedTask) -> OrderFactor:
    policy = state.queue.policy
    detail = say("order_not_moved")
    if task.front == PROMOTED:
        detail = say("order_promoted", wait=policy.promote_after_s)
    elif task.front:
        detail = say("order_moved")
    elif policy.promote_after_s:
        detail = say("order_promoted_later", wait=policy.promote_after_s)
    return OrderFactor(factor="promotion", value=float(task.front), detail_text=detail)


def _of_pool(state: MeshState, task: QueuedTask, now: float) -> Iterator[OrderFactor]:
    """The share of its pool, where pools are compared."""
    pool_name = task.pool_name
    raised = raised_weight(state, pool_name, now)
    more = "" if raised == 1.0 else say("order_raised", factor=raised)
    if state.queue.policy.order == "dominant_share":
        usage = dominant_usage(state, pool_name) / raised
        detail = say("order_pool_use", pool=pool_name, raised=more)
        yield OrderFactor(factor="pool's use", value=usage, detail_text=detail)
    account = state.ledger.accounts[pool_name]
    neighbours = state.ledger.cohorts.neighbours(pool_name).names
    ways = ways_of_task(state.ledger, task) if neighbours else ()
    if neighbours and not any(quota_need_of(state, way).fits(account.free) for way in ways):
        share = share_key(state, pool_name, now)[-1] / raised
        detail = say("order_pool_share", pool=pool_name, raised=more)
        yield OrderFactor(factor="pool's share", value=share, detail_text=detail)


def _of_owner(state: MeshState, task: QueuedTask) -> Iterator[OrderFactor]:
    """The share of its owner, in a fair pool."""
    order = state.queue.entry(task)[0]
    if state.owners.is_fair(task.pool_name) and isinstance(order, FairOrder):
        owner = named_owner(task.spec.owner)
        detail = say("order_owner_share", owner=owner, pool=task.pool_name)
        yield OrderFactor(factor="owner's share", value=order.rank.share, detail_text=detail)


def _of_policy(state: MeshState, task: QueuedTask, now: float) -> Iterator[OrderFactor]:
    """What the order of the queue's policy counts."""
    policy = state.queue.policy
    if policy.order == "fifo":
        return
    if policy.order in BY_REMAINING:
        seconds = remaining_s(task, policy)
        if seconds == inf:
            unknown = say("order_unknown")
            yield OrderFactor(factor="remaining", value=None, detail_text=unknown)
            return
        by_gpus = policy.order == "shortest_service"
        code = "order_remaining_service" if by_gpus else "order_remaining"
        value = scaled(seconds, task.submission.agent.resources, policy)
        detail = say(code, remaining=seconds)
        yield OrderFactor(factor="remaining", value=value, detail_text=detail)
        return
    if policy.las_limit_s is not None:
        gpu_s = task.attempts.gpu_s
        detail = say("order_level", hours=gpu_s / 3600)
        yield OrderFactor(factor="level", value=float(policy.las_level(gpu_s)), detail_text=detail)
        gpus = task.submission.agent.resources.gpus
        yield OrderFactor(factor="size", value=gpus, detail_text=say("order_size"))
        return
    own_classes = state.policy.priority_classes
    name = class_of(task.spec.priority, own_class_of(task.spec.priority, own_classes))
    of_class = say("order_class", name=name) if name else ""
    yield OrderFactor(factor="priority", value=task.spec.priority, detail_text=of_class)
    if policy.ageing_per_hour:
        since = task.queued_at if task.attempts.time_limits else task.arrived_at
        aged = policy.ageing_per_hour * (now - since) / 3600.0
        detail = say("order_age", rate=policy.ageing_per_hour, wait=now - since)
        yield OrderFactor(factor="age", value=aged, detail_text=detail)


def behind_owner(state: MeshState, task: QueuedTask) -> Finding | None:
    """That tasks of an owner come before it in a fair pool who has used less; None: none do."""
    pool_name, own_order = task.pool_name, state.queue.entry(task)[0]
    first = state.queue.first_of(pool_name) if state.owners.is_fair(pool_name) else None
    if first is None or task.queue_class is None or not isinstance(own_order, FairOrder):
        return None
    first_order = state.queue.entry(first)[0]
    if not isinstance(first_order, FairOrder) or first_order.rank.share >= own_order.rank.share:
        return None
    return Finding(
        reason=Reason.BEHIND_OWNER,
        error_text=say(
            "behind_other_owner",
            other=first.spec.owner or say("no_owner"),
            pool=pool_name,
            least=first_order.rank.share,
            owner=named_owner(task.spec.owner),
            share=own_order.rank.share,
        ),
        hint_text=say("behind_other_owner_hint", task=task.task_id),
    )
