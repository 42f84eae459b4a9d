"""Which placement group of a lease serves a library's request for one. Pure: no Ray.

A library addresses the bundles of its group by index. A group therefore serves a request only where each
requested bundle is held by the bundle of the same index; bundles are never reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from schedulemesh.domain.node_labels import NodeLabels, selects, spelled

#: Ray counts resources in ten-thousandths.
_UNIT = 10_000
#: Resources that every node has for itself, of which a bundle asks a little to be there.
_PINS = ("node:", "accelerator_type:")

Bundle = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGroup:
    """What a library asks Ray for, in Ray's names and units."""

    bundles: Sequence[Bundle]
    #: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
    strategy: str = "PACK"
    #: The labels that the node of each bundle must have; empty: any node will do.
    selectors: Sequence[NodeLabels] = field(default=())
    #: Set arguments of the call that a lease cannot satisfy, such as a topology strategy.
    unsupported: Sequence[str] = field(default=())

    @property
    def depends_on_nodes(self) -> bool:
        """Whether it asks for certain nodes."""
        return any(self.selectors) or any(_pins(bundle) for bundle in self.bundles)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedNode:
    """What a node is asked for by."""

    resources: Bundle = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGroup:
    """A placement group of the lease as it is in Ray."""

    bundles: Sequence[Bundle]
    #: The node of each bundle.
    nodes: Sequence[str]
    #: False: Ray has removed it, or never created it.
    exists: bool = True
    #: The nodes by id, where the request asks for certain ones.
    by_id: Mapping[str, LeasedNode] = field(default_factory=dict)


def best_match(
    request: RequestedGroup, groups: Iterable[tuple[int, PlacedGroup]], *, larger: bool
) -> int | None:
    """The position of the group that serves the request with the least unused; None: none serves it."""
    serving = [
        (_unused(request, group), position)
        for position, group in groups
        if mismatch(request, group, larger=larger) is None
    ]
    return min(serving)[1] if serving else None


def mismatch(request: RequestedGroup, group: PlacedGroup, *, larger: bool) -> str | None:
    """Why the group does not serve the request; None: it does.

    With ``larger`` a group also serves where its bundles hold more than is requested or where it has
    further bundles after the requested ones; these stay unused.
    """
    if not group.exists:
        return "it does not exist in Ray any more"
    if request.unsupported:
        return f"{' and '.join(request.unsupported)} cannot be satisfied by a lease"
    return (
        _bundle_mismatch(request, group, larger)
        or _node_mismatch(request, group)
        or _strategy_mismatch(request, group)
    )


def _bundle_mismatch(request: RequestedGroup, group: PlacedGroup, larger: bool) -> str | None:
    requested, leased = len(request.bundles), len(group.bundles)
    if requested > leased or (requested < leased and not larger):
        return f"it has {leased} bundles, {requested} are requested"
    for index, (requested_bundle, bundle) in enumerate(
        zip(request.bundles, group.bundles, strict=False)
    ):
        want, have = _units(requested_bundle, math.ceil), _units(bundle, math.floor)
        lacks = any(amount > have.get(name, 0) for name, amount in want.items())
        if lacks or (not larger and _differ(want, have)):
            return (
                f"its bundle {index} is {_shown(bundle)}, requested is {_shown(requested_bundle)}"
            )
    return None


def _node_mismatch(request: RequestedGroup, group: PlacedGroup) -> str | None:
    """Whether a bundle is on another node than the one that is asked for: by the address or the accelerator,
    of which every node has one as a resource, or by labels.
    """
    for index, (requested_bundle, node_id) in enumerate(
        zip(request.bundles, group.nodes, strict=False)
    ):
        node = group.by_id.get(node_id, LeasedNode())
        for name, amount in _pins(requested_bundle).items():
            if amount > node.resources.get(name, 0.0):
                return f"its bundle {index} is not on a node with {name}"
        selector = request.selectors[index] if index < len(request.selectors) else ()
        if not selects(selector, node.labels):
            return f"its bundle {index} is not on a node with {spelled(selector)}"
    return None


def _pins(bundle: Bundle) -> dict[str, float]:
    return {name: amount for name, amount in bundle.items() if amount and name.startswith(_PINS)}


def _strategy_mismatch(request: RequestedGroup, group: PlacedGroup) -> str | None:
    """Judged by where the bundles are, not by the strategy that the lease was requested with."""
    nodes = group.nodes[: len(request.bundles)]
    if request.strategy == "STRICT_PACK" and len(set(nodes)) > 1:
        return f"its bundles are on {len(set(nodes))} nodes, STRICT_PACK needs one"
    if request.strategy == "STRICT_SPREAD" and len(set(nodes)) < len(nodes):
        return f"its bundles are on {len(set(nodes))} nodes, STRICT_SPREAD needs {len(nodes)}"
    return None


def _unused(request: RequestedGroup, group: PlacedGroup) -> tuple[int, int]:
    """Bundles, then resources, that the request leaves unused."""
    total = sum(sum(_units(bundle, math.floor).values()) for bundle in group.bundles)
    used = sum(sum(_units(bundle, math.ceil).values()) for bundle in request.bundles)
    return len(group.bundles) - len(request.bundles), total - used


def _differ(want: Mapping[str, int], have: Mapping[str, int]) -> bool:
    """Whether amounts differ by more than what a lease holds beyond a request that is no whole unit."""
    return any(abs(have.get(name, 0) - want.get(name, 0)) > 1 for name in {*want, *have})


def _units(bundle: Bundle, rounded: Callable[[float], int]) -> dict[str, int]:
    """Amounts in Ray's units; memory in those of leases, which hold a little more than was requested."""
    amounts = {
        name: (rounded(amount * _UNIT / 2**20) if name == "memory" else round(amount * _UNIT))
        for name, amount in bundle.items()
        if not name.startswith(_PINS)
    }
    return {name: units for name, units in amounts.items() if units}


def _shown(bundle: Bundle) -> dict[str, float]:
    return {name: amount for name, amount in bundle.items() if amount}
