"""Limits of owners: who may start no more in a pool, or have no more tasks wait in it, and why."""

from __future__ import annotations

from schedulemesh.domain.arrays import array_form
from schedulemesh.domain.owner_limits import OwnerLimit
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.mesh_state import MeshState

#: How many of an owner's tasks are named.
_NAMED = 3


def beyond_owner_limit(
    state: MeshState, submission: TaskSubmitted, pool_name: str, need: Resources
) -> Refused | None:
    """The refusal of a task whose owner may start no more of this size in the pool; None: it may, or it is
    no task. The limit counts whoever would be evicted for it.
    """
    task = submission.task
    if task is None or not state.owners.pools:
        return None
    limit = state.owners.short(pool_name, task.owner, need)
    if limit is None:
        return None
    use = state.owners.use_of(pool_name, task.owner)
    running = _running_of(state, pool_name, task.owner)
    waits_for = f", such as {', '.join(map(repr, running))}," if running else ""
    return Refused(
        reason=Reason.OWNER_LIMIT,
        error=(
            f"owner limit: {named_owner(task.owner)} holds {_use_text(limit, use.held, use.running)} in "
            f"pool {pool_name!r}, and {_limit_text(limit)} permitted; {_need_text(limit, need)}"
        ),
        hint=(
            f"{'' if submission.queue else 'submit it with queue=True: '}it starts when tasks of the same "
            f"owner{waits_for} have ended, and others do not wait for it; an operator raises the limit with "
            f"owner_limits of pool {pool_name!r}"
        ),
        short_quota=excess(limit, use.held, need),
    )


def exceeds_owner_limit(
    state: MeshState, owner: str, pool_name: str, need: Resources
) -> Refused | None:
    """The refusal of a task that alone exceeds its owner's limits; None: it does not."""
    limit = state.owners.exceeds(pool_name, owner, need)
    if limit is None:
        return None
    return Refused(
        reason=Reason.EXCEEDS_OWNER_LIMIT,
        error=(
            f"owner limit: {_limit_text(limit)} permitted to {named_owner(owner)} in pool {pool_name!r}; "
            f"{_need_text(limit, need)}"
        ),
        hint=f"ask for less, or have an operator raise owner_limits of pool {pool_name!r}",
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
    further = f"; the array has {members:,} members" if task.array else ""
    return Refused(
        reason=Reason.OWNER_QUEUE_FULL,
        error=(
            f"{named_owner(owner)} has {waiting} task{'' if waiting == 1 else 's'} in the queue of pool "
            f"{pool_name!r}, and owner_limits permits {most}{further}"
        ),
        hint=(
            "submit it when one of them has started, cancel one, or have an operator raise queued in "
            f"owner_limits of pool {pool_name!r}"
        ),
    )


def named_owner(owner: str) -> str:
    """How a sentence names an owner."""
    return f"owner {owner!r}" if owner else "the owner of tasks without one"


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


def _use_text(limit: OwnerLimit, in_use: Resources, running: int) -> str:
    amounts = dict(in_use.items())
    parts = [_amount(kind, amounts.get(kind, 0)) for kind, _ in limit.named]
    parts += [] if limit.running is None else [_tasks(running)]
    return " and ".join(parts)


def _limit_text(limit: OwnerLimit) -> str:
    parts = [_amount(kind, most) for kind, most in limit.named]
    parts += [] if limit.running is None else [_tasks(limit.running)]
    is_one = len(parts) == 1 and parts[0].split()[0] == "1"
    return f"{' and '.join(parts)} {'is' if is_one else 'are'}"


def _need_text(limit: OwnerLimit, need: Resources) -> str:
    amounts = dict(need.items())
    parts = [_amount(kind, amounts[kind]) for kind, _ in limit.named]
    return f"the task asks for {' and '.join(parts)}" if parts else "the task would be one more"


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


def _amount(kind: str, units: int) -> str:
    unit = "MB of memory" if kind == "memory" else kind.upper() if kind in ("cpu", "gpu") else kind
    return f"{units / UNIT:g} {unit}"


def _tasks(count: int) -> str:
    return f"{count} running task{'' if count == 1 else 's'}"
