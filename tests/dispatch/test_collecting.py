"""Results beside rows: metrics, values of rank zero, metadata and echoed batches."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.dispatch import (
    Jagged,
    ParallelLayout,
    Shard,
    Sharding,
    Stage,
    Workers,
    scatter,
    shard,
)
from schedulemesh.dispatch.collecting import reduced
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import SPLITTING, layouts, shardings

PAIRS = ParallelLayout.of(tp=2, dp=2)
ROWS = Sharding.of(PAIRS, dp=0)
BATCH = {"ids": np.arange(8).reshape(4, 2), "temperature": 0.5}
GROUP = Workers(name="group", layout=PAIRS)


class Pair(NamedTuple):
    """A batch of two leaves."""

    ids: list[int]
    mask: list[int]


def outputs(act):
    """What ``act(rank, part)`` returns on each rank for its part of the batch, and the batch."""
    scattered = scatter(BATCH, "data_parallel", GROUP, GROUP)
    return scattered, [act(rank, part) for rank, part in enumerate(scattered.parts)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("mean", 2.0), ("sum", 4.0), ("min", 1.0), ("max", 3.0), ("rank_zero", 1.0)],
)
def test_a_metric_counts_once_per_part_not_per_replica(how, expected):
    scattered, found = outputs(
        lambda rank, part: {"score": part["ids"].sum(axis=1), "loss": [1.0, 9.0, 3.0, 9.0][rank]}
    )
    collected = scattered.collect(found, reduce={"loss": how})
    assert collected["loss"] == expected
    assert collected["score"].tolist() == [1, 5, 9, 13]


def test_a_metric_of_each_rank_is_a_list_by_rank():
    scattered, found = outputs(lambda rank, part: {"time": rank * 1.5, "ids": part["ids"]})
    assert scattered.collect(found, reduce={"time": "per_rank"})["time"] == [0.0, 1.5, 3.0, 4.5]


def test_arrays_are_reduced_element_by_element():
    scattered, found = outputs(lambda rank, part: {"histogram": np.array([rank, 1])})
    assert scattered.collect(found, reduce="sum")["histogram"].tolist() == [2, 2]
    torch = pytest.importorskip("torch")
    scattered, found = outputs(lambda rank, part: {"histogram": torch.tensor([rank, 1])})
    assert scattered.collect(found, reduce="mean")["histogram"].tolist() == [1.0, 1.0]


def test_a_default_reduction_leaves_rows_alone():
    scattered, found = outputs(
        lambda rank, part: {"ids": part["ids"], "m": {"a": float(rank), "b": 1, "name": "x"}}
    )
    collected = scattered.collect(found, reduce={"*": "mean", "m/name": "rank_zero"})
    assert np.array_equal(collected["ids"], BATCH["ids"])
    assert collected["m"] == {"a": 1.0, "b": 1.0, "name": "x"}


def test_a_scalar_that_differs_is_refused_with_the_choices():
    scattered, found = outputs(lambda rank, part: {"loss": float(rank)})
    with pytest.raises(
        InvalidRequestError, match=r"loss is not the same.*reduce=\{'loss'.*per_rank"
    ):
        scattered.collect(found)


def test_equal_metadata_needs_no_reduction_and_nan_equals_itself():
    nan = float("nan")
    scattered, found = outputs(lambda rank, part: {"model": "v1", "step": 7, "grad": nan})
    collected = scattered.collect(found)
    assert (collected["model"], collected["step"]) == ("v1", 7)
    assert collected["grad"] != collected["grad"]


def test_an_echoed_batch_is_the_batch():
    scattered, found = outputs(lambda rank, part: dict(part))
    again = scattered.collect(found)
    assert again["temperature"] == 0.5
    assert np.array_equal(again["ids"], BATCH["ids"])


@given(st.data())
def test_an_echo_of_leaves_that_are_split_in_different_ways_is_the_batch(data):
    layout = data.draw(layouts())
    batch = {"a": np.arange(12).reshape(6, 2), "b": np.arange(6).reshape(2, 3), "c": 1.5}
    spec = {
        key: data.draw(shardings(batch[key].shape, SPLITTING, layout)) for key in ("a", "b")
    } | {"c": Sharding(layout=layout)}
    sharded = shard(batch, spec)
    again = sharded.collect(sharded.parts)
    assert again["c"] == 1.5
    assert all(np.array_equal(again[key], batch[key]) for key in ("a", "b"))


def test_a_replicated_table_that_differs_between_parts_is_refused():
    table = {"ids": np.arange(4), "table": np.zeros(3)}
    sharded = shard(table, {"ids": ROWS, "table": Sharding(layout=PAIRS)})
    found = [
        {"ids": part["ids"], "table": part["table"] + rank}
        for rank, part in enumerate(sharded.parts)
    ]
    with pytest.raises(InvalidRequestError, match="table is not the same on all ranks"):
        sharded.collect(found)
    assert sharded.collect(found, reduce={"table": "max"})["table"].tolist() == [2, 2, 2]


def test_results_of_rank_zero_only():
    scattered, found = outputs(lambda rank, part: {"saved": "path"} if rank == 0 else None)
    assert scattered.collect(found, reduce="rank_zero") == {"saved": "path"}
    assert scattered.collect(found) == {"saved": "path"}


def test_metrics_of_the_last_stage_are_reduced_over_its_ranks():
    layout = ParallelLayout.of(dp=2, pp=2)
    sharded = shard({"labels": [1, 2, 3, 4]}, Sharding.of(layout, dp=0, pp=Stage(-1)))
    found = [
        None if part["labels"] is None else {"loss": part["labels"][0]} for part in sharded.parts
    ]
    assert sharded.collect(found, reduce={"loss": "mean"}) == {"loss": 2.0}


def test_a_tuple_of_results_is_a_tree():
    scattered, found = outputs(lambda rank, part: (part["ids"][:, 0], {"loss": 2}))
    rows, metrics = scattered.collect(found, reduce={"1/loss": "sum"})
    assert rows.tolist() == [0, 2, 4, 6]
    assert metrics == {"loss": 4}


def test_what_cannot_be_reduced_is_refused_by_path():
    scattered, found = outputs(lambda rank, part: {"m": {"name": "x"}})
    with pytest.raises(InvalidRequestError, match=r"m/name: 'x' and others have no mean"):
        scattered.collect(found, reduce={"m": "mean"})
    with pytest.raises(
        InvalidRequestError, match=r"reduce=\{'m': 'average'\}; allowed are mean, sum"
    ):
        scattered.collect(found, reduce={"m": "average"})
    with pytest.raises(InvalidRequestError, match="3 results were given; the layout has 4 ranks"):
        scattered.collect(found[:3])


def test_calls_without_a_batch_are_reduced_over_all_ranks():
    found = [{"a": 1, "b": [rank]} for rank in range(4)]
    assert reduced(found, {"a": "sum", "b": "per_rank"}) == {"a": 4, "b": [[0], [1], [2], [3]]}
    with pytest.raises(InvalidRequestError, match="b has rows, and every rank was called alike"):
        reduced(found, {"a": "sum"})


@pytest.mark.parametrize(
    "value",
    [range(4), (n for n in range(4)), {1, 2}, bytearray(b"abcd"), memoryview(b"abcd"), object()],
    ids=lambda value: type(value).__name__,
)
def test_values_without_known_rows_are_refused_unless_replicated(value):
    with pytest.raises(InvalidRequestError, match=r"at x lies a .*which replicates it"):
        scatter({"x": value}, "data_parallel", GROUP, GROUP)
    spec = {"x": Sharding(layout=PAIRS)}
    assert scatter({"x": value}, spec, GROUP, GROUP).parts[3]["x"] is value


def test_a_table_of_pandas_is_refused_unless_replicated():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidRequestError, match="lies a DataFrame"):
        scatter(pandas.DataFrame({"a": [1, 2]}), "data_parallel", GROUP, GROUP)


@pytest.mark.parametrize("strategy", ["data_parallel", "every_rank"])
def test_leaves_with_different_numbers_of_rows_are_refused(strategy):
    with pytest.raises(InvalidRequestError, match="different numbers of rows: a has 8, b/0 has 7"):
        scatter({"a": [0] * 8, "b": (np.zeros(7),)}, strategy, GROUP, GROUP)


def test_the_members_of_a_tuple_are_split_one_by_one():
    ids, mask = np.arange(8).reshape(4, 2), [True, False, True, False]
    scattered = scatter((ids, mask), "data_parallel", GROUP, GROUP)
    assert [part[1] for part in scattered.parts] == [[True, False]] * 4
    assert scattered.parts[2][0].tolist() == [[4, 5], [6, 7]]
    again = scattered.collect(scattered.parts)
    assert np.array_equal(again[0], ids)
    assert again[1] == mask


def test_named_tuples_stay_named():
    sharded = shard(Pair([1, 2], [3, 4]), Sharding.of(ParallelLayout.of(dp=2), dp=0))
    assert sharded.parts == (Pair([1], [3]), Pair([2], [4]))
    assert sharded.gather() == Pair([1, 2], [3, 4])


def test_a_tuple_may_be_rows():
    rows = Sharding.of(ParallelLayout.of(dp=2), dp=0, tuples="rows")
    assert shard((1, 2, 3, 4), rows).parts == ((1, 2), (3, 4))
    assert shard((1, 2), rows).collect([("a",), ("b",)]) == ("a", "b")


HALVES = shard([1, 2, 3, 4], Sharding.of(ParallelLayout.of(dp=2), dp=0))
DTYPES = ["?", "u1", "i4", "i8", "u8", "f2", "f8", "c8", "U3", "U10"]


@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("first", DTYPES)
def test_rows_of_different_dtypes_are_joined_as_numpy_joins_them(first, second):
    parts = [np.array([1, 0]).astype(first), np.array([3, 0]).astype(second)]
    expected = np.concatenate(parts)
    collected = HALVES.collect(parts)
    assert collected.dtype == expected.dtype
    assert np.array_equal(collected, expected)
    packed = HALVES.collect([Jagged(part, (1, 1)) for part in parts])
    assert packed.values.dtype == expected.dtype
    assert np.array_equal(packed.values, expected)


def test_rows_of_different_dtypes_keep_their_values():
    texts = HALVES.collect([np.array(["yes", "no"]), np.array(["maybe", "not at all"])])
    assert texts.tolist() == ["yes", "no", "maybe", "not at all"]
    torch = pytest.importorskip("torch")
    rewards = HALVES.collect([torch.tensor([1, 0]), torch.tensor([0.5, 2.0**-60])])
    assert rewards.tolist() == [1, 0, 0.5, 2.0**-60]
    long = HALVES.collect([torch.tensor([1, 0], dtype=torch.int32), torch.tensor([2**40, 3])])
    assert long.tolist() == [1, 0, 2**40, 3]


def test_a_rank_without_rows_does_not_change_the_dtype():
    one = shard(["a"], Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, "uneven")))
    for dtype in ("i8", "?", "M8[D]", "U3"):
        rows = np.ones(1, dtype)
        assert one.collect([rows, np.array([])]).dtype == rows.dtype


def kinds_of_rows():
    array = np.arange(2)
    kinds = [array, [0, 1], Jagged(array, (1, 1))]
    try:
        import torch
    except ImportError:
        return kinds
    return [*kinds, torch.arange(2), Jagged(torch.arange(2), (1, 1))]


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("second", range(5))
def test_rows_of_different_kinds_are_refused_in_any_order(first, second):
    kinds = kinds_of_rows()
    if first == second or max(first, second) >= len(kinds):
        return
    with pytest.raises(InvalidRequestError, match=r"answers/x: .*(allowed are|expected is)"):
        HALVES.collect([{"answers": {"x": kinds[first]}}, {"answers": {"x": kinds[second]}}])


def test_rows_without_a_common_dtype_are_refused():
    with pytest.raises(
        InvalidRequestError, match=r"x: arrays of datetime64\[D\] and float64 .*convert"
    ):
        HALVES.collect([{"x": np.zeros(2, "M8[D]")}, {"x": np.zeros(2)}])
    with pytest.raises(InvalidRequestError, match=r"x: .*\(1, 2\), \(1, 3\) cannot be joined"):
        HALVES.collect([{"x": Jagged(np.zeros((1, n)), (1, 0))} for n in (2, 3)])


@pytest.mark.parametrize(
    ("how", "loss"), [("mean", 3.0), ("sum", 3.0), ("max", 3.0), ("per_rank", [None, 3.0])]
)
@pytest.mark.parametrize("path", ["loss", "*"])
def test_a_value_that_some_ranks_leave_out_is_reduced_over_the_others(how, loss, path):
    found = [{"n": 1.0}, {"loss": 3.0, "n": 1.0}]
    assert HALVES.collect(found, reduce={path: how})["loss"] == loss
    assert reduced(found, {path: how})["loss"] == loss
    assert reduced([{}, {"m": {"loss": 3.0}}], {path: how, "m/loss": how})["m"]["loss"] == loss


def test_keys_are_in_the_order_in_which_the_ranks_have_them():
    found = [{"a": 1, "c": 1}, {"b": 2, "a": 2}]
    assert list(HALVES.collect(found, reduce="sum").items()) == [("a", 3), ("c", 1), ("b", 2)]
    assert HALVES.collect([([1, 2], 1), ([3, 4], 1, 5)], reduce={"2": "sum"}) == (
        [1, 2, 3, 4],
        1,
        5,
    )


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            {"a": [1, 2]},
            {"a": [3, 4], "m": {"x": 1}},
            "m/x was left out by rank 0 and .*of rank 1;",
        ),
        ({"m": {"x": 1}}, {"m": {}}, r"m/x was left out by rank 1 .*of rank 0;.*reduce=\{'m/x'"),
        ({"a": [1, 2], "b": [1, 2]}, {"a": [3, 4]}, "b was left out by rank 1"),
        (([1, 2], 1), ([3, 4], 1, 5), "2 was left out by rank 0"),
        (([1, 2], 1, 5), ([3, 4], 1), "2 was left out by rank 1"),
        (([1, 2],), {"a": [3, 4]}, r"rank 1 returned the keys \['a'\], rank 0 1 places"),
        ({"m": {"x": [1, 2]}}, {"m": [3, 4]}, r"m: rank 1 returned 2 places, rank 0 the keys"),
        ({"m": [1, 2]}, {"m": {"x": [1, 2]}}, r"m: rank 1 gave a dict"),
    ],
)
def test_what_some_ranks_leave_out_is_refused_by_path_and_rank(first, second, said):
    with pytest.raises(InvalidRequestError, match=said):
        HALVES.collect([first, second])


STAGES = Workers(name="stages", layout=ParallelLayout.of(dp=2, pp=2))


@pytest.mark.parametrize("nothing", [None, {}, {"loss": None}, {"loss": None, "ids": None}])
def test_of_replicas_the_lowest_that_returned_something_counts(nothing):
    """The last stage returns the results of a part that all stages were given."""
    scattered = scatter([1, 2, 3, 4], "data_parallel", STAGES, STAGES)
    last = [{"loss": 1.0, "ids": [10, 20]}, {"loss": 3.0, "ids": [30, 40]}]
    found = [nothing, nothing, *last]
    expected = {"loss": 2.0, "ids": [10, 20, 30, 40]}
    assert scattered.collect(found, reduce={"loss": "mean"}) == expected
    with pytest.raises(InvalidRequestError, match="loss is not the same on all ranks"):
        scattered.collect(found)


def test_a_reduction_of_nothing_names_the_ranks_that_count():
    sharded = shard([1, 2, 3, 4], Sharding.of(STAGES.layout, dp=0, pp=Stage(-1)))
    found = [{"loss": 1.0, "seconds": 1}, {"loss": 1.0}, {}, {"loss": None}]
    with pytest.raises(
        InvalidRequestError, match=r"loss: of the ranks that have a part \(2, 3\) none"
    ):
        sharded.collect(found, reduce={"loss": "mean"})
    assert sharded.collect(found, reduce={"seconds": "per_rank"}) == {
        "loss": None,
        "seconds": [1, None, None, None],
    }


@pytest.mark.parametrize("how", ["min", "max", "mean", "sum"])
@pytest.mark.parametrize("made", [float, np.float32, np.array], ids=["python", "scalar", "array"])
def test_nan_is_reduced_to_nan_in_any_order(how, made):
    for values in ([np.nan, 1.0], [1.0, np.nan]):
        assert np.isnan(HALVES.collect([made(value) for value in values], reduce=how))


@pytest.mark.parametrize("how", ["min", "max", "mean", "sum"])
def test_scalars_of_numpy_are_reduced_as_arrays_are(how):
    arrays = HALVES.collect([np.array(200, "u1"), np.array(100, "u1")], reduce=how)
    scalars = HALVES.collect([np.uint8(200), np.uint8(100)], reduce=how)
    assert scalars == arrays
    assert scalars.dtype == arrays.dtype
    assert HALVES.collect([200, np.uint8(100)], reduce=how) == arrays
