from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.engine.placement.minimise import minimise, release_until

items = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60)
wanted = st.tuples(st.integers(0, 80), st.integers(0, 80))


class Sums:
    """Enough is released when both sums are."""

    def __init__(self, wanted):
        self.lacking = list(wanted)
        self.calls = 0

    def release(self, item):
        self.lacking = [lack - part for lack, part in zip(self.lacking, item, strict=True)]

    def take_back(self, item):
        self.lacking = [lack + part for lack, part in zip(self.lacking, item, strict=True)]

    def kind(self, item):
        return item

    def enough(self):
        self.calls += 1
        return max(self.lacking) <= 0


def enough(items, wanted):
    return all(sum(item[i] for item in items) >= wanted[i] for i in (0, 1))


@given(items, wanted)
def test_the_first_items_that_are_enough_are_released(every, wanted):
    trial = Sums(wanted)
    found = release_until(trial, every, trial.enough)
    shortest = next((n for n in range(len(every) + 1) if enough(every[:n], wanted)), None)
    assert found == (None if shortest is None else every[:shortest])
    released = every if found is None else found
    assert trial.lacking == [want - sum(i[k] for i in released) for k, want in enumerate(wanted)]


@given(items, wanted)
def test_one_by_one_the_first_ones_first_are_taken_back_where_they_are_not_needed(every, wanted):
    if not enough(every, wanted):
        return
    trial = Sums(wanted)
    for item in every:
        trial.release(item)
    expected = list(enumerate(every))
    for entry in tuple(expected):
        rest = [other for other in expected if other is not entry]
        if enough([item for _, item in rest], wanted):
            expected = rest
    assert minimise(trial, every, trial.enough, trial.kind) == [item for _, item in expected]
    assert trial.enough()


def test_of_many_items_few_are_looked_at_alone():
    trial = Sums((3, 0))
    every = [(0, 0)] * 1000 + [(3, 0)] + [(0, 0)] * 1000
    found = release_until(trial, every, trial.enough)
    assert len(found) == 1001
    assert minimise(trial, found, trial.enough, trial.kind) == [(3, 0)]
    assert trial.calls < 60


def test_of_many_items_of_a_kind_that_is_needed_one_is_looked_at():
    trial = Sums((1000, 0))
    every = [(1, 0)] * 1000 + [(0, 1)] * 1000
    for item in every:
        trial.release(item)
    assert minimise(trial, every, trial.enough, trial.kind) == [(1, 0)] * 1000
    assert trial.calls < 15
