"""What a user says of a pool, validated."""

from __future__ import annotations

from schedulemesh.domain.labels import is_text, parse_labels
from schedulemesh.domain.placement import PLACEMENT_STRATEGIES
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
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
) -> PoolSpec:
    """The pool that these arguments describe. Raises InvalidRequestError naming what is wrong."""
    if isinstance(target_agents, bool) or not isinstance(target_agents, int) or target_agents < 0:
        raise InvalidRequestError(
            f"target_agents must be a whole number of at least 0, not {target_agents!r}"
        )
    if placement_strategy not in PLACEMENT_STRATEGIES:
        raise InvalidRequestError(
            f"placement_strategy is {placement_strategy!r}; allowed are "
            + ", ".join(PLACEMENT_STRATEGIES)
        )
    return PoolSpec(
        name=parse_name(name, "the pool's name"),
        labels=parse_labels(labels),
        resources=parse_resources(resources),
        target_agents=target_agents,
        placement_strategy=str(placement_strategy),
    )
