"""Dealing out by a name, a plugin or a spec."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.dispatch import ParallelLayout, Shard, Sharding, Workers, scatter, strategies
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import layouts

HERE = Workers(name="driver", layout=ParallelLayout.of())


def group(layout, name="group"):
    return Workers(name=name, layout=layout)


@given(layouts(), st.lists(st.integers()), st.sampled_from(["every_rank", "replicate"]))
def test_a_named_strategy_round_trips(layout, rows, name):
    scattered = scatter({"rows": rows, "scalar": 1.5}, name, HERE, group(layout))
    assert len(scattered.parts) == layout.size
    assert all(part["scalar"] == 1.5 for part in scattered.parts)
    assert scattered.collect([part["rows"] for part in scattered.parts]) == rows


def test_every_rank_gets_rows_that_differ_by_one_at_most():
    scattered = scatter(list(range(10)), "every_rank", HERE, group(ParallelLayout.of(tp=2, dp=2)))
    assert sorted(len(part) for part in scattered.parts) == [2, 2, 3, 3]
    assert sorted(row for part in scattered.parts for row in part) == list(range(10))


def test_data_parallel_is_the_same_along_other_axes():
    scattered = scatter([1, 2, 3], "data_parallel", HERE, group(ParallelLayout.of(tp=2, dp=2)))
    assert scattered.parts == ([1, 2], [1, 2], [3], [3])
    assert scattered.parts[0] is scattered.parts[1]


def test_data_parallel_needs_its_axis():
    with pytest.raises(InvalidRequestError, match="axis 'dp' is not in the layout"):
        scatter([1], "data_parallel", HERE, group(ParallelLayout.of("a", a=2)))


def test_leaves_that_are_all_sharded_alike_need_no_spec():
    layout = ParallelLayout.of(dp=2)
    nested = {"a": [1, 2], "more": {"b": [3, 4]}, "all": 5}
    scattered = scatter(nested, "data_parallel", HERE, group(layout))
    assert scattered.collect([[part["a"][0] * 10] for part in scattered.parts]) == [10, 20]
    rows = Sharding.of(layout, dp=0)
    differ = scatter({"a": [1, 2], "b": [1, 2, 3, 4]}, rows, HERE, group(layout))
    with pytest.raises(InvalidRequestError, match=r"\['a', 'b'\] are not split alike"):
        differ.collect([[1], [2]])
    assert differ.collect([[1], [2]], like="a") == [1, 2]


def test_a_list_in_the_spec_is_a_node():
    layout = ParallelLayout.of(dp=2)
    rows = Sharding.of(layout, dp=Shard(0, "uneven"))
    scattered = scatter([[1, 2, 3], [4, 5, 6]], [rows, rows], HERE, group(layout))
    assert scattered.parts[1] == [[3], [6]]
    assert scattered.collect([part[0] for part in scattered.parts]) == [1, 2, 3]


class Halves:
    def python_dispatch_fn(self, data, workers_a, workers_b):
        return [data[rank :: len(workers_b.ranks)] for rank in workers_b.ranks]


def test_a_plugin_without_a_tensor_hook_gets_tensors_through_the_python_hook():
    torch = pytest.importorskip("torch")

    class WithoutTensors(Halves):
        def torch_dispatch_fn(self, tensor, workers_a, workers_b):
            raise NotImplementedError

    class WithTensors(Halves):
        def torch_dispatch_fn(self, tensor, workers_a, workers_b):
            return tensor.chunk(2)

    two = group(ParallelLayout.of(dp=2))
    for plugin, first in ((Halves, [0, 2]), (WithoutTensors, [0, 2]), (WithTensors, [0, 1])):
        scattered = scatter(torch.arange(4), plugin, HERE, two)
        assert scattered.parts[0].tolist() == first


class NotAPlugin:
    """A class without the hooks of a strategy."""


def test_installed_strategies_are_found_by_name(monkeypatch):
    offered = EntryPoints(
        EntryPoint(name, f"{__name__}:{cls}", strategies.ENTRY_POINTS)
        for name, cls in (("halves", "Halves"), ("invalid", "NotAPlugin"))
    )
    monkeypatch.setattr(strategies, "entry_points", offered.select)
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.attr])
    two = group(ParallelLayout.of(dp=2))
    scattered = scatter([1, 2, 3, 4], "halves", HERE, two)
    assert scattered.parts == ([1, 3], [2, 4])
    assert scattered.collect(["x", "y"]) == ["x", "y"]
    with pytest.raises(InvalidRequestError, match=r"NotAPlugin' has no python_dispatch_fn"):
        scatter([1, 2], "invalid", HERE, two)
    with pytest.raises(
        InvalidRequestError, match="data_parallel, every_rank, halves, invalid, replicate"
    ):
        scatter([1, 2], "quarters", HERE, two)


@pytest.mark.parametrize("answer", [None, [1], "ab", {0: 1, 1: 2}])
def test_a_plugin_result_of_the_wrong_size_is_refused(answer):
    class Odd:
        def python_dispatch_fn(self, data, workers_a, workers_b):
            return answer

    with pytest.raises(
        InvalidRequestError, match=r"strategy Odd returned .* allowed are a list of 2"
    ):
        scatter([1, 2], Odd(), HERE, group(ParallelLayout.of(dp=2)))


def test_the_layout_must_have_the_size_of_the_group():
    spec = Sharding.of(ParallelLayout.of(dp=4), dp=0)
    with pytest.raises(InvalidRequestError, match="for 4 ranks; group trainers has 2"):
        scatter([1, 2, 3, 4], spec, HERE, group(ParallelLayout.of(dp=2), "trainers"))
