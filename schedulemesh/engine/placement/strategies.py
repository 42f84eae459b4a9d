"""The strategies of one scheduler: choose the pool, node and device of a task, and call plugins.

For each decision the plugins are called in their order until one has an opinion; a plugin that fails is
skipped. Without an opinion the built-in strategy decides. Between equal scores the built-in order decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar

import msgspec

from schedulemesh.domain.flavors import flavors_for
from schedulemesh.domain.labels import Selector, matches
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.plugin_views import node_domain, pool_domain
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.fragmentation import Workload
from schedulemesh.engine.state.lending import could_ever_borrow
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.quota import Account, Ledger
from schedulemesh.engine.state.scoring import BUILT_IN, Place, Scale, least_free
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import ResourceDomain, TaskView

#: The names of the built-in strategies for choosing an agent's node.
NODE_STRATEGIES = tuple(BUILT_IN)

#: The default strategy for choosing the pool of a task that names none.
POOL_STRATEGY = "dominant_share"

Candidate = TypeVar("Candidate")


class Strategies:
    """The configured built-in strategies, and the plugins in their order."""

    def __init__(
        self,
        node: str = NODE_STRATEGIES[0],
        pool: str = POOL_STRATEGY,
        plugins: Sequence[Guarded] = (),
    ) -> None:
        self.node = node
        self.pool = pool
        self.plugins = tuple(plugins)

    def asks(self, hook: str) -> bool:
        """Whether any plugin has this hook and is enabled."""
        return bool(self.plugins) and any(plugin.has(hook) for plugin in self.plugins)

    def choose_node(
        self, cluster: Cluster, shape: GroupShape, task: TaskView | None, *, waits: bool = False
    ) -> Node | None:
        """A node on which the single bundle of a shape fits now; None: there is none. Plugins score every
        such node. ``waits``: the agent starts only after its victims have ended, and must still fit then.
        """
        with_room = cluster.with_room(shape, self.node)
        if waits:
            need = shape.bundles[0]
            with_room = (node for node in with_room if has_room(node, need, waits=True))
        if task is None or not self.asks("score"):
            return next(with_room, None)
        return self._scored(list(with_room), node_domain, task)

    def choose_pool(
        self,
        ledger: Ledger,
        selector: Selector,
        need: Resources | None,
        task: TaskView | None = None,
        workload: Workload | None = None,
        avoided: Container[str] = (),
        ending: Container[str] = (),
    ) -> str | None:
        """The best matching pool among those whose total quota holds the need; None: there is none.

        Pools with enough free quota are preferred; ties are decided by name. Plugins score all such pools. A
        pool of ``avoided`` is chosen only if there is no other, and one of ``ending`` never. A need of None
        means each pool's default agent.
        """
        every = _ordered_pools(ledger, selector, need, self.pool, workload)
        every = [name for name in every if name not in ending]
        ordered = [name for name in every if name not in avoided] or every
        if task is None or not self.asks("score"):
            return next(iter(ordered), None)
        best = self._scored([ledger.accounts[name] for name in ordered], pool_domain, task)
        return None if best is None else best.spec.name

    def priority(self, task: TaskView) -> float | None:
        """The priority with which the task is admitted; None: as submitted."""
        for plugin in self.plugins:
            if plugin.has("priority"):
                answer = plugin.priority(task)
                if answer is not None:
                    return answer
        return None

    def may_evict(self, high: TaskView, low: TaskView) -> bool | None:
        """Whether the first task may evict the second; None: the rules decide."""
        for plugin in self.plugins:
            if plugin.has("preemption_policy"):
                answer = plugin.preemption_policy(high, low)
                if answer is not None:
                    return answer
        return None

    def _scored(
        self,
        candidates: list[Candidate],
        shown: Callable[[Candidate], ResourceDomain],
        task: TaskView,
    ) -> Candidate | None:
        """The candidate with the highest score; the first one if no plugin scores all of them."""
        domains = [shown(candidate) for candidate in candidates]
        for plugin in self.plugins:
            scores = _scores(plugin, task, domains)
            if scores:
                return candidates[scores.index(max(scores))]
        return candidates[0] if candidates else None


def _scores(
    plugin: Guarded, task: TaskView, domains: Iterable[ResourceDomain]
) -> list[float] | None:
    """The scores of all candidates; None if the plugin fails or has no opinion on one of them."""
    scores = []
    for domain in domains:
        score = plugin.score(task, domain) if plugin.has("score") else None
        if score is None:
            return None
        scores.append(score)
    return scores


class _Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's quota for scoring; its free GPUs count as whole devices and one share."""

    total: Resources
    free: Resources
    devices: list[int]


def _ordered_pools(
    ledger: Ledger,
    selector: Selector,
    need: Resources | None,
    strategy: str,
    workload: Workload | None,
) -> list[str]:
    accounts = [a for a in ledger.accounts.values() if matches(selector, a.spec.labels)]
    largest = NOTHING
    for account in accounts:
        largest = largest + account.spec.resources.beyond(largest)
    scale = Scale(largest=largest, workload=workload or Workload())
    places = []
    for account in accounts:
        pool_need = account.spec.default_agent() if need is None else need
        if account.spec.flavors:
            pool_need = _in_best_flavor(ledger, account, pool_need)
        if _could_hold(ledger, account, pool_need):
            places.append((*_pool_place(account, pool_need, strategy, scale), account.spec.name))
    return [name for *_, name in sorted(places)]


def _in_best_flavor(ledger: Ledger, account: Account, need: Resources) -> Resources:
    """A need in the flavor of a pool that has most room for it, of those that could ever hold it."""
    flavors = flavors_for(account.spec.flavors, need, ())
    quotas = [flavor.quota_of(need) for flavor in flavors]
    able = [quota for quota in quotas if _could_hold(ledger, account, quota)]
    return max(able or quotas or [need], key=lambda quota: score_pool(account, quota))


def _could_hold(ledger: Ledger, account: Account, need: Resources) -> bool:
    """Whether the pool could hold this if it and its cohort were idle."""
    total = account.spec.resources
    if need.fits(total):
        return True
    if account.spec.cohort is None:
        return False
    return need.beyond(total).fits(could_ever_borrow(ledger, account.spec.name))


def _pool_place(
    account: Account, need: Resources, strategy: str, scale: Scale
) -> tuple[bool, float, float]:
    """The sort key of a pool; the lowest is the best."""
    free = account.free
    if not need.fits(free):
        return (True, -score_pool(account, need), 0.0)
    whole_devices, share = divmod(free.gpu, UNIT)
    devices = [UNIT] * whole_devices + ([share] if share else [])
    quota = _Quota(total=account.spec.resources, free=free, devices=devices)
    place: Place = BUILT_IN[strategy](quota, need, scale)
    return (False, *place)


def score_pool(account: Account, need: Resources) -> float:
    """The smallest free fraction of any requested resource that the pool would have with this need.

    Below 0 if the pool is short; 1 if nothing is requested.
    """
    return least_free(_Quota(total=account.spec.resources, free=account.free, devices=[]), need)


def choose_devices(
    strategy: str, node: Node, need: Resources, workload: Workload
) -> Devices | None:
    """The best devices of this node by a built-in strategy; None: too few are free.

    For backends that can choose devices, such as a simulation. Ray chooses them itself, so the node state
    assumes the least favourable ones until the agent reports (``devices_for``).
    """
    if need.gpu == 0 or need.gpu >= UNIT:
        return devices_for(node.devices, need.gpu)
    enough = [i for i, units in enumerate(node.devices) if units >= need.gpu]
    if not enough:
        return None
    if strategy == "fragmentation_aware":
        chosen = workload.best_device(node.free.cpu, node.devices, need)[1]
    elif strategy in ("bin_pack", "best_fit"):
        chosen = min(enough, key=node.devices.__getitem__)
    else:
        chosen = max(enough, key=node.devices.__getitem__)
    return Devices(units=((chosen, need.gpu),))
