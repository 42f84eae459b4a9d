"""How long the history's thread rests."""

from __future__ import annotations

import pytest

from schedulemesh.store.history.pace import Pace


class Clocks:
    """Time, processor time of the process, and that of the thread."""

    def __init__(self):
        self.times = (0.0, 0.0, 0.0)

    def __call__(self):
        return self.times

    def go_on(self, wall, others, own=0.0):
        at, process, thread = self.times
        self.times = (at + wall, process + others + own, thread + own)


def rest(clocks, *, wall, others, own):
    """The rest after work of this length, in which the others used this much, too, of each second."""
    pace = Pace(clocks)
    clocks.go_on(1.0, others)
    pace.begin()
    clocks.go_on(wall, others * wall, own)
    return pace.rest_s()


@pytest.mark.parametrize(
    ("others", "share"),
    [(0.0, 0.5), (0.2, 0.5), (0.3, 0.03), (1.0, 0.03)],
)
def test_it_rests_long_where_the_others_are_busy(others, share):
    rested = rest(Clocks(), wall=0.01, others=others, own=0.01)
    assert rested == pytest.approx(0.01 * (1 - share) / share)


def test_where_processors_are_short_less_is_busy_and_work_counts_by_its_length():
    """A thread gets a quarter of a core: others that use a tenth of one want more than half of theirs."""
    rested = rest(Clocks(), wall=0.012, others=0.1, own=0.003)
    assert rested == pytest.approx(0.012 * 0.97 / 0.03)


def test_whether_others_are_busy_is_judged_over_some_time():
    clocks = Clocks()
    pace = Pace(clocks)
    clocks.go_on(0.001, 0.001, own=0.001)
    assert pace.rest_s() == pytest.approx(0.001)
    clocks.go_on(1.0, 1.0)
    pace.begin()
    clocks.go_on(0.001, 0.0, own=0.001)
    assert pace.rest_s() == pytest.approx(0.001 * 0.97 / 0.03)


def test_where_it_could_not_go_on_it_rests_no_longer_than_queries_can_wait():
    assert rest(Clocks(), wall=3.0, others=1.0, own=0.001) == pytest.approx(0.5 * 0.97)


def test_its_own_processor_time_is_always_that_part():
    assert rest(Clocks(), wall=3.0, others=1.0, own=0.1) == pytest.approx(0.1 * 0.97 / 0.03)
