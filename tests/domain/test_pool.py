"""A pool and the agent that it gives who asks for nothing."""

from __future__ import annotations

import pytest

from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources


def default(agents, **given):
    return PoolSpec(
        name="p", resources=parse_resources(given), target_agents=agents
    ).default_agent()


def test_without_a_target_an_agent_takes_the_whole_quota():
    assert default(0, cpu=4, gpu=3) == parse_resources({"cpu": 4, "gpu": 3})


@pytest.mark.parametrize(
    ("agents", "gpu", "each"), [(4, 8, 2.0), (4, 2, 0.5), (4, 6, 1.0), (2, 5, 2.0), (3, 3, 1.0)]
)
def test_gpus_above_one_are_rounded_down_to_whole_devices(agents, gpu, each):
    assert default(agents, gpu=gpu) == parse_resources({"gpu": each})


def test_the_quota_is_shared_among_the_target_agents_and_never_exceeded():
    each = default(3, cpu=1, memory=100, custom={"x": 0.0002})
    assert each.cpu == 3333
    assert each.memory == 333_333
    assert each.custom == ()
    assert (each + each + each).fits(parse_resources({"cpu": 1, "memory": 100}))
