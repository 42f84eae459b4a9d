"""``connect``: the Python calls over the HTTP API, in a process that has no Ray."""

from __future__ import annotations

import socket
import threading

import pytest

import schedulemesh
from schedulemesh.client import http_channel
from schedulemesh.errors import (
    InvalidRequestError,
    NotAllowedError,
    SchedulerUnavailableError,
)
from tests.server.work import filled


@pytest.fixture
def remote(mesh, api):
    """A client of a scheduler that has pools, agents, tasks that run and wait, and a preemption."""
    filled(mesh)
    with schedulemesh.connect(api.url, token=api.token) as found:
        yield found


def test_the_calls_are_those_of_the_other_scheduler_objects(remote):
    assert remote.name == "mesh"
    assert remote.ensure_pool("new", resources={"cpu": 1}, cohort="team")["detail"] == "created"
    assert "new" in {pool["name"] for pool in remote.list_pools()["pools"]}
    agents = remote.list_agents()["agents"]
    assert agents
    assert {agent["handle"] for agent in agents} == {None}
    assert remote.explain("none")["reason"] == "task_not_found"
    (queued,) = remote.list_queue(pool_name="p")["tasks"][:1]
    assert remote.hold_task(queued["task_id"])["success"]
    assert remote.cancel_task(queued["task_id"])["success"]
    assert remote.history(limit=1)["success"]
    with pytest.raises(InvalidRequestError, match="resources"):
        remote.create_pool("q", resources={"cpus": 1})


def test_threads_share_it(remote):
    answers = []

    def ask():
        answers.append(remote.about()["name"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["mesh"] * 4


def test_a_connection_that_the_server_may_have_closed_is_not_used_again(remote, monkeypatch):
    ((connection, _),) = remote._connection._channel._idle
    connection.sock.shutdown(socket.SHUT_RDWR)
    monkeypatch.setattr(http_channel, "_IDLE_S", 0.0)
    assert remote.about()["success"]


def test_what_needs_ray_says_so_in_one_sentence(remote):
    with pytest.raises(InvalidRequestError, match=r"submit_gang\(\) is not offered over HTTP"):
        remote.submit_gang("t", pool="p", members=[{}])
    warm = {"enable": True, "warm": {"actor_class": object}}
    with pytest.raises(InvalidRequestError, match=r"'warm'\] has a class"):
        remote.ensure_pool("w", pg_pool_config=warm)
    with pytest.raises(AttributeError, match="no_such_call"):
        _ = remote.no_such_call


def test_a_block_disconnects(remote):
    with remote:
        assert "state='connected'" in repr(remote)
    with pytest.raises(InvalidRequestError, match="detached from scheduler 'mesh'"):
        remote.list_pools()
    assert "state='detached from it'" in repr(remote)


def test_a_token_that_is_not_accepted_is_refused_at_once(api, monkeypatch):
    monkeypatch.delenv("SCHEDULEMESH_TOKEN", raising=False)
    with pytest.raises(NotAllowedError):
        schedulemesh.connect(api.url)
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", api.token)
    with schedulemesh.connect(api.url) as remote:
        assert remote.name == "mesh"


@pytest.mark.parametrize(
    "url",
    [
        *("", "head:8090", "ftp://head", "http://", "http://head:x", "http://head/a?b=c"),
        *("http://head/a b", "http://u:p@head", "http://head/#a", "http://head:0", 8090, None),
    ],
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InvalidRequestError, match="url must be such as 'http://head:8090'"):
        schedulemesh.connect(url)


def test_where_nobody_listens_it_is_unavailable(api):
    url = api.url
    api.gateway.cut_off = True
    with pytest.raises(SchedulerUnavailableError):
        schedulemesh.connect(url, token=api.token)
    with pytest.raises(
        SchedulerUnavailableError, match=r"nothing answers at http://127\.0\.0\.1:1"
    ):
        schedulemesh.connect("http://127.0.0.1:1")
