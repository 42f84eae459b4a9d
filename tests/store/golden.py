"""Golden journals: for each format number, journals that together hold every stored form, and what they say.

    python -m tests.store.golden

writes ``formats/N.tar.xz`` for the present format N. It runs the tests of the engine, records what each of
their engines made true, and chooses few of these runs so that every kind of fact, every field that differs
from its default, and every value of an enumeration is stored at least once, as a fact or in a snapshot where
a run has it. A format that has golden journals is never written again: a changed form needs a new number.
Until a version with the format is released, fields with defaults may be added to it, and their journals with

    python -m tests.store.golden --add tests/engine/test_of_the_field.py
"""

from __future__ import annotations

import faulthandler
import io
import json
import lzma
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from schedulemesh.engine.codec import decode_chunk, decode_facts, encode_chunk, encode_facts
from schedulemesh.engine.messages.facts import FORMAT_VERSION, AnyFact
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import parts, take_snapshot
from schedulemesh.store.sql import SqlJournal

FOLDER = Path(__file__).with_name("formats")
ENGINE_TESTS = Path(__file__).parents[1] / "engine"
#: The most facts of a run that is chosen, so that a golden journal can be read by a person.
LONGEST_RUN = 3000
#: Facts of one commit.
COMMIT = 7


class Run(NamedTuple):
    """What one engine made true, and how it is stored."""

    test: str
    facts: tuple[AnyFact, ...]
    #: Whether a snapshot replaces all facts.
    compacted: bool


class StoredJournal(NamedTuple):
    """A golden journal: the bytes of its SQLite file, and what is known when it is read."""

    name: str
    file: bytes
    summary: dict[str, Any]


def archive(number: int) -> Path:
    """The file with the golden journals of a format."""
    return FOLDER / f"{number}.tar.xz"


def stored_journals(number: int) -> list[StoredJournal]:
    """The golden journals of a format."""
    contents: dict[str, bytes] = {}
    with tarfile.open(archive(number), "r:xz") as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            contents[member.name] = file.read()
    summaries = json.loads(contents.pop("summaries.json"))
    return [StoredJournal(name, data, summaries[name]) for name, data in contents.items()]


def summary(state: MeshState) -> dict[str, Any]:
    """What a person would ask a scheduler after an upgrade, in words that do not depend on the format."""
    return {
        "epoch": state.epoch,
        "pools": {
            name: {
                "quota": dict(account.spec.resources.items()),
                "reserved": dict(account.reserved.items()),
                "used": dict(account.used.items()),
            }
            for name, account in sorted(state.ledger.accounts.items())
        },
        "loans": sorted(
            [owner, borrower, dict(amount.items())]
            for (owner, borrower), amount in state.ledger.loans.items()
            if amount
        ),
        "nodes": {
            name: [dict(node.total.items()), sorted(node.allocations)]
            for name, node in sorted(state.cluster.nodes.items())
        },
        "groups": {name: group.phase.value for name, group in sorted(state.groups.by_id.items())},
        "agents": {
            name: [agent.spec.pool_name, agent.incarnation, type(agent.phase).__name__.lower()]
            for name, agent in sorted(state.agents.items())
        },
        "running": {
            name: [task.spec.priority, task.phase.value, task.agent_name]
            for name, task in sorted(state.running.by_id.items())
        },
        "queued": {
            name: [task.spec.priority, task.pool_name, task.queued_at]
            for name, task in sorted(state.queue.by_id.items())
        },
        "ended": {name: task.state.value for name, task in sorted(state.ended.items())},
        "preempted": sorted(state.preempted),
        "answers": sorted(state.answers),
        "tokens": len(list(state.tokens.values())),
        "audit": len(state.audit.all()),
    }


class Recorder:
    """A pytest plugin that keeps the runs whose stored forms no earlier run had."""

    def __init__(self, forms: Iterable[str] = ()) -> None:
        self.runs: list[tuple[Run, frozenset[str]]] = []
        #: Those that are stored already, and need no run.
        self._stored = frozenset(forms)
        self._forms = set(self._stored)
        self._meshes: list[Any] = []

    def pytest_sessionstart(self) -> None:
        """Note every engine that a test makes."""
        from tests.engine.builders import Mesh

        original, meshes = Mesh.__init__, self._meshes

        def noted(mesh: Any, *arguments: Any, **options: Any) -> None:
            meshes.append(mesh)
            original(mesh, *arguments, **options)

        Mesh.__init__ = noted  # type: ignore[method-assign]

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Keep what the engines of this test had for the first time."""
        for mesh in self._meshes:
            facts = tuple(getattr(mesh, "facts", ()))
            if 0 < len(facts) <= LONGEST_RUN:
                for compacted in (False, True):
                    self._consider(Run(item.nodeid, facts, compacted))
        self._meshes.clear()

    def _consider(self, run: Run) -> None:
        forms = frozenset(forms_of(run))
        if forms - self._forms:
            self._forms |= forms
            self.runs.append((run, forms))

    def chosen(self) -> list[Run]:
        """Few runs that have every form; each could not be left out."""
        missing, chosen = self._forms - self._stored, []
        left_over = list(self.runs)
        while missing:
            run, forms = max(
                left_over, key=lambda entry: len(entry[1] & missing) / len(entry[0].facts) ** 0.5
            )
            missing -= forms
            left_over.remove((run, forms))
            chosen.append(run)
        return chosen


def forms_of(run: Run) -> Iterator[str]:
    """Every kind of value that is stored for a run; nothing where its facts alone do not make a state."""
    try:
        state = folded(run.facts)
        check(state)
    except (KeyError, ValueError, IndexError, AssertionError):
        return  # a test that changed the state by itself
    values = [take_snapshot(state)] if run.compacted else run.facts
    for value in values:
        yield from _forms(value, "snapshot" if run.compacted else "fact")


def _forms(value: object, place: str) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        name = f"{place}:{config.tag or type(value).__name__}"
        yield name
        for field in msgspec.structs.fields(value):
            content = getattr(value, field.name)
            if content != field.default and not (content in ([], (), {}) and not field.required):
                yield f"{name}.{field.name}"
                yield from _forms(content, place)
    elif isinstance(value, Enum):
        yield f"{place}:{type(value).__name__}={value.value}"
    elif isinstance(value, dict):
        for key, content in value.items():
            yield from _forms(key, place)
            yield from _forms(content, place)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for content in value:
            yield from _forms(content, place)


def folded(facts: Iterable[AnyFact]) -> MeshState:
    """The state that these facts lead to."""
    state = MeshState()
    for fact in facts:
        state.evolve(fact)
    return state


def journal_of(run: Run, name: str, folder: Path) -> StoredJournal:
    """The run as the supervisor stores it."""
    path = folder / f"{name}.sqlite"
    journal = SqlJournal(path)
    journal.begin()
    for first in range(0, len(run.facts), COMMIT):
        journal.append(encode_facts(run.facts[first : first + COMMIT]), {})
    state = journal.load().fold()
    if run.compacted:
        journal.compact(
            [encode_chunk(part) for part in parts(take_snapshot(state), 50)],
            journal.last,
            frozenset(),
        )
    journal.close()
    return StoredJournal(name, path.read_bytes(), summary(state))


def write_archive(
    runs: Iterable[Run], path: Path, before: Iterable[StoredJournal] = ()
) -> list[StoredJournal]:
    """Store the runs after the journals that were stored before; the same bytes for the same runs as far as
    SQLite permits. Returns all journals.
    """
    stored = list(before)
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs, len(stored)):
            stored.append(journal_of(run, f"{number:02d}.sqlite", Path(folder)))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        summaries = json.dumps(
            {each.name: each.summary for each in stored}, indent=1, sort_keys=True
        )
        for name, data in [
            ("summaries.json", summaries.encode()),
            *((j.name, j.file) for j in stored),
        ]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=6))
    return stored


def forms_in(stored: Iterable[StoredJournal]) -> set[str]:
    """Every kind of value that these journals hold."""
    forms: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for each in stored:
            path = Path(folder) / each.name
            path.touch(mode=0o600)
            path.write_bytes(each.file)
            journal = SqlJournal(path, must_exist=True)
            loaded = journal.load()
            journal.close()
            for record in loaded.records:
                for fact in decode_facts(record):
                    forms.update(_forms(fact, "fact"))
            for part in loaded.parts:
                forms.update(_forms(decode_chunk(part), "snapshot"))
    return forms


def main() -> None:
    """Write the golden journals of the present format, or with ``--add TESTS`` those whose forms are new."""
    path, arguments, before = archive(FORMAT_VERSION), sys.argv[1:] or [str(ENGINE_TESTS)], []
    if arguments[0] == "--add":
        arguments, before = arguments[1:], stored_journals(FORMAT_VERSION)
    elif path.exists():
        sys.exit(
            f"format {FORMAT_VERSION} has golden journals already: raise FORMAT_VERSION in "
            "schedulemesh/engine/messages/facts.py, add the step to it to schedulemesh/store/migrations.py"
        )
    recorder = Recorder(forms_in(before))
    pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[recorder])
    # The tests' watchdog would end this process a minute after the last test.
    faulthandler.cancel_dump_traceback_later()
    stored = write_archive(recorder.chosen(), path, before)
    print(f"{path}: {len(stored)} journals, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
