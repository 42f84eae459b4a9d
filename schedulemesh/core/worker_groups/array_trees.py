"""Trees of arrays, as models and optimizers hold them: dicts, lists and tuples, with values beside arrays."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import reduce
from typing import Any

import msgspec

from schedulemesh.dispatch.arrays import equal, is_array, is_torch, unfit_tensor
from schedulemesh.dispatch.trees import rebuilt
from schedulemesh.domain.user_data import UserArray, UserValue
from schedulemesh.errors import InvalidRequestError

#: The position of a leaf: dict keys and indexes from the top; empty: the tree is the leaf.
Path = tuple[Any, ...]
#: A NumPy array or PyTorch tensor, or dicts, lists and tuples of them.
ArrayTree = UserValue
#: What may lie beside arrays. NumPy's scalars are registered as numbers.
_VALUES = (numbers.Number, str, bytes, Enum, type(None))


class ArrayMark(msgspec.Struct, frozen=True):
    """Stands for an array in the outline of a tree."""


_MARK = ArrayMark()


def arrays(tree: ArrayTree, path: Path = ()) -> Iterator[tuple[Path, UserArray]]:
    """The arrays of a tree with their paths."""
    if is_array(tree):
        yield path, tree
    for key, value in _members(tree):
        yield from arrays(value, (*path, key))


def outline(tree: ArrayTree, path: Path = ()) -> UserValue:
    """The tree with a mark in place of each array.

    Raises ``InvalidRequestError`` for a leaf that cannot be moved.
    """
    if is_array(tree):
        _check_elements(tree, path)
        return _MARK
    if isinstance(tree, Mapping):
        return {key: outline(value, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return rebuilt(tree, [outline(value, (*path, at)) for at, value in enumerate(tree)])
    if not isinstance(tree, _VALUES):
        raise InvalidRequestError(
            f"at {spelled(path)} lies a {type(tree).__name__}; allowed are arrays and tensors, numbers, "
            f"strings, bytes, enum members and None, and dicts, lists and tuples of them"
        )
    return tree


def _check_elements(array: UserArray, path: Path) -> None:
    """Raises InvalidRequestError for an array whose elements cannot be restored from their bytes and dtype,
    as which it is moved; ``path`` says where it lies.
    """
    unfit = unfit_tensor(array) if is_torch(array) else _unfit_array(array)
    if unfit:
        raise InvalidRequestError(
            f"at {spelled(path)} lies {unfit}; allowed are NumPy arrays of numbers, of strings of a fixed "
            f"length and of records of them, and strided PyTorch tensors"
        )


def _unfit_array(array: UserArray) -> str:
    from numpy.lib.format import descr_to_dtype, dtype_to_descr
    from numpy.ma import MaskedArray

    if array.dtype.hasobject:
        return f"an array of Python objects ({array.dtype})"
    if isinstance(array, MaskedArray):
        return "an array with a mask, which is a second array"
    try:
        same = (
            array.dtype.isbuiltin == 1 or descr_to_dtype(dtype_to_descr(array.dtype)) == array.dtype
        )
    except ValueError:  # NumPy cannot describe records whose fields lie apart
        return f"an array of records that lie apart ({array.dtype})"
    return "" if same else f"an array of {array.dtype}, which NumPy does not know by itself"


def merged(outlines: Mapping[int, UserValue]) -> UserValue:
    """The outline of the whole tree from those of the ranks; None on a rank means that it holds nothing.

    Raises ``InvalidRequestError`` if two ranks hold different values, or trees that do not match.
    """
    ranks = iter(outlines.items())
    first, tree = next(ranks)
    return reduce(lambda tree, ranked: _both(tree, ranked[1], (first, ranked[0]), ()), ranks, tree)


def filled(outlined: UserValue, by_path: Mapping[Path, UserArray], path: Path = ()) -> ArrayTree:
    """The tree with these arrays in place of the marks; None where there is none."""
    if isinstance(outlined, ArrayMark):
        return by_path.get(path)
    if isinstance(outlined, Mapping):
        return {key: filled(value, by_path, (*path, key)) for key, value in outlined.items()}
    if isinstance(outlined, (list, tuple)):
        members = [filled(value, by_path, (*path, at)) for at, value in enumerate(outlined)]
        return rebuilt(outlined, members)
    return outlined


def paths(outlined: UserValue, path: Path = ()) -> Iterator[Path]:
    """The paths of all leaves of an outline."""
    if not isinstance(outlined, (Mapping, list, tuple)):
        yield path
    for key, value in _members(outlined):
        yield from paths(value, (*path, key))


def spelled(path: Path) -> str:
    """The path as text."""
    return "/".join(map(str, path)) or "the top"


def _members(node: UserValue) -> Iterator[tuple[Any, UserValue]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)


def _both(tree: UserValue, added: UserValue, ranks: tuple[int, int], path: Path) -> UserValue:
    if tree is None or added is None:
        return added if tree is None else tree
    if isinstance(tree, Mapping) and isinstance(added, Mapping):
        return {
            key: _both(tree.get(key), added.get(key), ranks, (*path, key))
            for key in {**tree, **added}
        }
    if _sequences(tree, added):
        pairs = enumerate(zip(tree, added, strict=True))
        return rebuilt(tree, [_both(one, other, ranks, (*path, at)) for at, (one, other) in pairs])
    if type(tree) is type(added) and equal(tree, added):
        return tree
    raise InvalidRequestError(
        f"at {spelled(path)} rank {ranks[0]} holds {_shown(tree)}, rank {ranks[1]} {_shown(added)}; values "
        f"beside arrays must be the same on all ranks, and trees must match"
    )


def _sequences(one: UserValue, other: UserValue) -> bool:
    """Whether both are lists or tuples of one length."""
    pair = (one, other)
    return all(
        isinstance(each, Sequence) and isinstance(each, (list, tuple)) for each in pair
    ) and len(one) == len(other)


def _shown(value: UserValue) -> str:
    if isinstance(value, ArrayMark):
        return "an array"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__} with {len(value)} members"
