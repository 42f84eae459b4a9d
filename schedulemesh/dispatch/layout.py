"""Named parallel axes over the ranks of a worker group: rank to coordinates and back, groups of an axis.

The first axis of the order varies fastest: with ``tp=2, dp=3`` in the order ``tp-dp`` the ranks 0 and 1
are the tensor-parallel pair of dp 0. This is Megatron's convention and its default order.
"""

from __future__ import annotations

from math import prod
from operator import index

import msgspec

from schedulemesh.errors import InvalidRequestError

#: Megatron's order, with sequence parallel beside tensor parallel; the leftmost axis varies fastest.
DEFAULT_ORDER = "tp-sp-cp-ep-dp-pp"


class ParallelLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks 0 to ``size - 1`` of a group are arranged on named axes."""

    #: Axis and number of ranks along it, fastest first; names are unique, sizes are 1 or more.
    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) < len(names):
            raise InvalidRequestError(f"axes {names} name one axis twice; each must be named once")
        for name, size in self.axes:
            if not name or size < 1:
                raise InvalidRequestError(
                    f"axis {name!r} has size {size}; allowed are a name and a whole number from 1"
                )

    @classmethod
    def of(cls, order: str = DEFAULT_ORDER, /, **sizes: int) -> ParallelLayout:
        """The layout with these sizes in this ``order``; axes that are not given have size 1.

        ``ParallelLayout.of(tp=2, dp=4)`` or, with custom axes, ``ParallelLayout.of("a-b", a=2, b=3)``.
        """
        names = order.split("-")
        unknown = sorted(set(sizes) - set(names))
        if unknown:
            raise InvalidRequestError(
                f"axes {unknown} are not in the order {order!r}; allowed are {names}, "
                f"or another order as first argument"
            )
        return cls(
            axes=tuple(
                (name, whole_number(name, sizes.get(name, 1), "a whole number from 1"))
                for name in names
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The axes, fastest first."""
        return tuple(name for name, _ in self.axes)

    @property
    def size(self) -> int:
        """The number of ranks: the product of all axes."""
        return prod(size for _, size in self.axes)

    def size_of(self, axis: str) -> int:
        """The number of ranks along ``axis``."""
        return self._checked(axis)[axis]

    def coordinates(self, rank: int) -> dict[str, int]:
        """The index of ``rank`` on every axis, from 0."""
        if not 0 <= rank < self.size:
            raise InvalidRequestError(
                f"rank {rank} is not in the layout {self}; allowed are 0 to {self.size - 1}"
            )
        by_axis = {}
        for name, size in self.axes:
            rank, by_axis[name] = divmod(rank, size)
        return by_axis

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates; the coordinate on axes that are not given is 0."""
        self._checked(*coordinates)
        rank, stride = 0, 1
        for name, size in self.axes:
            at = coordinates.get(name, 0)
            if not 0 <= at < size:
                raise InvalidRequestError(
                    f"{name}={at} is not on the axis; allowed are 0 to {size - 1}"
                )
            rank += at * stride
            stride *= size
        return rank

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """The ranks that differ in these axes only, one tuple per group.

        ``groups("tp")`` are the tensor-parallel groups, ``groups("tp", "pp")`` those that hold one copy of
        the model. Groups and their members are in the order of the ranks, as Megatron lists them.
        """
        self._checked(*axes)
        members, firsts = [0], [0]
        stride = 1
        for name, size in self.axes:
            steps = range(0, size * stride, stride)
            if name in axes:
                members = [step + rank for step in steps for rank in members]
            else:
                firsts = [step + rank for step in steps for rank in firsts]
            stride *= size
        return tuple(tuple(first + member for member in members) for first in firsts)

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The group of ``rank``: it and the ranks that differ from it in these axes only."""
        at = self.coordinates(rank)
        return next(group for group in self.groups(*axes) if self._same(at, group[0], axes))

    def experts(self, *, ep: int, tp: int = 1) -> ParallelLayout:
        """The layout of a mixture's experts over the same ranks: ``sp`` and ``cp`` are 1, ``dp`` is what
        remains.

        Megatron uses two such layouts: tp, cp and dp for attention, and separate tp, ep and dp for experts,
        with the same pipeline stages. Layouts in which the stages would differ are refused.
        """
        self._checked("tp", "cp", "ep", "dp", "pp")
        stages = self.size_of("pp")
        dp, rest = divmod(self.size, ep * tp * stages)
        if rest:
            raise InvalidRequestError(
                f"ep={ep} x tp={tp} x pp={stages} does not divide the {self.size} ranks of {self}"
            )
        sizes = dict.fromkeys(self.names, 1) | {"tp": tp, "ep": ep, "dp": dp, "pp": stages}
        layout = ParallelLayout(axes=tuple(sizes.items()))
        if layout.groups("pp") != self.groups("pp"):
            raise InvalidRequestError(
                f"the pipeline stages of {layout} are not those of {self}; allowed is an order "
                "that ends in pp"
            )
        return layout

    def __str__(self) -> str:
        """A short form such as ``tp=2,dp=4``; axes of size 1 are omitted."""
        return ",".join(f"{name}={size}" for name, size in self.axes if size > 1) or "one rank"

    def _checked(self, *axes: str) -> dict[str, int]:
        sizes = dict(self.axes)
        for axis in axes:
            if axis not in sizes:
                raise InvalidRequestError(
                    f"axis {axis!r} is not in the layout; allowed are {list(sizes)}"
                )
        return sizes

    def _same(self, at: dict[str, int], first: int, axes: tuple[str, ...]) -> bool:
        return all(
            there == at[name] for name, there in self.coordinates(first).items() if name not in axes
        )


def whole_number(name: str, value: object, allowed: str = "a whole number") -> int:
    """The whole number as Python's own: NumPy's is equal to it in a cache, but cannot be encoded.

    Raises ``InvalidRequestError`` if the value is none.
    """
    try:
        return int(index(value))  # type: ignore[arg-type]  # it raises for other types
    except TypeError as error:
        raise InvalidRequestError(f"{name}={value!r}; allowed is {allowed}") from error
