"""The keeper: loads strategies, writes down those that are disabled, and knows who hangs."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from schedulemesh.config.settings import STRATEGY_HANG_S, STRATEGY_LOAD_S, StrategyRef
from schedulemesh.errors import JournalError
from schedulemesh.plugins import SchedulingStrategyPlugin
from schedulemesh.plugins.discovery import SCHEDULING_GROUP, load_class
from schedulemesh.runtime.plugins.call_mark import CallMark
from schedulemesh.runtime.plugins.watchdog import PluginWatchdog
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal


class Mine(SchedulingStrategyPlugin):
    def priority(self, task):
        return 1.0


class Other(SchedulingStrategyPlugin):
    def score(self, task, resources):
        return 1.0


def ref(name):
    """A strategy of this file; what follows # tells it from others of its class."""
    return StrategyRef(
        name=name, path=f"tests.runtime.test_plugin_watchdog:{name.partition('#')[0]}"
    )


def load(given):
    return load_class(given.path, SCHEDULING_GROUP)()


def keeper(journal, *names, mark=Path("/dev/null/nowhere"), again=False):
    found = PluginWatchdog([ref(name) for name in names], journal, mark, load)
    found.load(again=again)
    return found


def disable(guarded, reason):
    """Disable it, and return once that is noted or cannot be."""
    guarded.disable(reason)
    for thread in threading.enumerate():
        if thread.name == "strategy record":
            thread.join(60)


@pytest.fixture(params=["memory", "file"])
def journal(request, tmp_path):
    in_memory = request.param == "memory"
    found = MemoryJournal() if in_memory else SqlJournal(tmp_path / "mesh.sqlite")
    yield found
    found.close()


def test_they_are_loaded_in_their_order():
    found = keeper(MemoryJournal(), "Mine", "Other")
    assert [guarded.hooks for guarded in found.plugins] == [("priority",), ("score",)]
    assert [entry["name"] for entry in found.status()] == ["Mine", "Other"]


def test_a_plugin_that_cannot_be_loaded_is_disabled_until_the_restart(caplog):
    journal = MemoryJournal()
    gone = StrategyRef(name="gone", path="no_such_module:X")
    found = PluginWatchdog([gone], journal, Path("/dev/null/nowhere"), load)
    with caplog.at_level(logging.ERROR):
        found.load()
    assert found.plugins == ()
    assert "cannot be loaded" in found.status()[0]["disabled"]
    assert journal.note("disabled strategies") is None


def test_a_disabled_plugin_stays_disabled_as_long_as_the_journal_exists(journal):
    disable(keeper(journal, "Mine", "Mine#2").plugins[1], "too slow")
    again = keeper(journal, "Mine", "Mine#2")
    assert [guarded.name for guarded in again.plugins] == ["Mine"]
    assert [entry["disabled"] for entry in again.status()] == ["", "too slow"]
    disable(again.plugins[0], "slow, too")
    assert keeper(journal, "Mine", "Mine#2").plugins == ()


def test_an_unreadable_record_disables_no_plugin(caplog):
    journal = MemoryJournal()
    journal.put_note("disabled strategies", b"{")
    with caplog.at_level(logging.WARNING):
        assert len(keeper(journal, "Mine").plugins) == 1
    assert "cannot be read" in caplog.text


def test_an_unwritable_record_disables_until_the_restart(caplog):
    class Full(MemoryJournal):
        def put_note(self, name, data):
            raise JournalError("the disk is full")

    found = keeper(Full(), "Mine")
    with caplog.at_level(logging.ERROR):
        disable(found.plugins[0], "too slow")
    assert "the disk is full" in caplog.text
    assert found.status()[0]["disabled"] == "too slow"


def test_who_hangs_is_known_by_the_clock():
    found = keeper(MemoryJournal(), "Mine")
    assert found._hung(1e9) is None
    found.plugins[0].running_call = ("score", 100.0)
    assert found._hung(100.0 + STRATEGY_HANG_S) is None
    assert found._hung(100.1 + STRATEGY_HANG_S) == ("Mine", "score did not return within 5 s")
    found.plugins[0].running_call = None
    found._loading = ("Mine", 0.0)
    assert found._hung(STRATEGY_LOAD_S + 1) == ("Mine", "it did not load within 30 s")
    found._loading = None


class ProcessExiting(SchedulingStrategyPlugin):
    def score(self, task, resources):
        os._exit(7)


class Interrupted(SchedulingStrategyPlugin):
    def __init__(self):
        if "interrupt" in os.environ.get("STRATEGY_TEST", ""):
            raise KeyboardInterrupt

    def priority(self, task):
        return 1.0


#: One life of a supervisor, as far as its strategies go: what it is asked, and how it ends.
LIFE = """
import sys
from pathlib import Path
from schedulemesh.store.sql import SqlJournal
from tests.runtime.test_plugin_watchdog import keeper
folder, again, last = Path(sys.argv[1]), sys.argv[2] == "again", sys.argv[3]
journal = SqlJournal(folder / "mesh.sqlite")
found = keeper(journal, "Mine", "ProcessExiting", mark=folder / "mesh.asked", again=again)
print({entry["name"]: entry["disabled"] for entry in found.status()}, flush=True)
for guarded in found.plugins:
    if guarded.name == "Mine":
        guarded.priority(None)
    elif last == "asks":
        guarded.score(None, None)
if last == "killed":
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
journal.close()
"""


def life(folder, which, last):
    """How such a life ended, and which strategies it disabled when it began."""
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(folder), which, last],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, ast.literal_eval(done.stdout or "None")


def test_a_plugin_that_exits_the_process_is_disabled_after_the_restart(tmp_path):
    assert life(tmp_path, "first", "asks") == (7, {"Mine": "", "ProcessExiting": ""})
    reason = "the supervisor's process ended while it was asked score"
    for _ in range(2):
        assert life(tmp_path, "again", "asks") == (0, {"Mine": "", "ProcessExiting": reason})


def test_a_process_killed_for_another_reason_disables_no_plugin(tmp_path):
    assert life(tmp_path, "first", "killed") == (-9, {"Mine": "", "ProcessExiting": ""})
    assert life(tmp_path, "again", "killed") == (-9, {"Mine": "", "ProcessExiting": ""})


def test_a_new_scheduler_of_the_same_name_disables_no_plugin(tmp_path):
    life(tmp_path, "first", "asks")
    (tmp_path / "mesh.sqlite").unlink()
    assert life(tmp_path, "first", "killed") == (-9, {"Mine": "", "ProcessExiting": ""})


def test_the_mark_of_one_that_ends_while_it_loads_is_left(tmp_path):
    mark = CallMark(tmp_path / "asked")
    assert mark.unfinished_call() is None
    mark.begin("Mine", "to load")
    assert CallMark(tmp_path / "asked").unfinished_call() == ("Mine", "to load")
    mark.begin("M" * 9000, "score")
    assert CallMark(tmp_path / "asked").unfinished_call() is None, "what is cut off names nobody"
    mark.end()
    assert CallMark(tmp_path / "asked").unfinished_call() is None
    mark.remove()
    mark.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_mark_follows_no_link(tmp_path, caplog):
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "asked").symlink_to(tmp_path / "victim")
    mark = CallMark(tmp_path / "asked")
    mark.begin("Mine", "score")
    assert "will not be known" in caplog.text
    assert (tmp_path / "victim").read_text() == "kept"


def test_one_that_is_interrupted_while_it_loads_is_disabled_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("STRATEGY_TEST", "interrupt")
    found = keeper(MemoryJournal(), "Mine", "Interrupted", mark=tmp_path / "asked")
    assert [guarded.name for guarded in found.plugins] == ["Mine"]
    assert "KeyboardInterrupt" in found.status()[1]["disabled"]
