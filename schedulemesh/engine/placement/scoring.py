"""The built-in strategies: how well a place suits a need. A place is a node or a pool.

=====================  ==================================================================================
``bin_pack``           the fullest place: fewest free GPUs, then fewest free CPUs. Whole nodes stay free for
                       big tasks. (Kubernetes calls it MostAllocated; Coffman et al., "Approximation
                       Algorithms for Bin Packing", 1984, surveys why it does well.)
``spread``             the emptiest place: most free GPUs, then most free CPUs. Tasks disturb each other
                       least. (Kubernetes: LeastAllocated; worst fit.)
``best_fit``           the place with the least left over, CPU and GPU weighted alike, each relative to the
                       largest place: int(100 * (1 - sum of 0.5 * (free - need) / largest)). As in Weng et
                       al., ATC 2023, and like Tetris (Grandl et al., SIGCOMM 2014) in packing by several
                       kinds at once.
``dominant_share``     the place whose tightest kind stays freest: least of max over the kinds needed of
                       (used + need) / total. The dominant share of Ghodsi et al., "Dominant Resource
                       Fairness", NSDI 2011, applied to places instead of users.
``fragmentation_aware``  the place where the least idle GPU becomes useless for typical tasks; see
                       ``fragmentation``.
=====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.placement.fragmentation import Workload

#: Ascending is better.
Place = tuple[float, float]


class Room(Protocol):
    """What a strategy looks at: a node, or a pool's quota."""

    @property
    def total(self) -> Resources:
        """All that it has."""

    @property
    def free(self) -> Resources:
        """What nobody holds."""

    @property
    def devices(self) -> Sequence[int]:
        """Units free of each GPU device."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """What places are measured against."""

    #: Kind by kind the most that any place has in total.
    largest: Resources
    workload: Workload


Strategy = Callable[[Room, Resources, Scale], Place]


def bin_pack(room: Room, _need: Resources, _scale: Scale) -> Place:
    """The fullest first."""
    return (room.free.gpu, room.free.cpu)


def spread(room: Room, _need: Resources, _scale: Scale) -> Place:
    """The emptiest first."""
    return (-room.free.gpu, -room.free.cpu)


def best_fit(room: Room, need: Resources, scale: Scale) -> Place:
    """The least left over first."""
    left = 0.0
    if scale.largest.cpu:
        left += (room.free.cpu - need.cpu) / scale.largest.cpu * 0.5
    if scale.largest.gpu:
        left += (room.free.gpu - need.gpu) / scale.largest.gpu * 0.5
    return (-int((1.0 - left) * 100), 0.0)


def dominant_share(room: Room, need: Resources, _scale: Scale) -> Place:
    """The place whose tightest kind stays freest first."""
    return (-least_free(room, need), 0.0)


def fragmentation_aware(room: Room, need: Resources, scale: Scale) -> Place:
    """Where the least idle GPU becomes useless first."""
    return (-scale.workload.score(room.free.cpu, room.devices, need), 0.0)


#: By the name that settings give; the first is the default for nodes.
BUILT_IN: dict[str, Strategy] = {
    "bin_pack": bin_pack,
    "spread": spread,
    "best_fit": best_fit,
    "dominant_share": dominant_share,
    "fragmentation_aware": fragmentation_aware,
}


def least_free(room: Room, need: Resources) -> float:
    """The least free fraction of any kind needed, after taking the need.

    Below 0 where it is short now; 1 for a need of nothing.
    """
    free = dict((room.free - need).items())
    total = dict(room.total.items())
    return min((free.get(kind, 0) / total[kind] for kind, _ in need.items()), default=1.0)
