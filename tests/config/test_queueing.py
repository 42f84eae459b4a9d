"""The policy of the queue: validated, and the levels of attained service."""

from __future__ import annotations

import math

import pytest

from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.errors import InvalidRequestError

HOUR = 3600.0


def test_the_fields_are_plain_data():
    shown = QueuePolicy(las_levels_gpu_hours=(1, 8)).public()
    assert shown["las_levels_gpu_hours"] == [1.0, 8.0]
    assert changed_queue_policy(QueuePolicy(), shown) == QueuePolicy(las_levels_gpu_hours=(1, 8))


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        (1.0, "las_levels_gpu_hours must be a list of 1 to 16 ascending numbers, not 1.0"),
        ("1", "las_levels_gpu_hours must be a list of 1 to 16 ascending numbers, not '1'"),
        ([], "las_levels_gpu_hours has 0 elements; it must be a list of 1 to 16 ascending"),
        (range(1, 18), "las_levels_gpu_hours must be a list"),
        (list(range(1, 18)), "las_levels_gpu_hours has 17 elements"),
        ([8, 1], r"las_levels_gpu_hours is \[8, 1\]; it must be a list of 1 to 16 ascending"),
        ([1, 1], r"las_levels_gpu_hours is \[1, 1\]; it must be a list of 1 to 16 ascending"),
        ([0, 1], "each of las_levels_gpu_hours is 0; it must be above 0"),
        ([math.nan], "each of las_levels_gpu_hours must be a finite number"),
        (["1"], "each of las_levels_gpu_hours must be a finite number, not '1'"),
    ],
)
def test_levels_are_ascending_numbers(levels, error):
    with pytest.raises(InvalidRequestError, match=error):
        changed_queue_policy(QueuePolicy(), {"las_levels_gpu_hours": levels})


def test_impossible_tasks_wait_or_are_cancelled():
    assert QueuePolicy().on_impossible == "skip"
    assert QueuePolicy(on_impossible="cancel", impossible_after_s=60).impossible_after_s == 60.0
    with pytest.raises(InvalidRequestError, match="on_impossible is 'drop'; allowed are skip, can"):
        QueuePolicy(on_impossible="drop")
    with pytest.raises(InvalidRequestError, match="impossible_after_s"):
        changed_queue_policy(QueuePolicy(), {"impossible_after_s": -1.0})


def test_victims_are_chosen_in_a_known_way():
    with pytest.raises(InvalidRequestError, match="las_victims is 'first'; allowed are smallest,"):
        QueuePolicy(las_victims="first")


@pytest.mark.parametrize(
    ("order", "levels"),
    [
        ("two_level_las", [0, 0, 1, 1, 1]),
        ("multi_level_las", [0, 1, 1, 2, 2]),
        ("fifo", [0, 0, 0, 0, 0]),
    ],
)
def test_a_level_begins_when_so_many_gpu_hours_are_used(order, levels):
    policy = QueuePolicy(order=order, las_threshold_gpu_hours=2, las_levels_gpu_hours=(1, 8))
    used = (0.0, HOUR, 2 * HOUR, 8 * HOUR, 100 * HOUR)
    assert [policy.las_level(gpu_s) for gpu_s in used] == levels
