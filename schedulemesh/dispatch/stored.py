"""Plans which slices of stored tensors a rank reads or writes: those of a checkpoint, as they are or renamed.

A checkpoint holds whole tensors under names. A tensor of the model is one of them, a slice of one, or
several joined: fused weights such as Megatron's ``linear_qkv`` are slices of three. ``made_of`` computes for
each tensor of the model the regions of stored tensors that it consists of, ``reads`` those that one rank
needs, and ``writes``, for the other direction, those that one rank holds. No file is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

import msgspec

from schedulemesh.dispatch.holdings import holdings
from schedulemesh.dispatch.key_mapping import Concat, Slice, Source, expanded, matches
from schedulemesh.dispatch.pieces import Piece
from schedulemesh.dispatch.placement import Sharding
from schedulemesh.dispatch.plan import Box
from schedulemesh.errors import InvalidRequestError, nearest

#: Sizes of whole tensors by name.
Sizes = Mapping[str, Sequence[int]]


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """A box of a stored tensor."""

    key: str
    #: Its position in the stored tensor.
    stored: Box
    #: Its position in the tensor that consists of regions, or in the array of one rank.
    at: Box


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that consists of regions of stored tensors; each of its elements is in exactly one."""

    shape: tuple[int, ...]
    regions: tuple[Region, ...]


def made_of(
    stored: Sizes,
    mapping: Mapping[str, Source] | None = None,
    *,
    shapes: Sizes | None = None,
    ignore: Sequence[str] = (),
) -> dict[str, Made]:
    """Each tensor by name, as regions of the tensors ``stored``; without a mapping each is a stored one.

    ``mapping`` gives for each name what the tensor consists of; see ``key_mapping`` for names with ``*``.
    ``shapes`` are the tensors that must result, neither more nor less, with their shapes. ``ignore`` are
    names, also with ``*``, of stored tensors that may remain unused, as a whole or in part. Raises
    ``InvalidRequestError``, which names the tensor, if one is made twice, lacks a source, has another shape,
    or if a stored one is not used.
    """
    needed = [key for key in stored if not any(matches(pattern, key) for pattern in ignore)]
    rules = {key: key for key in needed} if mapping is None else mapping
    sources = expanded(rules, stored, needed)
    tensors = {name: _resolve(name, source, stored) for name, source in sources.items()}
    if shapes is not None:
        _check_shapes(tensors, shapes)
    _check_used(tensors, needed, stored)
    return tensors


def reads(made: Made, sharding: Sharding, rank: int) -> tuple[Region, ...]:
    """The regions that ``rank`` reads, each with its position in the rank's array; padding is in none."""
    dim_pieces = holdings(sharding, made.shape).of_rank(rank)
    return () if dim_pieces is None else tuple(_held_regions(made.regions, dim_pieces))


def writes(made: Made, shardings: Mapping[str, Sharding], stored: Sizes, rank: int) -> list[Region]:
    """The regions of ``made`` that ``rank`` writes: of each, ``stored`` is the position in its own array.

    ``made`` is a tensor of the checkpoint that consists of the group's tensors. Of ranks that hold the same,
    one writes, for different tensors different ones. Raises ``InvalidRequestError`` if no rank holds a part.
    """
    regions = []
    for key in dict.fromkeys(region.key for region in made.regions):
        split = holdings(shardings[key], stored[key])
        if any(
            sum(map(_length, dim)) != n for dim, n in zip(split.pieces, split.shape, strict=True)
        ):
            raise InvalidRequestError(
                f"{key}: no rank holds all rows; allowed is a sharding without uneven='drop_last'"
            )
        cell = split.grid.cell_of(rank)
        if cell is None:
            continue
        owners = split.grid.owners[cell]
        if owners[sum(key.encode()) % len(owners)] != rank:
            continue
        of_key = [_swapped(region) for region in made.regions if region.key == key]
        regions += [_swapped(region) for region in _held_regions(of_key, split.of_cell(cell))]
    return regions


def common(one: Box, other: Box) -> Box | None:
    """The intersection of two boxes; None if they have no element in common."""
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return box if all(start < stop for start, stop in box) else None


def shifted(box: Box, before: Box, after: Box) -> Box:
    """A box within ``before``, at the same position within ``after``."""
    return tuple(
        (start - there[0] + here[0], stop - there[0] + here[0])
        for (start, stop), there, here in zip(box, before, after, strict=True)
    )


def _held_regions(regions: Sequence[Region], dim_pieces: Sequence[Piece]) -> Iterator[Region]:
    """The regions within the pieces that a rank holds, each with its position in the rank's array."""
    for runs in product(*(piece.segments for piece in dim_pieces)):
        held_box = tuple((run.start, run.stop) for run in runs)
        local = tuple((run.local, run.local + run.stop - run.start) for run in runs)
        for region in regions:
            box = common(region.at, held_box)
            if box is not None:
                yield Region(
                    key=region.key,
                    stored=shifted(box, region.at, region.stored),
                    at=shifted(box, held_box, local),
                )


def _swapped(region: Region) -> Region:
    return Region(key=region.key, stored=region.at, at=region.stored)


def _length(piece: Piece) -> int:
    return piece.length


def _resolve(name: str, source: Source, stored: Sizes) -> Made:
    """The shape of the tensor that a source makes, and the regions of stored tensors that it consists of."""
    if isinstance(source, str):
        full_box = tuple((0, size) for size in _shape(name, source, stored))
        return _one(Region(key=source, stored=full_box, at=full_box))
    if isinstance(source, Slice):
        return _sliced(name, source, _shape(name, source.key, stored))
    return _joined(name, source, [_resolve(name, part, stored) for part in source.parts])


def _one(region: Region) -> Made:
    return Made(shape=tuple(stop - start for start, stop in region.at), regions=(region,))


def _shape(name: str, key: str, stored: Sizes) -> tuple[int, ...]:
    if key not in stored:
        raise InvalidRequestError(
            f"{name} takes {key!r}, which is not stored{nearest(key, stored)}; stored are "
            f"{_some(list(stored))}"
        )
    return tuple(stored[key])


def _sliced(name: str, source: Slice, shape: tuple[int, ...]) -> Made:
    dim = _dim(name, source.dim, shape)
    stop = shape[dim] if source.stop is None else source.stop
    if not 0 <= source.start <= stop <= shape[dim]:
        raise InvalidRequestError(
            f"{name} takes the elements {source.start} to {stop} of dim {dim} of {source.key!r}, which has "
            f"{shape[dim]}"
        )
    box = [(0, size) for size in shape]
    box[dim] = (source.start, stop)
    return _one(
        Region(
            key=source.key, stored=tuple(box), at=tuple((0, stop - start) for start, stop in box)
        )
    )


def _joined(name: str, source: Concat, parts: Sequence[Made]) -> Made:
    if not parts:
        raise InvalidRequestError(f"{name} is a Concat of nothing; allowed are one part or more")
    dim = _dim(name, source.dim, parts[0].shape)
    others = {(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts}
    if len(others) > 1 or len({len(part.shape) for part in parts}) > 1:
        raise InvalidRequestError(
            f"{name} joins the shapes {[part.shape for part in parts]} along dim {dim}; their other dims "
            f"must be equal"
        )
    regions, offset = [], 0
    for part in parts:
        regions += [_moved(region, dim, offset) for region in part.regions]
        offset += part.shape[dim]
    shape = (*parts[0].shape[:dim], offset, *parts[0].shape[dim + 1 :])
    return Made(shape=shape, regions=tuple(regions))


def _moved(region: Region, dim: int, offset: int) -> Region:
    start, stop = region.at[dim]
    at = (*region.at[:dim], (start + offset, stop + offset), *region.at[dim + 1 :])
    return Region(key=region.key, stored=region.stored, at=at)


def _dim(name: str, dim: int, shape: tuple[int, ...]) -> int:
    if not -len(shape) <= dim < len(shape):
        raise InvalidRequestError(f"{name}: there is no dim {dim} in the shape {shape}")
    return dim % len(shape)


def _check_used(tensors: Mapping[str, Made], needed: Sequence[str], stored: Sizes) -> None:
    taken: dict[str, dict[Box, None]] = {}
    for made in tensors.values():
        for region in made.regions:
            taken.setdefault(region.key, {})[region.stored] = None
    unused = [key for key in needed if key not in taken]
    if unused:
        raise InvalidRequestError(
            f"nothing takes the stored {_some(unused)}; map them, or name them in ignore"
        )
    for key in needed:
        unused_boxes = _subtract_all(tuple((0, size) for size in stored[key]), sorted(taken[key]))
        if unused_boxes:
            elements = prod(stored[key])
            raise InvalidRequestError(
                f"{elements - sum(map(_elements, unused_boxes))} of the {elements} elements of {key!r} are "
                f"taken; map the others, or name it in ignore"
            )


def _subtract_all(box: Box, taken: Iterable[Box]) -> list[Box]:
    """What of a box is in none of the others, as boxes that do not overlap."""
    rest = [box] if _elements(box) else []
    for other in taken:
        rest = [part for each in rest for part in _subtract(each, other)]
    return rest


def _subtract(box: Box, other: Box) -> Iterator[Box]:
    """What of a box is not in another one."""
    met = common(box, other)
    if met is None:
        yield box
        return
    for dim, ((start, stop), (first, end)) in enumerate(zip(box, met, strict=True)):
        for span in ((start, first), (end, stop)):
            if span[0] < span[1]:
                yield (*met[:dim], span, *box[dim + 1 :])


def _elements(box: Box) -> int:
    return prod(stop - start for start, stop in box)


def _check_shapes(tensors: Mapping[str, Made], shapes: Sizes) -> None:
    lacking = [name for name in shapes if name not in tensors]
    if lacking:
        raise InvalidRequestError(
            f"nothing makes {_some(lacking)}; made are {_some(list(tensors))}: add them to the mapping"
        )
    surplus = [name for name in tensors if name not in shapes]
    if surplus:
        raise InvalidRequestError(
            f"the model has no {_some(surplus)}; leave them out of the mapping, or name them in ignore"
        )
    for name, made in tensors.items():
        if made.shape != tuple(shapes[name]):
            keys = list(dict.fromkeys(region.key for region in made.regions))
            raise InvalidRequestError(
                f"{name} made of {_some(keys)} has the shape {made.shape}, the model's is "
                f"{tuple(shapes[name])}"
            )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:4]))
    return f"{shown} and {len(names) - 4} others" if len(names) > 4 else shown
