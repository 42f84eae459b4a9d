"""Torch tensors: the same data as NumPy's, as views, on their device and with their gradients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.dispatch import Jagged, ParallelLayout, Shard, Sharding, apply_plan, plan, shard
from tests.dispatch.strategies import ALL_MODES, SPLITTING, count, shapes, shardings

torch = pytest.importorskip(
    "torch", reason="torch is not installed: dispatch is tested with NumPy arrays only"
)


@settings(max_examples=100)
@given(st.data())
def test_tensors_are_split_and_joined_like_arrays(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, ALL_MODES))
    array = np.arange(count(shape)).reshape(shape)
    scattered, expected = shard(torch.from_numpy(array), sharding), shard(array, sharding)
    for mine, part in zip(scattered.parts, expected.parts, strict=True):
        assert (mine is None) == (part is None)
        assert mine is None or np.array_equal(mine.numpy(), part)
    assert np.array_equal(scattered.gather().numpy(), expected.gather())


@settings(max_examples=50)
@given(st.data())
def test_tensors_are_resharded(data):
    shape = data.draw(shapes())
    source, destination = (
        data.draw(shardings(shape, SPLITTING)),
        data.draw(shardings(shape, ALL_MODES)),
    )
    whole = torch.arange(count(shape), dtype=torch.int32).reshape(shape)
    made = plan(source, destination, whole.shape, itemsize=whole.element_size())
    found = apply_plan(made, shard(whole, source).parts)
    for mine, part in zip(found, shard(whole, destination).parts, strict=True):
        assert (mine is None) == (part is None)
        assert mine is None or torch.equal(mine, part)


def test_parts_are_views_of_the_tensor():
    whole = torch.arange(24).reshape(4, 6)
    parts = shard(whole, Sharding.of(ParallelLayout.of(tp=2, dp=2), tp=1, dp=0)).parts
    whole[3, 5] = -1
    assert parts[3][1, 2] == -1
    storages = {part.untyped_storage().data_ptr() for part in parts}
    assert storages == {whole.untyped_storage().data_ptr()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int8])
def test_dtypes_are_preserved(dtype):
    whole = torch.tensor([1, 0, 1], dtype=dtype)
    scattered = shard(whole, Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, "pad")))
    assert {part.dtype for part in scattered.parts} == {dtype}
    assert torch.equal(scattered.gather(), whole)


def test_gradients_flow_through_what_is_gathered():
    whole = torch.arange(6.0, requires_grad=True)
    scattered = shard(
        whole, Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, zigzag=True, uneven="pad"))
    )
    (scattered.gather() * torch.arange(6.0)).sum().backward()
    assert whole.grad.tolist() == [0, 1, 2, 3, 4, 5]


def test_jagged_batches_of_tensors():
    batch = Jagged.of([torch.ones(3, 2), torch.zeros(1, 2)])
    again = shard(batch, Sharding.of(ParallelLayout.of(dp=3), dp=Shard(0, "uneven"))).gather()
    assert again.lengths == (3, 1)
    assert torch.equal(again.values, batch.values)
