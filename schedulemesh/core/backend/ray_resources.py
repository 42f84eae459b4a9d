"""Amounts in Ray's names and units, and ours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.domain.node_labels import ACCELERATOR_TYPE
from schedulemesh.domain.resources import UNIT, Resources

#: Shares whose units are rounded down, such as a third, as they are claimed in a bundle: Ray compares plain
#: numbers, and counts in the same units, so that three thirds of a device are one.
_SHARES = {
    round(part * UNIT / whole): part / whole + 1e-6
    for whole in range(3, 17)
    for part in range(1, whole)
    if round(part * UNIT / whole) * whole < part * UNIT
}
#: What the marker of a node's accelerators begins with.
_MODEL = "accelerator_type:"
#: What a bundle of a placement group adds to its node beside the plain amount, such as ``CPU_group_0_4f…``.
_OF_A_GROUP = re.compile(r".+_group_(\d+_)?[0-9a-f]{36}")


def resources_of(ray_amounts_: Mapping[str, float]) -> Resources:
    """Amounts in Ray's names and units; Ray's own markers, such as ``node:...``, are left out."""
    field_names = {"CPU": "cpu", "GPU": "gpu"}
    amounts: dict[str, int] = {}
    custom = []
    for name, amount in ray_amounts_.items():
        units = round(amount * UNIT)
        if name in field_names:
            amounts[field_names[name]] = units
        elif name == "memory":
            amounts["memory"] = int(amount * UNIT / 2**20)
        elif not _is_marker(name) and units:
            custom.append((name, units))
    return Resources(**amounts, custom=tuple(sorted(custom)))


def labels_of(labels: Mapping[str, str], ray_amounts_: Mapping[str, float]) -> dict[str, str]:
    """The labels of a node. Where Ray has found no accelerator, its model is the one of which the node was
    given the marker ``accelerator_type:...`` as a resource.
    """
    models = sorted(
        name[len(_MODEL) :]
        for name, amount in ray_amounts_.items()
        if name.startswith(_MODEL) and amount
    )
    return {**({ACCELERATOR_TYPE: models[0]} if models else {}), **labels}


def requested_resources(ray_amounts_: Mapping[str, float]) -> Resources:
    """Amounts in Ray's names and units as a request: a bundle of the result holds no less than was asked
    for.
    """
    amounts = {name: _covering(amount) for name, amount in ray_amounts_.items()}
    memory = math.ceil(amounts.pop("memory", 0.0))
    needed = resources_of(amounts)
    return msgspec.structs.replace(needed, memory=-(-memory * UNIT // 2**20))


def _covering(amount: float) -> float:
    """The least amount of whole units whose share in a bundle is not below this one."""
    units = round(amount * UNIT)
    return (units if _share(units) >= amount else units + 1) / UNIT


def _share(units: int) -> float:
    return _SHARES.get(units, units / UNIT)


def ray_amounts(resources: Resources) -> dict[str, Any]:
    """The options of an actor that takes these resources; memory in bytes."""
    options: dict[str, Any] = {
        "num_cpus": resources.cpu / UNIT,
        "num_gpus": resources.gpu / UNIT,
        "resources": {name: units / UNIT for name, units in resources.custom},
    }
    if resources.memory:
        options["memory"] = _bytes(resources)
    return options


def bundle_amounts(resources: Resources) -> dict[str, float]:
    """The bundle of a placement group that holds these resources; memory in bytes."""
    bundle: dict[str, float] = {name: _share(units) for name, units in resources.custom}
    for name, units in (("CPU", resources.cpu), ("GPU", resources.gpu)):
        if units:
            bundle[name] = _share(units)
    if resources.memory:
        bundle["memory"] = _bytes(resources)
    return bundle


def _bytes(resources: Resources) -> int:
    return -(-resources.memory * 2**20 // UNIT)


def _is_marker(name: str) -> bool:
    return (
        name == "object_store_memory"
        or name.startswith(("node:", _MODEL, "bundle"))
        or _OF_A_GROUP.fullmatch(name) is not None
    )
