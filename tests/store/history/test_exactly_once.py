"""The process that writes the history is killed at any point; it contains what the facts say, once.

The journal is compacted meanwhile, so what the history lacks comes from commits that were kept for it. The
environment variable CRASH_SEEDS sets the number of random histories (default 40).
"""

from __future__ import annotations

import os
import random

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from schedulemesh.engine.state.snapshot import referenced, take_snapshot
from schedulemesh.store.history import follower as module
from schedulemesh.store.history.commits import SqlCommits
from schedulemesh.store.history.database import TABLES
from schedulemesh.store.history.follower import Follower
from schedulemesh.store.history.tables import history_engine, migrate
from schedulemesh.store.recovery import Stored
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import written
from tests.store.crash_simulation import Crash, CrashSimulation

SEEDS = range(int(os.environ.get("CRASH_SEEDS", "40")) // 10)


class AllCommits:
    """Every commit that ever became durable."""

    def __init__(self):
        self.records = []

    def between(self, after, upto, limit):
        found = list(enumerate(self.records, 1))[after:upto]
        return found[:limit]

    def base(self):
        return 0

    def upto(self, number):
        return Stored(records=self.records[:number])


class Simulation(CrashSimulation):
    """As its base; now and then the history is continued, which may be killed before and after a write."""

    def __init__(self, seed, folder, *, snapshot_every=12):
        self.folder, self.open, self.all = folder, [], AllCommits()
        self.history_rng = random.Random(seed)
        self.follower = None
        self.kills = 0
        super().__init__(seed, self.reopened, snapshot_every=snapshot_every)

    def reopened(self):
        self.open.append(SqlJournal(self.folder / "j.sqlite"))
        for journal in self.open[:-1]:
            journal.close()
        self.follower = None
        return self.open[-1]

    def step(self, stimulus, blobs=None):
        try:
            return super().step(stimulus, blobs)
        finally:
            self.remember()
            self.follow()

    def remember(self):
        place = self.journal.place()
        commits = SqlCommits(place.address, place.journal)
        known = len(self.all.records)
        found = commits.between(known, 10**9, 10**9)
        assert [number for number, _ in found] == list(range(known + 1, known + 1 + len(found)))
        self.all.records += [record for _, record in found]
        commits.close()

    def take_snapshot(self):
        self.remember()
        state = self.engine.state
        keep_after = 0 if self.follower is None else self.follower.upto
        self.maybe_crash()
        chunks = written(state, 3)
        self.journal.compact(
            chunks, self.journal.last, referenced(take_snapshot(state)), keep_after
        )
        self._fresh = 0
        self.snapshots += 1
        self.maybe_crash()

    def follow(self):
        """Continue the history with a process that may be killed while it writes."""
        rng = self.history_rng
        if rng.random() < 0.6:
            return
        if self.follower is None:
            self.connection = history_engine(self.journal.address).connect()
            with self.connection.begin():
                migrate(self.connection)
            place = self.journal.place()
            commits = SqlCommits(place.address, place.journal)
            self.follower = Follower(
                self.connection, place.journal, commits, lambda: len(self.all.records)
            )
        if rng.random() < 0.3:
            self.kills += 1
            self.kill_at(rng.choice(["before", "after"]))
            return
        self.follower.write_next()

    def kill_at(self, point):
        real = module.write

        def killed(*arguments):
            if point == "after":
                real(*arguments)
            raise OperationalError("killed", {}, Crash())

        module.write = killed
        try:
            self.follower.write_next()
        except OperationalError:
            pass
        finally:
            module.write = real
            self.connection.close()
            self.follower = None


def rows(connection):
    return {
        table.name: [
            tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
        ]
        for table in TABLES
    }


def rounded(tables):
    """Sums of floating-point numbers depend on how they were grouped."""
    return {
        name: [tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in found]
        for name, found in tables.items()
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_the_history_contains_every_fact_once_wherever_it_is_killed(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FACTS", 7)
    (tmp_path / "oracle").mkdir()
    simulation = Simulation(2000 + seed, tmp_path)
    simulation.run(12, risk=0.03)
    while simulation.follower is None:
        simulation.follow()
    while simulation.follower.write_next() is not None:
        pass
    oracle = SqlJournal(tmp_path / "oracle" / "j.sqlite")
    connection = history_engine(oracle.address).connect()
    with connection.begin():
        migrate(connection)
    whole = Follower(connection, 1, simulation.all, lambda: len(simulation.all.records))
    while whole.write_next() is not None:
        pass
    assert simulation.kills >= 10
    assert simulation.snapshots >= 3
    found, expected = rounded(rows(simulation.connection)), rounded(rows(connection))
    for name, wanted in expected.items():
        assert found[name] == wanted, name
    assert len(expected["schedulemesh_history_attempts"]) > 20
    simulation.connection.close()
    simulation.journal.close()
    connection.close()
    oracle.close()
