"""Declares on a worker's method how its arguments are distributed and its results are collected.

The modes have the names that users of verl know; ``docs/dispatch_reference.md`` says where they differ from
those of verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from schedulemesh.dispatch.collecting import Reduction, Reductions, reductions
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.errors import InvalidRequestError, nearest

_Method = TypeVar("_Method", bound=Callable[..., Any])
#: The attribute of a function that holds its declaration.
_ATTRIBUTE = "_schedulemesh_dispatch"


class Dispatch(str, Enum):
    """How the arguments of a call are distributed to the ranks of a group."""

    #: Every rank gets the same arguments. The results are collected by rank.
    ONE_TO_ALL = "ONE_TO_ALL"
    #: Each argument is a list with one element for each rank. The results are collected by rank.
    ALL_TO_ALL = "ALL_TO_ALL"
    #: Each argument is a list with one element for each coordinate on the axis dp; so are the results.
    DP_COMPUTE = "DP_COMPUTE"
    #: The rows of the arguments are split over dp, and the rows of the results are joined in their order.
    DP_COMPUTE_PROTO = "DP_COMPUTE_PROTO"
    #: The rows of the arguments are split over dp; the results are metrics, by rank or reduced.
    DP_COMPUTE_METRIC = "DP_COMPUTE_METRIC"
    #: Only rank 0 is called, with the arguments as they are. Its result is collected.
    RANK_ZERO = "RANK_ZERO"


#: The modes that split rows by a strategy.
_BY_ROWS = (Dispatch.DP_COMPUTE_PROTO, Dispatch.DP_COMPUTE_METRIC)
#: How results are reduced if neither the declaration nor the caller says it.
_REDUCED: dict[Dispatch, Reduction] = {
    Dispatch.DP_COMPUTE_METRIC: "per_rank",
    Dispatch.RANK_ZERO: "rank_zero",
}


class MethodDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's class declares of one method."""

    mode: Dispatch
    #: The name of the strategy that splits the rows.
    strategy: str = "data_parallel"
    #: The leaf whose split the results follow; see ``collect``.
    like: str | None = None
    reduce: Reductions = None

    @property
    def splits_rows(self) -> bool:
        """Whether the rows of the arguments are split by a strategy."""
        return self.mode in _BY_ROWS


#: Of a method without a declaration that is called by name.
UNDECLARED = MethodDeclaration(mode=Dispatch.ONE_TO_ALL)


def dispatch(
    mode: Dispatch | str,
    *,
    strategy: str | None = None,
    like: str | None = None,
    reduce: Reductions = None,
) -> Callable[[_Method], _Method]:
    """Declare how a method of a worker's class is called by ``WorkerGroup.call``.

    ``strategy`` names another strategy than "data_parallel" for the modes that split rows. ``like`` and
    ``reduce`` are the defaults of ``PendingResult.collect``; with DP_COMPUTE_METRIC ``reduce`` is "per_rank"
    if it is not given. Raises ``InvalidRequestError`` for what does not fit the mode.
    """
    mode = _mode(mode)
    if mode not in _BY_ROWS and (strategy is not None or like is not None):
        raise InvalidRequestError(
            f"strategy={strategy!r}, like={like!r} with {mode.value}, which splits no rows; allowed with "
            f"{' and '.join(each.value for each in _BY_ROWS)}"
        )
    if mode is Dispatch.RANK_ZERO and reduce is not None:
        raise InvalidRequestError("reduce with RANK_ZERO, which has one result; leave reduce out")
    reductions(reduce)
    declared = MethodDeclaration(
        mode=mode,
        strategy=strategy or "data_parallel",
        like=like,
        reduce=_REDUCED.get(mode) if reduce is None else reduce,
    )

    def declare(method: _Method) -> _Method:
        setattr(method, _ATTRIBUTE, declared)
        return method

    return declare


def declarations(cls: type) -> dict[str, MethodDeclaration]:
    """The declarations of a class's methods by name. A method that overrides a declared one without a
    declaration of its own has that of the method that it overrides.
    """
    by_method: dict[str, MethodDeclaration] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            declared = getattr(member, _ATTRIBUTE, None)
            if isinstance(declared, MethodDeclaration):
                by_method[name] = declared
    return by_method


def by_rank(
    declared: MethodDeclaration, layout: ParallelLayout, arguments: Mapping[Any, Any]
) -> list[dict[Any, Any]]:
    """The arguments of each rank that is called, for the modes that split no rows.

    ``arguments`` are given by position or name. Raises ``InvalidRequestError`` if one does not have one
    element for each rank, or for each coordinate on dp.
    """
    if declared.mode is Dispatch.RANK_ZERO:
        return [dict(arguments)]
    if declared.mode is Dispatch.ONE_TO_ALL:
        return [dict(arguments)] * layout.size
    ranks = range(layout.size)
    coordinates = ranks if declared.mode is Dispatch.ALL_TO_ALL else _on_dp(layout)
    for name, value in arguments.items():
        _check_elements(name, value, declared.mode, layout)
    return [{name: value[at] for name, value in arguments.items()} for at in coordinates]


def collected_ranks(declared: MethodDeclaration, layout: ParallelLayout) -> tuple[int, ...] | None:
    """The ranks whose results are collected; None: those of all that are called."""
    if declared.mode is not Dispatch.DP_COMPUTE:
        return None
    coordinates = _on_dp(layout)
    return tuple(coordinates.index(at) for at in range(layout.size_of("dp")))


def _on_dp(layout: ParallelLayout) -> Sequence[int]:
    """The coordinate of each rank on dp."""
    layout.size_of("dp")
    return [layout.coordinates(rank)["dp"] for rank in range(layout.size)]


def _check_elements(name: Any, value: Any, mode: Dispatch, layout: ParallelLayout) -> None:
    per, count = "rank", layout.size
    if mode is Dispatch.DP_COMPUTE:
        per, count = "coordinate on dp", layout.size_of("dp")
    if isinstance(value, (list, tuple)) and len(value) == count:
        return
    actual = (
        f"{len(value)} elements"
        if isinstance(value, (list, tuple))
        else f"a {type(value).__name__}"
    )
    raise InvalidRequestError(
        f"argument {name!r} has {actual}; {mode.value} takes a list with one element for each {per}, here "
        f"{count}. Declare ONE_TO_ALL for the same value on all ranks, or DP_COMPUTE_PROTO to split rows"
    )


def _mode(mode: Dispatch | str) -> Dispatch:
    names = [known_mode.value for known_mode in Dispatch]
    if isinstance(mode, str) and mode in names:
        return Dispatch(mode)
    raise InvalidRequestError(
        f"there is no mode {mode!r}{nearest(str(mode), names)}; allowed are {', '.join(names)}"
    )
