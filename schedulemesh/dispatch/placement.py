"""What each axis of a layout does to one tensor: split, replicate, or hold it at one coordinate only."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from operator import index
from typing import Any, Literal, Union, get_args

import msgspec
from msgspec.structs import force_setattr

from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.errors import InvalidRequestError, shown

#: What happens to a size that does not divide: see ``Shard.uneven``.
Uneven = Literal["error", "pad", "uneven", "drop_last", "chunk"]
#: How tuples are split: see ``Sharding.tuples``.
Tuples = Literal["tree", "rows"]
Scalar = Union[bool, int, float, str, None]


class Shard(msgspec.Struct, frozen=True, tag=True):
    """The axis splits a dim: coordinate i holds the i-th part."""

    #: The dim, from 0; negative ones count from the last.
    dim: int
    #: For n elements over k coordinates:
    #: ``error`` refuses sizes that do not divide;
    #: ``pad`` gives each ceil(n / k), the last ones padded with the sharding's ``pad_value``;
    #: ``uneven`` gives each floor(n / k) and one more to the first n mod k: sizes differ by at most one;
    #: ``drop_last`` gives each floor(n / k) and drops the last n mod k;
    #: ``chunk`` gives each ceil(n / k) until none are left, as ``torch.chunk`` and DTensor do.
    uneven: Uneven = "error"
    #: Split into 2k parts and give coordinate i the parts i and 2k - 1 - i, so that all have the same work
    #: under a causal mask (ring attention; Megatron's context parallelism).
    zigzag: bool = False
    #: Lengths of the documents packed along the dim; each is split separately. Empty: one document.
    documents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "dim", _counted(self.dim, "a dim"))
        if self.uneven not in get_args(Uneven):
            raise InvalidRequestError(
                f"Shard: uneven={self.uneven!r}; allowed are {', '.join(get_args(Uneven))}"
            )
        force_setattr(self, "documents", whole_numbers(self.documents, "documents"))
        if any(length < 0 for length in self.documents):
            raise InvalidRequestError(
                f"documents {self.documents} has a length below 0; allowed is 0 and more"
            )


class Assign(msgspec.Struct, frozen=True, tag=True):
    """The axis assigns the rows of a dim: coordinate i holds the rows ``groups[i]``, in that order.

    ``balance`` computes such groups. Collecting restores the original order of the rows.
    """

    #: The dim, from 0; negative ones count from the last.
    dim: int
    #: The row numbers of each coordinate; every row exactly once.
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        force_setattr(self, "dim", _counted(self.dim, "a dim"))
        groups = tuple(whole_numbers(group, "a group of rows") for group in self.groups)
        force_setattr(self, "groups", groups)
        rows = sorted(row for group in groups for row in group)
        if rows != list(range(len(rows))):
            raise InvalidRequestError(
                f"the groups assign {len(rows)} rows, some twice or not at all; allowed is each of "
                f"0 to {len(rows) - 1} exactly once"
            )


class Replicate(msgspec.Struct, frozen=True, tag=True):
    """Every coordinate of the axis holds the same."""


class Stage(msgspec.Struct, frozen=True, tag=True):
    """Only one coordinate of the axis holds the tensor, such as one pipeline stage."""

    #: The coordinate, from 0; negative ones count from the last: -1 is the last stage.
    index: int

    def __post_init__(self) -> None:
        force_setattr(self, "index", _counted(self.index, "a stage"))


class Primary(msgspec.Struct, frozen=True, tag=True):
    """Only coordinate 0 of the axis holds the tensor, such as the tp rank that broadcasts to its peers."""


Cut = Union[Shard, Assign]
Placement = Union[Shard, Assign, Replicate, Stage, Primary]


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """Which elements of one tensor each rank of a layout holds."""

    layout: ParallelLayout
    #: Axis and what it does. If several split one dim, the first splits first. Other axes replicate.
    placements: tuple[tuple[str, Placement], ...] = ()
    #: The value that pads the parts of ``uneven="pad"``. Arrays take one that their dtype holds.
    pad_value: Scalar = 0
    #: Whether a tuple is a tree, whose members are split one by one, or a sequence of rows, as a list is.
    tuples: Tuples = "tree"

    def __post_init__(self) -> None:
        if self.tuples not in get_args(Tuples):
            raise InvalidRequestError(
                f"tuples={self.tuples!r}; allowed are {', '.join(get_args(Tuples))}"
            )
        names = [name for name, _ in self.placements]
        if len(set(names)) < len(names):
            raise InvalidRequestError(f"placements name {names}; allowed is each axis once")
        for name, placement in self.placements:
            _check(name, placement, self.layout.size_of(name))

    @classmethod
    def of(
        cls,
        layout: ParallelLayout,
        /,
        *,
        pad_value: Scalar = 0,
        tuples: Tuples = "tree",
        **placements: Placement | int,
    ) -> Sharding:
        """The sharding with these placements by axis; a whole number is the dim to shard.

        ``Sharding.of(layout, dp=0, cp=Shard(1, zigzag=True), pp=Stage(-1))``. If several axes split one dim,
        the slowest splits first, as DTensor does from left to right; for another order (FSDP over tp: tp
        first) construct ``Sharding`` with ``placements`` in that order.
        """
        for name in placements:
            layout.size_of(name)
        ordered = tuple(
            (name, _placement(placement))
            for name, placement in ((name, placements.get(name)) for name in reversed(layout.names))
            if placement is not None
        )
        return cls(layout=layout, placements=ordered, pad_value=pad_value, tuples=tuples)

    @property
    def is_whole(self) -> bool:
        """Whether no axis splits the tensor: each rank holds all of it or nothing."""
        return not any(isinstance(placement, (Shard, Assign)) for _, placement in self.placements)

    def cuts(self, dim: int, ndim: int) -> tuple[tuple[str, int, Cut], ...]:
        """The axes that split ``dim`` of a tensor of ``ndim`` dims, in that order: name, size, how."""
        return tuple(
            (name, self.layout.size_of(name), placement)
            for name, placement in self.placements
            if isinstance(placement, (Shard, Assign)) and _dim(placement.dim, ndim, name) == dim
        )


def whole_numbers(values: Any, what: str) -> tuple[int, ...]:
    """Whole numbers, which were given as any sequence, an array or a tensor, as a tuple.

    Shardings and shapes are keys of caches and are encoded, which lists and numbers of NumPy cannot be.
    """
    numbers: Iterable[Any] = values.tolist() if hasattr(values, "tolist") else values
    try:
        return tuple([int(index(number)) for number in numbers])
    except TypeError as error:
        raise InvalidRequestError(
            f"{what}: {shown(values)} was given; allowed is a sequence of whole numbers"
        ) from error


def _dim(dim: int, ndim: int, axis: str) -> int:
    if not -ndim <= dim < ndim:
        raise InvalidRequestError(
            f"axis {axis} splits dim {dim} of a value with {ndim} dims; allowed are {-ndim} to {ndim - 1}"
            if ndim
            else f"axis {axis} splits dim {dim} of a value without dims; it can only be replicated"
        )
    return dim % ndim


def _placement(value: Any) -> Placement:
    return Shard(_counted(value, "a dim")) if isinstance(value, Integral) else value


def _counted(number: object, what: str) -> int:
    """The number of a dim or stage as Python's own; ``True`` is none, although Python counts with it."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise InvalidRequestError(
            f"{what} is {number!r}; allowed is a whole number, negative ones count from the last"
        )
    return int(number)


def _check(name: str, placement: Placement, size: int) -> None:
    if not isinstance(placement, get_args(Placement)):
        raise InvalidRequestError(
            f"axis {name} has the placement {placement!r}; allowed are the number of a dim, Shard, Assign, "
            f"Replicate, Stage and Primary"
        )
    if isinstance(placement, Stage) and not -size <= placement.index < size:
        raise InvalidRequestError(
            f"stage {placement.index} is not on axis {name}; allowed are {-size} to {size - 1}"
        )
    if isinstance(placement, Assign) and len(placement.groups) != size:
        raise InvalidRequestError(
            f"{len(placement.groups)} groups are assigned over {name}; allowed are {size}, one each"
        )
