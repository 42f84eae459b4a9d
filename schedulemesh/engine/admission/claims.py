"""What a claim on a node still lacks, and whether it is whole: for agents and for bundles of groups alike."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.state.nodes import Node, devices_for, one_piece


def gained(
    node: Node, key: str, need: Resources, wanted: Devices, *, waits: bool
) -> tuple[Resources, Devices]:
    """What the claim that stands there under this name lacks and is free now.

    Of the devices only ``wanted`` ones; once it waits for nobody, any that do where somebody else was
    found on those.
    """
    standing = node.standing.get(key)
    without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
    have = {} if standing is None else dict(standing.devices.units)
    held = without_gpu if standing is None else without_gpu - standing.held
    return held.within(node.free), _devices(node, need.gpu, wanted, have, waits=waits)


def is_whole(node: Node, key: str, need: Resources) -> bool:
    """Whether the claim has all that it needs, in devices that are free for it."""
    standing = node.standing.get(key)
    if standing is None:
        return not need
    devices = standing.devices
    gpu = sum(units for _, units in devices.units)
    if not one_piece(devices) or any(node.devices[i] < 0 for i, _ in devices.units):
        return False
    return msgspec.structs.replace(standing.held, gpu=gpu) == need


def _devices(
    node: Node, gpu: int, wanted: Devices, have: dict[int, int], *, waits: bool
) -> Devices:
    within_reach = [free + have.get(i, 0) for i, free in enumerate(node.devices)]
    # A node that came back with fewer devices has none of those that were wanted.
    wanted = Devices(units=tuple((i, part) for i, part in wanted.units if i < len(within_reach)))
    short = sum(part for _, part in wanted.units) < gpu
    if not waits and (short or any(within_reach[i] < part for i, part in wanted.units)):
        wanted = devices_for(within_reach, gpu) or wanted
    lacking = gpu - sum(have.values())
    units = []
    for i, whole in wanted.units:
        part = min(node.devices[i], whole - have.get(i, 0), lacking)
        if part > 0:
            units.append((i, part))
            lacking -= part
    return Devices(units=tuple(units))
