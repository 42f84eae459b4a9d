"""Searches with one token are made one at a time, each after a rest that depends on what was computed for the
last one; in virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.api.tasks import CompleteTask, ExplainTask, ListTasks
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.answers import Response, encode_answer
from schedulemesh.server.pacing import (
    MAX_REST_S,
    REST,
    SEARCH_REST,
    SearchPace,
    TokenPace,
    TokenSearchPace,
)
from tests.protocol.processor import Processor
from tests.runtime import virtual_time

REFUSED = Refused(reason=Reason.CLUSTER_OUT_OF_RESOURCES, error_text="no")


class Searches:
    """Searches with one token: when each was asked for, in the time of the loop."""

    def __init__(self, *, waits_s, search_s=0.0, own_s=0.0, encoded=False):
        """``waits_s``: from asking to the answer; ``search_s``: what the supervisor computes; ``own_s``: what
        this process computes.
        """
        self.processor, self.times = Processor(), []
        self.pace = TokenSearchPace(self.processor.clock)
        self.waits_s, self.own_s = waits_s, own_s
        answer = Response(outcome=REFUSED, search_s=search_s)
        self.answer = encode_answer(answer) if encoded else answer

    async def ask(self):
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.waits_s)
        return self.answer

    def respond(self, _answer):
        self.processor.compute(self.own_s)
        return len(self.times)

    def search(self):
        return self.pace.search(self.ask, self.respond)

    @property
    def begins(self):
        return [at - self.times[0] for at in self.times]


async def three(searches):
    """What three searches answer that are asked for at once."""
    return await asyncio.gather(*(searches.search() for _ in range(3)))


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    ("search_s", "own_s", "rest_s"),
    [
        (0.0005, 0.0, 0.0005 * SEARCH_REST),
        (0.0, 0.001, 0.001 * SEARCH_REST),
        (0.002, 0.0, 0.002 * SEARCH_REST),
        (0.003, 0.007, 0.01 * SEARCH_REST),
        (10.0, 0.0, MAX_REST_S),
    ],
)
def test_each_begins_after_a_rest_in_times_of_what_the_last_one_has_computed(
    encoded, search_s, own_s, rest_s
):
    searches = Searches(waits_s=0.2, search_s=search_s, own_s=own_s, encoded=encoded)
    assert virtual_time.run(three(searches)) == [1, 2, 3]
    assert searches.begins == pytest.approx([0.0, 0.2 + rest_s, 2 * (0.2 + rest_s)])


def test_a_flood_of_others_that_delays_the_answers_makes_no_rest_longer():
    searches = Searches(waits_s=30.0, search_s=0.001)
    virtual_time.run(three(searches))
    rest_s = 0.001 * SEARCH_REST
    assert searches.begins == pytest.approx([0.0, 30.0 + rest_s, 2 * (30.0 + rest_s)])


async def after_one_that_is_refused(searches):
    def refuse(_answer):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await searches.pace.search(searches.ask, refuse)
    return await searches.search()


def test_what_is_refused_has_been_searched():
    searches = Searches(waits_s=0.0, search_s=0.01)
    assert virtual_time.run(after_one_that_is_refused(searches)) == 2
    assert searches.begins == pytest.approx([0.0, 0.01 * SEARCH_REST])


async def after_one_that_fails(searches):
    async def fail():
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await searches.pace.search(fail, searches.respond)
    return await searches.search()


def test_one_that_fails_keeps_nobody_waiting():
    assert virtual_time.run(after_one_that_fails(Searches(waits_s=0.0))) == 1


async def after_clients_that_go_away(searches):
    """A search after one whose client goes away while it is made, and after one that never begins."""
    first = asyncio.ensure_future(searches.search())
    await asyncio.sleep(0.1)
    first.cancel()
    second = asyncio.ensure_future(searches.search())
    await asyncio.sleep(2.1)
    second.cancel()
    return await searches.search()


def test_a_search_whose_client_has_gone_away_keeps_its_turn_and_has_its_rest():
    searches = Searches(waits_s=2.0, search_s=0.015)
    assert virtual_time.run(after_clients_that_go_away(searches)) == 2
    assert searches.begins == pytest.approx([0.0, 2.0 + 0.015 * SEARCH_REST])


def test_what_is_a_search():
    assert ExplainTask(task_id="a").searches
    assert EvaluatePreemption(priority=1.0, pool_name="p").searches
    assert not ListTasks().searches
    assert not CompleteTask(request_id="r", task_id="a").searches


def test_a_search_that_is_twice_as_long_rests_twice_as_long_and_those_of_pages_less():
    pace = TokenSearchPace()
    assert pace.rest_after(0.02) == pytest.approx(2 * pace.rest_after(0.01))
    assert SearchPace().rest_after(0.02) == 0.02 * REST < pace.rest_after(0.02)


def test_searches_with_one_token_take_a_twentieth_of_the_time_at_most():
    for computed_s in (0.0005, 0.005, 0.05, 0.1):
        cycle_s = computed_s + min(MAX_REST_S, TokenSearchPace().rest_after(computed_s))
        assert computed_s / cycle_s <= 0.05


async def four_screens(processor):
    """When four pieces of work begin that compute here and elsewhere, while another client floods."""
    pace, begins = TokenPace(processor.clock), []

    async def draw(elsewhere):
        begins.append(asyncio.get_running_loop().time())
        processor.compute(0.01)
        await asyncio.sleep(0.5)  # it waits for its turn among those of all tokens
        elsewhere.seconds += 0.02

    await asyncio.gather(*(pace.run(draw) for _ in range(4)))
    return [at - begins[0] for at in begins]


def test_what_was_computed_elsewhere_counts_and_what_was_waited_for_does_not():
    begins = virtual_time.run(four_screens(Processor()))
    assert begins == pytest.approx([number * (0.5 + REST * 0.03) for number in range(4)])
