"""Limits of owners: who may start no more in a pool, or have no more tasks wait in it, and why."""

from __future__ import annotations

from schedulemesh.domain.arrays import array_form
from schedulemesh.domain.flavors import counted
from schedulemesh.domain.owner_limits import OwnerLimit
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.admission.needs import need_of, quota_need_of
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.ways import ways_of_task

#: How many of an owner's tasks are named.
_NAMED = 3


def beyond_owner_limit(
    state: MeshState, submission: TaskSubmitted, pool_name: str, need: Resources
) -> Refused | None:
    """The refusal of a task whose owner may start no more of this size in the pool; None: it may, or it is
    no task. The limit counts whoever would be evicted for it.
    """
    task = submission.task
    if task is None:
        return None
    limit = state.owners.short(pool_name, task.owner, need)
    if limit is None:
        return None
    use = state.owners.use_of(pool_name, task.owner)
    running = _running_of(state, pool_name, task.owner)
    permitted = _permitted(limit)
    return Refused(
        reason=Reason.OWNER_LIMIT,
        error_text=say(
            "owner_at_limit",
            owner=named_owner(task.owner),
            used=_used(limit, use.held, use.running),
            pool=pool_name,
            permitted=permitted,
            amount=_number_of(permitted),
            need=_needed(limit, need),
        ),
        hint_text=say(
            "owner_at_limit_hint",
            submit="" if submission.queue else say("with_queue"),
            waits=say("such_as", tasks=[*map(repr, running)]) if running else "",
            pool=pool_name,
        ),
        short_quota=excess(limit, use.held, need),
    )


def limit_in_each_way(state: MeshState, task: QueuedTask) -> tuple[OwnerLimit, Resources] | None:
    """The limits that the owner of a task which waits would exceed with it in every flavor in which it may
    run, in the first one, and what counts against them there; None: in some flavor it would exceed none.
    """
    needs = [task.need_of_class or need_of(state, task)]
    if task.pool_name in state.ledger.flavored:
        ways = ways_of_task(state.ledger, task)
        needs = [counted(need_of(state, way), quota_need_of(state, way)) for way in ways]
    limits = [state.owners.short(task.pool_name, task.common_spec.owner, need) for need in needs]
    exceeded = [limit for limit in limits if limit is not None]
    return (exceeded[0], needs[0]) if len(exceeded) == len(needs) else None


def exceeds_owner_limit(
    state: MeshState, owner: str, pool_name: str, need: Resources
) -> Refused | None:
    """The refusal of a task that alone exceeds its owner's limits; None: it does not."""
    limit = state.owners.exceeds(pool_name, owner, need)
    if limit is None:
        return None
    permitted = _permitted(limit)
    return Refused(
        reason=Reason.EXCEEDS_OWNER_LIMIT,
        error_text=say(
            "beyond_owner",
            permitted=permitted,
            amount=_number_of(permitted),
            owner=named_owner(owner),
            pool=pool_name,
            need=_needed(limit, need),
        ),
        hint_text=say("beyond_owner_hint", pool=pool_name),
        short_quota=excess(limit, NOTHING, need),
    )


def too_many_queued(state: MeshState, pool_name: str, task: TaskSpec) -> Refused | None:
    """The refusal of one more task that waits, or of an array; None: its owner may have it wait."""
    owner, members = task.owner, array_form(task.array).size if task.array else 1
    spec = state.owners.pools.get(pool_name)
    most = None if spec is None else spec.owner_limit(owner).queued
    waiting = 0 if most is None else state.queue.count_of_owner(pool_name, owner)
    if most is None or waiting + members <= most:
        return None
    return Refused(
        reason=Reason.OWNER_QUEUE_FULL,
        error_text=say(
            "owner_queue",
            owner=named_owner(owner),
            count=waiting,
            pool=pool_name,
            most=most,
            further=say("array_has", count=members) if task.array else "",
        ),
        hint_text=say("owner_queue_hint", pool=pool_name),
    )


def named_owner(owner: str) -> Sentence:
    """How a sentence names an owner."""
    return say("owner", owner=owner) if owner else say("no_owner")


def _running_of(state: MeshState, pool_name: str, owner: str) -> tuple[str, ...]:
    """Some of the owner's tasks in a pool that run, the first to start first."""
    agents = sorted(
        (state.agents[name] for name in state.agents_of[pool_name]),
        key=lambda agent: (agent.admitted_at, agent.incarnation),
    )
    names: list[str] = []
    for agent in agents:
        if agent.owner == owner:
            names += state.running.on_agent(agent.spec.name)
        if len(names) >= _NAMED:
            break
    return tuple(names[:_NAMED])


def _used(limit: OwnerLimit, in_use: Resources, running: int) -> list[Sentence]:
    amounts = dict(in_use.items())
    parts = [_amount(kind, amounts.get(kind, 0)) for kind, _ in limit.named]
    return parts + ([] if limit.running is None else [_tasks(running)])


def _permitted(limit: OwnerLimit) -> list[Sentence]:
    parts = [_amount(kind, most) for kind, most in limit.named]
    return parts + ([] if limit.running is None else [_tasks(limit.running)])


def _number_of(parts: list[Sentence]) -> int:
    """The grammatical number of what is permitted: 1 for one thing alone."""
    return 1 if len(parts) == 1 and 1 in parts[0].parameters.values() else 2


def _needed(limit: OwnerLimit, need: Resources) -> Sentence:
    amounts = dict(need.items())
    parts = [_amount(kind, amounts[kind]) for kind, _ in limit.named]
    return say("task_asks", amounts=parts) if parts else say("task_is_one_more")


def excess(limit: OwnerLimit, in_use: Resources, need: Resources) -> Resources:
    """By how much the owner would exceed the limits."""
    amounts, needs = dict(in_use.items()), dict(need.items())
    units = {kind: amounts.get(kind, 0) + needs.get(kind, 0) - most for kind, most in limit.named}
    return Resources(
        cpu=units.pop("cpu", 0),
        memory=units.pop("memory", 0),
        gpu=units.pop("gpu", 0),
        custom=tuple(sorted(units.items())),
    )


def _amount(kind: str, units: int) -> Sentence:
    amount = units / UNIT
    if kind == "memory":
        return say("memory_of", amount=amount)
    return say("amount_of", amount=amount, kind=kind.upper() if kind in ("cpu", "gpu") else kind)


def _tasks(count: int) -> Sentence:
    return say("running_tasks", count=count)
