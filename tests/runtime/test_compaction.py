"""Snapshots are made of what a journal holds, beside the supervisor: much of it by another process."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from benchmarks.mesh import amounts, opening, submitted
from schedulemesh.engine.codec import decode_chunk, encode_chunk, encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.state.snapshot import parts, referenced, restored, take_snapshot
from schedulemesh.errors import JournalError
from schedulemesh.runtime.journal import compaction
from schedulemesh.runtime.journal.compaction import Compaction, read_entries, write_entries
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.blob_keys import BlobKeys
from schedulemesh.store.recovery import Stored
from schedulemesh.store.sql import SqlJournal
from tests.counted_calls import calls_of
from tests.engine.builders import differences


def journal_of(tasks):
    """What a journal holds: half of it as a snapshot, half as facts; and the state that it leads to."""
    engine, stored = Engine(), Stored()
    for stimulus in opening(1):
        stored.records.append(encode_facts(engine.handle(stimulus, 0.0).facts))
    for number in range(tasks):
        task = replace(submitted(number, amounts(cpu=64, gpu=8), 5.0), queue=True)
        agent = replace(task.agent, arguments_key=f"arguments-{number}")
        stored.records.append(encode_facts(engine.handle(replace(task, agent=agent), 1.0).facts))
        if number == tasks // 2:
            chunks = [encode_chunk(part) for part in parts(take_snapshot(engine.state))]
            stored.compact(chunks, stored.last)
    return stored, engine.state


@pytest.mark.parametrize("count", [0, 1, 2500])
def test_a_list_goes_through_a_pipe(count):
    entries, file = [b"x" * (n % 7) for n in range(count)], io.BytesIO()
    write_entries(file, entries)
    write_entries(file, [b"next"])
    file.seek(0)
    assert list(read_entries(file)) == entries
    assert list(read_entries(file)) == [b"next"]
    with pytest.raises(EOFError, match="0 of 8 bytes"):
        list(read_entries(file))


@pytest.mark.parametrize("process_bytes", [0, 10**9])
def test_a_snapshot_is_the_state_that_is_stored(monkeypatch, process_bytes):
    monkeypatch.setattr(compaction, "PROCESS_BYTES", process_bytes)
    stored, state = journal_of(40)
    made = Compaction().run(stored)
    assert differences(state, restored(map(decode_chunk, made.parts))) == []
    keys = BlobKeys(made.keys)
    assert set(keys) == referenced(take_snapshot(state))
    assert "arguments-7" in keys


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_where_the_process_cannot_be_started_or_fails_the_supervisor_does_it_itself(
    monkeypatch, caplog, program
):
    monkeypatch.setattr(compaction, "PROCESS_BYTES", 0)
    monkeypatch.setattr(sys, "executable", program)
    stored, state = journal_of(4)
    made = Compaction().run(stored)
    assert differences(state, restored(map(decode_chunk, made.parts))) == []
    assert "a process that makes a snapshot has failed" in caplog.text


def test_once_the_journal_is_closed_no_process_is_started(monkeypatch):
    monkeypatch.setattr(compaction, "PROCESS_BYTES", 0)
    ended = Compaction()
    ended.end()
    with pytest.raises(JournalError, match="is being closed"):
        ended.run(journal_of(4)[0])


@pytest.mark.parametrize("data", [b"", b"\0\0"])
def test_the_process_ends_where_its_supervisor_does(data):
    """It gets no more than this, and nobody reads what it writes."""
    command = [sys.executable, "-m", compaction.__name__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        command, input=data, env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_decisions_do_not_wait_for_a_snapshot_however_much_is_queued(tmp_path):
    """The loop makes as many calls for it with 50 tasks in the queue as with 500."""

    async def calls_for(count):
        reactor = await Reactor.recover(SqlJournal(tmp_path / f"{count}.sqlite"))
        for stimulus in opening(1):
            await reactor.step(stimulus)
        for number in range(count):
            task = submitted(number, amounts(cpu=64, gpu=8), 5.0)
            await reactor.step(replace(task, request_id=None, queue=True))
        taking = reactor._snapshots.take()
        calls = 0
        awaited = None
        while True:
            try:
                awaited, more = calls_of(
                    lambda: taking.send(None), besides=ThreadPoolExecutor.submit
                )
            except StopIteration:
                break
            calls += more
            await asyncio.wait([awaited])
        assert reactor._writer.stored.base == reactor.last
        await reactor.close(destroy=False)
        return calls

    async def story():
        return await calls_for(50), await calls_for(500)

    few, many = asyncio.run(asyncio.wait_for(story(), 60))
    assert few == many
