"""The supervisor's clock: set forward or back, in a life or between two, durations stay what they are."""

from __future__ import annotations

import pytest

from schedulemesh.runtime.clock import SteadyClock

DAY_S = 86_400.0


class Machine:
    """A machine whose system clock can be set."""

    def __init__(self):
        self.system, self.ticks, self.init = 1_000_000.0, 500.0, "first"

    def clock(self):
        """The clock of a new process."""
        return SteadyClock(lambda: self.system, lambda: self.ticks, lambda: self.init)

    def passes(self, seconds):
        self.system += seconds
        self.ticks += seconds

    def boots(self, off_s=60.0):
        """Off for so many seconds."""
        self.system += off_s
        self.ticks, self.init = 10.0, f"after {self.init}"


@pytest.fixture
def machine():
    return Machine()


def test_it_begins_with_the_system_clock_and_advances_with_it(machine, caplog):
    clock = machine.clock()
    assert clock.now() == 1_000_000.0
    machine.passes(7.5)
    assert clock.now() == 1_000_007.5
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("by_s", "said"),
    [(DAY_S, "set forward by 86400 s"), (-4 * DAY_S, "set back by 345600 s")],
)
def test_a_jump_changes_no_duration_and_is_logged_once(machine, caplog, by_s, said):
    clock = machine.clock()
    before = clock.now()
    machine.system += by_s
    machine.passes(10.0)
    assert clock.now() - before == 10.0
    clock.now()
    assert caplog.text.count("the system clock was set") == 1
    assert said in caplog.text


def test_a_small_correction_is_not_logged(machine, caplog):
    clock = machine.clock()
    machine.system += 2.0
    assert clock.now() == 1_000_000.0
    assert caplog.text == ""


@pytest.mark.parametrize("by_s", [-4 * DAY_S, DAY_S])
def test_a_clock_change_between_two_runs_changes_no_duration(machine, by_s):
    first = machine.clock()
    began, mark = first.now(), first.mark()
    machine.system += by_s
    machine.passes(100.0)
    second = machine.clock()
    second.resume(mark, began)
    assert second.now() - began == 100.0


def test_a_mark_of_long_ago_still_serves_on_the_same_boot(machine):
    first = machine.clock()
    began, mark = first.now(), first.mark()
    machine.passes(30 * DAY_S)
    first.now()
    machine.system -= 40 * DAY_S
    second = machine.clock()
    second.resume(mark, began + 29 * DAY_S)
    assert second.now() - began == 30 * DAY_S


def test_after_another_boot_a_clock_that_is_behind_is_not_believed(machine, caplog):
    first = machine.clock()
    machine.passes(50.0)
    mark = first.mark()
    machine.boots()
    machine.system -= 4 * DAY_S
    second = machine.clock()
    second.resume(mark, mark.at - 20.0)
    assert second.now() == mark.at
    assert "behind the newest entry of the journal" in caplog.text
    machine.passes(5.0)
    assert second.now() == mark.at + 5.0


def test_after_another_boot_the_system_clock_says_how_long_it_was_off(machine):
    first = machine.clock()
    mark = first.mark()
    machine.boots(off_s=60.0)
    second = machine.clock()
    second.resume(mark, mark.at)
    assert second.now() == mark.at + 60.0


def test_no_entry_of_the_journal_is_in_the_future(machine):
    clock = machine.clock()
    clock.resume(None, 1_000_300.0)
    assert clock.now() == 1_000_300.0


def test_the_real_sources_agree():
    first = SteadyClock()
    second = SteadyClock()
    second.resume(first.mark(), 0.0)
    before = first.now()
    assert -0.001 < second.now() - before < 5.0
