"""Rows of results that pass from worker to worker: what a receiver makes of the results it has fetched."""

import numpy as np
import pytest

from schedulemesh.core.worker_groups.handed_on import Take, joined
from schedulemesh.dispatch import Jagged, ParallelLayout, Sharding, shard
from schedulemesh.errors import InvalidRequestError

HALVES = shard([1, 2, 3, 4], Sharding.of(ParallelLayout.of(dp=2), dp=0))
ALL = (Take(0, 0, 2), Take(1, 0, 2))


def handed(first, second):
    return joined([first, second], (2, 2), ALL, ())


@pytest.mark.parametrize(
    "rows",
    [
        (np.array(["yes", "no"]), np.array(["maybe", "not at all"])),
        (np.array([1, 0]), np.array([0.5, 0.25])),
        (np.array([1, 0], "i4"), np.array([2**40, 3])),
    ],
)
def test_rows_of_different_dtypes_are_joined_as_collect_joins_them(rows):
    found, collected = handed(*rows), HALVES.collect(rows)
    assert found.dtype == collected.dtype
    assert found.tolist() == collected.tolist() == np.concatenate(rows).tolist()
    packed = handed(*(Jagged(each, (1, 1)) for each in rows))
    assert packed.values.tolist() == found.tolist()
    assert packed.lengths == (1, 1, 1, 1)


def test_trees_with_the_same_keys_are_handed_on():
    found = handed({"a": [1, 2], "v": 7}, {"v": 7, "a": [3, 4]})
    assert found == {"a": [1, 2, 3, 4], "v": 7}
    assert handed(([1, 2], 7), ([3, 4], 7)) == ([1, 2, 3, 4], 7)


ARRAY = np.arange(2)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"a": [1, 2]}, {"a": [3, 4], "b": 1}, r"at the top .*the keys \['a'\], another the keys"),
        ({"m": {"a": [1, 2], "b": 1}}, {"m": {"a": [3, 4]}}, r"at m .*the keys \['a', 'b'\]"),
        (([1, 2],), ([3, 4], 5), "a worker returned 1 places, another 2 places"),
        ({"a": [1, 2]}, None, "another NoneType"),
        ({"a": ARRAY}, {"a": [3, 4]}, "a: workers returned a NumPy array and a list"),
        ({"a": [1, 2]}, {"a": ARRAY}, "a: workers returned a NumPy array and a list"),
        ({"a": Jagged(ARRAY, (1, 1))}, {"a": ARRAY}, "a Jagged and a NumPy array"),
        ({"a": np.zeros((2, 2))}, {"a": np.zeros((2, 3))}, "a: .* differ in dim 0 only"),
    ],
)
def test_results_that_do_not_match_are_refused(first, second, said):
    with pytest.raises(InvalidRequestError, match=said):
        handed(first, second)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_two_libraries_are_refused(turned):
    torch = pytest.importorskip("torch")
    rows = [ARRAY, torch.arange(2)]
    with pytest.raises(InvalidRequestError, match="a NumPy array and a torch tensor"):
        handed(*reversed(rows) if turned else rows)
