"""Executes a plan: slices what a source sends, joins what a destination receives, or both in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from schedulemesh.dispatch.arrays import padded, same_type
from schedulemesh.dispatch.plan import Plan, Transfer
from schedulemesh.errors import InvalidRequestError


def give(part: Any, transfer: Transfer) -> Any:
    """The box that a source rank sends: a view of its array ``part``."""
    if not transfer.give:
        return part
    return part[tuple(slice(start, stop) for start, stop in transfer.give)]


def assemble(
    plan: Plan, destination: int, fetched: Iterable[tuple[Transfer, Any]], like: Any
) -> Any:
    """The array of rank ``destination`` from what it fetched; None if it holds nothing.

    ``fetched`` are all its transfers with the box that each source sent. ``like`` is any array with the same
    number of dims, library, dtype and device; its values are not read. If the array arrives as one piece, it
    is returned without a copy. Raises ``InvalidRequestError`` for a box of another library or dtype.
    """
    dim_pieces = plan.routes.destination.of_rank(destination)
    if dim_pieces is None:
        return None
    full_box = tuple((0, piece.size) for piece in dim_pieces)
    array = None
    for transfer, box in fetched:
        if not same_type(box, like):
            raise InvalidRequestError(
                f"source rank {transfer.source} sent {_type(box)}; expected is {_type(like)}, as `like`: "
                f"elements are not converted when they are moved"
            )
        if transfer.take == full_box:
            return box
        if array is None:
            array = padded(like, dim_pieces, plan.destination.pad_value)
        array[tuple(slice(start, stop) for start, stop in transfer.take)] = box
    return padded(like, dim_pieces, plan.destination.pad_value) if array is None else array


def _type(array: Any) -> str:
    return f"{type(array).__module__.partition('.')[0]} {array.dtype}"


def apply_plan(plan: Plan, parts: Sequence[Any]) -> tuple[Any, ...]:
    """The destination's arrays by rank, from the source's ``parts`` by rank, in this process."""
    holdings, ranks = plan.routes.source, plan.source.layout.size
    if len(parts) != ranks:
        raise InvalidRequestError(
            f"{len(parts)} parts were given; allowed are {ranks}, one per rank of the source"
        )
    for rank, part in enumerate(parts):
        expected = holdings.local_shape(rank)
        actual = None if part is None else tuple(getattr(part, "shape", ()))
        if expected is not None and actual != expected:
            raise InvalidRequestError(
                f"source rank {rank} has shape {actual}; expected is {expected}"
            )
    like = parts[next(iter(holdings.grid.owners.values()))[0]]
    return tuple(
        assemble(
            plan,
            rank,
            ((each, give(parts[each.source], each)) for each in plan.fetches(rank)),
            like,
        )
        for rank in range(plan.destination.layout.size)
    )
