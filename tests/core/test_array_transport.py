"""How arrays cross: beside the pickle, as the bytes that they show."""

import pickle

import pytest
import ray

from schedulemesh.core.transport.arrays import wrapped

np = pytest.importorskip("numpy")


def crossed(content, *, own=True):
    """The content on the other side, the size of the pickle, and those of the buffers beside it."""
    buffers = []
    data = ray.cloudpickle.dumps(
        wrapped(content, copy=own), protocol=5, buffer_callback=buffers.append
    )
    raw = [bytes(each.raw()) for each in buffers]
    return pickle.loads(data, buffers=raw), len(data), [len(each) for each in raw]


@pytest.mark.parametrize(
    "shown", [(slice(None),), (slice(2, 4),), (slice(None), slice(2, 4)), (slice(None, None, 3),)]
)
def test_numpy_arrays_go_beside_the_pickle(shown):
    array = np.arange(10_000.0).reshape(100, 100)[shown]
    found, size, beside = crossed({"deep": [array]})
    assert np.array_equal(found["deep"][0], array)
    assert beside == [array.nbytes]
    assert size < 1000


def test_other_values_cross_as_ever():
    content = {"rows": ["a", 1, None], "objects": np.array([{}, None], dtype=object)}
    found, _, beside = crossed(content)
    assert found["rows"] == content["rows"]
    assert list(found["objects"]) == [{}, None]
    assert beside == []


@pytest.mark.parametrize("own", [True, False])
def test_tensors_go_without_the_rest_of_their_storage(own):
    torch = pytest.importorskip("torch")
    whole = torch.arange(1000).to(torch.bfloat16).reshape(10, 100).requires_grad_()
    for tensor in (whole, whole[2:4], whole[:, 5:7], whole[0, 0], whole[:0]):
        found, size, beside = crossed([tensor], own=own)
        assert found[0].dtype == torch.bfloat16
        assert torch.equal(found[0], tensor)
        assert not found[0].requires_grad
        assert sum(beside) == tensor.numel() * 2
        assert size < 1000
    found[0] += 1


def test_tensors_of_other_kinds_cross_as_ever():
    torch = pytest.importorskip("torch")
    found, *_ = crossed(torch.tensor([1 + 2j]).conj())
    assert found.tolist() == [1 - 2j]
    parameter, *_ = crossed(torch.nn.Parameter(torch.ones(2)))
    assert isinstance(parameter, torch.nn.Parameter)
