"""Flavors: named sets of nodes of one pool, such as those with H100, each with a quota of its own.

The quota of a flavor is of kinds of its own: ``gpu@h100`` are the GPUs of the flavor ``h100``. A task that
runs in a flavor holds these in its pool's quota, and plain GPUs on its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from schedulemesh.domain.containers import as_elements, as_fields
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.node_labels import (
    NodeLabels,
    check_node_labels,
    excludes,
    parse_node_labels,
)
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: Between a kind and the flavor that it is of.
SEPARATOR = "@"
#: The kinds of a flavor that names none.
DEFAULT_KINDS = ("gpu",)
#: The flavors of one pool, at most.
MAX_FLAVORS = 10

_KEYS = ("name", "label_selector", "kinds")
_FORM = "a list such as [{'name': 'h100', 'label_selector': {'ray.io/accelerator-type': 'H100'}}]"


class Flavor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A named set of nodes for which a pool has a quota."""

    name: str
    #: The labels of its nodes.
    node_labels: NodeLabels
    #: The kinds of resources of which it has its own quota.
    kinds: tuple[str, ...] = DEFAULT_KINDS

    def quota_of(self, amount: Resources) -> Resources:
        """What a task of this size holds of its pool's quota in this flavor."""
        return _of_flavor(amount, self.name, self.kinds)

    def public(self) -> dict[str, object]:
        """The flavor as listings show it."""
        return {
            "name": self.name,
            "label_selector": dict(self.node_labels),
            "kinds": list(self.kinds),
        }


class TakenFlavor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The flavor in which an agent runs."""

    name: str
    kinds: tuple[str, ...] = DEFAULT_KINDS
    #: The labels of nodes that the agent itself asks for, without those of the flavor.
    asked_labels: NodeLabels = ()

    def quota_of(self, amount: Resources) -> Resources:
        """What an agent of this size holds of its pool's quota."""
        return _of_flavor(amount, self.name, self.kinds)

    def resources_of(self, quota: Resources) -> Resources:
        """The plain amounts of which this is the quota."""
        return _without(quota, ((self.name, self.kinds),))


@lru_cache(maxsize=4096)
def _of_flavor(amount: Resources, name: str, kinds: tuple[str, ...]) -> Resources:
    units = {
        f"{kind}{SEPARATOR}{name}" if kind in kinds else kind: units
        for kind, units in amount.items()
    }
    return _from_units(units)


def _from_units(units: dict[str, int]) -> Resources:
    return Resources(
        cpu=units.pop("cpu", 0),
        memory=units.pop("memory", 0),
        gpu=units.pop("gpu", 0),
        custom=tuple(sorted(units.items())),
    )


@lru_cache(maxsize=4096)
def covered_kinds(flavors: tuple[Flavor, ...]) -> frozenset[str]:
    """The kinds of which a pool has quota by flavor alone."""
    return frozenset(kind for flavor in flavors for kind in flavor.kinds)


def without_flavors(quota: Resources, flavors: Iterable[Flavor]) -> Resources:
    """A quota in which the kinds of all flavors are added up: ``gpu@h100`` and ``gpu@a100`` are ``gpu``."""
    return _without(quota, tuple((flavor.name, flavor.kinds) for flavor in flavors))


@lru_cache(maxsize=4096)
def _without(quota: Resources, flavors: tuple[tuple[str, tuple[str, ...]], ...]) -> Resources:
    plain = {f"{kind}{SEPARATOR}{name}": kind for name, kinds in flavors for kind in kinds}
    units: dict[str, int] = {}
    for kind, amount in quota.items():
        name = plain.get(kind, kind)
        units[name] = units.get(name, 0) + amount
    return _from_units(units)


@lru_cache(maxsize=4096)
def flavors_for(
    flavors: tuple[Flavor, ...], need: Resources, node_labels: NodeLabels
) -> tuple[Flavor, ...]:
    """The flavors in which a task with this need and these labels of nodes may run, in their order; empty:
    in none. To be asked only of needs that have a covered kind.
    """
    kinds = {kind for kind, _ in need.items()} & covered_kinds(flavors)
    return tuple(
        flavor
        for flavor in flavors
        if kinds <= set(flavor.kinds) and not excludes(flavor.node_labels, node_labels)
    )


def parse_flavors(value: object) -> tuple[Flavor, ...]:
    """The flavors of a pool in their order; None: it has none. Raises InvalidRequestError."""
    if type(value) is tuple and all(type(flavor) is Flavor for flavor in value):
        check_flavors(value)
        return value
    elements = as_elements(() if value is None else value, "flavors", _FORM)
    flavors = tuple(
        _parse_flavor(element, f"flavors[{number}]") for number, element in enumerate(elements)
    )
    check_flavors(flavors)
    return flavors


def _parse_flavor(element: object, what: str) -> Flavor:
    fields = as_fields(element, what, _KEYS, "a dict with name and label_selector")
    labels = parse_node_labels(fields.get("label_selector"), f"{what}['label_selector']")
    kinds = fields.get("kinds")
    return Flavor(
        name=parse_name(fields.get("name"), f"{what}['name']"),
        node_labels=labels,
        kinds=DEFAULT_KINDS if kinds is None else _parse_kinds(kinds, f"{what}['kinds']"),
    )


def _parse_kinds(value: object, what: str) -> tuple[str, ...]:
    elements = as_elements(value, what, "a list such as ['gpu']")
    kinds = [as_text(element) for element in elements]
    return tuple(sorted({kind for kind in kinds if kind is not None})) if all(kinds) else ()


def check_flavors(flavors: tuple[Flavor, ...]) -> None:
    """Raise InvalidRequestError for flavors that a pool may not have."""
    if len(flavors) > MAX_FLAVORS:
        raise InvalidRequestError(
            f"flavors has {len(flavors)} elements; a pool has up to {MAX_FLAVORS}"
        )
    for number, flavor in enumerate(flavors):
        what = f"flavors[{number}]"
        parse_name(flavor.name, f"{what}['name']")
        if SEPARATOR in flavor.name:
            raise InvalidRequestError(
                f"{what}['name'] is {shown(flavor.name)}; the name of a flavor has no {SEPARATOR!r}"
            )
        if flavor.name in {other.name for other in flavors[:number]}:
            raise InvalidRequestError(f"flavors has two with the name {shown(flavor.name)}")
        if not flavor.node_labels:
            raise InvalidRequestError(
                f"{what} has no label_selector; say which nodes it has, such as "
                "{'ray.io/accelerator-type': 'H100'}"
            )
        check_node_labels(flavor.node_labels, f"{what}['label_selector']")
        if not flavor.kinds or any(SEPARATOR in kind or not kind for kind in flavor.kinds):
            raise InvalidRequestError(
                f"{what}['kinds'] is {shown(flavor.kinds)}; it must be a list of kinds of resources, such as "
                "['gpu'] or ['cpu', 'memory']"
            )


def public_flavors(flavors: tuple[Flavor, ...]) -> list[dict[str, object]]:
    """Flavors as listings show them."""
    return [flavor.public() for flavor in flavors]


def check_quota(quota: Resources, flavors: tuple[Flavor, ...]) -> None:
    """Raise InvalidRequestError for a quota that does not go with the flavors of its pool."""
    covered = covered_kinds(flavors)
    by_kind = {
        kind: [f"{kind}{SEPARATOR}{flavor.name}" for flavor in flavors if kind in flavor.kinds]
        for kind in covered
    }
    names = {name for of_kind in by_kind.values() for name in of_kind}
    for kind in dict(quota.items()):
        if kind in covered:
            raise InvalidRequestError(
                f"resources has {kind}, of which the pool has quota by flavor; give "
                f"{' and '.join(by_kind[kind])} instead"
            )
        plain, separator, flavor_name = kind.partition(SEPARATOR)
        is_of_flavor = separator and plain in (covered or {"cpu", "memory", "gpu"})
        if is_of_flavor and kind not in names:
            near = nearest(kind, sorted(names))
            raise InvalidRequestError(
                f"resources has {kind!r}, and the pool has no flavor {flavor_name!r} that covers "
                f"{plain}{near}; name it in flavors"
            )


def counted(need: Resources, quota_need: Resources) -> Resources:
    """What counts against the limits of an owner: plain kinds, and those of flavors beside them."""
    return need if need is quota_need else need + quota_need.beyond(need)
