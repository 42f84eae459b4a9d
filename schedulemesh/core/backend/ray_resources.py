"""Amounts in Ray's names and units, and ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from schedulemesh.domain.resources import UNIT, Resources

#: What a bundle of a placement group adds to its node beside the plain amount, such as ``CPU_group_0_4f…``.
_OF_A_GROUP = re.compile(r".+_group_(\d+_)?[0-9a-f]{36}")


def resources_of(ray_amounts_: Mapping[str, float]) -> Resources:
    """Amounts in Ray's names and units; Ray's own markers, such as ``node:...``, are left out."""
    known = {"CPU": "cpu", "GPU": "gpu"}
    amounts: dict[str, int] = {}
    custom = []
    for name, amount in ray_amounts_.items():
        units = round(amount * UNIT)
        if name in known:
            amounts[known[name]] = units
        elif name == "memory":
            amounts["memory"] = int(amount * UNIT / 2**20)
        elif not _is_marker(name) and units:
            custom.append((name, units))
    return Resources(**amounts, custom=tuple(sorted(custom)))


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
    bundle: dict[str, float] = {name: units / UNIT for name, units in resources.custom}
    for name, units in (("CPU", resources.cpu), ("GPU", resources.gpu)):
        if units:
            bundle[name] = units / UNIT
    if resources.memory:
        bundle["memory"] = _bytes(resources)
    return bundle


def _bytes(resources: Resources) -> int:
    return resources.memory * 2**20 // UNIT


def _is_marker(name: str) -> bool:
    return (
        name == "object_store_memory"
        or name.startswith(("node:", "accelerator_type:", "bundle"))
        or _OF_A_GROUP.fullmatch(name) is not None
    )
