"""The supervisor dies between any two journal writes of random histories, and comes back.

After each death: the state is what was durable, field by field; nothing that a caller was told is
missing; a request asked again gets its first answer; and once settled, the ledger is what lives.
CRASH_SEEDS sets how many histories there are; 40 where it is not set.
"""

from __future__ import annotations

import os

import pytest

from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal
from tests.store.lives import Lives

SEEDS = range(int(os.environ.get("CRASH_SEEDS", "40")))
CRASHES = 60


@pytest.mark.parametrize("seed", SEEDS)
def test_dying_anywhere_loses_nothing(seed):
    journal = MemoryJournal()
    lives = Lives(seed, lambda: journal)
    lives.run(CRASHES)
    print(
        f"seed {seed}: {lives.crashes} deaths, {lives.snapshots} snapshots, "
        f"{len(lives.answered)} answers"
    )
    assert lives.snapshots >= 10
    assert lives.crashes >= CRASHES
    assert lives.durable.epoch > CRASHES / 2


@pytest.mark.parametrize("seed", [1001, 1002, 1003])
def test_so_it_is_in_a_file(seed, tmp_path):
    past = []

    def reopen():
        # The dead process holds nothing; here its connection is closed once the new one has the journal.
        past.append(SqlJournal(tmp_path / "j.sqlite"))
        for journal in past[:-1]:
            journal.close()
        return past[-1]

    lives = Lives(seed, reopen)
    lives.run(25)
    lives.journal.close()
    assert lives.crashes >= 25


def test_there_are_enough_of_them():
    assert len(SEEDS) * CRASHES >= 2000 or "CRASH_SEEDS" in os.environ
