"""What a user says of a pool's placement groups (``pg_pool_config``), validated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.domain.labels import Labels, parse_labels, parse_selector
from schedulemesh.domain.placement import PLACEMENT_STRATEGIES, GroupShape, GroupsSpec, WarmSpec
from schedulemesh.domain.resources import NOTHING, Resources, parse_resources
from schedulemesh.errors import InvalidRequestError

#: More dynamic groups than any pool has: the pool's quota is the limit.
NO_LIMIT = 1_000_000

_KEYS = (
    "enable",
    "high_priority_pg_specs",
    "enable_dynamic_pgs",
    "max_dynamic_pgs",
    "enable_pg_reuse",
    "placement_strategy",
    "bundle_label_selector",
    "idle_timeout_s",
    "wait_timeout_s",
    "high_priority_threshold",
    "high_priority_labels",
    "fill_target_agents",
    "request_resources",
    "warm",
)
_SPEC_KEYS = ("bundles", "placement_strategy", "bundle_label_selector")


def parse_groups(given: object, strategy: str, base: GroupsSpec | None = None) -> GroupsSpec | None:
    """How a pool keeps placement groups; None: it keeps none (``given`` None or empty, or ``enable`` False).

    ``strategy`` is the pool's own, for groups that say nothing else. With ``base`` only what is given
    changes. ``warm`` has been made a WarmSpec by whoever ships its class. Raises InvalidRequestError.
    """
    config = _config(given)
    if not _flag(config, "enable", default=bool(config)):
        return None
    base = base or GroupsSpec(strategy=strategy, max_dynamic=NO_LIMIT)
    found: dict[str, Any] = {}
    if "placement_strategy" in config:
        found["strategy"] = parse_strategy(
            config["placement_strategy"], _what("placement_strategy")
        )
    if "bundle_label_selector" in config:
        what = _what("bundle_label_selector")
        found["node_labels"] = _node_labels(config["bundle_label_selector"], what)
    spec = msgspec.structs.replace(base, **found)
    if "high_priority_pg_specs" in config:
        found["reserved"] = _shapes(config["high_priority_pg_specs"], spec)
    return msgspec.structs.replace(spec, **found, **_plain(config))


def parse_bundles(given: object, what: str = "bundles") -> tuple[Resources, ...]:
    """The bundles of one placement group, each holding something. Raises InvalidRequestError."""
    if not isinstance(given, list | tuple) or not given:
        raise InvalidRequestError(
            f"{what} must be a list of resources such as [{{'cpu': 1.0}}, {{'cpu': 1.0}}], not {given!r}"
        )
    bundles = tuple(parse_resources(b, f"{what}[{i}]") for i, b in enumerate(given))
    for index, bundle in enumerate(bundles):
        if not bundle:
            raise InvalidRequestError(
                f"{what}[{index}] is {given[index]!r}; it must hold something"
            )
    return bundles


def sum_of(bundles: tuple[Resources, ...]) -> Resources:
    """All bundles together."""
    return sum(bundles, start=NOTHING)


def parse_strategy(given: object, what: str = "placement_strategy") -> str:
    """One of Ray's placement strategies. Raises InvalidRequestError."""
    if given not in PLACEMENT_STRATEGIES:
        raise InvalidRequestError(
            f"{what} is {given!r}; allowed are " + ", ".join(PLACEMENT_STRATEGIES)
        )
    return str(given)


def public_groups(spec: GroupsSpec | None) -> dict[str, Any] | None:
    """The spec in the words of ``pg_pool_config``, but for labels that entitle and the warm class."""
    if spec is None:
        return None
    return {
        "enable": True,
        "high_priority_pg_specs": [public_shape(shape) for shape in spec.reserved],
        "enable_dynamic_pgs": spec.dynamic,
        "max_dynamic_pgs": None if spec.max_dynamic >= NO_LIMIT else spec.max_dynamic,
        "enable_pg_reuse": spec.reuse,
        "placement_strategy": spec.strategy,
        "bundle_label_selector": dict(spec.node_labels),
        "idle_timeout_s": spec.idle_s,
        "wait_timeout_s": spec.wait_s,
        "high_priority_threshold": spec.entitled_above,
        "fill_target_agents": spec.fill_target,
        "request_resources": spec.autoscale,
    }


def public_shape(shape: GroupShape) -> dict[str, Any]:
    """A shape in the words of ``high_priority_pg_specs``."""
    return {
        "bundles": [bundle.public() for bundle in shape.bundles],
        "placement_strategy": shape.strategy,
        "bundle_label_selector": dict(shape.node_labels),
    }


def _what(key: str) -> str:
    return f"pg_pool_config[{key!r}]"


def _config(given: object) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"pg_pool_config must be a dict such as {{'enable': True}}, not {given!r}"
        )
    for key in given:
        if key not in _KEYS:
            raise InvalidRequestError(
                f"pg_pool_config has the unknown key {key!r}; allowed are {', '.join(_KEYS)}"
            )
    return given


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that stand for themselves."""
    found: dict[str, Any] = {}
    for key, field in (
        ("enable_dynamic_pgs", "dynamic"),
        ("enable_pg_reuse", "reuse"),
        ("fill_target_agents", "fill_target"),
        ("request_resources", "autoscale"),
    ):
        if key in config:
            found[field] = _flag(config, key, default=False)
    for key, field in (("idle_timeout_s", "idle_s"), ("wait_timeout_s", "wait_s")):
        if key in config:
            found[field] = _seconds(config[key], _what(key))
    if "high_priority_threshold" in config:
        found["entitled_above"] = _number(config["high_priority_threshold"])
    if "high_priority_labels" in config:
        what, labels = _what("high_priority_labels"), config["high_priority_labels"]
        found["entitled_labels"] = () if labels is None else parse_selector(labels, what)
    if "max_dynamic_pgs" in config:
        found["max_dynamic"] = _most(config["max_dynamic_pgs"])
    if "warm" in config:
        found["warm"] = _warm(config["warm"])
    return found


def _shapes(given: object, spec: GroupsSpec) -> tuple[GroupShape, ...]:
    what = _what("high_priority_pg_specs")
    if not isinstance(given, list | tuple):
        raise InvalidRequestError(
            f"{what} must be a list of specs such as [{{'cpu': 2.0}}], not {given!r}"
        )
    return tuple(_shape(one, f"{what}[{index}]", spec) for index, one in enumerate(given))


def _shape(given: object, what: str, spec: GroupsSpec) -> GroupShape:
    """A group of one bundle with these resources, or of several ``bundles``."""
    if not isinstance(given, Mapping) or not given:
        raise InvalidRequestError(
            f"{what} must be resources such as {{'cpu': 2.0}}, or {{'bundles': [...]}}, not {given!r}"
        )
    labels, strategy = spec.node_labels, spec.strategy
    bundles: tuple[Resources, ...]
    if "bundles" in given:
        for key in given:
            if key not in _SPEC_KEYS:
                raise InvalidRequestError(
                    f"{what} has the unknown key {key!r}; beside bundles, allowed are "
                    + " and ".join(_SPEC_KEYS[1:])
                )
        bundles = parse_bundles(given["bundles"], f"{what}['bundles']")
        strategy = parse_strategy(
            given.get("placement_strategy", strategy), f"{what}['placement_strategy']"
        )
        own = given.get("bundle_label_selector")
        labels = {**labels, **_node_labels(own, f"{what}['bundle_label_selector']")}
    else:
        bundles = (parse_resources(given, what),)
        if not bundles[0]:
            raise InvalidRequestError(f"{what} is {given!r}; it must hold something")
    return GroupShape(bundles=bundles, strategy=strategy, node_labels=tuple(sorted(labels.items())))


def _node_labels(given: object, what: str) -> Labels:
    labels = parse_labels(given, what)
    for key, value in labels.items():
        if value.startswith(("!", "in(")):
            raise InvalidRequestError(
                f"{what}[{key!r}] is {value!r}; allowed is the label's value itself, without an operator"
            )
    return labels


def _warm(given: object) -> WarmSpec | None:
    if given is None or isinstance(given, WarmSpec):
        return given
    raise InvalidRequestError(
        f"{_what('warm')} must be a dict with actor_class and count, not {given!r}"
    )


def _flag(config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    given = config.get(key, default)
    if given is None:
        return False
    if not isinstance(given, bool):
        raise InvalidRequestError(f"{_what(key)} must be True or False, not {given!r}")
    return given


def _most(given: object) -> int:
    if given is None:
        return NO_LIMIT
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidRequestError(
            f"{_what('max_dynamic_pgs')} must be a whole number of at least 0, or None for no limit "
            f"but the quota, not {given!r}"
        )
    return min(given, NO_LIMIT)


def _seconds(given: object, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise InvalidRequestError(f"{what} must be seconds above 0, not {given!r}")
    return float(given)


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InvalidRequestError(
            f"{_what('high_priority_threshold')} must be a finite number, not {given!r}"
        )
    return float(given)
