"""``connect``: the Python calls over the HTTP API, in a process that has no Ray."""

from __future__ import annotations

import socket
import threading

import pytest

import schedulemesh
from schedulemesh.client import http_channel
from schedulemesh.client.remote import NEEDS_RAY, HttpScheduler
from schedulemesh.errors import (
    InvalidRequestError,
    LeaseRefusedError,
    NotAllowedError,
    SchedulerUnavailableError,
    TaskFailedError,
)
from tests.calls_of import without_arguments
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


#: The arguments of those that are refused there, and the code.
REFUSED = {
    "delete_pool": (("p",), "pool_in_use"),
    "save_task_state": (("none",), "task_not_found"),
    "get_saved_state": (("none",), "state_not_found"),
    "execute_preemption": (("none", "none"), "task_not_found"),
    "preempt_task": (("none",), "task_not_found"),
    "result": (("none",), "task_not_found"),
    "exec_in_task": (("none", ["true"]), "commands_off"),
}
#: Of those that return no dict what they return or raise is looked at one by one.
OTHERS = {
    *(
        "dashboard",
        "detach",
        "export_history",
        "future",
        "get_lease",
        "job_logs",
        "lease",
        "metrics_text",
    ),
    *("name", "restore_task", "task_logs", "test_alerts"),
}


#: The arguments of each call that succeeds on a scheduler that is ``filled``, in this order.
CALLS = {
    **{
        n: ()
        for n in without_arguments(HttpScheduler)
        if n not in {*REFUSED, *OTHERS, "end_orphans"}
    },
    **dict.fromkeys(("create_pool", "ensure_pool", "resize_pool", "drain_pool"), ("new",)),
    "undrain_pool": ("new",),
    "rename_pool": ("new", "renamed"),
    "ensure_cohort": ("team",),
    "create_cohort": ("empty",),
    "rename_cohort": ("empty", "still-empty"),
    "delete_cohort": ("still-empty",),
    "evaluate_preemption": (9.0, "p"),
    "explain": ("first",),
    "wait": (["first"], 5.0, "running"),
    **dict.fromkeys(("hold_task", "release_task", "move_to_front"), ("waits-1",)),
    "set_time_limit": ("waits-1", 3600.0),
    "set_priority": ("waits-1", 4.0),
    "cancel_task": ("waits-1",),
    "cancel_tasks": (["waits-2"],),
    "end_orphans": ([],),
    "complete_task": ("second",),
    "submit_job": ("new-job", ["true"], "renamed"),
    "array": ("many",),
    "delete_agent": ("second-agent",),
    **dict.fromkeys(("drain_node", "undrain_node", "cordon_node"), ("node-1",)),
    "create_window": ("w", "2090-01-01T00:00Z", 3600.0),
    "delete_window": ("w",),
}
#: Those that are given by their names.
_NAMED = {"submit_job": {"queue": True}, "create_window": {"all_nodes": True}}


def test_every_public_call_works_or_says_what_it_needs(remote, tmp_path, capsys):
    """None is missing: a new one has to be added to the tables above."""
    offered = {name for name in dir(HttpScheduler) if not name.startswith("_")}
    assert offered == {*CALLS, *REFUSED, *OTHERS}
    for name, arguments in CALLS.items():
        if name == "array":
            remote.submit_job("many", ["true"], "renamed", queue=True, array="0-9%2")
        extra = _NAMED.get(name, {})
        answer = getattr(remote, name)(*arguments, **extra)
        assert answer["success"] is True, (name, answer)
    for name, (arguments, reason) in REFUSED.items():
        assert getattr(remote, name)(*arguments)["reason"] == reason, name
    for name in NEEDS_RAY:
        sentence = rf"{name}\(\) is not offered over HTTP, because [^:]+: [^\n]+$"
        with pytest.raises(InvalidRequestError, match=sentence):
            getattr(remote, name)("t")
    remote.dashboard()
    assert "mesh" in capsys.readouterr().out
    assert remote.export_history(tmp_path / "history.csv")["jobs"]
    assert "schedulemesh_" in remote.metrics_text()
    assert list(remote.task_logs("first")) == []
    with pytest.raises(InvalidRequestError, match="a saved state must be a dict"):
        remote.restore_task({})
    with pytest.raises(InvalidRequestError, match="this scheduler has no receivers of alerts"):
        remote.test_alerts()
    with pytest.raises(LeaseRefusedError, match="there is no lease 'none'"):
        remote.get_lease("none")
    with pytest.raises(TaskFailedError, match="there is no log of task 'none'"):
        list(remote.job_logs("none"))


def test_every_public_call_of_a_lease_works_or_says_what_it_needs(remote):
    remote.complete_task("first", end_agent=True)
    lease = remote.lease("mine", "p", [[{"cpu": 1}]], wait=True)
    offered = {name for name in dir(lease) if not name.startswith("_")}
    calls = {"grace_left", "preempted", "release", "renew", "saved", "wait"}
    assert offered == calls | {"group_ids", "placement_groups", "pool", "state", "task_id"}
    assert (lease.task_id, lease.pool, lease.state) == ("mine", "p", "running")
    assert (lease.wait(60.0), lease.preempted(), lease.grace_left()) == (True, False, 0.0)
    assert len(lease.group_ids) == 1
    with pytest.raises(InvalidRequestError, match="Ray handles, which HTTP does not carry"):
        _ = lease.placement_groups
    for call in (lease.renew, lease.saved, lease.release):
        assert call()["success"]


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
