"""One node: what is allocated on it, what is free, and which GPU devices its agents have reported."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.node_labels import selects
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.state.devices import NO_DEVICES


class Allocation(msgspec.Struct, kw_only=True, gc=False):
    """What one agent, or one bundle of a placement group, holds on a node."""

    #: CPU, memory and custom resources.
    held: Resources
    #: Units of each device.
    devices: Devices = NO_DEVICES
    #: Whether the agent reported the devices; otherwise they are assumed.
    reported: bool = False
    #: The incoming agent that this is promised to, until it has reported its devices: its victims have not
    #: all ended yet.
    promised_to: str = ""
    #: The GPU units that a promised allocation will hold.
    wants: int = 0
    #: The incoming agent that gets these resources when this allocation ends.
    leaves_for: str = ""
    #: Further incoming agents, which get what is left of them then.
    also_for: tuple[str, ...] = ()

    @property
    def waiters(self) -> tuple[str, ...]:
        """The incoming agents that get these resources."""
        return (self.leaves_for, *self.also_for) if self.leaves_for else self.also_for


class Node(msgspec.Struct, kw_only=True):
    """One node. ``free`` and ``devices`` are always the total minus all allocations and external usage."""

    node_id: str
    total: Resources
    labels: Labels = {}
    #: Free CPU, memory and custom resources; its gpu is the sum over the devices.
    free: Resources = NOTHING
    #: Free units of each GPU device; below 0 where agents report more than there is.
    devices: list[int] = []
    #: The index in ``devices`` of each GPU whose name an agent has reported.
    slots: dict[str, int] = {}
    #: What Ray work that is not ours uses.
    external_usage: Resources = NOTHING
    cordoned: bool = False
    #: By agent name, or by ``Group.key`` for a bundle.
    allocations: dict[str, Allocation] = {}
    #: Increases with every change of the allocations here or of their tasks.
    version: int = 0
    #: The keys of the promised allocations, sorted.
    promised: tuple[str, ...] = ()
    #: What the victim search summed up for one version; only the search reads it.
    summary: object = None
    #: What holds GPUs here, for one version; only the test for room reads it.
    gpu_tasks: object = None

    @property
    def key(self) -> tuple[int, int, str]:
        """The position in the index: by free GPU, then free CPU, then id."""
        return (self.free.gpu, self.free.cpu, self.node_id)


def has_labels(node: Node, shape: GroupShape) -> bool:
    """Whether the node has the labels that the shape asks for."""
    if shape.same_label and shape.same_label not in node.labels:
        return False
    return selects(shape.node_labels, node.labels)


def named_devices(node: Node, agent_name: str, gpu: int, gpu_ids: tuple[str, ...]) -> Devices:
    """The devices with these names; none where they cannot be what this GPU amount occupies.

    A new name is assigned the index equal to its number, or the first index without a name.
    """
    count = max(1, gpu // UNIT)
    if not gpu or len(gpu_ids) != count or len(set(gpu_ids)) != count:
        return NO_DEVICES
    slots = node.slots
    for name in gpu_ids:
        if name not in slots:
            slot = _new_slot(node, slots, agent_name, name)
            if slot is None:
                return NO_DEVICES
            slots = {other: i for other, i in slots.items() if i != slot} | {name: slot}
    if not slots.keys() >= set(gpu_ids):
        return NO_DEVICES
    node.slots = slots
    units = min(gpu, UNIT)
    return Devices(units=tuple(sorted([(slots[name], units) for name in gpu_ids])))


def _new_slot(node: Node, slots: dict[str, int], agent_name: str, name: str) -> int | None:
    """The index for a GPU whose name is reported for the first time; None: there are no more GPUs."""
    count = -(-node.total.gpu // UNIT)
    nameless = [i for i in range(count) if i not in slots.values()]
    if name.isdecimal() and int(name) in nameless:
        return int(name)
    if nameless:
        return nameless[0]
    # A name that no other agent on the node uses was a mistake, or is a device's former name.
    used = {
        i
        for other, allocation in node.allocations.items()
        if allocation.reported and other != agent_name
        for i, _ in allocation.devices.units
    }
    return next((i for i in range(count) if i not in used), None)


def discard_contradicted(node: Node, agent_name: str) -> None:
    """Treat earlier reports that contradict this agent's report as assumptions again: those agents have moved
    or ended since.
    """
    taken = dict(node.allocations[agent_name].devices.units)
    if not node.allocations[agent_name].reported or not taken:
        return
    for name, other in reversed(node.allocations.items()):
        if name == agent_name or not other.reported:
            continue
        for i, units in other.devices.units:
            if i in taken and taken[i] + units > UNIT:
                other.reported = False
                break
        else:
            for i, units in other.devices.units:
                if i in taken:
                    taken[i] += units


def unused_devices(node: Node) -> list[int]:
    """The units of each device without any allocation; 0 for a device that the node no longer has and an
    allocation still holds.
    """
    whole_devices, rest = divmod(node.total.gpu, UNIT)
    devices = [UNIT] * whole_devices + ([rest] if rest else [])
    allocated = [i for allocation in node.allocations.values() for i, _ in allocation.devices.units]
    return devices + [0] * (max(allocated, default=-1) + 1 - len(devices))


def held_by(allocation: Allocation) -> Resources:
    """All that an allocation takes of its node, with the GPUs of its devices."""
    gpu = sum(units for _, units in allocation.devices.units)
    return allocation.held + Resources(gpu=gpu) if gpu else allocation.held
