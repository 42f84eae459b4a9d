"""Ten days of the mixed cluster keep what the documentation promises; ``make explore`` lets a year pass."""

from __future__ import annotations

from schedulemesh.engine.messages import stimuli as s
from tests.sim.mixed_year import DAY, HOUR, Year


def test_ten_days_of_a_mixed_cluster_keep_what_is_promised():
    year = Year("ten days", load=0.6, check_every=20)

    year.run(10)

    assert year.violations == []
    assert year.counts["completed"] > 300
    # What is to be checked has happened.
    assert {"time_limit", "reclaim", "same_pool_preemption"} <= set(year.checks.evictions)
    assert {"owner_limit", "dependency", "array_limit"} <= set(year.checks.reasons)


def test_what_runs_on_a_node_that_replaces_a_reserved_one_leaves_from_then_on():
    """The course is on two nodes, one of which is drained three hours after it has opened."""
    year = Year("ten days", load=0.6, check_every=50)
    chosen = []

    def drain():
        node_ids = year.mesh.state.windows.chosen["course"].node_ids
        year.handle(s.DrainRequested(node_id=node_ids[0], drained=True))
        year.at(5.0, lambda: chosen.append({*year.mesh.state.windows.chosen["course"].node_ids}))
        chosen.append({*node_ids})

    year.at(5 * DAY + 16 * HOUR, drain)
    year.run(5.9)

    before, after = chosen
    assert len(before - after) == len(after - before) == 1
    assert year.violations == []
