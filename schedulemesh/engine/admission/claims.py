"""What a claim on a node is still short of, and whether it is complete; for agents and bundles alike."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.state.devices import devices_for
from schedulemesh.engine.state.nodes import Node


def gained(node: Node, key: str, need: Resources, *, waits: bool) -> tuple[Resources, Devices]:
    """What the claim of this name lacks and the node has free now.

    Devices only once it waits for nobody: until then others may still be put on those that are free, and all
    that counts is that enough of them stay (see ``device_guarantees``).
    """
    allocations = node.allocations.get(key)
    without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
    lacking = without_gpu if allocations is None else without_gpu - allocations.held
    has_devices = allocations is not None and allocations.devices.units
    devices = None if waits or has_devices else devices_for(node.devices, need.gpu)
    return lacking.within(node.free), devices or Devices()


def is_whole(node: Node, key: str, need: Resources) -> bool:
    """Whether the claim has all that it needs, in devices that are free for it."""
    allocations = node.allocations.get(key)
    if allocations is None:
        return not need
    devices = allocations.devices
    gpu = sum(units for _, units in devices.units)
    if any(node.devices[i] < 0 for i, _ in devices.units):
        return False
    return msgspec.structs.replace(allocations.held, gpu=gpu) == need
