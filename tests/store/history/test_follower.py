"""A history that did not see all facts continues with what the state says."""

from __future__ import annotations

import threading

import msgspec
import pytest
from sqlalchemy import select

from schedulemesh.config.settings import HistorySettings
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.flavors import TakenFlavor
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import JournalError
from schedulemesh.store.history.commits import SqlCommits
from schedulemesh.store.history.follower import Follower
from schedulemesh.store.history.queries import History
from schedulemesh.store.history.retention import Retention
from schedulemesh.store.history.schema import attempts, events
from schedulemesh.store.history.tables import history_engine, migrate
from schedulemesh.store.history.usage import Dimension
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import ensured, write, written

AGENT = AgentSpec(name="a", pool_name="p", resources=parse_resources({"cpu": 1}))
TASK = TaskSpec(task_id="t", pool_name="p", owner="ann")
ADMITTED = f.AgentAdmitted(
    agent=AGENT,
    incarnation=1,
    at=10.0,
    task=TASK,
    shares=(f.Share(pool_name="p", amount=AGENT.resources),),
)
STARTED = f.AgentStarted(agent_name="a", incarnation=1, at=11.0)
ENDED = f.AgentEnded(agent_name="a", incarnation=1, at=12.0, reason=EndReason.COMPLETED)


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request, tmp_path):
    if request.param == "sqlite":
        made = SqlJournal(tmp_path / "j.sqlite")
    else:
        made = SqlJournal(request.getfixturevalue("database")("mesh"))
    made.begin()
    yield made
    made.close()


@pytest.fixture
def connection(journal):
    with history_engine(journal.address).connect() as made:
        with made.begin():
            migrate(made)
        made.info["journal"] = journal.place().journal
        yield made


def follow(journal, connection, last=None, **settings):
    place = journal.place()
    commits = SqlCommits(place.address, place.journal)
    follower = Follower(
        connection,
        place.journal,
        commits,
        lambda: journal.last if last is None else last,
        **settings,
    )
    while follower.write_next() is not None:
        pass
    commits.close()
    return follower


def compacted(journal, keep_after=None):
    journal.compact(written(journal.load().fold()), journal.last, frozenset(), keep_after)


def kinds(connection):
    with connection.begin():
        wanted = select(events.c.kind).where(events.c.journal == connection.info["journal"])
        return list(connection.execute(wanted.order_by(events.c.number)).scalars())


def found(connection):
    names = ("task_id", "owner", "state", "started_at")
    mine = attempts.c.journal == connection.info["journal"]
    with connection.begin():
        rows = connection.execute(select(*(attempts.c[name] for name in names)).where(mine))
        return [tuple(row) for row in rows]


def test_one_that_begins_later_contains_what_runs(journal, connection):
    write(journal, ensured("p"), ADMITTED, STARTED)
    compacted(journal)
    follow(journal, connection)
    assert found(connection) == [("t", "ann", "running", 11.0)]
    write(journal, ENDED)
    follow(journal, connection)
    assert found(connection) == [("t", "ann", "completed", 11.0)]
    assert kinds(connection) == ["found", "completed"]


def test_a_snapshot_leaves_the_commits_that_it_lacks(journal, connection):
    write(journal, ensured("p"))
    follower = follow(journal, connection)
    write(journal, ADMITTED, STARTED)
    write(journal, ENDED)
    compacted(journal, follower.upto)
    assert journal.load().records == []
    follow(journal, connection)
    assert kinds(connection) == ["pool_defined", "admitted", "started", "completed"]


def test_the_next_snapshot_removes_them(journal, connection):
    write(journal, ensured("p"))
    compacted(journal, 0)
    place = journal.place()
    commits = SqlCommits(place.address, place.journal)
    assert [number for number, _ in commits.between(0, 9, 9)] == [1]
    compacted(journal, 1)
    assert commits.between(0, 9, 9) == []
    commits.close()


def test_commits_that_were_dropped_are_a_gap(journal, connection):
    write(journal, ensured("p"), ADMITTED)
    follow(journal, connection)
    write(journal, STARTED)
    write(journal, ENDED)
    compacted(journal)
    follow(journal, connection)
    assert kinds(connection) == ["pool_defined", "admitted", "gap", "unknown"]
    assert found(connection) == [("t", "ann", "unknown", None)]


def test_a_restored_backup_does_not_repeat_what_is_contained(journal, connection):
    write(journal, ensured("p"), ADMITTED)
    write(journal, STARTED)
    follow(journal, connection)
    before = kinds(connection)
    follow(journal, connection, last=1)
    assert kinds(connection) == [*before, "gap"]
    assert [row[0] for row in found(connection)] == ["t"]


def test_what_is_not_known_to_be_durable_is_not_read(journal, connection):
    write(journal, ensured("p"))
    write(journal, ADMITTED)
    follow(journal, connection, last=1)
    assert kinds(connection) == ["pool_defined"]


def test_a_missing_commit_is_an_error(journal, connection):
    class Nothing:
        def between(self, after, upto, limit):
            return []

        def base(self):
            return 0

    follower = Follower(connection, journal.place().journal, Nothing(), lambda: 3)
    with pytest.raises(JournalError, match="commit 1"):
        follower.write_next()


def test_why_a_task_waits_has_a_line_when_the_reason_changes(journal, connection):
    agent = AgentSpec(name="q", pool_name="p", resources=AGENT.resources)
    submission = TaskSubmitted(agent=agent, task=TaskSpec(task_id="q"), queue=True)
    write(journal, ensured("p"), TaskQueued(submission=submission, at=10.0, number=1))
    follower = follow(journal, connection)
    assert follower.write_waits([("q", "insufficient_quota", 5.0), ("gone", "no_room", 5.0)])
    assert not follower.write_waits([("q", "insufficient_quota", 5.0)])
    again = follow(journal, connection)
    assert not again.write_waits([("q", "insufficient_quota", 5.0)])
    assert again.write_waits([("q", "held_by_user", 5.0)])
    assert kinds(connection) == ["pool_defined", "queued", "waiting", "waiting"]


def test_use_is_summed_up_and_old_attempts_are_removed(journal, connection):
    write(journal, ensured("p"), ADMITTED, STARTED, ENDED)
    follow(journal, connection)
    number = journal.place().journal
    with connection.begin():
        asked = History(connection, number, 20.0)
        (row,) = asked.usage(Dimension.OWNER, 0.0, 3600.0, None)
    assert (row["owner"], row["completed"]) == ("ann", 1)
    assert row["cpu_hours"] == pytest.approx(1.0 / 3600.0)
    young = Retention(number, HistorySettings(keep_s=100.0))
    assert young.apply(connection, 50.0, threading.Event()) == 0
    assert found(connection) != []
    assert young.apply(connection, 200.0, threading.Event()) == 1
    assert found(connection) == []
    assert kinds(connection) == []
    with connection.begin():
        assert len(History(connection, number, 20.0).usage(Dimension.POOL, 0.0, 3600.0, None)) == 1


def test_use_is_summed_up_by_flavor_while_it_runs_and_afterwards(journal, connection):
    in_flavor = msgspec.structs.replace(AGENT, flavor=TakenFlavor(name="h100"))
    admitted = msgspec.structs.replace(ADMITTED, agent=in_flavor)
    write(journal, ensured("p"), admitted, STARTED)
    follow(journal, connection)
    number = journal.place().journal

    def rows(now):
        with connection.begin():
            return History(connection, number, now).usage(Dimension.FLAVOR, 0.0, 3600.0, None)

    (row,) = rows(12.0)
    assert (row["flavor"], row["cpu_hours"]) == ("h100", pytest.approx(1.0 / 3600.0))
    write(journal, ENDED)
    follow(journal, connection)
    (row,) = rows(20.0)
    assert (row["completed"], row["cpu_hours"]) == (1, pytest.approx(1.0 / 3600.0))


def test_more_attempts_than_wanted_are_removed_the_oldest_first(journal, connection):
    for at in (10.0, 20.0, 30.0):
        admitted = msgspec.structs.replace(ADMITTED, at=at, incarnation=int(at))
        ended = msgspec.structs.replace(ENDED, at=at + 1.0, incarnation=int(at))
        write(journal, ensured("p"), admitted, ended)
    follow(journal, connection)
    kept = Retention(journal.place().journal, HistorySettings(keep_tasks=1))
    assert kept.apply(connection, 40.0, threading.Event()) == 2
    with connection.begin():
        assert connection.execute(
            select(attempts.c.admitted_at).where(attempts.c.journal == connection.info["journal"])
        ).scalars().all() == [30.0]
