"""The stream by which an open page learns that something has changed: who gets it, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import httpx
import pytest

from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.history import QueryEvents
from schedulemesh.server import event_feed, event_streams
from schedulemesh.server.page import app
from tests.server.sse import Stream
from tests.server.test_page import Browser
from tests.server.work import filled, submit


@pytest.fixture
def browser(api, monkeypatch):
    monkeypatch.setattr(event_feed, "RETRY_S", 0.05)
    monkeypatch.setattr(event_streams, "PAGE_HEARTBEAT_S", 0.1)
    filled(api.mesh)
    made = Browser(api)
    made.sign_in()
    yield made
    made.client.close()


class Live:
    """An open stream, read block by block."""

    def __init__(self, answer):
        self._lines = answer.iter_lines()
        self.id = None

    def until(self, event):
        """Read on to the next block of this kind, or to a heartbeat."""
        while True:
            block = dict(self._block())
            self.id = block.get("id", self.id)
            if event == block.get("event", "heartbeat"):
                return

    def _block(self):
        while line := next(self._lines):
            name, _, value = line.partition(": ")
            yield name, value


@contextlib.contextmanager
def live(browser, **headers):
    with browser.client.stream("GET", "/live", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Live(answer)


def test_a_page_learns_of_a_change_and_reads_it_at_once(api, browser):
    assert "new-one" not in browser.get("/queue").words
    with live(browser) as stream:
        # Where it begins; what comes after that is told.
        stream.until("changed")
        submit(api.mesh, "new-one", priority=0.1)
        stream.until("changed")
        assert "new-one" in browser.get("/queue").words


def test_a_page_that_comes_back_learns_what_it_has_missed(api, browser):
    with live(browser) as stream:
        # Where it begins; what comes after that is told.
        stream.until("changed")
        submit(api.mesh, "new-one", priority=0.1)
        stream.until("changed")
    submit(api.mesh, "new-two", priority=0.1)
    with live(browser, **{"last-event-id": stream.id}) as stream:
        stream.until("changed")


def test_a_stream_ends_when_its_token_is_revoked(api, browser):
    secret = api.send("POST", "/tokens", {"name": "eve", "role": "viewer"})["token"]
    browser.sign_in(secret)
    with live(browser) as stream:
        stream.until("heartbeat")
        api.send("DELETE", "/tokens/eve")
        stream.until("ended")
    assert browser.client.get("/live").status_code == 401


def test_a_stream_ends_when_its_session_does(browser):
    with live(browser) as stream:
        stream.until("heartbeat")
        browser.send("/sign-out")
        stream.until("ended")


def test_a_page_learns_that_the_supervisor_is_away_and_that_it_is_back(api, browser, monkeypatch):
    with live(browser) as stream:
        stream.until("changed")
        monkeypatch.setattr(api.gateway, "cut_off", True)
        submit(api.mesh, "wakes-the-reader", priority=0.1)
        stream.until("paused")
        monkeypatch.setattr(api.gateway, "cut_off", False)
        stream.until("resumed")


def test_whether_the_supervisor_is_back_is_not_waited_for_until_the_next_event(
    api, browser, monkeypatch
):
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.1)
    with Stream(api.url, api.token) as stream:
        # It is known where it begins.
        stream.until(lambda message: message.id is not None)
        monkeypatch.setattr(api.gateway, "cut_off", True)
        submit(api.mesh, "wakes-the-reader", priority=0.1)
        stream.until(lambda message: message.event == "paused")
        api.gateway.asked.clear()
        monkeypatch.setattr(api.gateway, "cut_off", False)
        stream.until(lambda message: message.event == "resumed")
    waits = {call.wait_s for call in api.gateway.asked if isinstance(call, QueryEvents)}
    assert 0.0 in waits


def test_a_page_learns_that_the_supervisor_hangs_and_that_it_is_back(api, browser, monkeypatch):
    goes_on, ask_packed = threading.Event(), api.gateway.ask_packed

    async def hanging(request, caller=None):
        # As where Ray starts the supervisor again, and repeats what it was asked.
        if isinstance(request, GetAbout):
            await asyncio.to_thread(goes_on.wait, 30)
        return await ask_packed(request, caller)

    with live(browser) as stream:
        stream.until("changed")
        # Only now: on a busy machine the first answer takes longer, and the stream begins with "paused".
        monkeypatch.setattr(app, "_ANSWER_S", 0.1)
        monkeypatch.setattr(api.gateway, "ask_packed", hanging)
        stream.until("paused")
        goes_on.set()
        stream.until("resumed")


@pytest.mark.parametrize("cookie", ["", "schedulemesh_session_1=x"])
def test_without_a_session_there_is_no_stream(api, cookie):
    answer = httpx.get(f"{api.url}/live", headers={"cookie": cookie}, trust_env=False)
    assert answer.status_code == 401
    answer = httpx.get(
        f"{api.url}/live", headers={"authorization": f"Bearer {api.token}"}, trust_env=False
    )
    assert answer.status_code == 401


@pytest.mark.parametrize("limit", ["MAX_PAGES", "MAX_PAGES_OF_TOKEN"])
def test_there_are_so_many_streams_of_pages_and_no_more(browser, monkeypatch, limit):
    monkeypatch.setattr(app, limit, 1)
    with live(browser) as stream:
        stream.until("heartbeat")
        answer = browser.client.get("/live")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("last", ["x", "-1", "9" * 40])
def test_a_position_that_is_none_begins_now(browser, last):
    with live(browser, **{"last-event-id": last}) as stream:
        stream.until("heartbeat")


def test_pages_that_ask_before_they_change_are_not_live(browser):
    answer = browser.client.get("/change?do=cancel&id=first")
    assert "<script" not in answer.text
    assert "script-src" not in answer.headers["content-security-policy"]
