"""Jobs are submitted and their logs read, and leases granted, over HTTP: as tasks, with the same limits."""

from __future__ import annotations

import asyncio
import io
import zipfile

import msgspec
import pytest

from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.payloads import module_archive
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import LeaseView, TaskLog, read_answer
from schedulemesh.protocol.job_command import JobCommand
from schedulemesh.runtime.backend import NodeView
from schedulemesh.server.task_reads import TASK_READS
from tests.runtime.fake_backend import FakeBackend
from tests.server.work import ask

JOB = {"task_id": "train", "pool_name": "p", "entrypoint": ["python", "train.py"]}
CPU = {"resources": {"cpu": 1}}
LEASE = {"task_id": "groups", "pool": "p", "groups": [[{"cpu": 1}, {"cpu": 1}]], "ttl_s": 60}


@pytest.fixture
def api(mesh, api, monkeypatch):
    """A node and a pool of two CPUs, and drivers that do not end by themselves."""

    async def run_for_ever(self, handle, order):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(FakeBackend, "run_task", run_for_ever)
    room = parse_resources({"cpu": 2})
    mesh.backend.free = [NodeView(node_id="node-1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, EnsurePool(name="p", resources=room))
    return api


def submitter(api, **limits):
    """A client of a submitter of this owner and these limits."""
    body = {"name": limits["owner"], "role": "submitter", **limits}
    return api.client_with(api.send("POST", "/tokens", body)["token"])


def sent(api):
    """The last submission that the supervisor was asked for."""
    return next(one for one in reversed(api.gateway.asked) if isinstance(one, SubmitTask))


def test_a_job_runs_with_what_its_body_says(api):
    more = {
        "priority": 7,
        "labels": {"team": "a"},
        "owner": "ada",
        "env": {"A": "1"},
        "runtime_env": {"working_dir": "s3://bucket/code.zip"},
        "checkpoint_dir": "/shared/train",
        "driver_cpus": 0.5,
        "grace_s": 20,
        "max_retries": 2,
        "over_claim": "end",
    }
    answer = api.send("POST", "/jobs", {**JOB, **CPU, **more})
    assert answer == {
        "success": True,
        "task_id": "train",
        "agent_name": answer["agent_name"],
        "pool_name": "p",
        "state": "running",
        "node_id": "node-1",
        "preempted": [],
    }
    request = sent(api)
    command = msgspec.json.decode(
        request.blobs[request.submission.agent.arguments_key], type=JobCommand
    )
    assert command == JobCommand(
        entrypoint=("python", "train.py"),
        env={"A": "1"},
        runtime_env={"working_dir": "s3://bucket/code.zip"},
        checkpoint_dir="/shared/train",
        driver_cpus=0.5,
    )
    job, task = request.submission.agent.payload, request.submission.task
    assert (job.grace_s, job.over_claim) == (20.0, "end")
    assert (task.max_retries, task.on_preempted, task.run) == (2, "requeue", "run_driver")
    assert request.submission.client.startswith("local@127.0.0.1")
    (row,) = api.get("/jobs")["items"]
    assert (row["task_id"], row["owner"], row["priority"]) == ("train", "ada", 7.0)


def test_durations_and_sizes_may_be_texts(api):
    claim = {"resources": {"cpu": 1, "memory": "512MB"}}
    texts = {"grace_s": "2m", "estimated_duration": "1h30m"}
    assert api.send("POST", "/jobs", {**JOB, **claim, **texts}, 409)["short"]
    submission = sent(api).submission
    assert submission.agent.payload.grace_s == 120.0
    assert submission.task.estimated_duration == 5400.0
    assert submission.agent.resources.public()["memory"] == 512.0
    for wrong, named in (
        ({"grace_s": "soon"}, "'30m'"),
        ({"resources": {"memory": "1QB"}}, "'64GB'"),
    ):
        answer = api.send("POST", "/jobs", {**JOB, **claim, **wrong}, 400)
        assert named in answer["error"]


def test_a_job_that_does_not_fit_waits_if_it_is_asked_to(api):
    large = {**JOB, "resources": {"cpu": 2}}
    assert api.send("POST", "/jobs", {**large, "task_id": "first"})["success"]
    refused = api.send("POST", "/jobs", large, 409)
    assert refused["reason"] == "preemption_failed"
    waits = api.send("POST", "/jobs", {**large, "queue": True})
    assert (waits["state"], waits["position"]) == ("queued", 1)
    assert api.send("POST", "/tasks/train/cancel")["success"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"entrypoint": ""}, "entrypoint is empty"),
        ({"entrypoint": []}, "entrypoint"),
        ({"resources": {"cpu": -1}}, "cpu"),
        ({"pool_selector": {"team": "a"}}, "not both"),
        ({"runtime_env": {"working_dir": "/etc"}}, "a URI that the nodes can fetch"),
        ({"runtime_env": {"py_modules": ["/etc"]}}, "py_modules"),
        ({"checkpoint_dir": "here"}, "absolute path"),
        ({"grace_s": -1}, "grace_s"),
        ({"strategy": "TIGHT"}, "strategy"),
        ({"over_claim": "shout"}, "over_claim"),
        ({"working_dir": "/etc"}, "working_dir"),
    ],
)
def test_a_malformed_job_is_refused_before_the_supervisor_is_asked(api, given, said):
    refused = api.send("POST", "/jobs", {**JOB, **CPU, **given}, 400)
    assert said in refused["error"]
    assert api.gateway.asked == []


def test_the_key_of_a_submission_carries_it_out_once(api):
    header = {"idempotency-key": "k"}
    for _ in range(2):
        answer = api.client.post("/api/v1/jobs", json={**JOB, **CPU}, headers=header)
        assert (answer.status_code, answer.json()["state"]) == (200, "running")
    assert api.send("POST", "/jobs", {**JOB, **CPU}, 409)["reason"] == "duplicate_task"


def test_submissions_have_the_limits_of_their_token(api):
    limits = {"owner": "ada", "pools": ["p"], "max_priority": 6}
    with submitter(api, **limits) as ada, submitter(api, owner="eve", pools=["q"]) as eve:
        for path, body in (("jobs", {**JOB, **CPU}), ("leases", LEASE)):
            for wrong in ({"priority": 7}, {"owner": "bob"}):
                answer = ada.post(f"/api/v1/{path}", json={**body, **wrong})
                assert (answer.status_code, answer.json()["reason"]) == (403, "not_allowed")
            assert eve.post(f"/api/v1/{path}", json=body).status_code == 403
        assert ada.post("/api/v1/jobs", json={**JOB, **CPU}).status_code == 200
        (row,) = ada.get("/api/v1/jobs").json()["items"]
        assert row["owner"] == "ada"
        assert ada.get("/api/v1/jobs/train/log").status_code == 200
        assert eve.get("/api/v1/jobs/train/log").status_code == 403
        assert ada.get("/api/v1/tasks/train/log").status_code == 200
        assert eve.get("/api/v1/tasks/train/log").status_code == 403


def test_a_lease_is_granted_renewed_read_and_released(api, mesh):
    granted = api.send("POST", "/leases", LEASE)
    assert granted["state"] == "running"
    found = api.get("/leases/groups")
    assert (found["state"], found["pool_name"], found["grace_s"]) == ("running", "p", None)
    (group,) = found["placement_groups"]
    assert (group["bundles"], group["strategy"]) == ([{"cpu": 1.0}] * 2, "PACK")
    assert group["id"] in mesh.backend.by_id
    lease = sent(api).submission.agent.payload
    assert (lease.ttl_s, lease.holder_job) == (60.0, "")
    assert api.send("POST", "/leases/groups/renew")["success"]
    assert api.send("POST", "/leases/groups/release")["success"]
    ended = api.get("/leases/groups")
    assert (ended["state"], ended["placement_groups"]) == ("completed", [])


def test_a_lease_may_end_with_a_ray_job(api):
    body = {**LEASE, "ttl_s": None, "holder_job": "02000000"}
    assert api.send("POST", "/leases", body)["success"]
    assert sent(api).submission.agent.payload.holder_job == "02000000"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ttl_s": None}, "ttl_s"),
        ({"groups": []}, "groups is empty"),
        ({"groups": [[{"cpu": 1}], [{"cpu": 1}, {"cpu": 1}]]}, "1 to 2 bundles"),
        ({"groups": [[{"cpu": 1}]] * 1_001}, "length <= 1000"),
        ({"groups": [[{"cpu": 1}] * 1_001]}, "length <= 1000"),
        ({"strategy": "TIGHT"}, "strategy"),
        ({"holder_job": ""}, "holder_job"),
        ({"detached": True}, "detached"),
    ],
)
def test_a_malformed_lease_is_refused_before_the_supervisor_is_asked(api, given, said):
    assert said in api.send("POST", "/leases", {**LEASE, **given}, 400)["error"]
    assert api.gateway.asked == []


def test_who_waits_for_a_lease_is_answered_when_it_is_granted(api):
    api.send("POST", "/jobs", {**JOB, "resources": {"cpu": 2}})
    assert api.send("POST", "/leases", {**LEASE, "queue": True})["state"] == "queued"
    assert api.get("/leases/groups?known=queued")["placement_groups"] == []
    api.send("POST", "/tasks/train/cancel")
    state = "queued"
    while state != "running":
        state = api.get(f"/leases/groups?known={state}&wait=20")["state"]


def test_what_is_no_job_has_no_log_and_what_is_no_lease_no_groups(api):
    for kind in ("jobs", "tasks"):
        assert api.get(f"/{kind}/none/log", 404)["reason"] == "task_not_found"
    assert "stdout, stderr" in api.get("/tasks/none/log?stream=err", 400)["error"]
    assert api.get("/leases/none", 404)["reason"] == "task_not_found"
    assert api.get("/jobs/none/log?attempt=0", 400)["reason"] == "invalid_request"
    assert api.get("/jobs/none/log?from=0", 400)["reason"] == "invalid_request"
    assert api.get("/leases/none?wait=31", 400)["reason"] == "invalid_request"


def test_the_groups_of_a_lease_are_told_apart():
    (read,) = (read for read in TASK_READS if read.path.startswith("/leases"))
    one, two = (parse_resources({"cpu": n}) for n in (1, 2))
    shape = GroupShape(bundles=(one, one, two, two), strategy="SPREAD", parts=2)
    facts = read.facts_of(LeaseView(state="running", pool_name="p", ray_id="aa+bb", shape=shape))
    assert facts["placement_groups"] == [
        {"id": "aa", "bundles": [{"cpu": 1.0}] * 2, "strategy": "SPREAD"},
        {"id": "bb", "bundles": [{"cpu": 2.0}] * 2, "strategy": "SPREAD"},
    ]


@pytest.mark.parametrize(
    ("state", "data", "text", "length"),
    [
        ("running", b"", "", 0),
        ("running", "训练".encode(), "训练", 6),
        ("running", "训练".encode()[:-1], "训", 3),
        ("running", b"\xff ok \xe8", "\ufffd ok ", 5),
        ("running", b"\xe8\xae", "", 0),
        ("failed", b"ok \xe8\xae", "ok ", 3),
        ("failed", b"\xe8\xae", "\ufffd", 2),
    ],
)
def test_no_character_is_cut_between_two_parts_of_a_log(state, data, text, length):
    (log,) = (read for read in TASK_READS if read.path == "/jobs/{task_id:name}/log")
    answer = TaskLog(state=state, attempt=2, begin=100, data=data, end=200)
    assert log.facts_of(answer) == {
        "state": state,
        "stream": "",
        "attempt": 2,
        "offset": 100,
        "text": text,
        "next": 100 + length,
        "end": 200,
    }


def archived(**files):
    """A ZIP archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_job_is_sent_with_the_archive_of_its_folder_and_with_modules(api, form):
    folder, module = archived(train="x"), archived(lib="y")
    uri = module_archive(key_of(module))
    body = {
        **JOB,
        **CPU,
        "runtime_env": {"py_modules": [uri]},
        "archive": folder,
        "modules": [{"uri": uri, "data": module}],
        "client": "laptop:7",
        "user": "ada",
        "request_id": "once",
    }
    answer = post_job(api, body, form)
    assert answer.status_code == 200, answer.text
    request = sent(api)
    spec = request.submission.agent.payload
    assert (spec.folder_key, spec.folder_suffix) == (key_of(folder), ".zip")
    assert request.blobs[spec.folder_key] == folder
    assert [(one.uri, request.blobs[one.key]) for one in spec.modules] == [(uri, module)]
    assert (request.submission.client, request.submission.request_id) == ("laptop:7", "once")
    assert request.submission.task.owner == "ada"
    assert post_job(api, {**body, "client": "laptop:8"}, form).content == answer.content


def post_job(api, body, form):
    coder = msgspec.json if form == "json" else msgspec.msgpack
    headers = {"content-type": f"application/{form}"}
    return api.client.post("/api/v1/jobs", content=coder.encode(body), headers=headers)


def test_a_packed_submission_is_answered_as_packed_and_refused_in_words(api):
    answer = post_job(api, {**JOB, **CPU}, "msgpack")
    response = read_answer(answer.content)
    assert (answer.headers["content-type"], response.outcome.task_id) == (
        "application/msgpack",
        "train",
    )
    for wrong, status, said in (
        ({"archive": b"x" * (16 * 2**20 + 1)}, 400, "archive has 16,777,217 bytes"),
        ({"archive": b"x" * (24 * 2**20)}, 413, "at most 25,165,824 bytes"),
        ({"archive": b"x", "archive_suffix": ".rar"}, 400, ".rar"),
        ({"modules": [{"uri": "s3://m.zip", "data": b"x"}]}, 400, "s3://m.zip"),
        ({"client": ""}, 400, "client"),
        ({"nothing": 1}, 400, "unknown field `nothing`"),
    ):
        refused = post_job(api, {**JOB, **CPU, "task_id": "two", **wrong}, "msgpack")
        assert (refused.status_code, said in refused.json()["error"]) == (status, True), (
            refused.text
        )
    garbage = api.client.post(
        "/api/v1/jobs", content=b"\xc1", headers={"content-type": "application/msgpack"}
    )
    assert (garbage.status_code, garbage.json()["reason"]) == (400, "invalid_request")


def test_a_job_may_be_tried_and_be_the_child_of_a_task(api):
    tried = api.send("POST", "/jobs", {**JOB, **CPU, "dry_run": True})
    assert (tried["dry_run"], tried["node_id"], "state" in tried) == (True, "node-1", False)
    assert api.get("/jobs")["items"] == []
    api.send("POST", "/jobs", {**JOB, **CPU, "parent": "none"})
    assert sent(api).submission.task.parent == "none"


def test_the_owner_of_a_token_is_that_of_its_jobs_whoever_runs_the_client(api):
    with submitter(api, owner="ada") as ada:
        body = {**JOB, **CPU, "user": "root"}
        assert ada.post("/api/v1/jobs", json=body).status_code == 200
    assert sent(api).submission.task.owner == "ada"
