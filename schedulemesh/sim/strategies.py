"""Loads the scheduling strategies of a policy, as a supervisor does, for one simulation."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Union

from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text
from schedulemesh.engine.placement.strategies import NODE_STRATEGIES
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.plugins.discovery import SCHEDULING_GROUP, load_class, resolve
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin

#: A strategy: an import path ``module:Class``, the name of an installed one, or an instance.
Strategy = Union[str, SchedulingStrategyPlugin]


def parse_node_strategy(value: object) -> str:
    """The name of a built-in strategy for choosing nodes. Raises InvalidRequestError where it is none."""
    name = as_text(value)
    if name not in NODE_STRATEGIES:
        raise InvalidRequestError(
            f"node_strategy is {shown(value)}; allowed are {', '.join(NODE_STRATEGIES)}"
        )
    return name


def parse_strategies(value: object) -> tuple[str, ...]:
    """The strategies of a policy file; each can be loaded. Raises InvalidRequestError."""
    names = as_elements(value, "strategies", "a list of strategies")
    for name in names:
        if not isinstance(name, str):
            raise InvalidRequestError(
                f"strategies has {shown(name)}; a strategy is an import path 'module:Class' or the name of "
                "an installed one"
            )
        _class_of(name)
    return tuple(str(name) for name in names)


def loaded(strategies: Iterable[Strategy]) -> tuple[Guarded, ...]:
    """The strategies in their order, guarded as in a supervisor, but for their time: how long a call takes
    disables none, so that a simulation gives the same again. Each simulation has instances of its own.
    """
    return tuple(_guarded(one) for one in strategies)


def _guarded(strategy: Strategy) -> Guarded:
    if isinstance(strategy, str):
        return Guarded(strategy, _class_of(strategy)())
    return Guarded(type(strategy).__name__, copy.deepcopy(strategy))


def _class_of(name: str) -> type[SchedulingStrategyPlugin]:
    return load_class(resolve(name, SCHEDULING_GROUP), SCHEDULING_GROUP)
