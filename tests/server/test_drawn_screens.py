"""Equal screens that are asked for at the same time are drawn once; in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response

from schedulemesh.server.page.drawn_screens import DrawnScreens
from schedulemesh.server.page.reads import YOUNG_S
from tests.runtime import virtual_time

TAKES_S = 0.1


class Screens:
    """Screens that show how often something has happened, as it is when they are begun."""

    def __init__(self):
        self.events, self.begun = 0, 0
        self.screens = DrawnScreens(lambda: self.events, asyncio.get_running_loop().time)

    async def draw(self):
        self.begun += 1
        events = self.events
        await asyncio.sleep(TAKES_S)
        return Response(str(events))

    async def shown(self, key="queue"):
        response = await self.screens.drawn(key, self.draw)
        return int(response.body)

    def many(self, count=30, **how):
        return asyncio.gather(*(self.shown(**how) for _ in range(count)))


def story(tell):
    async def told():
        return await tell(Screens())

    return virtual_time.run(told())


def test_clients_that_ask_together_share_one_drawing():
    async def tell(screens):
        assert await screens.many() == [0] * 30
        return screens.begun

    assert story(tell) == 1


def test_whoever_asks_after_an_event_sees_it_and_shares_with_those_who_do_too():
    async def tell(screens):
        early = asyncio.ensure_future(screens.many())
        await asyncio.sleep(TAKES_S / 2)
        screens.events += 1
        assert await screens.many() == [1] * 30
        assert await early == [0] * 30
        return screens.begun

    assert story(tell) == 2


def test_while_clients_ask_all_the_time_and_much_happens_each_sees_what_was_before_it_asked():
    async def tell(screens):
        async def client(number):
            await asyncio.sleep(number / 300)
            for _ in range(20):
                before = screens.events
                assert await screens.shown() >= before
                screens.events += 1

        await asyncio.gather(*(client(number) for number in range(30)))
        return screens.begun

    assert story(tell) <= 20 * 2 + 3


@pytest.mark.parametrize(("after_s", "begun"), [(0.0, 1), (0.9 * YOUNG_S, 2)])
def test_without_events_a_drawing_is_shown_again_while_it_is_young(after_s, begun):
    async def tell(screens):
        await screens.shown()
        await asyncio.sleep(after_s)
        await screens.shown()
        return screens.begun

    assert story(tell) == begun


def test_other_screens_are_drawn():
    async def tell(screens):
        await asyncio.gather(*(screens.shown(key) for key in range(100)))
        return screens.begun

    assert story(tell) == 100


def test_what_fails_is_told_to_each_and_tried_again():
    async def tell(screens):
        async def fail():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await screens.screens.drawn("queue", fail)
        return await screens.shown()

    assert story(tell) == 0
