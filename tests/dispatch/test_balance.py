"""Token-balanced assignment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.dispatch import balance
from schedulemesh.errors import InvalidRequestError

COSTS = st.lists(st.integers(0, 1000), max_size=30)
GROUPS = st.integers(1, 6)


@given(COSTS, GROUPS, st.booleans())
def test_every_row_is_assigned_once(costs, groups, equal):
    found = balance(costs, groups, equal_counts=equal)
    assert len(found) == groups
    assert sorted(row for rows in found for row in rows) == list(range(len(costs)))
    assert all(list(rows) == sorted(rows) for rows in found)


@given(COSTS, GROUPS)
def test_no_worker_gets_more_than_the_bound(costs, groups):
    """At most 4/3 of the best maximum, which is at least the mean, the dearest, and the pair of the next."""
    loads = [sum(costs[row] for row in rows) for rows in balance(costs, groups)]
    dearest = sorted(costs, reverse=True)
    pair = sum(dearest[groups - 1 : groups + 1]) if len(costs) > groups else 0
    least = max(sum(costs) / groups, dearest[0] if costs else 0, pair)
    # The true optimum may exceed this lower bound; list scheduling never exceeds mean + dearest either.
    assert max(loads) <= max(4 / 3 * least, sum(costs) / groups + (dearest[0] if costs else 0))


def brute_force(costs, groups):
    loads = {(0,) * groups}
    for cost in costs:
        loads = {
            tuple(sorted((*each[:at], each[at] + cost, *each[at + 1 :])))
            for each in loads
            for at in range(groups)
        }
    return min(max(each) for each in loads)


@given(st.lists(st.integers(0, 30), max_size=7), st.integers(1, 3))
def test_grahams_bound_against_the_best_of_all_assignments(costs, groups):
    loads = [sum(costs[row] for row in rows) for rows in balance(costs, groups)]
    assert max(loads) <= (4 / 3 - 1 / (3 * groups)) * brute_force(costs, groups) + 1e-9


@given(COSTS, GROUPS)
def test_equal_counts_differ_by_one_at_most(costs, groups):
    sizes = [len(rows) for rows in balance(costs, groups, equal_counts=True)]
    assert max(sizes) - min(sizes) <= 1


def test_long_rows_are_spread():
    found = balance([100, 90, 10, 10, 10, 10, 10, 10, 10], 2)
    assert [sum([100, 90, 10, 10, 10, 10, 10, 10, 10][row] for row in rows) for rows in found] == [
        130,
        130,
    ]


@pytest.mark.parametrize(
    ("costs", "groups"),
    [
        ([1], 0),
        ([-1], 2),
        ([float("nan")], 2),
        ([1] * 9 + [-1], 1),
        (["a"], 2),
        (np.zeros((2, 2)), 2),
    ],
)
def test_invalid_input_is_reported(costs, groups):
    with pytest.raises(InvalidRequestError, match="allowed are 1 group or more and finite costs"):
        balance(costs, groups)


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int64"])
def test_small_dtypes_do_not_overflow(dtype):
    costs = np.full(400, 200, dtype)
    assert [len(rows) for rows in balance(costs, 2)] == [200, 200]
    assert balance(list(costs), 2) == balance(costs, 2)
    torch = pytest.importorskip("torch")
    assert balance(torch.from_numpy(costs), 2) == balance(costs, 2)
    assert balance(list(torch.from_numpy(costs)), 2) == balance(costs, 2)
