"""The arrays that a move makes at its destinations."""

from __future__ import annotations

import numpy as np
import pytest

from schedulemesh.core.worker_groups.array_slices import BLOCK_BYTES, allocated
from schedulemesh.core.worker_groups.shards import Form, TargetTensors


def wanted(*names, shape, dtype="<f4", fill=None, library="numpy"):
    itemsize = np.dtype(dtype).itemsize if library == "numpy" else 2
    form = Form(shape=shape, dtype=dtype, itemsize=itemsize, library=library)
    return TargetTensors(paths=tuple((name,) for name in names), form=form, fill=fill)


def test_arrays_of_all_forms_have_their_own_memory():
    found = allocated(
        [
            wanted("a", "b", shape=(3, 5)),
            wanted("c", shape=(7,), dtype="|u1"),
            wanted("d", shape=(), dtype="<i8"),
            wanted("e", shape=(0, 4)),
            wanted("f", shape=(2, 2), fill=-1.0),
            TargetTensors(paths=(("g",),), form=None),
        ]
    )
    assert {
        path: None if a is None else (a.shape, a.dtype.str) for (path,), a in found.items()
    } == {
        "a": ((3, 5), "<f4"),
        "b": ((3, 5), "<f4"),
        "c": ((7,), "|u1"),
        "d": ((), "<i8"),
        "e": ((0, 4), "<f4"),
        "f": ((2, 2), "<f4"),
        "g": None,
    }
    assert (found["f",] == -1.0).all()
    arrays = [found[name,] for name in "abcdf"]
    for value, array in enumerate(arrays):
        array[...] = value
    assert all((array == value).all() for value, array in enumerate(arrays))


def test_small_arrays_share_blocks_and_large_ones_have_memory_of_their_own():
    count = 20
    found = allocated(
        [
            wanted(*map(str, range(count)), shape=(BLOCK_BYTES // 16,)),
            wanted("large", shape=(BLOCK_BYTES // 4,)),
        ]
    )
    owners = {id(found[str(n),].base) for n in range(count)}
    assert len(owners) == count // 4
    assert found["large",].base is None


def test_tensors_share_blocks_too():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    found = allocated([wanted("a", "b", shape=(3, 5), dtype="bfloat16", library="torch")])
    a, b = found["a",], found["b",]
    assert (a.dtype, tuple(a.shape)) == (torch.bfloat16, (3, 5))
    a.fill_(1.0)
    b.fill_(2.0)
    assert bool((a == 1.0).all())
    assert a.untyped_storage().nbytes() == a.nbytes
