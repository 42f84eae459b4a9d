"""Random trees of arrays of any dtype, with specs of them in two layouts."""

import msgspec
import numpy as np
from hypothesis import strategies as st

from tests.dispatch.strategies import SPLITTING, layouts, shapes, shardings

DTYPES = ["<f4", "<f8", "<i2", ">i4", "?", "<c8", "|S3", [("a", "<i4"), ("b", "<f8")]]


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
def trees(draw, ranks=24):
    """A tree of a few arrays, specs of it in two layouts, and the shapes of its arrays."""
    there, back = draw(layouts(ranks)), draw(layouts(ranks))
    tree, specs, sizes = {}, ({}, {}), {}
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        shape = draw(shapes())
        tree[name] = draw(arrays(shape))
        sizes[name] = shape
        for spec, layout in zip(specs, (there, back), strict=True):
            drawn = draw(shardings(shape, SPLITTING, layout))
            spec[name] = msgspec.structs.replace(drawn, pad_value=1)  # every dtype holds it
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
