"""Random layouts, shardings and shapes for the tests of dispatch."""

from itertools import pairwise
from math import prod

from hypothesis import strategies as st

from schedulemesh.dispatch import (
    Assign,
    ParallelLayout,
    Primary,
    Replicate,
    Shard,
    Sharding,
    Stage,
)

SPLITTING = ("uneven", "chunk", "pad")
ALL_MODES = (*SPLITTING, "drop_last")
AXES = ("tp", "cp", "ep", "dp", "pp")


@st.composite
def layouts(draw, ranks=24):
    names = draw(st.permutations(AXES))[: draw(st.integers(1, 4))]
    sizes, left = {}, ranks
    for name in names:
        sizes[name] = draw(st.integers(1, min(4, left)))
        left //= sizes[name]
    return ParallelLayout.of("-".join(names), **sizes)


@st.composite
def shapes(draw, dims=3):
    return tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=dims)))


@st.composite
def documents(draw, length):
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
    ends = [0, *cuts, length]
    return tuple(b - a for a, b in pairwise(ends))


@st.composite
def shardings(draw, shape, modes=ALL_MODES, layout=None):
    """A sharding that a tensor of this shape can have; documents and groups only on dims cut once."""
    layout = draw(layouts()) if layout is None else layout
    placements, cut = [], set()
    for name, size in draw(st.permutations(layout.axes)):
        kind = draw(
            st.sampled_from(["shard", "shard", "shard", "assign", "stage", "primary", "replicate"])
        )
        dim = draw(st.integers(-len(shape), len(shape) - 1))
        fresh = dim % len(shape) not in cut
        if kind == "assign" and fresh:
            rows = draw(st.permutations(range(shape[dim])))
            ends = [
                0,
                *sorted(
                    draw(st.lists(st.integers(0, len(rows)), min_size=size - 1, max_size=size - 1))
                ),
            ]
            ends.append(len(rows))
            groups = tuple(tuple(rows[a:b]) for a, b in pairwise(ends))
            placements.append((name, Assign(dim, groups)))
        elif kind in ("shard", "assign"):
            packed = draw(documents(shape[dim])) if fresh and draw(st.booleans()) else ()
            how = Shard(dim, draw(st.sampled_from(modes)), draw(st.booleans()), packed)
            placements.append((name, how))
        else:
            only = {"stage": Stage(draw(st.integers(-size, size - 1))), "primary": Primary()}
            placements.append((name, only.get(kind, Replicate())))
        if kind in ("shard", "assign"):
            # a group or document after another cut of the same dim would have to fit every part of it
            cut.add(dim % len(shape))
    return Sharding(layout=layout, placements=tuple(placements), pad_value=-1)


def count(shape):
    return prod(shape)
