"""The keeper: loads strategies, writes down those that are disabled, and knows who hangs."""

from __future__ import annotations

import logging
import threading

import pytest

from schedulemesh.config.settings import STRATEGY_HANG_S, STRATEGY_LOAD_S, StrategyRef
from schedulemesh.core.client.strategies import chosen_strategies
from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.plugins import SchedulingStrategyPlugin
from schedulemesh.runtime.plugin_watchdog import StrategyKeeper
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal


class Mine(SchedulingStrategyPlugin):
    def priority(self, task):
        return 1.0


class Hookless(SchedulingStrategyPlugin):
    pass


def keeper(journal, *given):
    _, refs = chosen_strategies("bin_pack", given)
    found = StrategyKeeper(refs, journal)
    found.load()
    return found


def disable(guarded, reason):
    """Disable it, and return once that is noted or cannot be."""
    guarded.disable(reason)
    for thread in threading.enumerate():
        if thread.name == "strategy record":
            thread.join(10)


@pytest.fixture(params=["memory", "file"])
def journal(request, tmp_path):
    in_memory = request.param == "memory"
    found = MemoryJournal() if in_memory else SqlJournal(tmp_path / "mesh.sqlite")
    yield found
    found.close()


def test_strategies_are_told_apart_and_built_in_ones_chosen():
    node, refs = chosen_strategies("bin_pack", [Mine(), "spread", Mine()])
    assert node == "spread"
    assert [ref.name for ref in refs] == ["Mine", "Mine#2"]
    assert chosen_strategies("best_fit", ["best_fit"]) == ("best_fit", ())
    assert chosen_strategies("best_fit", []) == ("best_fit", ())


@pytest.mark.parametrize(
    ("node", "given", "why"),
    [
        ("tetris", [], "node_strategy is 'tetris'"),
        ("spread", ["best_fit"], "give one of them"),
        ("bin_pack", ["best_fit", "spread"], "several built-in ones"),
        ("bin_pack", "spread", "must be a list"),
        ("bin_pack", [7], "not 7"),
        ("bin_pack", [Hookless()], "none of the hooks"),
        ("bin_pack", ["json:loads"], "no class under"),
    ],
)
def test_what_makes_no_sense_is_refused(node, given, why):
    with pytest.raises(InvalidRequestError, match=why):
        chosen_strategies(node, given)


def test_an_instance_and_a_path_are_loaded():
    found = keeper(MemoryJournal(), Mine(), "examples.plugin_demo:LongJobsLast")
    assert [guarded.hooks for guarded in found.plugins] == [("priority",), ("priority",)]
    assert [entry["name"] for entry in found.status()] == [
        "Mine",
        "examples.plugin_demo:LongJobsLast",
    ]


def test_one_that_cannot_be_loaded_is_disabled_in_this_life_only(caplog):
    journal = MemoryJournal()
    found = StrategyKeeper([StrategyRef(name="gone", path="no_such_module:X")], journal)
    with caplog.at_level(logging.ERROR):
        found.load()
    assert found.plugins == ()
    assert "cannot be loaded" in found.status()[0]["disabled"]
    assert journal.note("disabled strategies") is None


def test_one_that_is_disabled_stays_so_until_its_journal_is_gone(journal):
    disable(keeper(journal, Mine(), Mine()).plugins[1], "too slow")
    again = keeper(journal, Mine(), Mine())
    assert [guarded.name for guarded in again.plugins] == ["Mine"]
    assert [entry["disabled"] for entry in again.status()] == ["", "too slow"]
    disable(again.plugins[0], "slow, too")
    assert keeper(journal, Mine(), Mine()).plugins == ()


def test_a_record_that_cannot_be_read_disables_nobody(caplog):
    journal = MemoryJournal()
    journal.put_note("disabled strategies", b"{")
    with caplog.at_level(logging.WARNING):
        assert len(keeper(journal, Mine()).plugins) == 1
    assert "cannot be read" in caplog.text


def test_a_record_that_cannot_be_written_disables_in_this_life(caplog):
    class Full(MemoryJournal):
        def put_note(self, name, data):
            raise JournalError("the disk is full")

    found = keeper(Full(), Mine())
    with caplog.at_level(logging.ERROR):
        disable(found.plugins[0], "too slow")
    assert "the disk is full" in caplog.text
    assert found.status()[0]["disabled"] == "too slow"


def test_who_hangs_is_known_by_the_clock():
    found = keeper(MemoryJournal(), Mine())
    assert found._hung(1e9) is None
    found.plugins[0].under_way = ("score", 100.0)
    assert found._hung(100.0 + STRATEGY_HANG_S) is None
    assert found._hung(100.1 + STRATEGY_HANG_S) == ("Mine", "score did not return within 5 s")
    found.plugins[0].under_way = None
    found._loading = ("Mine", 0.0)
    assert found._hung(STRATEGY_LOAD_S + 1) == ("Mine", "it did not load within 30 s")
    found._loading = None
