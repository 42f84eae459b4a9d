"""The policy of the queue: validated, and the levels of attained service."""

from __future__ import annotations

import pytest

from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.errors import InvalidRequestError

HOUR = 3600.0


def test_the_fields_are_plain_data():
    shown = QueuePolicy(las_threshold_gpu_hours=2).public()
    assert shown["las_threshold_gpu_hours"] == 2.0
    assert changed_queue_policy(QueuePolicy(), shown) == QueuePolicy(las_threshold_gpu_hours=2)


def test_impossible_tasks_wait_or_are_cancelled():
    assert QueuePolicy().on_impossible == "skip"
    assert QueuePolicy(on_impossible="cancel", impossible_after_s=60).impossible_after_s == 60.0
    with pytest.raises(InvalidRequestError, match="on_impossible is 'drop'; allowed are skip, can"):
        QueuePolicy(on_impossible="drop")
    with pytest.raises(InvalidRequestError, match="impossible_after_s"):
        changed_queue_policy(QueuePolicy(), {"impossible_after_s": -1.0})


@pytest.mark.parametrize(
    ("order", "levels"),
    [
        ("two_level_las", [0, 0, 1, 1, 1]),
        ("fifo", [0, 0, 0, 0, 0]),
    ],
)
def test_a_level_begins_when_so_many_gpu_hours_are_used(order, levels):
    policy = QueuePolicy(order=order, las_threshold_gpu_hours=2)
    used = (0.0, HOUR, 2 * HOUR, 8 * HOUR, 100 * HOUR)
    assert [policy.las_level(gpu_s) for gpu_s in used] == levels
