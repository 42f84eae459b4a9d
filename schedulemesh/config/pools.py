"""Parses and validates the definition of a pool."""

from __future__ import annotations

import msgspec

from schedulemesh.config.groups import check_groups, parse_groups, parse_strategy
from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources, check_resources, parse_resources
from schedulemesh.errors import InvalidRequestError


def parse_pool(
    name: object,
    labels: object,
    resources: object,
    target_agents: object = 0,
    placement_strategy: object = "STRICT_PACK",
    pg_pool_config: object = None,
) -> PoolSpec:
    """The pool that these arguments describe. Raises InvalidRequestError naming what is wrong."""
    return defined(
        parse_name(name, "the pool's name"),
        parse_labels(labels),
        parse_resources(resources),
        parse_target(target_agents),
        placement_strategy,
        pg_pool_config,
    )


def defined(
    name: str,
    labels: Labels | None,
    resources: Resources,
    target_agents: int,
    placement_strategy: object,
    pg_pool_config: object,
) -> PoolSpec:
    """The pool of these values, whose groups depend on each other. Raises InvalidRequestError."""
    strategy = parse_strategy(placement_strategy)
    spec = PoolSpec(
        name=name,
        labels=labels or {},
        resources=resources,
        target_agents=target_agents,
        placement_strategy=strategy,
        groups=parse_groups(pg_pool_config, strategy),
    )
    return _consistent(spec)


def resized(
    spec: PoolSpec,
    resources: Resources | None,
    target_agents: int | None,
    pg_pool_config: object,
) -> PoolSpec:
    """The pool with the given values changed, key by key. Raises InvalidRequestError."""
    if resources is not None:
        spec = msgspec.structs.replace(spec, resources=resources)
    if target_agents is not None:
        spec = msgspec.structs.replace(spec, target_agents=target_agents)
    if pg_pool_config is not None:
        groups = parse_groups(pg_pool_config, spec.placement_strategy, spec.groups)
        spec = msgspec.structs.replace(spec, groups=groups)
    return _consistent(spec)


def parse_target(given: object) -> int:
    """The intended number of agents of a pool. Raises InvalidRequestError."""
    return parse_count(given, "target_agents")


def check_pool(spec: PoolSpec) -> None:
    """Raise InvalidRequestError for a pool that ``parse_pool`` cannot have made."""
    parse_name(spec.name, "the pool's name")
    parse_labels(spec.labels)
    check_resources(spec.resources)
    parse_target(spec.target_agents)
    parse_strategy(spec.placement_strategy)
    if spec.groups is not None:
        check_groups(spec.groups)
    _consistent(spec)


def _consistent(spec: PoolSpec) -> PoolSpec:
    if spec.groups is not None and spec.groups.fill_target and not spec.target_agents:
        raise InvalidRequestError(
            "pg_pool_config['fill_target_agents'] is True, but target_agents is 0: say how many groups "
            "are to be kept"
        )
    return spec
