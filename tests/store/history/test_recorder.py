"""The thread that writes the history, with a journal in which something happens all the time."""

from __future__ import annotations

import itertools
import threading

from schedulemesh.config.settings import HistorySettings
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.store.history.queries import History
from schedulemesh.store.history.recorder import Recorder
from schedulemesh.store.history.tables import history_engine
from schedulemesh.store.sql import SqlJournal
from tests.store.builders import ensured, write

COMMITS = 200


def test_reasons_for_waiting_are_written_while_commits_follow_each_other(tmp_path):
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    agent = AgentSpec(name="a", pool_name="p", resources=parse_resources({"cpu": 1}))
    task = TaskSpec(task_id="t", pool_name="p")
    submission = TaskSubmitted(agent=agent, task=task, queue=True)
    write(journal, ensured("p"), TaskQueued(submission=submission, at=1.0, number=1))
    for number in range(COMMITS):
        write(journal, ensured("p", cpu=number + 1.0))
    # Each look finds one commit more.
    durable = itertools.chain(range(1, journal.last), itertools.repeat(journal.last))
    recorder = Recorder(journal.place(), HistorySettings(), lambda: next(durable))
    over = threading.Event()
    recorder.listen(lambda: over.set() if recorder.upto >= journal.last else None)
    recorder.note_wait("t", "insufficient_quota", 5.0)
    recorder.start()
    assert over.wait(60)
    recorder.close()
    with history_engine(journal.address).connect() as connection:
        rows = History(connection, journal.place().journal, 1.0).events(0, 1_000)
    journal.close()
    assert [row["kind"] for row in rows].count("pool_defined") == COMMITS + 1
    (number,) = [at for at, row in enumerate(rows) if row["kind"] == "waiting"]
    assert number < 10
