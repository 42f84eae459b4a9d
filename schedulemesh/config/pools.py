"""What a user says of a pool, validated."""

from __future__ import annotations

import msgspec

from schedulemesh.config.groups import parse_groups, parse_strategy
from schedulemesh.domain.labels import is_text, parse_labels
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.errors import InvalidRequestError


def parse_name(given: object, what: str) -> str:
    """A name: any text that is not empty. Raises InvalidRequestError otherwise."""
    if not is_text(given) or not given.strip():
        raise InvalidRequestError(f"{what} must be a text that is not empty, not {given!r}")
    return given


def parse_pool(
    name: object,
    labels: object,
    resources: object,
    target_agents: object = 0,
    placement_strategy: object = "STRICT_PACK",
    pg_pool_config: object = None,
) -> PoolSpec:
    """The pool that these arguments describe. Raises InvalidRequestError naming what is wrong."""
    strategy = parse_strategy(placement_strategy)
    spec = PoolSpec(
        name=parse_name(name, "the pool's name"),
        labels=parse_labels(labels),
        resources=parse_resources(resources),
        target_agents=parse_target(target_agents),
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
    """The pool with what is given changed, key by key. Raises InvalidRequestError."""
    if resources is not None:
        spec = msgspec.structs.replace(spec, resources=resources)
    if target_agents is not None:
        spec = msgspec.structs.replace(spec, target_agents=target_agents)
    if pg_pool_config is not None:
        groups = parse_groups(pg_pool_config, spec.placement_strategy, spec.groups)
        spec = msgspec.structs.replace(spec, groups=groups)
    return _consistent(spec)


def parse_target(given: object) -> int:
    """How many agents a pool is meant for. Raises InvalidRequestError."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidRequestError(
            f"target_agents must be a whole number of at least 0, not {given!r}"
        )
    return given


def _consistent(spec: PoolSpec) -> PoolSpec:
    if spec.groups is not None and spec.groups.fill_target and not spec.target_agents:
        raise InvalidRequestError(
            "pg_pool_config['fill_target_agents'] is True, but target_agents is 0: say how many groups "
            "are to be kept"
        )
    return spec
