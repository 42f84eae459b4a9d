"""Parses and validates the configuration of a pool's placement groups (``pg_pool_config``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.labels import Labels, check_selector, parse_selector
from schedulemesh.domain.names import as_text
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.numbers import parse_count, parse_flag, parse_priority, parse_timeout
from schedulemesh.domain.placement import (
    PLACEMENT_STRATEGIES,
    GroupShape,
    GroupsSpec,
    WarmSpec,
    check_bundles,
)
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.errors import InvalidRequestError, shown

#: More dynamic groups than any pool can have: the pool's quota is the limit.
NO_LIMIT = 1_000_000

#: Reserved groups of one pool.
MAX_RESERVED = 1_000
#: Hosts that stand ready in one reserved group.
MAX_WARM = 1_000

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


def parse_groups(
    pg_pool_config: object, strategy: str, base: GroupsSpec | None = None
) -> GroupsSpec | None:
    """The placement groups of a pool; None: it has none, because ``pg_pool_config`` is None or empty, or its
    ``enable`` is False.

    ``strategy`` is the pool's, for groups without one. With ``base``, only the given keys are changed.
    ``warm`` is already a WarmSpec: the client pickles its class. Raises InvalidRequestError.
    """
    config = _config(pg_pool_config)
    if not _flag(config, "enable", default=bool(config)):
        return None
    base = base or GroupsSpec(strategy=strategy, max_dynamic=NO_LIMIT)
    fields: dict[str, Any] = {}
    if "placement_strategy" in config:
        fields["strategy"] = parse_strategy(
            config["placement_strategy"], _what("placement_strategy")
        )
    if "bundle_label_selector" in config:
        what = _what("bundle_label_selector")
        fields["node_labels"] = _node_labels(config["bundle_label_selector"], what)
    spec = msgspec.structs.replace(base, **fields)
    if "high_priority_pg_specs" in config:
        fields["reserved"] = _shapes(config["high_priority_pg_specs"], spec)
    return msgspec.structs.replace(spec, **fields, **_plain(config))


def parse_bundles(
    value: object, what: str = "bundles", *, covering: bool = False
) -> tuple[Resources, ...]:
    """The bundles of one placement group, none empty. ``covering``: see ``parse_resources``. Raises
    InvalidRequestError.
    """
    expected = "a list of resources such as [{'cpu': 1.0}, {'cpu': 1.0}]"
    elements = as_elements(value, what, expected)
    if not elements:
        raise InvalidRequestError(f"{what} must be {expected}, not {shown(value)}")
    bundles = tuple(
        parse_resources(bundle, f"{what}[{i}]", covering=covering)
        for i, bundle in enumerate(elements)
    )
    check_bundles(bundles, what)
    return bundles


def parse_strategy(value: object, what: str = "placement_strategy") -> str:
    """One of Ray's placement strategies. Raises InvalidRequestError."""
    strategy = as_text(value)
    if strategy not in PLACEMENT_STRATEGIES:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed are " + ", ".join(PLACEMENT_STRATEGIES)
        )
    return strategy


def check_groups(spec: GroupsSpec) -> None:
    """Raise InvalidRequestError for a spec that ``parse_groups`` cannot have made."""
    if len(spec.reserved) > MAX_RESERVED:
        raise InvalidRequestError(
            f"{_what('high_priority_pg_specs')} has more than {MAX_RESERVED} specs"
        )
    for shape in spec.reserved:
        check_bundles(shape.bundles, _what("high_priority_pg_specs"))
        parse_strategy(shape.strategy)
        _node_labels(dict(shape.node_labels), _what("bundle_label_selector"))
    parse_strategy(spec.strategy, _what("placement_strategy"))
    _node_labels(spec.node_labels, _what("bundle_label_selector"))
    parse_count(spec.max_dynamic, _what("max_dynamic_pgs"))
    parse_timeout(spec.idle_s, _what("idle_timeout_s"))
    parse_timeout(spec.wait_s, _what("wait_timeout_s"))
    parse_priority(spec.entitled_above, _what("high_priority_threshold"))
    check_selector(spec.entitled_labels, _what("high_priority_labels"))
    if spec.warm is not None:
        parse_count(spec.warm.count, _what("warm"), 1, MAX_WARM)


def public_groups(spec: GroupsSpec | None) -> dict[str, Any] | None:
    """The spec with the keys of ``pg_pool_config``, except for entitling labels and the warm class."""
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
    """A shape with the keys of ``high_priority_pg_specs``."""
    return {
        "bundles": [bundle.public() for bundle in shape.bundles],
        "placement_strategy": shape.strategy,
        "bundle_label_selector": dict(shape.node_labels),
    }


def _what(key: str) -> str:
    return f"pg_pool_config[{key!r}]"


def _config(pg_pool_config: object) -> Mapping[str, Any]:
    if pg_pool_config is None:
        return {}
    config: dict[str, Any] = {}
    for key, value in as_items(pg_pool_config, "pg_pool_config", "a dict such as {'enable': True}"):
        name = as_text(key)
        if name not in _KEYS:
            raise InvalidRequestError(
                f"pg_pool_config has the unknown key {shown(key)}; allowed are {', '.join(_KEYS)}"
            )
        config[name] = value
    return config


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that need no conversion."""
    fields: dict[str, Any] = {}
    for key, field in (
        ("enable_dynamic_pgs", "dynamic"),
        ("enable_pg_reuse", "reuse"),
        ("fill_target_agents", "fill_target"),
        ("request_resources", "autoscale"),
    ):
        if key in config:
            fields[field] = _flag(config, key, default=False)
    for key, field in (("idle_timeout_s", "idle_s"), ("wait_timeout_s", "wait_s")):
        if key in config:
            fields[field] = parse_timeout(config[key], _what(key))
    if "high_priority_threshold" in config:
        what = _what("high_priority_threshold")
        fields["entitled_above"] = parse_priority(config["high_priority_threshold"], what)
    if "high_priority_labels" in config:
        what, labels = _what("high_priority_labels"), config["high_priority_labels"]
        fields["entitled_labels"] = () if labels is None else parse_selector(labels, what)
    if "max_dynamic_pgs" in config:
        fields["max_dynamic"] = _most(config["max_dynamic_pgs"])
    if "warm" in config:
        fields["warm"] = _warm(config["warm"])
    return fields


def _shapes(specs: object, spec: GroupsSpec) -> tuple[GroupShape, ...]:
    what = _what("high_priority_pg_specs")
    elements = as_elements(specs, what, "a list of specs such as [{'cpu': 2.0}]")
    if len(elements) > MAX_RESERVED:
        raise InvalidRequestError(f"{what} has more than {MAX_RESERVED} specs")
    return tuple(_shape(one, f"{what}[{index}]", spec) for index, one in enumerate(elements))


def _shape(value: object, what: str, spec: GroupsSpec) -> GroupShape:
    """A group of one bundle with these resources, or of several ``bundles``."""
    expected = "resources such as {'cpu': 2.0}, or {'bundles': [...]}"
    config = {as_text(key): element for key, element in as_items(value, what, expected)}
    if not config:
        raise InvalidRequestError(f"{what} must be {expected}, not {shown(value)}")
    labels, strategy = spec.node_labels, spec.strategy
    bundles: tuple[Resources, ...]
    if "bundles" in config:
        for key in config:
            if key not in _SPEC_KEYS:
                raise InvalidRequestError(
                    f"{what} has the unknown key {shown(key)}; beside bundles, allowed are "
                    + " and ".join(_SPEC_KEYS[1:])
                )
        bundles = parse_bundles(config["bundles"], f"{what}['bundles']")
        strategy = parse_strategy(
            config.get("placement_strategy", strategy), f"{what}['placement_strategy']"
        )
        selector = config.get("bundle_label_selector")
        labels = {**labels, **_node_labels(selector, f"{what}['bundle_label_selector']")}
    else:
        bundles = (parse_resources(value, what),)
        if not bundles[0]:
            raise InvalidRequestError(f"{what} is {shown(value)}; it must hold something")
    return GroupShape(bundles=bundles, strategy=strategy, node_labels=tuple(sorted(labels.items())))


def _node_labels(selector: object, what: str) -> Labels:
    return dict(parse_node_labels(selector, what))


def _warm(warm: object) -> WarmSpec | None:
    if warm is None or is_a(warm, WarmSpec):
        return warm
    raise InvalidRequestError(
        f"{_what('warm')} must be a dict with actor_class and count, not {shown(warm)}"
    )


def _flag(config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    flag = config.get(key, default)
    return flag is not None and parse_flag(flag, _what(key))


def _most(max_dynamic: object) -> int:
    what = f"{_what('max_dynamic_pgs')} (None: no limit but the quota)"
    return NO_LIMIT if max_dynamic is None else parse_count(max_dynamic, what)
