"""The built-in placement strategies: score how well a place (a node or a pool) suits a need.

=====================  ==================================================================================
``bin_pack``           the fullest place: fewest free GPUs, then fewest free CPUs. Whole nodes remain free for
                       large tasks. (Kubernetes: MostAllocated; analysed in Coffman et al., "Approximation
                       Algorithms for Bin Packing", 1984.)
``spread``             the emptiest place: most free GPUs, then most free CPUs. Tasks interfere least with
                       each other. (Kubernetes: LeastAllocated; worst fit.)
``best_fit``           the smallest remainder, CPU and GPU weighted equally, each relative to the
                       largest place: int(100 * (1 - sum of 0.5 * (free - need) / largest)). As in Weng et
                       al., ATC 2023, and like Tetris (Grandl et al., SIGCOMM 2014) in packing by several
                       kinds at once.
``dominant_share``     the place whose scarcest requested resource stays freest: the least maximum over the
                       requested kinds of (used + need) / total. The dominant share of
                       Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, applied to places.
``fragmentation_aware``  the place where the least idle GPU capacity becomes unusable for typical tasks; see
                       ``fragmentation``.
=====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import msgspec

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.state.fragmentation import Workload

#: The score of a place; the lowest is the best.
Place = tuple[float, float]


class Capacity(Protocol):
    """What a strategy scores: a node, or a pool's quota."""

    @property
    def total(self) -> Resources:
        """Its total resources."""

    @property
    def free(self) -> Resources:
        """Its free resources."""

    @property
    def devices(self) -> Sequence[int]:
        """The free units of each GPU device."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """What scores are relative to."""

    #: For each resource kind the largest total of any place.
    largest: Resources
    workload: Workload


Strategy = Callable[[Capacity, Resources, Scale], Place]


def bin_pack(room: Capacity, _need: Resources, _scale: Scale) -> Place:
    """Prefer the fullest place."""
    return (room.free.gpu, room.free.cpu)


def spread(room: Capacity, _need: Resources, _scale: Scale) -> Place:
    """Prefer the emptiest place."""
    return (-room.free.gpu, -room.free.cpu)


def best_fit(room: Capacity, need: Resources, scale: Scale) -> Place:
    """Prefer the place with the smallest remainder."""
    remainder = 0.0
    if scale.largest.cpu:
        remainder += (room.free.cpu - need.cpu) / scale.largest.cpu * 0.5
    if scale.largest.gpu:
        remainder += (room.free.gpu - need.gpu) / scale.largest.gpu * 0.5
    return (-int((1.0 - remainder) * 100), 0.0)


def dominant_share(room: Capacity, need: Resources, _scale: Scale) -> Place:
    """Prefer the place whose scarcest requested resource stays freest."""
    return (-least_free(room, need), 0.0)


def fragmentation_aware(room: Capacity, need: Resources, scale: Scale) -> Place:
    """Prefer the place where the least idle GPU capacity becomes unusable for typical tasks."""
    return (-scale.workload.score(room.free.cpu, room.devices, need), 0.0)


#: The strategies by the name used in settings; the first is the default for nodes.
BUILT_IN: dict[str, Strategy] = {
    "bin_pack": bin_pack,
    "spread": spread,
    "best_fit": best_fit,
    "dominant_share": dominant_share,
    "fragmentation_aware": fragmentation_aware,
}


def least_free(room: Capacity, need: Resources) -> float:
    """The smallest free fraction of any requested resource after allocating the need.

    Below 0 if it is short, minus infinity if there is nothing of a kind; 1 if nothing is requested.
    """
    free = dict((room.free - need).items())
    total = dict(room.total.items())
    fractions = (
        free.get(kind, 0) / total[kind] if kind in total else -inf for kind, _ in need.items()
    )
    return min(fractions, default=1.0)
