"""``connect``: jobs, leases, results and saved states over HTTP, in a process that has no Ray."""

from __future__ import annotations

import asyncio
import datetime as dt
import http.server
import io
import pickle
import threading
import zipfile
from pathlib import PurePosixPath

import httpx
import msgspec
import pytest

import schedulemesh
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.client import remote as remote_module
from schedulemesh.client.lease_calls import LeaseFields
from schedulemesh.client.pickling import PLAIN, PickledValue, load_plain
from schedulemesh.client.states import given_state
from schedulemesh.client.task_fields import JobFields
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.saved_state import SavedState, public_state
from schedulemesh.domain.task import FIELDS, PARSERS, TaskSpec
from schedulemesh.errors import (
    InvalidRequestError,
    JobFailedError,
    LeaseRefusedError,
    ResultNotLoadableError,
    TaskFailedError,
)
from schedulemesh.protocol.agents import KeptResult, RunReport, pack
from schedulemesh.protocol.job_command import JobCommand
from schedulemesh.runtime.backend import NodeView
from schedulemesh.server.bodies import NewJob, NewLease
from tests.api.written_parts import value_of
from tests.runtime.fake_backend import FakeBackend
from tests.server.work import ask

CPU = {"cpu": 1}


@pytest.fixture
def report(monkeypatch):
    """Sets what the runs of tasks end with; until then they do not end."""
    reports = []

    async def run_task(self, handle, order):
        if not reports:
            await asyncio.get_running_loop().create_future()
        return pack(reports[-1])

    monkeypatch.setattr(FakeBackend, "run_task", run_task)
    return reports.append


@pytest.fixture
def remote(mesh, api, report):
    """A client of a scheduler with a node and a pool of two CPUs."""
    size = parse_resources({"cpu": 2})
    mesh.backend.free = [NodeView(node_id="node-1", total=size, free=size, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, EnsurePool(name="p", resources=size))
    # No process listens to a cancel here, so each end would wait for all of that time.
    ask(mesh, ChangePolicy(changes={"cancel_timeout": 0.05}, client="test"))
    with schedulemesh.connect(api.url, token=api.token) as client:
        yield client


def sent(api):
    """The last submission that the supervisor was asked for."""
    return next(one for one in reversed(api.gateway.asked) if isinstance(one, SubmitTask))


#: A value for each field of a job, but for those that other tests give.
JOB = {
    "labels": {"team": "a"},
    "estimated_duration": 60.0,
    "owner": "ada",
    "on_preempted": "drop",
    "max_preemptions": 3,
    "max_retries": 2,
    "on_oom": "grow",
    "oom_max_memory": 64.0,
    "strategy": "SPREAD",
    "queue": True,
    "request_id": "once",
    "env": {"A": "1"},
    "runtime_env": {"env_vars": {"B": "2"}},
    "checkpoint_dir": PurePosixPath("/shared/x"),
    "driver_cpus": 0.5,
    "start_limits": {"load": 300},
    "grace_s": 20,
    "max_run_s": 7200,
    "on_time_limit": "requeue",
    "idle_s": 600,
    "after": ["first", "any:second"],
    "array": "0-9%2",
    "over_claim": "end",
    "keep_actors": ("caches/weights",),
    "label_selector": {"zone": "!b"},
    "fallback_strategy": [{"label_selector": {"zone": "b"}, "resources": {"cpu": 2}}],
    "topology": {"required": "block", "preferred": "rack"},
}
#: Of the other fields of a task.
JOB |= {
    name: value_of(name) for name in JobFields.__annotations__.keys() & FIELDS.keys() - JOB.keys()
}


def test_a_job_arrives_with_all_that_was_given(remote, api, tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    remote.update_preemption_policy(topology_levels=["block", "rack"])
    for earlier in ("first", "second"):
        assert remote.submit_job(earlier, "true", "p", CPU, queue=True)["success"]
    answer = remote.submit_job(
        "train", ("python", "train.py"), "p", CPU, 7, working_dir=folder, **JOB
    )
    assert answer["success"], answer
    request = sent(api)
    submission, agent, task = request.submission, request.submission.agent, request.submission.task
    assert msgspec.json.decode(request.blobs[agent.arguments_key], type=JobCommand) == JobCommand(
        entrypoint=("python", "train.py"),
        env={"A": "1"},
        runtime_env={"env_vars": {"B": "2"}},
        checkpoint_dir="/shared/x",
        driver_cpus=0.5,
        keep_actors=("caches/weights",),
    )
    with zipfile.ZipFile(io.BytesIO(request.blobs[agent.payload.folder_key])) as archive:
        assert archive.namelist() == ["train.py"]
    assert agent.resources.public() == {"cpu": 1.0}
    ways = [(each.label_selector, each.resources.public()) for each in agent.each_alternative]
    assert ways == [({"zone": "!b"}, {"cpu": 1.0}), ({"zone": "b"}, {"cpu": 2.0})]
    assert (agent.payload.grace_s, agent.payload.strategy, agent.payload.over_claim) == (
        20.0,
        "SPREAD",
        "end",
    )
    assert (task.priority, task.array, task.topology) == (7.0, "0-9%2", "block,preferred:rack")
    assert task.after == ("ok:first", "any:second")
    of_task = JOB.keys() & PARSERS.keys()
    assert {n: getattr(task, n) for n in of_task} == {n: PARSERS[n](JOB[n]) for n in of_task}
    assert (submission.queue, submission.request_id) == (True, "once")
    assert submission.client == schedulemesh.api.values.client_name()


@pytest.mark.parametrize(
    ("given", "arrived"),
    [
        ({"pip": "r.txt"}, {"pip": {"packages": ["numpy", "-e ."], "pip_check": False}}),
        ({"uv": "r.txt"}, {"uv": {"packages": ["numpy", "-e ."], "uv_check": False}}),
        ({"conda": "env.yaml"}, {"conda": {"dependencies": ["numpy"]}}),
        ({"conda": "of-the-nodes"}, {"conda": "of-the-nodes"}),
    ],
)
def test_lists_of_packages_are_read_before_a_job_is_sent(
    remote, api, tmp_path, monkeypatch, given, arrived
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.txt").write_text("numpy\n-e .\n")
    (tmp_path / "env.yaml").write_text("dependencies: [numpy]\n")
    answer = remote.submit_job("t", "train", "p", CPU, runtime_env=given)
    assert answer["success"], answer
    request = sent(api)
    key = request.submission.agent.arguments_key
    assert msgspec.json.decode(request.blobs[key], type=JobCommand).runtime_env == arrived


def test_every_field_of_the_python_calls_reaches_the_body():
    in_other_tests = ("bundles", "dry_run", "driver_gpus", "pool_selector", "wait")
    elsewhere = {"working_dir", "detached"}
    assert set(JobFields.__annotations__) == {*JOB, *in_other_tests, *elsewhere}
    assert set(JobFields.__annotations__) - elsewhere <= set(NewJob.__struct_fields__)
    assert set(LeaseFields.__annotations__) - elsewhere <= set(NewLease.__struct_fields__)


def test_bundles_and_a_selector_arrive(remote, api, mesh):
    ask(mesh, EnsurePool(name="p", labels={"tier": "a"}))
    parts = [{"cpu": 1}, {"cpu": 0.5, "gpu": None}]
    answer = remote.submit_job(
        "t",
        "train",
        bundles=parts,
        pool_selector={"tier": ("a", "b")},
        driver_gpus=0,
        detached=True,
        dry_run=True,
    )
    assert answer["success"], answer
    agent = sent(api).submission.agent
    assert [part.public() for part in agent.bundles] == [{"cpu": 1.0}, {"cpu": 0.5}]
    assert (answer["agent"]["labels"]["pool"], sent(api).submission.task.parent) == ("p", "")


def test_a_job_is_the_child_of_the_job_whose_driver_submits_it(remote, api, monkeypatch):
    for name, value in (("NAME", "mesh"), ("NAMESPACE", "space"), ("TASK_ID", "outer")):
        monkeypatch.setenv(f"SCHEDULEMESH_{name}", value)
    for detached, parent in ((False, "outer"), (True, "")):
        remote.submit_job("t", "train", "p", CPU, detached=detached)
        assert sent(api).submission.task.parent == parent


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"entrypoint": ""}, "entrypoint is empty"),
        ({"entrypoint": "x", "resources": {"cpus": 1}}, "cpus"),
        ({"entrypoint": "x", "working_dir": "/no/such/folder"}, "no folder of this machine"),
        ({"entrypoint": "x", "checkpoint_dir": "here"}, "absolute path"),
        ({"entrypoint": "x", "runtime_env": {"pip": "/no/such/file"}}, "cannot be read"),
        ({"entrypoint": "x", "wait": -1}, "wait"),
        ({"entrypoint": "x", "priority": float("nan")}, "priority"),
        ({"entrypoint": "x", "labels": {"a": 1}}, "labels"),
        ({"entrypoint": "x", "nothing": 1}, "no argument 'nothing'"),
    ],
)
def test_a_malformed_job_is_refused_before_anything_is_sent(remote, api, fields, said):
    before = len(api.gateway.asked)
    with pytest.raises(InvalidRequestError, match=said):
        remote.submit_job("t", **{"pool": "p", **fields})
    assert len(api.gateway.asked) == before


def test_a_job_is_tried_waited_for_looked_at_and_cancelled(remote):
    tried = remote.submit_job("t", "train", "p", CPU, dry_run=True)
    assert (tried["dry_run"], tried["agent"]["node_id"]) == (True, "node-1")
    assert remote.jobs()["jobs"] == []
    started = remote.submit_job("t", "train", "p", CPU, wait=True)
    assert (started["agent"]["handle"], started["preempted"]) == (None, [])
    assert remote.submit_job("t", "train", "p", CPU)["reason"] == "duplicate_task"
    assert [job["task_id"] for job in remote.jobs()["jobs"]] == ["t"]
    assert "".join(remote.job_logs("t")) == ""
    assert remote.result("t")["reason"] == "task_not_ended"
    assert remote.cancel_task("t")["success"]
    assert remote.wait("t", 5)["done"] == ["t"]
    refused = remote.submit_job("u", "train", "p", {"cpu": 9})
    assert refused["reason"] == "exceeds_pool_capacity"


def kept(value):
    return RunReport(kept=pack(KeptResult(value=pickle.dumps(value))))


def raised(error):
    result = KeptResult(exception=pickle.dumps(error), text="Traceback: …")
    return RunReport(kept=pack(result), reason=TaskEndReason.RUN_RAISED, error="raised")


class Own:
    """A class that only the cluster has."""


def test_a_result_of_plain_data_is_loaded_and_no_other(remote, report):
    value = {
        "exit_code": 0,
        "loss": 0.5,
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
        "ids": {1, 2},
    }
    for task_id, end in (
        ("plain", kept(value)),
        ("own", kept(Own)),
        ("failed", raised(JobFailedError("exit code 3", "failed", exit_code=3))),
        ("strange", raised(NotImplementedError("no"))),
    ):
        report(end)
        assert remote.submit_job(task_id, "train", "p", CPU, wait=True)["success"]
        assert remote.wait(task_id, 20)["done"]
    answer = remote.result("plain")
    assert (answer["state"], answer["result"]) == ("completed", value)
    with pytest.raises(ResultNotLoadableError, match=r"it has .*Own, and only plain data"):
        remote.result("own")
    with pytest.raises(JobFailedError, match="exit code 3") as failure:
        remote.result("failed")
    assert failure.value.exit_code == 3
    with pytest.raises(NotImplementedError) as other:
        remote.result("strange")
    assert isinstance(other.value.__cause__, TaskFailedError)


def test_futures_follow_tasks_to_their_ends(remote, report):
    assert remote.submit_job("running", "train", "p", CPU, wait=True)["success"]
    running, of_nobody = remote.future("running"), remote.future("none")
    with pytest.raises(TaskFailedError, match="none") as unknown:
        of_nobody.result(30)
    assert unknown.value.reason == "task_not_found"
    assert not running.done()
    report(kept({"loss": 0.5}))
    assert remote.submit_job("plain", "train", "p", CPU)["success"]
    plain, again = remote.future("plain"), remote.future("plain")
    assert plain.result(30) == again.result(30) == {"loss": 0.5}
    report(raised(JobFailedError("exit code 3", "failed", exit_code=3)))
    assert remote.submit_job("failed", "train", "p", CPU)["success"]
    with pytest.raises(JobFailedError, match="exit code 3"):
        remote.future("failed").result(30)
    assert not running.done()
    assert running.cancel()
    assert remote.wait("running", 30)["done"] == ["running"]


def test_a_future_can_be_awaited_and_ends_with_a_task_that_somebody_cancels(remote):
    assert remote.submit_job("t", "train", "p", CPU, wait=True)["success"]

    async def awaited():
        future = remote.future("t")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)
        assert not future.done()
        assert remote.cancel_task("t")["success"]
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(asyncio.wait_for(awaited(), 30))
    assert not remote.future("t").cancel()


def test_futures_of_a_connection_that_was_left_fail(remote):
    assert remote.submit_job("t", "train", "p", CPU, wait=True)["success"]
    future = remote.future("t")
    remote.detach()
    with pytest.raises(InvalidRequestError, match="has detached"):
        future.result(30)
    with pytest.raises(InvalidRequestError, match="task_id"):
        remote.future(7)


class Evil:
    """Runs something when it is loaded."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    "value",
    [
        Evil(eval, "1"),
        Evil(getattr, "x", "upper"),
        Evil(print, "x"),
        Evil(type, "T", (), {}),
        Evil(__import__, "os"),
        Evil(PickledValue, b"x"),
        Evil(KeyboardInterrupt),
        [print],
        Own,
    ],
)
def test_loading_plain_data_calls_nothing(value):
    with pytest.raises(ValueError, match="only plain data is loaded"):
        load_plain(pickle.dumps(value))


def test_a_dotted_name_finds_nothing():
    with pytest.raises(ValueError, match="only plain data"):
        load_plain(b"\x80\x04\x8c\x13schedulemesh.errors\x8c\nsys.exit.x\x93.")


def saved(value):
    return SavedState(
        task=TaskSpec(task_id="t", pool_name="p"),
        agent_name="a",
        source="save_state",
        saved_at=1.0,
        state=pickle.dumps(value),
    )


def test_a_state_that_is_no_plain_data_stays_pickled_and_is_given_back_as_it_is():
    shown = public_state(saved(Own), PLAIN.load_state)
    assert shown["state"] == PickledValue(pickle.dumps(Own))
    assert "no plain data" in repr(shown["state"])
    again = given_state(shown, 2.0, PLAIN.dump_state)
    assert pickle.loads(again.state) is Own
    within = given_state({"task_id": "t", "best": shown["state"]}, 2.0, PLAIN.dump_state)
    assert pickle.loads(within.state)["best"] is Own
    plain = public_state(saved({"step": 3}), PLAIN.load_state)
    assert plain["state"] == {"step": 3}
    assert pickle.loads(given_state(plain, 2.0, PLAIN.dump_state).state) == {"step": 3}
    for broken in (b"", b"\x80", b"no pickle"):
        assert PLAIN.load_state(broken) == PickledValue(broken)


def test_a_state_of_what_only_this_program_has_is_refused(monkeypatch):
    monkeypatch.setattr(Own, "__module__", "__main__")
    for value, said in ((Own(), "of this program"), (lambda: 1, "cannot be pickled")):
        with pytest.raises(InvalidRequestError, match=said):
            given_state({"task_id": "t", "state": value}, 1.0, PLAIN.dump_state)


def test_an_evicted_task_is_shown_with_its_state_and_restored(remote):
    assert remote.submit_job("t", "train", "p", CPU, wait=True, on_preempted="drop", grace_s=0.1)[
        "success"
    ]
    (evicted,) = remote.preempt_task("t")["preempted"]
    assert (evicted["task_id"], evicted["saved_state"]["source"]) == ("t", "payload")
    assert remote.get_saved_state("none")["reason"] == "state_not_found"
    assert remote.save_task_state("none")["reason"] == "task_not_found"
    restored = remote.restore_task(evicted["saved_state"])
    assert (restored["success"], restored["resubmitted"]) == (True, True), restored
    assert remote.execute_preemption("none", "a")["reason"] == "task_not_found"


def test_a_lease_is_held_by_a_block(remote, mesh):
    with remote.lease("groups", "p", [[CPU], [CPU]], wait=True) as lease:
        assert (lease.state, lease.pool, lease.wait(60)) == ("running", "p", True)
        assert set(lease.group_ids) <= set(mesh.backend.by_id)
        assert lease.group_ids
        with pytest.raises(InvalidRequestError, match="Ray handles, which HTTP does not carry"):
            _ = lease.placement_groups
        assert lease.renew()["success"]
        assert lease.saved()["success"]
        same = remote.get_lease("groups")
        assert same.group_ids == lease.group_ids
        with pytest.raises(LeaseRefusedError) as refused:
            remote.lease("more", "p", [[CPU]])
        assert refused.value.answer["short"]
    assert lease.state == "completed"
    with pytest.raises(InvalidRequestError, match="has no placement groups: it is completed"):
        _ = lease.group_ids
    with pytest.raises(LeaseRefusedError, match="none"):
        remote.get_lease("none")
    assert remote.lease("more", "p", [[CPU]])


def test_a_lease_that_waits_is_followed_until_it_is_granted_and_evicted(remote):
    holder = remote.lease("first", "p", [[{"cpu": 2}]])
    waiting = remote.lease("second", "p", [[CPU]], queue=True)
    assert waiting.state == "queued"
    assert not waiting.wait(0.01)
    holder.release()
    assert waiting.wait(20)
    called = threading.Event()
    watched = remote.lease("third", "p", [[CPU]], on_preempt=lambda lease: called.set())
    assert remote.submit_job("t", "train", "p", {"cpu": 2}, 9, queue=True)["success"]
    assert called.wait(20)
    assert watched.preempted()
    watched.release()
    waiting.release()


def test_a_lease_without_a_ray_job_ends_with_the_process_or_in_time(remote, api, monkeypatch):
    lease = remote.lease("own", "p", [[CPU]])
    assert sent(api).submission.agent.payload.ttl_s == remote_module._OWN_TTL_S
    assert lease._is_renewed
    lease.release()
    with pytest.raises(InvalidRequestError, match="a detached lease needs ttl_s"):
        remote.lease("two", "p", [[CPU]], detached=True)
    timed = remote.lease("two", "p", [[CPU]], ttl_s=7, detached=True)
    assert (sent(api).submission.agent.payload.ttl_s, timed._is_renewed) == (7.0, False)
    timed.release()


class Proxy(http.server.BaseHTTPRequestHandler):
    """Serves an API below a path."""

    protocol_version = "HTTP/1.1"
    target = ""

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.startswith("/team/mesh/"):
            answer = httpx.Response(404, json={"error": self.path})
        else:
            names = ("authorization", "content-type")
            headers = {name: self.headers[name] for name in names if name in self.headers}
            url = self.target + self.path.removeprefix("/team/mesh")
            answer = httpx.post(url, content=data, headers=headers, trust_env=False)
        self.send_response(answer.status_code)
        self.send_header("content-length", str(len(answer.content)))
        self.send_header("content-type", answer.headers["content-type"])
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_args):
        """It says nothing."""


@pytest.mark.parametrize("path", ["/team/mesh", "/team/mesh/"])
def test_a_proxy_may_serve_it_below_a_path(remote, api, monkeypatch, path):
    monkeypatch.setattr(Proxy, "target", api.url)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with schedulemesh.connect(url + path, token=api.token) as below:
            assert below.about()["name"] == "mesh"
            assert below.submit_job("t", "train", "p", CPU, wait=True)["success"]
        with pytest.raises(InvalidRequestError, match="/elsewhere/api/v1/requests"):
            schedulemesh.connect(f"{url}/elsewhere", token=api.token)
        server.shutdown()


def test_a_lease_arrives_with_its_alternatives(remote, api):
    other = {"label_selector": {"zone": "b"}, "groups": [[CPU, CPU]]}
    remote.lease(
        "l",
        "p",
        [[CPU]],
        label_selector={"zone": "in(a, c)"},
        fallback_strategy=[other],
        queue=True,
    )
    agent = sent(api).submission.agent
    ways = [(each.label_selector, len(each.bundles)) for each in agent.each_alternative]
    assert ways == [({"zone": "in(a, c)"}, 1), ({"zone": "b"}, 2)]


def test_a_priority_may_be_an_own_class_of_the_policy(remote):
    remote.update_preemption_policy(priority_classes={"urgent": 8, "nightly": 0.3})
    assert remote.submit_job("a", "true", "p", CPU, "urgent", queue=True)["success"]
    assert remote.submit_job("b", "true", "p", CPU, queue=True, priority="nightly")["success"]
    told = {name: remote.explain(name) for name in "ab"}
    assert [(told[n]["priority"], told[n]["priority_class"]) for n in "ab"] == [
        (8.0, "urgent"),
        (0.3, "nightly"),
    ]
    assert remote.set_priority("b", "urgent")["success"]
    assert remote.ensure_pool("p", resources={"cpu": 4}, max_priority="urgent")["success"]
    with pytest.raises(InvalidRequestError, match="did you mean 'urgent'"):
        remote.set_priority("b", "urgnet")
