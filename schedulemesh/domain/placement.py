"""Placement groups: their shape, and how a pool keeps them."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.labels import Labels, Selector
from schedulemesh.domain.resources import Resources, check_resources, sum_of
from schedulemesh.errors import InvalidRequestError

#: Ray's placement strategies for the bundles of one placement group.
PLACEMENT_STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")

#: Bundles of one placement group.
MAX_BUNDLES = 1_000


class GroupShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a placement group is, apart from where it stands; equal shapes can stand for each other."""

    #: What each bundle holds; an agent lives in the first one.
    bundles: tuple[Resources, ...]
    strategy: str = "STRICT_PACK"
    #: Labels that each node of the group must have, as (key, value), sorted.
    node_labels: tuple[tuple[str, str], ...] = ()

    @property
    def total(self) -> Resources:
        """The sum over the bundles."""
        return sum_of(self.bundles)

    def holds(self, bundles: tuple[Resources, ...]) -> bool:
        """Whether these bundles fit into this group's, one by one in their order."""
        return len(bundles) == len(self.bundles) and all(
            need.fits(room) for need, room in zip(bundles, self.bundles, strict=True)
        )

    def __str__(self) -> str:
        """Short and readable, such as ``[cpu 2; cpu 2] SPREAD``."""
        bundles = "; ".join(str(bundle) for bundle in self.bundles)
        return f"[{bundles}]" + (f" {self.strategy}" if len(self.bundles) > 1 else "")


class WarmSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Which class stands ready in reserved groups, loaded but not built."""

    class_key: str
    #: The Ray options that its agents must have to start there, as JSON.
    options: str = "{}"
    #: Ready hosts in each reserved group.
    count: int = 1


class GroupsSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a pool keeps placement groups: every agent of the pool lives in one of its own."""

    #: Groups that are always kept, for entitled tasks.
    reserved: tuple[GroupShape, ...] = ()
    #: Whether further groups are made on demand.
    dynamic: bool = True
    #: At most so many dynamic groups at a time.
    max_dynamic: int = 0
    #: Whether a dynamic group stays for the next task when its agent ends.
    reuse: bool = True
    #: For dynamic groups, and for reserved ones that say nothing else.
    strategy: str = "STRICT_PACK"
    #: Labels that every node of a group must have.
    node_labels: Labels = {}
    #: Seconds after which a dynamic group that nobody uses goes.
    idle_s: float = 300.0
    #: Seconds in which Ray must have placed a group; then it is withdrawn.
    wait_s: float = 30.0
    #: Reserved groups are for tasks of a higher priority than this ...
    entitled_above: float = 5.0
    #: ... or with labels that meet this; empty: by priority alone.
    entitled_labels: Selector = ()
    #: Whether dynamic groups of the pool's default agent are kept until there are ``target_agents`` groups.
    fill_target: bool = False
    #: Whether groups that no node has room for are asked of Ray's autoscaler.
    autoscale: bool = False
    #: None: every agent starts cold.
    warm: WarmSpec | None = None


def check_bundles(bundles: tuple[Resources, ...], what: str = "bundles") -> None:
    """Raise InvalidRequestError for bundles that nobody may ask for."""
    if len(bundles) > MAX_BUNDLES:
        raise InvalidRequestError(f"{what} has more than {MAX_BUNDLES} bundles")
    for index, bundle in enumerate(bundles):
        check_resources(bundle, f"{what}[{index}]")
        if not bundle:
            raise InvalidRequestError(f"{what}[{index}] is empty; it must hold something")
    check_resources(sum_of(bundles), f"the sum of {what}")
