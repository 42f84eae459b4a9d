"""Array transport: pickles arrays as out-of-band buffers that hold only the bytes that the array shows.

PyTorch pickles a view with the whole storage behind it, and NumPy copies a view that is not contiguous into
the pickle and out of it again. Here both are buffers, which Ray maps instead of copying.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings

from ray import cloudpickle

from schedulemesh.dispatch.arrays import is_torch
from schedulemesh.domain.user_data import UserArray, UserValue


def wrapped(content: UserValue, *, copy: bool = True) -> UserValue:
    """A value for ``ray.put``, a call or a result; the receiver gets the content itself.

    Tensors arrive on the CPU, without gradient; with ``copy`` as copies, else as views of the object
    store, which must not be written to. NumPy arrays arrive as Ray brings them: views that cannot be
    written to.
    """
    return _ArrayTransport(content, copy) if "numpy" in sys.modules else content


class _ArrayTransport:
    def __init__(self, content: UserValue, copy: bool) -> None:
        self.content = content
        self.copy = copy

    def __reduce__(self) -> tuple[object, ...]:
        stream = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        _Pickler(stream, self.copy, buffers).dump(self.content)
        return _opened, (stream.getvalue(), buffers)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # Ray ships no types
    def __init__(self, stream: io.BytesIO, copy: bool, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffers.append)
        self._copy = copy

    def reducer_override(self, value: UserValue) -> UserValue:
        if is_torch(value) and _is_plain(value):
            return _tensor, (*_as_bytes(value), self._copy)
        if _is_scattered(value):
            return sys.modules["numpy"].ascontiguousarray(value).__reduce_ex__(5)
        return super().reducer_override(value)


def _opened(data: bytes, buffers: list[pickle.PickleBuffer]) -> UserValue:
    return pickle.loads(data, buffers=buffers)  # noqa: S301  # Ray's own pickle led here


def _is_plain(tensor: UserArray) -> bool:
    torch = sys.modules["torch"]
    dense = tensor.layout == torch.strided and not tensor.is_quantized
    return dense and type(tensor) is torch.Tensor


def _is_scattered(value: UserValue) -> bool:
    """Whether this is a NumPy array that is not contiguous."""
    if type(value) is not sys.modules["numpy"].ndarray:
        return False
    return not (value.flags.c_contiguous or value.flags.f_contiguous)


def _as_bytes(tensor: UserArray) -> tuple[UserArray, str, tuple[int, ...]]:
    """The bytes as a NumPy array, the dtype's name, and the shape."""
    torch = sys.modules["torch"]
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (
        flat.view(torch.uint8).numpy(),
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
    )


def _tensor(data: UserArray, dtype: str, shape: tuple[int, ...], copy: bool) -> UserArray:
    import torch

    if not data.size:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    with warnings.catch_warnings():
        # Torch cannot mark a tensor read-only and says so.
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(data.copy() if copy else data)
    return tensor.view(getattr(torch, dtype)).reshape(shape)
