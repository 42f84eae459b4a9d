"""The weight of pools whose first tasks wait for long."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from schedulemesh.config.queueing import QueuePolicy
from tests.engine.builders import Mesh, node, pool


def two_waiting_pools(held, **order):
    """Pools of which each holds so many CPUs, and has a task that waits for one: that of ``p`` for 900 s."""
    given = Mesh(pool("p", cpu=8), pool("q", cpu=8), nodes=[node("n1", cpu=8)])
    given.order_by(order="dominant_share", **order)
    for name, cpu in held.items():
        given.run(f"{name}1", name, cpu=cpu, priority=9)
    given.run("busy", "q", cpu=1, priority=9)
    given.queue("p2", "p", cpu=1)
    given.tick(900.0)
    given.queue("q2", "q", cpu=1)
    return given


@pytest.mark.parametrize(("weight", "first"), [(0.0, "q2"), (0.2, "q2"), (0.5, "p2")])
def test_the_wait_of_its_first_task_raises_the_weight_of_a_pool(weight, first):
    given = two_waiting_pools({"p": 4, "q": 3}, waiting_weight=weight, waiting_weight_s=900.0)
    factor = given.engine.explain("p2", given.now).weight_raised_by
    assert factor == 1.0 + weight
    assert given.engine.explain("q2", given.now).weight_raised_by == 1.0
    given.complete("busy")
    assert list(given.starts) == [first]


@for_all(
    weight=st.floats(0.0, 1_000.0),
    seconds=st.floats(0.0, 1e10),
    waits=st.tuples(st.floats(0.0, 1e10), st.floats(0.0, 1e10)),
)
def test_the_raise_of_a_weight_grows_with_the_wait_up_to_its_limit(weight, seconds, waits):
    policy = QueuePolicy(waiting_weight=weight, waiting_weight_s=seconds)
    less, more = sorted(waits)
    assert 1.0 <= policy.raise_of(less) <= policy.raise_of(more) <= 1.0 + weight
    assert policy.raise_of(0.0) == 1.0
    if more >= seconds and more:
        assert policy.raise_of(more) == 1.0 + weight


def test_a_pool_that_holds_nothing_comes_before_one_that_has_waited_for_ever():
    given = two_waiting_pools({"p": 7}, waiting_weight=1_000.0, waiting_weight_s=1.0)
    given.complete("busy")
    assert list(given.starts) == ["q2"]
