"""Messages between the driver and the workers for moving tensors between groups."""

from __future__ import annotations

import math
from typing import Any, Union

import msgspec

from schedulemesh.core.worker_groups.array_trees import Path
from schedulemesh.core.worker_groups.shared_memory import BlockOffsets
from schedulemesh.dispatch.arrays import is_torch
from schedulemesh.dispatch.placement import Scalar
from schedulemesh.dispatch.plan import Box
from schedulemesh.domain.user_data import UserArray, UserValue

#: The dtype of a NumPy array as ``numpy.lib.format`` writes it, with all fields; of a tensor its name.
DType = Union[str, list[Any], tuple[Any, ...]]


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and type of an array, without its values."""

    shape: tuple[int, ...]
    dtype: DType
    #: Bytes per element.
    itemsize: int
    #: "numpy" or "torch".
    library: str

    @property
    def kind(self) -> str:
        """Library and dtype, for messages and for comparison."""
        return f"{self.library} {self.dtype}"

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return math.prod(self.shape) * self.itemsize


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker holds under a key."""

    #: By path, the arrays.
    forms: dict[Path, Form]
    #: The tree with a mark in place of each array; its other leaves are values.
    outline: UserValue
    #: Shapes of whole tensors, as far as the worker's model knows them.
    shapes: dict[str, tuple[int, ...]]
    #: By path, a hash of a sample of the array's elements; empty if it was not asked for.
    samples: dict[Path, bytes]
    #: The node on which the worker runs.
    node: str


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """The same boxes of several arrays that have one form."""

    paths: tuple[Path, ...]
    boxes: tuple[Box, ...]


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One box that a worker copies, of each of several arrays."""

    #: Which of the boxes that were given contains it.
    box: int
    #: Its position in that box; None: it is that box.
    part: Box | None
    #: Its position in the worker's new array.
    take: Box


class OwnCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes that a worker copies from arrays that it holds to its new ones."""

    paths: tuple[Path, ...]
    give: tuple[Box, ...]
    take: tuple[Box, ...]


class TargetTensors(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors of one form that a worker will hold."""

    paths: tuple[Path, ...]
    #: None: the worker holds nothing of them.
    form: Form | None
    #: The value of elements that no slice overwrites; None: every element is overwritten.
    fill: Scalar = None


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What one object in the object store contains, and what one of its receivers copies of it."""

    #: In the order in which the source sends them.
    slices: tuple[Slices, ...]
    #: For each of ``slices``.
    copies: tuple[tuple[Copy, ...], ...]


class OpenOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays that one worker gets new in a round of a move, in memory that it shares with its node."""

    move_id: str
    #: The key under which the worker will hold them.
    into: str
    targets: tuple[TargetTensors, ...]


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker copies from its arrays into new ones of another worker."""

    #: The rank whose arrays these are.
    rank: int
    #: Where they lie, one after another.
    place: BlockOffsets
    #: The form of each of them.
    form: Form
    paths: tuple[Path, ...]
    #: Boxes of the writer's arrays, and where they go in the new ones.
    give: tuple[Box, ...]
    take: tuple[Box, ...]


class TakeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker receives in one round of a move."""

    #: The same for all rounds of a move.
    move_id: str
    #: The key of the tree at the source, and the one under which this worker will hold it.
    source_key: str
    into: str
    #: None: the worker has been told in an ``OpenOrder``.
    targets: tuple[TargetTensors, ...] | None
    #: What the worker already holds.
    local: tuple[OwnCopy, ...]
    #: One for each object that it receives, in the same order.
    bundles: tuple[Bundle, ...]


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a move needs to know of a worker of its destination."""

    #: The node on which the worker runs.
    node: str
    #: The number of the move that has brought what it holds; None: none has.
    version: int | None


class KeepOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Completes a move: the worker stores the tree that has arrived."""

    move_id: str
    key: str
    version: int
    #: In how many rounds it arrived.
    rounds: int
    #: The tree, with marks in place of the arrays.
    outline: UserValue
    #: Shapes of the whole tensors, by path.
    shapes: dict[str, tuple[int, ...]]


def form_of(array: UserArray) -> Form:
    """The form of an array."""
    torch = is_torch(array)
    return Form(
        shape=tuple(array.shape),
        dtype=str(array.dtype).removeprefix("torch.") if torch else _described(array.dtype),
        itemsize=array.itemsize,
        library="torch" if torch else "numpy",
    )


def _described(dtype: Any) -> DType:
    """A NumPy dtype as a value that makes it again; structured ones keep the names of their fields."""
    if dtype.names is None:
        return str(dtype.str)
    from numpy.lib.format import dtype_to_descr

    described: DType = dtype_to_descr(dtype)
    return described
