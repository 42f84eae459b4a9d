"""The strategies of one scheduler: which pool, node and device take a task, and what plugins say.

Each question goes to the first plugin that has the hook and an opinion; where a plugin fails, it is passed
over for this decision; at last the built-in strategy decides. Among equal scores the built-in order does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from schedulemesh.domain.labels import Selector, matches
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.fragmentation import Workload
from schedulemesh.engine.placement.plugin_views import node_domain, pool_domain
from schedulemesh.engine.placement.scoring import BUILT_IN, Place, Scale, least_free
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.quota import Account, Ledger
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import ResourceDomain, TaskView

#: How the node of an agent may be chosen; see ``scores``.
NODE_STRATEGIES = tuple(BUILT_IN)

#: How the pool of a task that names none is chosen, unless settings say otherwise: the roomiest.
POOL_STRATEGY = "dominant_share"

Candidate = TypeVar("Candidate")


class Strategies:
    """What settings chose of the built-in strategies, and the plugins in their order."""

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
        """Whether any plugin is to be asked this hook."""
        return any(plugin.has(hook) for plugin in self.plugins)

    def choose_node(
        self, cluster: Cluster, need: Resources, task: TaskView | None, *, waits: bool = False
    ) -> Node | None:
        """A node with room now; None: there is none. Plugins score every node with room. ``waits``: others
        leave before it starts, and it must still have room then.
        """
        with_room = cluster.with_room(need, self.node)
        if waits:
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
    ) -> str | None:
        """The matching pool that can ever hold the need; None: there is none. Plugins score all those."""
        if task is None or not self.asks("score"):
            return choose_pool(ledger, selector, need, self.pool, workload)
        ordered = _ordered_pools(ledger, selector, need, self.pool, workload)
        found = self._scored([ledger.accounts[name] for name in ordered], pool_domain, task)
        return None if found is None else found.spec.name

    def priority(self, task: TaskView) -> float | None:
        """The priority that the task is admitted with; None: as it asked."""
        for plugin in self.plugins:
            if plugin.has("priority"):
                answer = plugin.priority(task)
                if answer is not None:
                    return answer
        return None

    def may_evict(self, high: TaskView, low: TaskView) -> bool | None:
        """Whether the first may evict the second; None: as the rules say."""
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
        """The first of the best scored; the very first where no plugin scores them all."""
        domains = [shown(candidate) for candidate in candidates]
        for plugin in self.plugins:
            scores = _scores(plugin, task, domains)
            if scores:
                return candidates[scores.index(max(scores))]
        return candidates[0] if candidates else None


def _scores(
    plugin: Guarded, task: TaskView, domains: Iterable[ResourceDomain]
) -> list[float] | None:
    """The scores of all; None where the plugin has no opinion on one, or fails."""
    scores = []
    for domain in domains:
        score = plugin.score(task, domain) if plugin.has("score") else None
        if score is None:
            return None
        scores.append(score)
    return scores


class _Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as a place: GPUs of its free quota are wholly free devices and one share."""

    total: Resources
    free: Resources
    devices: list[int]


def choose_pool(
    ledger: Ledger,
    selector: Selector,
    need: Resources | None,
    strategy: str = POOL_STRATEGY,
    workload: Workload | None = None,
) -> str | None:
    """The matching pool that can ever hold the need and that a built-in strategy likes best.

    Pools with room now come first, then by name; None: there is none. A need of None means each pool's own
    default agent.
    """
    return next(iter(_ordered_pools(ledger, selector, need, strategy, workload)), None)


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
        wanted = account.spec.default_agent() if need is None else need
        if wanted.fits(account.spec.resources):
            places.append((*_pool_place(account, wanted, strategy, scale), account.spec.name))
    return [name for *_, name in sorted(places)]


def _pool_place(
    account: Account, need: Resources, strategy: str, scale: Scale
) -> tuple[bool, float, float]:
    """Where a pool stands; ascending is better."""
    free = account.free
    if not need.fits(free):
        return (True, -score_pool(account, need), 0.0)
    whole, share = divmod(free.gpu, UNIT)
    devices = [UNIT] * whole + ([share] if share else [])
    quota = _Quota(total=account.spec.resources, free=free, devices=devices)
    place: Place = BUILT_IN[strategy](quota, need, scale)
    return (False, *place)


def score_pool(account: Account, need: Resources) -> float:
    """How much room the pool would keep: the least free fraction of any kind needed, after taking the need.

    Below 0 where it is short now; 1 for a need of nothing.
    """
    return least_free(_Quota(total=account.spec.resources, free=account.free, devices=[]), need)


def choose_devices(
    strategy: str, node: Node, need: Resources, workload: Workload
) -> Devices | None:
    """The devices of this node that a built-in strategy likes best; None: they are not there.

    For executor that can choose a device, as a simulation can. Ray chooses itself, so the book assumes the
    least favourable device until the agent reports (``devices_for``).
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
