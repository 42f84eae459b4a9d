"""Values that are read from the state when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.state.groups import Group, GroupPhase, PoolCounts
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.quota import Account
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.metrics.values import Family, Sample

#: How many entries are counted between two places to pause.
_STRIDE = 200
_AGENT_STATES = ("waiting", "starting", "running", "ending")
_TASK_STATES = ("queued", "starting", "running", "preempting", "ending")


def families(state: MeshState) -> Iterator[Family]:
    """What the state says, metric by metric. The state may change while they are read."""
    counts = list(state.past.preemptions.items())
    yield c.PREEMPTIONS, (Sample((pool, reason.value), n) for (pool, reason), n in counts)
    yield c.TASKS, _tasks(state)
    accounts = list(state.ledger.accounts.values())
    for metric, amount_of in _QUOTA:
        yield metric, _quota(accounts, amount_of)
    yield c.GPUS_IDLE, _idle_gpus(state)
    yield c.AGENTS, _agents(state)
    yield c.GROUPS, _groups(state)
    group_counts = list(state.groups.counts.items())
    for metric, value_of in _GROUP_COUNTS:
        yield metric, _group_counts(group_counts, value_of)
    yield from _nodes(state)
    yield c.EPOCH, [Sample((), state.epoch)]


def amounts(resources: Resources) -> dict[str, float]:
    """The amounts of a resource request that are not zero, by kind."""
    kinds = {"cpu": resources.cpu, "memory": resources.memory, "gpu": resources.gpu}
    return {kind: n / UNIT for kind, n in (*kinds.items(), *resources.custom) if n}


_QUOTA: tuple[tuple[Metric, Callable[[Account], Resources]], ...] = (
    (c.POOL_QUOTA, lambda account: account.spec.resources),
    (c.POOL_USED, lambda account: account.used),
    (c.POOL_RESERVED, lambda account: account.reserved),
    (c.POOL_LENT, lambda account: account.lent),
    (c.POOL_BORROWED, lambda account: account.borrowed),
)

_GROUP_COUNTS: tuple[tuple[Metric, Callable[[PoolCounts], float]], ...] = (
    (c.GROUPS_CREATED, lambda counts: counts.created),
    (c.GROUPS_REUSED, lambda counts: counts.reused),
    (c.GROUPS_DESTROYED, lambda counts: counts.destroyed),
    (c.GROUP_ASSIGNMENTS, lambda counts: counts.entered),
    (c.GROUP_WAIT, lambda counts: counts.waited_s),
)


def _quota(
    accounts: Iterable[Account], amount_of: Callable[[Account], Resources]
) -> Iterator[Sample]:
    """One amount of every pool, for each kind of which the pool has a quota or the amount is not zero."""
    for account in accounts:
        by_kind = dict.fromkeys(amounts(account.spec.resources), 0.0) | amounts(amount_of(account))
        for kind, amount in by_kind.items():
            yield Sample((account.spec.name, kind), amount)


def _idle_gpus(state: MeshState) -> Iterator[Sample]:
    """Of every pool with GPUs, and of those whose agents have any."""
    accounts = list(state.ledger.accounts.values())
    by_pool = {account.spec.name: 0 for account in accounts if account.spec.plain_quota.gpu}
    for name in list(state.running.idle):
        spec = state.agents[name].spec
        by_pool[spec.pool_name] = by_pool.get(spec.pool_name, 0) + spec.resources.gpu
    for pool, units in by_pool.items():
        yield Sample((pool,), units / UNIT)


def _agents(state: MeshState) -> Iterator[Sample | None]:
    for pool, names in list(state.agents_of.items()):
        agents = [state.agents[name] for name in names if name in state.agents]
        by_phase = Counter(agent.phase.value for agent in agents)
        for value in _AGENT_STATES:
            yield Sample((pool, value), by_phase[value])


def _tasks(state: MeshState) -> Iterator[Sample | None]:
    counts: Counter[tuple[str, str]] = Counter()
    for number, task in enumerate(list(state.running.by_id.values()), 1):
        counts[task.spec.pool_name, task.phase.value] += 1
        if not number % _STRIDE:
            yield None
    for pool in [*dict.fromkeys([*state.ledger.accounts, *(pool for pool, _ in counts)])]:
        counts[pool, "queued"] = state.queue.size(pool)
        for value in _TASK_STATES:
            yield Sample((pool, value), counts[pool, value])


def _groups(state: MeshState) -> Iterator[Sample | None]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for number, group in enumerate(list(state.groups.by_id.values()), 1):
        kind = "reserved" if group.reserved else "dynamic"
        counts[group.pool_name, kind, _group_state(group)] += 1
        if not number % _STRIDE:
            yield None
    for labels, count in counts.items():
        yield Sample(labels, count)


def _group_state(group: Group) -> str:
    if group.phase is not GroupPhase.READY:
        return str(group.phase.value)
    return "in_use" if group.agent is not None else "free"


def _group_counts(
    counts: Iterable[tuple[str, PoolCounts]], value_of: Callable[[PoolCounts], float]
) -> Iterator[Sample]:
    for pool, pool_counts in counts:
        yield Sample((pool,), value_of(pool_counts))


def _nodes(state: MeshState) -> Iterator[Family]:
    nodes = list(state.cluster.nodes.values())
    states = Counter(_node_state(state, node) for node in nodes)
    yield c.NODES, [Sample((v,), states[v]) for v in ("open", "cordoned", "draining")]
    yield c.NODE_TOTAL, _of_nodes(nodes, lambda node: node.total)
    yield c.NODE_FREE, _of_nodes(nodes, lambda node: node.free)
    yield c.NODE_EXTERNAL, _of_nodes(nodes, lambda node: node.external_usage)


def _node_state(state: MeshState, node: Node) -> str:
    if node.node_id in state.drains.nodes:
        return "draining"
    return "cordoned" if node.cordoned else "open"


def _of_nodes(nodes: Iterable[Node], amount_of: Callable[[Node], Resources]) -> Iterator[Sample]:
    """One amount of every node, for each kind that the node has."""
    for node in nodes:
        by_kind = dict.fromkeys(amounts(node.total), 0.0) | amounts(amount_of(node))
        for kind, amount in by_kind.items():
            yield Sample((node.node_id, kind), amount)
