"""Calls of a group's methods as their class declares them; see ``schedulemesh.dispatch.declarations``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from schedulemesh.core.worker_groups.handed_on import HandedOn
from schedulemesh.core.worker_groups.pending_result import PendingResult
from schedulemesh.core.worker_groups.sending import put_once
from schedulemesh.core.worker_groups.worker_calls import WorkerCall
from schedulemesh.dispatch.collecting import common_split
from schedulemesh.dispatch.declarations import Dispatch, MethodDeclaration, by_rank, collected_ranks
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.strategies import Scattered, Workers, scatter
from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import InvalidRequestError

#: The holder of the data before it is dispatched, unless another group is given.
DRIVER = Workers(name="driver", layout=ParallelLayout.of())
#: The arguments of a call: by position, then by name.
Arguments = Mapping[Any, UserValue]


class Callee(Protocol):
    """The group that is called."""

    @property
    def layout(self) -> ParallelLayout:
        """Its layout."""

    @property
    def timeout_s(self) -> float | None:
        """The default limit for waiting for it."""

    def ask(self, rank: int, method: str, *args: UserValue, **kwargs: UserValue) -> WorkerCall:
        """Call a method of one rank."""


def declared_call(
    group: Callee, method: str, declared: MethodDeclaration, arguments: Arguments
) -> PendingResult:
    """Calls a method of a group as it is declared.

    Raises ``InvalidRequestError`` if the arguments contradict the declaration.
    """
    pending = {key: value for key, value in arguments.items() if isinstance(value, PendingResult)}
    plain = {key: value for key, value in arguments.items() if key not in pending}
    _check_pending(method, declared, pending)
    strategy = declared.strategy if declared.splits_rows else "replicate"
    handed = {key: result.handed_on(strategy, group.layout) for key, result in pending.items()}
    scattered: Scattered | None = None
    if declared.splits_rows:
        scattered, by_argument = _split(plain, strategy, group)
    else:
        by_argument = _columns(by_rank(declared, group.layout, plain), plain)
    if handed and declared.splits_rows:
        scattered = _rows_of(handed, scattered, method)
    parts_by_argument: dict[Any, Sequence[UserValue]] = {
        **{key: put_once(parts) for key, parts in by_argument.items()},
        **{key: result.parts for key, result in handed.items()},
    }
    ranks = range(1 if declared.mode is Dispatch.RANK_ZERO else group.layout.size)
    calls = [
        group.ask(
            rank,
            method,
            *(parts_by_argument[key][rank] for key in arguments if isinstance(key, int)),
            **{key: parts_by_argument[key][rank] for key in arguments if isinstance(key, str)},
        )
        for rank in ranks
    ]
    return PendingResult(
        calls,
        group.timeout_s,
        scattered,
        [call for result in pending.values() for call in result.calls],
        declared=declared,
        collected=collected_ranks(declared, group.layout),
    )


def _check_pending(method: str, declared: MethodDeclaration, pending: Arguments) -> None:
    if pending and not declared.splits_rows and declared.mode is not Dispatch.ONE_TO_ALL:
        raise InvalidRequestError(
            f"argument {next(iter(pending))!r} of {method} is a pending result, whose rows stay with the "
            f"workers; {method} is declared {declared.mode.value}. Declare it DP_COMPUTE_PROTO, or pass what "
            f"collect() returns"
        )


def _split(
    arguments: Arguments, strategy: str, group: Callee
) -> tuple[Scattered | None, dict[Any, Sequence[UserValue]]]:
    """The arguments distributed by rows, together: the parts of each argument by rank."""
    if list(arguments) == [0]:
        scattered = scatter(arguments[0], strategy, DRIVER, group)
        return scattered, {0: scattered.parts}
    if not arguments:
        return None, {}
    scattered = scatter(dict(arguments), strategy, DRIVER, group)
    return scattered, _columns(scattered.parts, arguments)


def _columns(parts: Sequence[Any], arguments: Arguments) -> dict[Any, Sequence[UserValue]]:
    """By argument its value for each rank, of the arguments by rank."""
    return {key: [None if part is None else part[key] for part in parts] for key in arguments}


def _rows_of(
    handed: Mapping[Any, HandedOn], scattered: Scattered | None, method: str
) -> Scattered | None:
    """How the rows of a call are split that is given pending results, and perhaps other rows."""
    first, *others = handed.values()
    counts = {result.sharded.shapes[0] for result in (first, *others)}
    if scattered is not None and scattered.sharded is not None:
        split = common_split(scattered.sharded.spec, scattered.sharded.shapes)
        counts |= {split[1][0]} if split is not None and not split[0].is_whole else set()
    if len(counts) > 1:
        raise InvalidRequestError(
            f"the arguments of {method} have different numbers of rows: {sorted(counts)}; allowed is one"
        )
    return Scattered(parts=first.parts, sharded=first.sharded)
