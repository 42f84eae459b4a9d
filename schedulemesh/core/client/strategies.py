"""Scheduling strategies on their way to the supervisor: named, checked, instances shipped by value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedulemesh.config.settings import StrategyRef
from schedulemesh.core.transport.user_code import job_folders, ship_value
from schedulemesh.engine.placement.strategies import NODE_STRATEGIES
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.discovery import SCHEDULING_GROUP, load_class, resolve
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin, hooks_of


def chosen_strategies(
    node_strategy: str, given: Sequence[object]
) -> tuple[str, tuple[StrategyRef, ...]]:
    """The built-in strategy for nodes, and the plugins in their order.

    ``given`` holds instances, import paths ``module:Class``, names of installed strategies, and at most one
    name of a built-in one. Raises InvalidRequestError for anything else, before anything is started.
    """
    check_built_in("node_strategy", node_strategy)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidRequestError(f"strategies must be a list, not {given!r}")
    built_in = [one for one in given if isinstance(one, str) and one in NODE_STRATEGIES]
    if len(built_in) > 1:
        raise InvalidRequestError(f"strategies names several built-in ones: {', '.join(built_in)}")
    if built_in and node_strategy not in (NODE_STRATEGIES[0], built_in[0]):
        raise InvalidRequestError(
            f"node_strategy is {node_strategy!r}, but strategies names {built_in[0]!r}; give one of them"
        )
    refs = [_ref(one) for one in given if one not in built_in]
    return (built_in or [node_strategy])[0], _told_apart(refs)


def check_built_in(what: str, name: object) -> None:
    """Raise InvalidRequestError where this is no built-in strategy."""
    if name not in NODE_STRATEGIES:
        raise InvalidRequestError(f"{what} is {name!r}; allowed are {', '.join(NODE_STRATEGIES)}")


def _ref(given: object) -> StrategyRef:
    if isinstance(given, str):
        path = resolve(given, SCHEDULING_GROUP)
        load_class(path, SCHEDULING_GROUP)
        return StrategyRef(name=given, path=path, sys_path=job_folders())
    if not isinstance(given, SchedulingStrategyPlugin):
        raise InvalidRequestError(
            f"a strategy is an instance of SchedulingStrategyPlugin, 'module:Class', or the name of an "
            f"installed or built-in one; not {given!r}"
        )
    name = type(given).__name__
    if not hooks_of(given):
        raise InvalidRequestError(f"the strategy {name} has none of the hooks; see docs/plugins.md")
    code = ship_value(given, f"the strategy {name}")
    return StrategyRef(name=name, code=code, sys_path=job_folders())


def _told_apart(refs: Sequence[StrategyRef]) -> tuple[StrategyRef, ...]:
    """Of several with one name the later ones are numbered."""
    seen: dict[str, int] = {}
    found = []
    for ref in refs:
        seen[ref.name] = seen.get(ref.name, 0) + 1
        number = f"#{seen[ref.name]}" if seen[ref.name] > 1 else ""
        found.append(
            StrategyRef(name=ref.name + number, path=ref.path, code=ref.code, sys_path=ref.sys_path)
        )
    return tuple(found)
