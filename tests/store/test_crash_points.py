"""The supervisor crashes between any two journal writes of random histories, and recovers.

After each crash the state equals what was durable, field by field; nothing that was acknowledged is missing,
kept results included; a repeated request gets its first answer; no run ends two tasks; and once nothing is
pending, the ledger matches the agent processes, and each run is waited for. The histories have all that a
pool, a policy and a task may say of owners, flavors, budgets, priorities, windows, arrays, dependencies and
topology. The environment variable CRASH_SEEDS sets how many there are (default 40).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.pool_facts import BudgetLevelChanged
from schedulemesh.engine.messages.queue_facts import PriorityChanged
from schedulemesh.engine.messages.window_facts import WindowEnded, WindowNodesChosen
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal
from tests.store.crash_simulation import CrashSimulation

SEEDS = range(int(os.environ.get("CRASH_SEEDS", "40")))
CRASHES = 60


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_at_any_point_loses_nothing(seed):
    journal = MemoryJournal()
    simulation = CrashSimulation(seed, lambda: journal)
    simulation.run(CRASHES)
    print(
        f"seed {seed}: {simulation.crashes} deaths, {simulation.snapshots} snapshots, "
        f"{len(simulation.answered)} answers"
    )
    assert simulation.snapshots >= 10
    assert simulation.crashes >= CRASHES
    assert simulation.durable.epoch > CRASHES / 2


def test_runs_end_in_such_histories_and_what_is_declared_matters():
    counts = Counter()
    for seed in (0, 1, 5):
        journal = MemoryJournal()
        simulation = CrashSimulation(seed, lambda journal=journal: journal)
        simulation.run(CRASHES)
        assert simulation.used
        counts += simulation.counts
    assert counts.keys() >= {
        BudgetLevelChanged,
        PriorityChanged,
        WindowEnded,
        WindowNodesChosen,
        "flavor",
        Reason.BUDGET_SPENT,
        Reason.MAINTENANCE_WINDOW,
        Reason.OWNER_LIMIT,
        Reason.PRIORITY_NOT_PERMITTED,
    }


@pytest.mark.parametrize("seed", [1001, 1002, 1003])
def test_a_crash_at_any_point_loses_nothing_in_a_file(seed, tmp_path):
    past = []

    def reopen():
        # The dead process holds nothing; here its connection is closed once the new one has the journal.
        past.append(SqlJournal(tmp_path / "j.sqlite"))
        for journal in past[:-1]:
            journal.close()
        return past[-1]

    simulation = CrashSimulation(seed, reopen)
    simulation.run(25)
    simulation.journal.close()
    assert simulation.crashes >= 25


def test_there_are_enough_crash_points():
    assert len(SEEDS) * CRASHES >= 2000 or "CRASH_SEEDS" in os.environ
