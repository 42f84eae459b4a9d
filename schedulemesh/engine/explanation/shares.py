"""What pools and their owners use, and by which shares they are compared: as Slurm's ``sshare`` lists it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from schedulemesh.domain.owner_limits import OwnerLimit
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.owners import dominant_part
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.shares import Shares, dominant_usage


class ShareRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pool, or an owner in it: what it holds, and what counts of it where it is compared with others."""

    pool_name: str
    #: None: the pool itself.
    owner: str | None = None
    #: Of a pool: what its tasks hold, borrowed quota included.
    resources: Resources
    #: Agents of tasks that hold it, and tasks that wait.
    running: int
    queued: int
    #: Of a pool: the largest part of the quota of all pools that it holds, by its weight; of an owner: that
    #: of the pool's quota.
    usage: float
    #: Of a pool: what it has borrowed beyond what it lends, as a part of its cohorts' quota by its weight;
    #: of an owner: what it has used of the pool. As it is now, or its decayed mean where that is more.
    share: float
    #: Of a pool: what its use is divided by; None: an owner.
    weight: float | None = None
    #: Of an owner: what limits it; None: a pool.
    limit: OwnerLimit | None = None


def shares_of(state: MeshState, now: float, pool_name: str | None = None) -> Iterator[ShareRow]:
    """A row for each pool (or this one), and behind it one for each of its owners, by their shares."""
    shares = Shares(state, now)
    for name, account in state.ledger.accounts.items():
        if pool_name not in (None, name):
            continue
        owners = sorted(_owners(state, name, now), key=lambda row: (row.share, row.owner or ""))
        yield ShareRow(
            pool_name=name,
            resources=account.reserved + account.used + account.net_loans,
            running=sum(row.running for row in owners),
            queued=sum(row.queued for row in owners),
            usage=dominant_usage(state, name),
            share=shares.key(name)[-1],
            weight=account.spec.weight,
        )
        yield from owners


def _owners(state: MeshState, pool_name: str, now: float) -> Iterator[ShareRow]:
    """A row for each owner whose tasks run or wait in a pool, or have used it lately where that counts."""
    spec, counted = state.ledger.accounts[pool_name].spec, state.owners.uses.get(pool_name, {})
    claims: dict[str, list[Resources]] = {owner: [] for owner in counted}
    for agent in map(state.agents.__getitem__, state.agents_of[pool_name]):
        if agent.owner is not None:
            claims.setdefault(agent.owner, []).append(agent.spec.counted)
    waiting: dict[str, int] = {}
    for task in state.queue.of_pool(pool_name):
        owner = task.common_spec.owner
        waiting[owner] = waiting.get(owner, 0) + _count(state, task)
    for owner in claims.keys() | waiting.keys():
        of_owner = claims.get(owner, [])
        amount = sum_of(of_owner)
        usage = dominant_part(dict(amount.items()), spec.resources.items())
        counts = owner in counted
        yield ShareRow(
            pool_name=pool_name,
            owner=owner,
            resources=amount,
            running=len(of_owner),
            queued=waiting.get(owner, 0),
            usage=usage,
            share=state.owners.share(pool_name, owner, now) if counts else usage,
            limit=spec.owner_limit(owner),
        )


def _count(state: MeshState, task: QueuedTask) -> int:
    """How many tasks wait as an entry of the queue: the members of an array that have not started."""
    return len(state.arrays.by_id[task.task_id].remaining) if task.common_spec.array else 1
