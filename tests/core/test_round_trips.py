"""There and back: a tree that moves to another layout and back again is what it was, bit by bit.

The environment variable ROUND_TRIPS sets the number of cases (default 150).
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from schedulemesh.dispatch import Jagged, shard
from tests.core.moves import moved
from tests.dispatch.strategies import SPLITTING, layouts, shapes, shardings

np = pytest.importorskip("numpy")

CASES = int(os.environ.get("ROUND_TRIPS", "150"))
DTYPES = ["<f4", "<f8", "<i2", ">i4", "?", "<c8", "|S3", [("a", "<i4"), ("b", "<f8")]]
many = settings(
    max_examples=CASES,
    deadline=None,  # the time that an example takes depends on what else runs on the machine
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def torch_dtypes():
    try:
        import torch
    except ImportError:
        return []
    return [torch.bfloat16, torch.float32, torch.int8]


TENSORS = torch_dtypes()


@st.composite
def arrays(draw, shape):
    """Any bytes as an array of any dtype; NaN and negative zero are among them."""
    kind = draw(st.sampled_from([*DTYPES, *TENSORS]))
    seed = draw(st.integers(0, 2**32 - 1))
    size = int(np.prod(shape))
    if kind in TENSORS:
        import torch

        data = np.random.default_rng(seed).integers(0, 256, size * kind.itemsize, np.uint8)
        return (
            torch.from_numpy(data).view(kind).reshape(shape)
            if size
            else torch.empty(shape, dtype=kind)
        )
    dtype = np.dtype(kind)
    data = np.random.default_rng(seed).integers(
        0, 2 if kind == "?" else 256, size * dtype.itemsize, np.uint8
    )
    return data.view(dtype).reshape(shape) if size else np.empty(shape, dtype)


@st.composite
def trees(draw):
    """A tree of a few arrays, and specs of it in two layouts."""
    there, back = draw(layouts()), draw(layouts())
    tree, specs, sizes = {}, ({}, {}), {}
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        shape = draw(shapes())
        tree[name] = draw(arrays(shape))
        sizes[name] = shape
        for spec, layout in zip(specs, (there, back), strict=True):
            spec[name] = draw(shardings(shape, SPLITTING, layout))
    return tree, *specs, sizes


def bits(array):
    if array is None:
        return None
    if isinstance(array, np.ndarray):
        return array.dtype, array.shape, array.tobytes()
    import torch

    flat = array.contiguous().reshape(-1)
    return (
        array.dtype,
        tuple(array.shape),
        bytes(flat.view(torch.uint8).numpy()) if len(flat) else b"",
    )


@many
@given(trees(), st.integers(1, 3), st.sampled_from([1, 40, 1 << 30]))
def test_a_tree_that_moves_there_and_back_is_unchanged(case, nodes, round_bytes):
    tree, source, destination, sizes = case
    parts = shard(tree, source).parts
    over = moved(parts, source, destination, sizes, 1000, round_bytes, nodes)
    expected = shard(tree, destination).parts
    for rank, part in enumerate(over):
        assert {name: bits(part[name]) for name in tree} == {
            name: bits(expected[rank][name]) for name in tree
        }
    again = moved(over, destination, source, sizes, 1000, round_bytes, nodes)
    for rank, part in enumerate(again):
        assert {name: bits(part[name]) for name in tree} == {
            name: bits(parts[rank][name]) for name in tree
        }


@many
@given(st.data())
def test_jagged_batches_come_back_bit_by_bit(data):
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    batch = Jagged(data.draw(arrays((sum(lengths),))), tuple(lengths))
    layout = data.draw(layouts())
    drawn = data.draw(shardings((len(lengths),), SPLITTING, layout))
    # The last dim of a jagged batch is within the rows: count from the first.
    rows = tuple(
        (name, structs.replace(how, dim=0) if hasattr(how, "dim") else how)
        for name, how in drawn.placements
    )
    spec = structs.replace(drawn, placements=rows)
    again = shard(batch, spec).gather()
    assert again.lengths == batch.lengths
    assert bits(again.values) == bits(batch.values)
