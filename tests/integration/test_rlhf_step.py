"""The example of one RLHF step: the calling process neither sends nor receives a tensor."""

import io

import pytest
import ray
from ray import cloudpickle

from schedulemesh.simple import SimpleScheduler

np = pytest.importorskip("numpy")


class Arrays(cloudpickle.CloudPickler):
    """Counts the arrays and tensors that pickling a value meets."""

    def __init__(self):
        super().__init__(io.BytesIO())
        self.found = 0

    def reducer_override(self, value):
        self.found += type(value).__module__.partition(".")[0] == "torch" or isinstance(
            value, np.ndarray
        )
        return super().reducer_override(value)


def arrays_in(value):
    pickler = Arrays()
    pickler.dump(value)
    return pickler.found


@pytest.fixture
def seen(monkeypatch):
    """Everything that this process sends to Ray or receives from it."""
    found, get, put = [], ray.get, ray.put

    def getting(*args, **kwargs):
        result = get(*args, **kwargs)
        found.append(result)
        return result

    monkeypatch.setattr(ray, "get", getting)
    monkeypatch.setattr(ray, "put", lambda value: (found.append(value), put(value))[1])
    return found


def test_the_finder_of_arrays_finds_them():
    assert arrays_in({"a": [np.zeros(3)], "b": (np.ones(2), 5)}) == 2
    assert arrays_in({"a": [1.0], "b": "text"}) == 0


def test_a_step_moves_rows_and_weights_past_the_calling_process(ray_cluster, namespace, seen):
    """Prompts, metrics and what the workers say of their shards are all that this process handles."""
    from examples import rlhf_step_demo

    mesh = SimpleScheduler("rlhf-step", namespace=namespace)
    try:
        rlhf_step_demo.run_demo(mesh)
    finally:
        mesh.shutdown()
    assert len(seen) > 20
    assert sum(map(arrays_in, seen)) == 0
