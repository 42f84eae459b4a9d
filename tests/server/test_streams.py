"""Streams of events: they resume without a gap, share one reader, and say which events are missing."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from sqlalchemy import delete

from schedulemesh.api.history import QueryEvents
from schedulemesh.config.settings import HistorySettings
from schedulemesh.server import connections, event_feed, event_streams
from schedulemesh.store.history.schema import events
from schedulemesh.store.history.tables import history_engine
from tests.runtime.composition import InThread
from tests.server.local import Api
from tests.server.sse import Stream
from tests.server.work import filled, submit


@pytest.fixture
def busy(mesh, api):
    """An API whose scheduler has tasks that run, wait, and were evicted; the history says why they wait."""
    filled(mesh)
    wait_for(lambda: len(api.get("/events?kind=waiting")["items"]) == 2)
    return api


@pytest.fixture
def follow(request):
    """Opens streams, which end with the test."""
    with contextlib.ExitStack() as opened:

        def stream(api, token=None, **options):
            return opened.enter_context(Stream(api.url, token or api.token, **options))

        yield stream


def written(api):
    """All events that are in the history now."""
    return api.get("/events?limit=1000")["items"]


def test_a_stream_from_the_beginning_has_the_rows_of_the_listing(busy, follow):
    rows = written(busy)
    stream = follow(busy, after=0)
    assert stream.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.events(len(rows)) == rows


def test_a_stream_goes_on_with_what_happens(busy, mesh, follow):
    stream = follow(busy, after=written(busy)[-1]["cursor"])
    submit(mesh, "later", priority=2.5)
    found = stream.events(1)
    assert (found[0]["kind"], found[0]["task_id"]) == ("queued", "later")


def test_without_a_cursor_it_begins_now(busy, mesh, follow, monkeypatch):
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.2)
    last = written(busy)[-1]["cursor"]
    stream = follow(busy)
    stream.until(lambda message: message.id is not None)
    begin = stream.cursor
    assert begin >= last  # more may have been written meanwhile
    submit(mesh, "later", priority=2.5)
    (found,) = stream.events(1)
    assert found == next(row for row in written(busy) if row["cursor"] > begin)


@pytest.mark.parametrize("kept", [4, 20_000])
def test_it_resumes_after_the_last_event_that_was_received(busy, follow, monkeypatch, kept):
    monkeypatch.setattr(event_feed, "KEPT", kept)
    rows = written(busy)
    first = follow(busy, after=0)
    first.events(3)
    again = follow(busy, headers={"last-event-id": str(first.cursor)}, after=0)
    assert again.events(len(rows) - 3) == rows[3:]


def test_filters_leave_out_events_and_move_on_all_the_same(busy, mesh, follow, monkeypatch):
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.2)
    rows = written(busy)
    of_task = follow(busy, after=0, task_id="low")
    wanted = [row for row in rows if row["task_id"] == "low"]
    assert of_task.events(len(wanted)) == wanted
    # The heartbeat tells the position, so that a client that resumes does not begin at its last own event.
    of_task.until(lambda message: message.comment == "heartbeat" and message.id is not None)
    assert of_task.cursor >= rows[-1]["cursor"] > wanted[-1]["cursor"]
    of_kinds = follow(busy, after=0, kind=["preempted", "pool_defined"])
    assert [row["kind"] for row in of_kinds.events(2)] == ["pool_defined", "preempted"]
    of_pool = follow(busy, after=0, pool_name="p")
    assert of_pool.events(1)[0]["kind"] == "pool_defined"


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({"after": "-1"}, {}),
        ({"after": "x"}, {}),
        ({"after": "1" * 30}, {}),
        ({}, {"last-event-id": "x"}),
        ({"after": "1"}, {"last-event-id": "-1"}),
        ({}, {"last-event-id": "1.5"}),
        ({"kind": ""}, {}),
        ({"state": "queued"}, {}),
    ],
)
def test_a_position_or_filter_that_is_none_is_refused(api, follow, options, headers):
    refused = follow(api, headers=headers, **options).answer
    assert (refused.status_code, refused.json()["reason"]) == (400, "invalid_request")
    assert api.gateway.asked == []


def test_a_request_for_the_headers_alone_ends(api):
    with api.client_with(api.token) as client:
        answer = client.head("/api/v1/events/stream")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        # The connection is free for the next request, and no stream was opened.
        assert client.get("/api/v1/pools").status_code == 200
    assert api.server._feed.streams == 0


def test_many_clients_are_one_reader(busy, mesh, follow, monkeypatch):
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.2)
    streams = [follow(busy) for _ in range(20)]
    for stream in streams:
        stream.until(lambda message: message.id is not None)
    busy.gateway.asked.clear()
    for number in range(5):
        submit(mesh, f"later-{number}", priority=2.5)
    rows = [row["cursor"] for row in streams[0].events(5)]
    for stream in streams[1:]:
        assert [row["cursor"] for row in stream.events(5)] == rows
    asked = [request for request in busy.gateway.asked if isinstance(request, QueryEvents)]
    new = [row for row in written(busy) if row["cursor"] >= rows[0]]
    # Each look of one reader but the last finds an event; twenty readers would look twenty times.
    assert len(asked) <= len(new) + 1 < len(streams)


@pytest.mark.parametrize("limit", ["MAX_STREAMS", "MAX_STREAMS_OF_TOKEN"])
def test_more_streams_than_allowed_are_refused(busy, follow, monkeypatch, limit):
    monkeypatch.setattr(f"schedulemesh.server.app.{limit}", 2)
    for _ in range(2):
        follow(busy, after=0).events(1)
    refused = follow(busy).answer
    assert (refused.status_code, refused.json()["reason"]) == (503, "too_many_streams")


def test_a_client_that_takes_nothing_is_ended_and_resumes(busy, mesh, follow, monkeypatch):
    monkeypatch.setattr(connections, "STALLED_S", 0.3)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = busy.url.removeprefix("http://").split(":")
        slow.connect((host, int(port)))
        slow.sendall(
            f"GET /api/v1/events/stream?after=0 HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {busy.token}\r\n\r\n".encode()
        )
        feed = busy.server._feed
        wait_for(lambda: feed.streams == 1)
        line = event_feed.EventLine(
            1, "queued", "t", "p", b"id: 1\ndata: " + b"x" * 4_000 + b"\n\n"
        )
        busy.loop.call_soon_threadsafe(flood, feed, line)
        wait_for(lambda: feed.streams == 0)
    rows = written(busy)
    assert follow(busy, after=3).events(2) == rows[3:5]


def flood(feed, line):
    """Have a feed keep far more than a client's connection buffers."""
    begin = feed.cursor or 0
    feed._lines = [line._replace(cursor=begin + n) for n in range(1, 10_000)]
    feed._begin, feed.cursor = begin, begin + 9_999
    feed._pulse()


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # between two looks at what has no event


def test_while_the_supervisor_is_away_a_stream_waits_and_continues(busy, mesh, follow):
    last = written(busy)[-1]["cursor"]
    stream = follow(busy, after=last)
    stream.next()
    busy.gateway.cut_off = True
    late = follow(busy, after=0)
    paused = late.until(lambda message: message.event == "paused")[-1]
    assert paused.data["reason"] == "scheduler_unavailable"
    submit(mesh, "meanwhile", priority=2.5)
    busy.gateway.cut_off = False
    # Its first events may come before the reader of new ones has found the supervisor again.
    resumed = late.until(lambda message: message.event == "resumed")
    told = [message.data for message in resumed if message.event == "message" and message.data]
    (found,) = stream.events(1)
    rows = [row for row in written(busy) if row["cursor"] <= found["cursor"]]
    assert rows[-2]["cursor"] == last
    assert rows[-1] == found
    told += late.events(len(rows) - len(told))
    assert told[: len(rows)] == rows


def test_a_stream_ends_with_the_server(busy, follow):
    stream = follow(busy, after=0)
    stream.events(1)
    busy.end()
    with pytest.raises(StopIteration):
        stream.until(lambda message: False)
    busy.start()
    assert follow(busy, after=stream.cursor).answer.status_code == 200


def test_where_the_reader_fails_streams_end_and_a_further_one_begins_again(
    busy, follow, monkeypatch, caplog
):
    monkeypatch.setattr(event_feed, "WAIT_S", 0.1)
    stream = follow(busy, after=0)
    # Until then the stream asks by itself, for the events before those that the reader keeps.
    stream.events(len(written(busy)))
    wait_for(lambda: busy.server._feed.cursor is not None)

    async def fails(_request, _caller=None):
        raise RuntimeError("this was not to be expected")

    ask = busy.gateway.ask
    busy.gateway.ask = fails
    with pytest.raises(StopIteration):
        stream.until(lambda message: False)
    assert "the events cannot be followed" in caplog.text
    busy.gateway.ask = ask
    assert follow(busy, after=stream.cursor - 1).events(1)[0]["cursor"] == stream.cursor


def test_events_that_are_not_kept_any_more_are_a_gap(busy, mesh, follow):
    rows = written(busy)
    with history_engine(mesh.running.history.place.address).begin() as connection:
        connection.execute(delete(events).where(events.c.number <= 6))
    stream = follow(busy, after=2)
    (gap,) = stream.until(lambda message: message.event == "gap")[-1:]
    assert gap.data == {"after": 2, "reason": "removed", "cursor": 6}
    assert gap.id == 6
    assert stream.events(len(rows) - 6) == rows[6:]
    page = busy.get("/events?cursor=2&limit=1")
    assert (page["gap"], page["items"][0]["cursor"]) == ("removed", 7)
    assert busy.get("/events?limit=1")["gap"] is None


def test_a_cursor_of_another_history_is_a_gap(busy, follow):
    rows = written(busy)
    stream = follow(busy, after=1_000_000)
    (gap,) = stream.until(lambda message: message.event == "gap")[-1:]
    assert gap.data == {"after": 1_000_000, "reason": "began_again", "cursor": 0}
    assert stream.events(len(rows)) == rows


def test_without_a_history_a_stream_says_so(tmp_path, follow):
    mesh = InThread(tmp_path / "j.sqlite", history=HistorySettings(enabled=False))
    api = Api(mesh, tmp_path / "home")
    (paused,) = follow(api, after=0).until(lambda message: message.event == "paused")[-1:]
    assert paused.data["reason"] == "history_unavailable"
    assert "switched off" in paused.data["error"]
    api.close()
    mesh.close()


def test_a_revoked_token_ends_its_stream(busy, follow, monkeypatch):
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.1)
    secret = busy.send("POST", "/tokens", {"name": "eve", "role": "viewer"})["token"]
    stream = follow(busy, token=secret, after=0)
    stream.events(1)
    busy.send("DELETE", "/tokens/eve")
    assert stream.until(lambda message: message.event == "ended")[-1].data["reason"] == (
        "token_not_accepted"
    )
    assert follow(busy, token="unknown").answer.status_code == 401
