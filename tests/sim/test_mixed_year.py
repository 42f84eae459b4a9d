"""Ten days of the mixed cluster keep what the documentation promises; ``make explore`` lets a year pass."""

from __future__ import annotations

from tests.sim.mixed_year import Year


def test_ten_days_of_a_mixed_cluster_keep_what_is_promised():
    year = Year("ten days", load=0.6, check_every=20)

    year.run(10)

    assert year.violations == []
    assert year.counts["completed"] > 300
    # What is to be checked has happened.
    assert {"time_limit", "reclaim", "same_pool_preemption"} <= set(year.checks.evictions)
    assert {"owner_limit", "dependency", "array_limit"} <= set(year.checks.reasons)
