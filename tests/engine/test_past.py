"""What is remembered of tasks that have ended."""

from __future__ import annotations

from schedulemesh.domain.end_reasons import TaskEndReason
from tests.engine.builders import Mesh, node, pool

FAILS = {"result_key": "why", "reason": TaskEndReason.RUN_RAISED, "error": "no"}


def test_those_that_failed_lately_are_counted():
    given = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    past, began = given.state.past, given.now
    for name, how in (("old", FAILS), ("fine", {"result_key": "kept"}), ("bad", FAILS)):
        given.run(name, cpu=1, run="train")
        given.now += 60
        given.run_ends(name, **how)
        given.leave(name)
    assert past.failed_since(began) == 2
    assert past.failed_since(began + 60) == 1
    assert past.failed_since(given.now) == 0
    # A task of the same id has not ended.
    given.run("bad", cpu=1, run="train")
    assert past.failed_since(began) == 1
