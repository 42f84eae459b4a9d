"""Where agents are placed; the shape of placement groups, and the configuration of a pool's groups."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Union

import msgspec

from schedulemesh.domain.labels import Labels, Selector
from schedulemesh.domain.node_labels import NodeLabels, spelled
from schedulemesh.domain.resources import Resources, check_resources, sum_of
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.topology import Topology
from schedulemesh.errors import InvalidRequestError

#: Ray's placement strategies for the bundles of one placement group.
PLACEMENT_STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")

#: Bundles of one placement group, and how many of them differ.
MAX_BUNDLES, MAX_SIZES = 1_000, 50
#: Bundles of a lease of several groups, where they differ.
MAX_UNLIKE_BUNDLES = 250


class Unplaced(msgspec.Struct, frozen=True, kw_only=True, tag="unplaced", gc=False):
    """Ray chooses the node, and the agent has not reported it yet: no node is known to the scheduler, or the
    user's Ray options place the agent.
    """

    node_id: ClassVar[None] = None
    group_id: ClassVar[None] = None


class OnNode(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="on_node", gc=False
):
    """On a node, outside placement groups. The node may be lost while the agent still exists."""

    group_id: ClassVar[None] = None
    node_id: str
    #: The names, on that node, of the GPUs that the agent reported.
    gpu_ids: tuple[str, ...] = ()


class InGroup(msgspec.Struct, frozen=True, kw_only=True, tag="in_group", gc=False):
    """In the first bundle of a placement group. The group may be lost while the agent still exists."""

    group_id: str
    #: The node of that bundle.
    node_id: str
    #: How the agent got the group: "reserved", "reused", "created" or "preempted".
    path: str


Place = Union[Unplaced, OnNode, InGroup]

#: Between the ids of the placement groups in Ray that one group consists of.
PART_JOINT = "+"


class GroupShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A placement group apart from its nodes; groups of equal shape are interchangeable."""

    #: The resources of each bundle; an agent runs in the first one.
    bundles: tuple[Resources, ...]
    strategy: str = "STRICT_PACK"
    #: Labels that each node of the group must have.
    node_labels: NodeLabels = ()
    #: The label that all nodes of the group must have with one and the same value; empty: none.
    same_label: str = ""
    #: The number of placement groups in Ray that the group consists of. Its bundles are divided evenly among
    #: them, in order, and the strategy applies to each of them by itself.
    parts: int = 1
    #: Whether it is held in the state alone, and there is nothing of it in Ray: the claim of a job, whose
    #: driver starts its own actors and placement groups.
    virtual: bool = False
    #: How close together its bundles are placed; None: wherever there is room.
    topology: Topology | None = None

    @property
    def each_part(self) -> tuple[GroupShape, ...]:
        """The shapes of its placement groups in Ray, in the order of the bundles."""
        if self.parts == 1:
            return (self,)
        size = len(self.bundles) // self.parts
        return tuple(
            msgspec.structs.replace(self, bundles=self.bundles[i : i + size], parts=1)
            for i in range(0, len(self.bundles), size)
        )

    @property
    def total(self) -> Resources:
        """The sum over the bundles."""
        counts = Counter(self.bundles)
        return sum_of(bundle.times(count) for bundle, count in counts.items())

    def holds(self, bundles: tuple[Resources, ...]) -> bool:
        """Whether these bundles fit into this group's, one by one in order."""
        return len(bundles) == len(self.bundles) and all(
            need.fits(room) for need, room in zip(bundles, self.bundles, strict=True)
        )

    def described(self) -> Text:
        """Short and readable, such as ``[cpu 2; cpu 2] SPREAD``, with what it asks of nodes."""
        bundles = "; ".join(str(bundle) for bundle in self.bundles)
        shown = f"[{bundles}]" + (f" {self.strategy}" if len(self.bundles) > 1 else "")
        conditions = []
        if self.parts > 1:
            conditions.append(say("shape_groups", count=self.parts))
        if self.node_labels:
            conditions.append(say("shape_labels", labels=spelled(self.node_labels)))
        if self.topology is not None:
            conditions.append(say("shape_topology", topology=str(self.topology)))
        if self.same_label:
            conditions.append(say("shape_same_label", label=self.same_label))
        return say("shape", group=shown, conditions=conditions) if conditions else shown

    def __str__(self) -> str:
        """The same in English."""
        return str(self.described())


class WarmSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The class that warm hosts in reserved groups have loaded, without an object."""

    class_key: str
    #: The Ray options that its agents must have to start there, as JSON.
    options: str = "{}"
    #: Warm hosts in each reserved group.
    count: int = 1


class GroupsSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The placement groups of a pool: every agent of the pool runs in a group of its own."""

    #: Groups that are always kept, for entitled tasks.
    reserved: tuple[GroupShape, ...] = ()
    #: Whether further groups are created on demand.
    dynamic: bool = True
    #: Maximum number of dynamic groups at a time.
    max_dynamic: int = 0
    #: Whether a dynamic group is kept for the next task when its agent ends.
    reuse: bool = True
    #: For dynamic groups, and for reserved ones whose spec has none.
    strategy: str = "STRICT_PACK"
    #: Labels that every node of a group must have, as conditions (``node_labels``).
    node_labels: Labels = {}
    #: Seconds after which an unused dynamic group is removed.
    idle_s: float = 300.0
    #: Seconds within which Ray must place a group; otherwise it is withdrawn.
    wait_s: float = 30.0
    #: Reserved groups are for tasks of a higher priority than this ...
    entitled_above: float = 5.0
    #: ... or with labels that match this; empty: by priority alone.
    entitled_labels: Selector = ()
    #: Whether dynamic groups of the pool's default agent are kept until there are ``target_agents`` groups.
    fill_target: bool = False
    #: Whether resources for groups that fit on no node are requested from Ray's autoscaler.
    autoscale: bool = False
    #: None: every agent starts cold.
    warm: WarmSpec | None = None


def check_bundles(bundles: tuple[Resources, ...], what: str = "bundles") -> None:
    """Raise InvalidRequestError if a caller may not request such bundles."""
    if len(bundles) > MAX_BUNDLES:
        raise InvalidRequestError(f"{what} has more than {MAX_BUNDLES} bundles")
    index_of = dict(zip(reversed(bundles), range(len(bundles) - 1, -1, -1), strict=True))
    if len(index_of) > MAX_SIZES:
        raise InvalidRequestError(
            f"{what} has {len(index_of)} bundles that differ; up to {MAX_SIZES} are allowed"
        )
    for bundle, index in index_of.items():
        check_resources(bundle, f"{what}[{index}]")
        if not bundle:
            raise InvalidRequestError(f"{what}[{index}] is empty; it must hold something")
    check_resources(sum_of(bundles), f"the sum of {what}")
