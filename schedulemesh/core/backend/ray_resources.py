"""Amounts in Ray's names and units, and ours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.domain.node_labels import ACCELERATOR_TYPE
from schedulemesh.domain.resources import UNIT, Resources, covering_units, share_of

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
    amounts = {name: covering_units(amount) / UNIT for name, amount in ray_amounts_.items()}
    memory = math.ceil(amounts.pop("memory", 0.0))
    needed = resources_of(amounts)
    return msgspec.structs.replace(needed, memory=-(-memory * UNIT // 2**20))


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
    bundle: dict[str, float] = {name: share_of(units) for name, units in resources.custom}
    for name, units in (("CPU", resources.cpu), ("GPU", resources.gpu)):
        if units:
            bundle[name] = share_of(units)
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
