"""The thread that writes the history, with a journal in which something happens all the time."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import select

from schedulemesh.config.settings import HistorySettings
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.queue_facts import TaskCancelled, TaskQueued
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.store.files import beside
from schedulemesh.store.history import recorder as recorders
from schedulemesh.store.history.queries import History
from schedulemesh.store.history.recorder import Recorder
from schedulemesh.store.history.retention import Retention
from schedulemesh.store.history.schema import attempts, events, steps
from schedulemesh.store.history.tables import FILES, history_engine, history_path
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


@pytest.fixture
def journal(tmp_path):
    opened = SqlJournal(tmp_path / "j.sqlite")
    opened.begin()
    write(opened, ensured("p"))
    yield opened
    opened.close()


def test_a_damaged_history_that_cannot_be_set_aside_is_tried_again(journal, monkeypatch):
    rename, tries = Path.rename, []

    def fail_once(path, target):
        tries.append(path)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    monkeypatch.setattr(recorders, "_RETRY_S", 0.01)
    history_path(journal.address).write_bytes(b"no database" * 1_000)
    recorder = Recorder(journal.place(), HistorySettings(), lambda: journal.last)
    written = threading.Event()
    recorder.listen(written.set)
    recorder.start()
    assert written.wait(30), "its thread has ended"
    recorder.close()
    assert len(tries) == 2


def test_a_system_clock_that_is_set_forward_removes_no_history(journal, monkeypatch):
    monkeypatch.setattr(recorders, "_RETENTION_S", 0.0)
    monkeypatch.setattr(recorders, "_LOOK_S", 0.01)
    monkeypatch.setattr(recorders.time, "time", lambda: 4e9)
    retained, apply = threading.Semaphore(0), Retention.apply

    def applied(*arguments):
        apply(*arguments)
        retained.release()

    monkeypatch.setattr(Retention, "apply", applied)
    recorder = Recorder(journal.place(), HistorySettings(), lambda: journal.last, now=lambda: 10.0)
    recorder.start()
    for _ in range(2):
        assert retained.acquire(timeout=30)
    recorder.close()
    with history_engine(journal.address).connect() as connection:
        rows = History(connection, journal.place().journal, 1.0).events(0, 10)
    assert [row["kind"] for row in rows] == ["pool_defined"]


def test_what_others_read_leaves_the_history_its_write_ahead_log(journal):
    recorder = Recorder(journal.place(), HistorySettings(), lambda: journal.last)
    written = threading.Event()
    recorder.listen(written.set)
    recorder.start()
    assert written.wait(30)
    path = history_path(journal.address)
    log = beside(path, "-wal")
    inode = log.stat().st_ino
    # What the supervisor reads in its own process, and then what a rehearsal reads in another one.
    with history_engine(journal.address).connect() as connection:
        assert len(History(connection, journal.place().journal, 1.0).events(0, 10)) == 1
    look = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('PRAGMA user_version'); c.close()"
    subprocess.run([sys.executable, "-c", look], check=True)
    assert log.stat().st_ino == inode
    written.clear()
    write(journal, ensured("p", cpu=9.0))
    assert written.wait(30)
    assert recorder.trouble == ""
    recorder.close()
    with history_engine(journal.address).connect() as connection:
        rows = History(connection, journal.place().journal, 1.0).events(0, 10)
    assert len(rows) == 2


def test_a_history_whose_file_was_removed_begins_anew(journal, monkeypatch):
    monkeypatch.setattr(recorders, "_RETRY_S", 0.01)
    recorder = Recorder(journal.place(), HistorySettings(), lambda: journal.last)
    written = threading.Event()
    recorder.listen(written.set)
    recorder.start()
    assert written.wait(30)
    for suffix in FILES:
        beside(journal.address.path, suffix).unlink(missing_ok=True)
    written.clear()
    assert written.wait(30), "what the journal has is written to a new file"
    recorder.close()
    with history_engine(journal.address).connect() as connection:
        rows = History(connection, journal.place().journal, 1.0).events(0, 10)
    assert [row["kind"] for row in rows] == ["pool_defined"]


def test_texts_have_no_character_that_a_text_of_postgresql_cannot_have(journal):
    agent = AgentSpec(name="a", pool_name="p", resources=parse_resources({"cpu": 1}))
    submission = TaskSubmitted(agent=agent, task=TaskSpec(task_id="t", pool_name="p"), queue=True)
    error = "ValueError: embedded null byte: 'a\0b'"
    cancelled = TaskCancelled(task_id="t", at=2.0, reason=Reason.CLASS_NOT_LOADED, error=error)
    write(journal, TaskQueued(submission=submission, at=1.0, number=1), cancelled)
    recorder = Recorder(journal.place(), HistorySettings(), lambda: journal.last)
    written = threading.Event()
    recorder.listen(lambda: written.set() if recorder.upto >= journal.last else None)
    recorder.start()
    assert written.wait(30)
    recorder.close()
    with history_engine(journal.address).connect() as connection:
        texts = [
            value
            for table in (attempts, events, steps)
            for row in connection.execute(select(table))
            for value in row
            if isinstance(value, str)
        ]
    assert any("embedded null byte" in text for text in texts)
    assert not [text for text in texts if "\0" in text]


def test_reasons_that_cannot_be_written_are_bounded(journal, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_WAITS", 100)
    recorder = Recorder(journal.place(), HistorySettings(), lambda: journal.last)
    for number in range(1_000):
        recorder.note_wait(f"t{number}", "insufficient_quota", 5.0)
    assert len(recorder._waits) == 100
    assert recorder._waits[-1][1] == "t999"
