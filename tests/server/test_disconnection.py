"""What a client asked for is given up when it has gone away, and one token has some reads at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.pages import ListPage
from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import ExplainTask, WaitTasks, WaitUntil
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server import app
from schedulemesh.server.disconnection import ClientPresence, while_connected
from schedulemesh.server.problems import Problem
from tests.server.work import filled

MSGPACK = {"content-type": "application/msgpack"}
WAIT = WaitTasks(task_ids=("waits-1",), until=WaitUntil.ENDED, enough=1, wait_s=30.0)


class Work:
    """Work that ends when it is told to."""

    def __init__(self):
        self.may_end, self.states = asyncio.Event(), []

    async def __call__(self):
        self.states.append("begun")
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.states.append("cancelled")
            raise
        self.states.append("ended")
        return 7


async def rounds():
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_client_that_stays_gets_the_result():
    async def story():
        client, work = ClientPresence(), Work()
        answering = asyncio.ensure_future(while_connected(client, work))
        await rounds()
        work.may_end.set()
        assert await answering == 7
        assert work.states == ["begun", "ended"]

    asyncio.run(story())


@pytest.mark.parametrize("ends", [True, False])
def test_the_work_for_a_client_that_leaves_is_cancelled_unless_it_is_a_change(ends):
    async def story():
        client, work = ClientPresence(), Work()
        answering = asyncio.ensure_future(while_connected(client, work, ends=ends))
        await rounds()
        client.note_end()
        with pytest.raises(Problem, match="gone away"):
            await answering
        work.may_end.set()
        await rounds()
        assert work.states == ["begun", "cancelled" if ends else "ended"]

    asyncio.run(story())


@pytest.mark.parametrize("ends", [True, False])
def test_a_client_that_has_left_already_has_only_changes_carried_out(ends):
    async def story():
        client, work = ClientPresence(), Work()
        client.note_end()
        with pytest.raises(Problem, match="gone away"):
            await while_connected(client, work, ends=ends)
        work.may_end.set()
        await rounds()
        assert work.states == ([] if ends else ["begun", "ended"])

    asyncio.run(story())


def test_a_server_that_ends_is_no_client_that_leaves():
    async def story():
        client, work = ClientPresence(), Work()
        answering = asyncio.ensure_future(while_connected(client, work))
        await rounds()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert work.states == ["begun", "cancelled"]
        client.note_end()

    asyncio.run(story())


def test_a_client_that_leaves_before_its_turn_has_nothing_done():
    async def story():
        turn, clients = asyncio.Semaphore(1), [ClientPresence() for _ in range(3)]
        works = [Work() for _ in clients]
        answers = [
            asyncio.ensure_future(while_connected(client, work, turn))
            for client, work in zip(clients, works, strict=True)
        ]
        await rounds()
        assert [work.states for work in works] == [["begun"], [], []]
        clients[1].note_end()
        await rounds()
        for work in works:
            work.may_end.set()
        assert (await answers[0], await answers[2]) == (7, 7)
        assert works[1].states == []
        assert isinstance(answers[1].exception(), Problem)

    asyncio.run(story())


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # between two looks at what has no event


def sent(api, request, token):
    """A connection on which a packed request was sent."""
    host, port = api.url.removeprefix("http://").split(":")
    data = encode_request(request)
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(
        b"POST /api/v1/requests HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
        b"Content-Type: application/msgpack\r\nContent-Length: %d\r\n\r\n%b"
        % (token.encode(), len(data), data)
    )
    return connection


def requests_open(api):
    return len(api.server._server.server_state.tasks)


def test_long_polls_that_were_dropped_leave_nothing(api, mesh):
    filled(mesh)
    connections = [sent(api, WAIT, api.token) for _ in range(30)]
    until(lambda: len(api.gateway.asked) == 30)
    assert requests_open(api) == 30
    for connection in connections:
        connection.close()
    until(lambda: requests_open(api) == 0)


def test_a_token_that_was_revoked_while_it_waited_gets_no_answer(api, mesh):
    filled(mesh)
    token = api.send("POST", "/tokens", {"name": "v", "role": "viewer"})["token"]
    statuses = []

    def poll():
        with api.client_with(token) as client:
            answer = client.post("/api/v1/requests", content=encode_request(WAIT), headers=MSGPACK)
            statuses.append((answer.status_code, answer.json()["reason"]))

    polling = threading.Thread(target=poll)
    polling.start()
    until(lambda: WAIT in api.gateway.asked)
    api.send("DELETE", "/tokens/v")
    api.send("POST", "/tasks/waits-1/cancel", {})
    polling.join(30)
    assert statuses == [(401, "token_not_accepted")]


def test_a_token_that_was_revoked_while_its_job_waited_is_not_told_that_it_runs(api, mesh):
    filled(mesh)
    token = api.send("POST", "/tokens", {"name": "s", "role": "submitter", "owner": "ada"})["token"]
    job = {"task_id": "j", "entrypoint": "true", "pool_name": "p", "resources": {"cpu": 1}}
    answers = []

    def submit():
        with api.client_with(token) as client:
            answers.append(client.post("/api/v1/jobs", json={**job, "wait": 60}))

    submitting = threading.Thread(target=submit)
    submitting.start()
    until(lambda: api.get("/queue?task_id=j")["total"] == 1)
    api.send("DELETE", "/tokens/s")
    api.send("POST", "/tasks/j/cancel", {})
    submitting.join(30)
    (answer,) = answers
    assert (answer.status_code, answer.json()["reason"]) == (401, "token_not_accepted")
    assert answer.json()["error"].endswith("meanwhile; what it asked for may have been done")


@pytest.mark.parametrize(("call", "at_once"), [("tasks/first", 1), ("status", 4), ("tasks", 4)])
def test_what_waits_for_its_turn_is_not_read_with_a_token_that_was_revoked(
    api, mesh, monkeypatch, call, at_once
):
    """Whoever asks for much at once would get answers for minutes."""
    filled(mesh)
    token = api.send("POST", "/tokens", {"name": "v", "role": "viewer"})["token"]
    may_answer, begun = threading.Event(), []
    ask_packed = api.gateway.ask_packed

    async def held(request, caller=None):
        if isinstance(request, (ExplainTask, GetAbout, ListPage)):
            begun.append(request)
            await asyncio.to_thread(may_answer.wait, 30)
        return await ask_packed(request, caller)

    monkeypatch.setattr(api.gateway, "ask_packed", held)
    monkeypatch.setattr(app.SharedReads, "ask", lambda _, request: api.gateway.ask(request))

    def read(_):
        with api.client_with(token) as client:
            return client.get(f"/api/v1/{call}").status_code

    with ThreadPoolExecutor(at_once + 3) as clients:
        statuses = clients.map(read, range(at_once + 3))
        until(lambda: len(begun) == at_once and requests_open(api) == at_once + 3)
        api.send("DELETE", "/tokens/v")
        may_answer.set()
        assert sorted(statuses) == [200] * at_once + [401] * 3
    assert len(begun) == at_once


def test_a_token_has_some_reads_at_a_time_and_others_are_not_kept_waiting(api, monkeypatch):
    other = api.send("POST", "/tokens", {"name": "v", "role": "viewer"})["token"]
    may_answer, begun = threading.Event(), []
    ask_packed = api.gateway.ask_packed

    async def held(request, caller=None):
        if isinstance(request, ListPools) and caller is not None and caller.token.name != "v":
            begun.append(request)
            await asyncio.to_thread(may_answer.wait, 30)
        return await ask_packed(request, caller)

    monkeypatch.setattr(api.gateway, "ask_packed", held)
    connections = [sent(api, ListPools(), api.token) for _ in range(10)]
    until(lambda: len(begun) == 4)
    with api.client_with(other) as client:
        answer = client.post(
            "/api/v1/requests", content=encode_request(ListPools()), headers=MSGPACK
        )
    assert answer.status_code == 200
    assert len(begun) == 4
    may_answer.set()
    for connection in connections:
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        connection.close()
    assert len(begun) == 10


def explaining(api, number):
    """A connection on which a task is to be explained."""
    host, port = api.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(
        b"GET /api/v1/tasks/t-%d HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
        % (number, api.token.encode())
    )
    return connection


def test_a_token_has_one_explanation_at_a_time_and_those_of_clients_that_leave_never_begin(
    api, monkeypatch
):
    may_answer, begun = threading.Event(), []
    ask_packed = api.gateway.ask_packed

    async def held(request, caller=None):
        if isinstance(request, ExplainTask):
            begun.append(request.task_id)
            await asyncio.to_thread(may_answer.wait, 30)
        return await ask_packed(request, caller)

    monkeypatch.setattr(api.gateway, "ask_packed", held)
    connections = [explaining(api, number) for number in range(10)]
    until(lambda: requests_open(api) == 10)
    assert api.client.get("/api/v1/queue_policy").status_code == 200
    assert len(begun) == 1
    for connection in connections:
        connection.close()
    until(lambda: requests_open(api) == 0)
    assert len(begun) == 1
    may_answer.set()
    assert api.client.get("/api/v1/tasks/another").status_code == 404
    assert begun[1:] == ["another"]


@pytest.mark.parametrize("path", ["/api/v1/tasks/cancel", "/sign-in"])
def test_clients_that_leave_before_their_body_has_arrived_are_not_in_the_log(api, path, caplog):
    """The second path needs no token, so anybody could fill the log."""
    host, port = api.url.removeprefix("http://").split(":")
    for ends in (b"", b"Transfer-Encoding: chunked\r\n"):
        length = ends or b"Content-Length: 100\r\n"
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                b"POST %b HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
                b"Authorization: Bearer %b\r\n%b\r\n" % (path.encode(), api.token.encode(), length)
            )
            until(lambda: requests_open(api) == 1)
        until(lambda: requests_open(api) == 0)
    assert caplog.records == []
