"""What is collected of pending results, with results that are made up."""

from __future__ import annotations

import pytest

from schedulemesh.core.worker_groups import pending_result
from schedulemesh.core.worker_groups.pending_result import PendingResult
from schedulemesh.dispatch import ParallelLayout, Sharding
from schedulemesh.dispatch.declarations import Dispatch, MethodDeclaration
from schedulemesh.dispatch.strategies import Workers, scatter

LAYOUT = ParallelLayout.of(dp=2)
BATCH = {"prompts": [1, 2], "answers": [1, 2, 3, 4]}


@pytest.fixture
def pending(monkeypatch):
    """The pending results of a method, which gives the first rows and a number with them."""

    def made(**declared):
        group = Workers(name="group", layout=LAYOUT)
        scattered = scatter(
            BATCH, Sharding.of(LAYOUT, dp=0), Workers(name="d", layout=LAYOUT), group
        )
        found = [{"ids": part["prompts"], "n": part["prompts"][0]} for part in scattered.parts]
        monkeypatch.setattr(pending_result, "results", lambda _calls, _timeout_s: found)
        mode = Dispatch.DP_COMPUTE_PROTO
        return PendingResult((), None, scattered, declared=MethodDeclaration(mode=mode, **declared))

    return made


def test_a_part_of_the_results_follows_the_leaf_that_is_declared_for_all_of_them(pending):
    both = pending(like="prompts", reduce={"n": "sum"})
    assert both.collect() == {"ids": [1, 2], "n": 3}
    assert both["ids"].collect() == [1, 2]
    assert both["n"].collect() == 3
