"""A scheduler whose last week is in its history: 400 tasks of two teams that wait for 32 GPUs."""

from __future__ import annotations

import time

import pytest

from tests.sim import recorded_load

#: How long ago the first task was submitted.
BEGAN_S = 6 * 86_400.0
TASKS, BETWEEN_S, SHORTER = 400, 1_150.0, 0.25


def past_week(path):
    """Write the journal and the history of such a scheduler; it has a later supervisor see other nodes."""
    jobs = recorded_load.random_jobs(3, TASKS, "ab", mean_s=BETWEEN_S, shorter=SHORTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_load, "BEGIN", time.time() - BEGAN_S)
        world = recorded_load.recorded_world(
            jobs, recorded_load.policy_of(), recorded_load.Timing()
        )
        world.run()
    recorded_load.written(world, path)
    return world
