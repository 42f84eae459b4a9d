"""Messages between the driver and the workers for moving tensors between groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from schedulemesh.dispatch.arrays import is_array, is_torch
from schedulemesh.dispatch.placement import Scalar
from schedulemesh.domain.user_data import UserArray, UserValue
from schedulemesh.errors import InvalidRequestError

#: The position of a tensor in a tree of dicts: its keys from the top; empty: the tree is the tensor.
Path = tuple[Any, ...]
#: A NumPy array or PyTorch tensor, or dicts of them.
ArrayTree = UserValue
#: Start and stop per dim.
Box = tuple[tuple[int, int], ...]


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and type of an array, without its values."""

    shape: tuple[int, ...]
    #: The library's own name of the dtype.
    dtype: str
    #: Bytes per element.
    itemsize: int
    #: "numpy" or "torch".
    library: str


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A box of one tensor of a tree."""

    path: Path
    box: Box


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that a worker will hold."""

    path: Path
    #: None: the worker holds nothing of it.
    form: Form | None
    #: The value of elements that no slice overwrites; None: every element is overwritten.
    fill: Scalar = None


class TakeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker receives in one round of a move."""

    #: The same for all rounds of a move.
    move_id: str
    #: The keys of the tree at the source and at the destination.
    source_key: str
    key: str
    wanted: tuple[Wanted, ...]
    #: What the worker already holds: slices of its own tree, and their destinations.
    local: tuple[tuple[Slice, Slice], ...]
    #: The destinations of the slices, bundle by bundle.
    bundles: tuple[tuple[Slice, ...], ...]
    #: Whether this is the last round.
    last: bool


def form_of(array: UserArray) -> Form:
    """The form of an array."""
    torch = is_torch(array)
    return Form(
        shape=tuple(array.shape),
        dtype=str(array.dtype).removeprefix("torch.") if torch else array.dtype.str,
        itemsize=array.itemsize,
        library="torch" if torch else "numpy",
    )


def leaves(tree: ArrayTree, path: Path = ()) -> Iterator[tuple[Path, UserArray]]:
    """The arrays of a tree of dicts, with their paths; leaves that are None are omitted.

    Raises ``InvalidRequestError`` for a leaf that is not an array.
    """
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif is_array(tree):
        yield path, tree
    elif tree is not None:
        raise InvalidRequestError(
            f"at {spelled(path)} lies {type(tree).__name__}; only arrays, and dicts of them, are moved"
        )


def tree_of(found: Mapping[Path, UserArray]) -> ArrayTree:
    """The tree with these leaves."""
    if () in found:
        return found[()]
    tree: dict[object, ArrayTree] = {}
    for path, value in found.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value
    return tree


def spelled(path: Path) -> str:
    """The path as text."""
    return "/".join(map(str, path)) or "the top"
