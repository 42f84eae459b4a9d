"""Checks the scheduling strategies that a scheduler is created with, and serializes instances."""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.config.settings import StrategyRef
from schedulemesh.core.transport.user_code import job_folders, ship_value
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text
from schedulemesh.engine.placement.strategies import NODE_STRATEGIES
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.plugins.discovery import SCHEDULING_GROUP, load_class, resolve
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin, hooks_of


def chosen_strategies(
    node_strategy: object, strategies: object
) -> tuple[str, tuple[StrategyRef, ...]]:
    """The built-in strategy for nodes, and the plugins in their order.

    ``strategies`` holds instances, import paths ``module:Class``, names of installed strategies, and at most
    one name of a built-in one. Raises InvalidRequestError for anything else, before anything is started.
    """
    node_strategy = check_built_in("node_strategy", node_strategy)
    chosen = [_exact(one) for one in as_elements(strategies, "strategies", "a list")]
    built_in = [one for one in chosen if isinstance(one, str) and one in NODE_STRATEGIES]
    if len(built_in) > 1:
        raise InvalidRequestError(f"strategies names several built-in ones: {', '.join(built_in)}")
    if built_in and node_strategy not in (NODE_STRATEGIES[0], built_in[0]):
        raise InvalidRequestError(
            f"node_strategy is {node_strategy!r}, but strategies names {built_in[0]!r}; give one of them"
        )
    refs = [_ref(one) for one in chosen if not isinstance(one, str) or one not in built_in]
    return (built_in or [node_strategy])[0], _with_unique_names(refs)


def check_built_in(what: str, value: object) -> str:
    """The name of a built-in strategy. Raises InvalidRequestError where it is none."""
    name = as_text(value)
    if name not in NODE_STRATEGIES:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed are {', '.join(NODE_STRATEGIES)}"
        )
    return name


def _exact(value: object) -> object:
    """A text as exact ``str``, all else as it is."""
    text = as_text(value)
    return value if text is None else text


def _ref(strategy: object) -> StrategyRef:
    if isinstance(strategy, str):
        path = resolve(strategy, SCHEDULING_GROUP)
        load_class(path, SCHEDULING_GROUP)
        return StrategyRef(name=strategy, path=path, sys_path=job_folders())
    if not isinstance(strategy, SchedulingStrategyPlugin):
        raise InvalidRequestError(
            f"a strategy is an instance of SchedulingStrategyPlugin, 'module:Class', or the name of an "
            f"installed or built-in one; not {shown(strategy)}"
        )
    name = type(strategy).__name__
    if not hooks_of(strategy):
        raise InvalidRequestError(f"the strategy {name} has none of the hooks; see docs/plugins.md")
    code = ship_value(strategy, f"the strategy {name}")
    return StrategyRef(name=name, code=code, sys_path=job_folders())


def _with_unique_names(refs: Sequence[StrategyRef]) -> tuple[StrategyRef, ...]:
    """The strategies, numbered where several have one name."""
    seen: dict[str, int] = {}
    named_refs = []
    for ref in refs:
        seen[ref.name] = seen.get(ref.name, 0) + 1
        number = f"#{seen[ref.name]}" if seen[ref.name] > 1 else ""
        named_refs.append(
            StrategyRef(name=ref.name + number, path=ref.path, code=ref.code, sys_path=ref.sys_path)
        )
    return tuple(named_refs)
