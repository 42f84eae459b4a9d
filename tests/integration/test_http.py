"""The HTTP API on a real Ray: it is found, outlives its supervisor, returns to its address, and ends."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys

import httpx
import pytest
import ray
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import schedulemesh
from schedulemesh.config.discovery import found
from schedulemesh.config.http import home_folder
from schedulemesh.errors import InvalidRequestError, JobFailedError
from tests.integration.polling import actors_in, process_exists, until


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder in which commands find the address and the token."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    return home_folder(os.environ)


@pytest.fixture
def scheduler(make_scheduler, home):
    """A scheduler with an HTTP API on a port that no outgoing connection takes while it is restarted."""
    made = make_scheduler(http=free_port())
    until(lambda: made.about()["http"], "the HTTP API does not serve")
    return made


@pytest.fixture
def client(scheduler, namespace, home):
    """A client with the token of the file."""
    told = found(home, namespace, "mesh")
    headers = {"authorization": f"Bearer {told.token}"}
    with httpx.Client(base_url=told.url, headers=headers, trust_env=False, timeout=60) as made:
        yield made


def free_port():
    """A free port below those that the system gives to outgoing connections."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


def served(client, path="/api/v1/status"):
    """Whether this is answered; the answer."""
    try:
        answer = client.get(path)
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == 200 else None


def test_it_serves_the_scheduler_and_ends_with_it(scheduler, namespace, home, client):
    status = served(client)
    about = scheduler.about()
    assert (status["name"], status["pid"]) == ("mesh", about["pid"])
    assert about["http"] == str(client.base_url).rstrip("/")
    told = found(home, namespace, "mesh")
    assert told.pid != about["pid"]
    scheduler.shutdown()
    until(lambda: not process_exists(told.pid), "the process of the HTTP API still runs")
    assert found(home, namespace, "mesh") is None
    assert actors_in(namespace) == []


def test_a_browser_sees_the_page_and_signs_in_anew_after_a_restart(
    scheduler, namespace, home, client
):
    info = found(home, namespace, "mesh")
    scheduler.ensure_pool("research", resources={"cpu": 1})
    with httpx.Client(base_url=info.url, trust_env=False, timeout=60) as browser:
        assert browser.get("/").status_code == 401
        form, origin = {"token": info.token}, {"origin": info.url}
        assert browser.post("/sign-in", data=form, headers=origin).status_code == 303
        for path in ("/", "/queue", "/nodes", "/evictions"):
            assert browser.get(path).status_code == 200
        overview = browser.get("/", headers={"accept-language": "zh"}).text
        assert "research" in overview
        assert "资源池" in overview
        os.kill(info.pid, signal.SIGKILL)
        until(lambda: served(client), "the HTTP API does not return to its address")
        assert browser.get("/").status_code == 401


def test_it_returns_to_its_address_with_its_token_after_it_was_killed(
    scheduler, namespace, home, client
):
    before = found(home, namespace, "mesh")
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: not process_exists(before.pid), "it still runs")
    assert until(lambda: served(client), "it does not serve again")["name"] == "mesh"
    after = found(home, namespace, "mesh")
    assert (after.url, after.token) == (before.url, before.token)
    assert after.pid != before.pid


def test_it_outlives_a_killed_supervisor(scheduler, namespace, home, client):
    before = found(home, namespace, "mesh")
    epoch = served(client)["epoch"]
    os.kill(scheduler.about()["pid"], signal.SIGKILL)
    status = until(lambda: served(client), "the new supervisor is not reached")
    assert status["epoch"] == epoch + 1
    assert found(home, namespace, "mesh") == before
    until(lambda: scheduler.about()["http"], "the new supervisor is not told the address")


def followed(client, task_id):
    """All that the driver of a job writes, read piece by piece until the job has ended."""
    text, offset = "", 0
    while True:
        path = f"/api/v1/jobs/{task_id}/log?offset={offset}&limit=100"
        part = client.get(path).json()
        text, offset = text + part["text"], part["next"]
        if part["state"] == "completed" and offset == part["end"]:
            return text


def test_a_job_is_submitted_and_its_log_followed_without_the_client(scheduler, client):
    scheduler.create_pool("p", resources={"cpu": 1})
    code = "import os; [print('训练', n, os.environ['MODE'], flush=True) for n in range(100)]"
    body = {
        "task_id": "train",
        "pool_name": "p",
        "resources": {"cpu": 1},
        "entrypoint": [sys.executable, "-c", code],
        "env": {"MODE": "fast"},
    }
    answer = client.post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["state"]) == (200, "running"), answer.text
    assert followed(client, "train").splitlines() == [f"训练 {n} fast" for n in range(100)]
    assert scheduler.result("train")["result"]["exit_code"] == 0


def test_a_job_of_a_client_without_ray_brings_its_folder_and_its_modules(
    scheduler, client, tmp_path
):
    scheduler.create_pool("p", resources={"cpu": 1})
    code, lib = tmp_path / "code", tmp_path / "lib"
    for folder, name, text in (
        (code, "train.py", "import near, far\nprint(near.NAME, far.NAME)"),
        (code, "near.py", "NAME = 'near'"),
        (lib, "far.py", "NAME = 'far'"),
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    token = client.headers["authorization"].removeprefix("Bearer ")
    with schedulemesh.connect(str(client.base_url), token=token) as remote:
        entrypoint = f"{sys.executable} train.py && {sys.executable} -c 'import sys; sys.exit(3)'"
        answer = remote.submit_job(
            "train",
            entrypoint,
            "p",
            {"cpu": 1},
            working_dir=code,
            runtime_env={"py_modules": [str(lib / "far.py")]},
            wait=True,
        )
        assert answer["success"], answer
        assert "".join(remote.job_logs("train", follow=True)) == "near far\n"
        remote.wait("train")
        with pytest.raises(JobFailedError) as failure:
            remote.result("train")
        assert failure.value.exit_code == 3
        refused = {"pip": [1]}
        with pytest.raises(InvalidRequestError, match="pip"):
            remote.submit_job("other", "true", "p", {"cpu": 1}, runtime_env=refused)
        with remote.lease("groups", "p", [[{"cpu": 1}]], wait=30) as lease:
            group = PlacementGroup(PlacementGroupID.from_hex(lease.group_ids[0]))
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            work = ray.remote(num_cpus=1, scheduling_strategy=strategy)(process_id)
            assert ray.get(work.remote()) != os.getpid()
            assert scheduler.get_lease("groups").placement_groups == [group]
        assert lease.state == "completed"


def process_id():
    return os.getpid()


def test_a_lease_is_granted_for_a_ray_job_without_the_client(scheduler, client):
    scheduler.create_pool("p", resources={"cpu": 2})
    body = {
        "task_id": "groups",
        "pool": "p",
        "groups": [[{"cpu": 1}], [{"cpu": 1}]],
        "holder_job": ray.get_runtime_context().get_job_id(),
    }
    answer = client.post("/api/v1/leases", json=body)
    assert (answer.status_code, answer.json()["state"]) == (200, "running"), answer.text
    state = client.get("/api/v1/leases/groups").json()
    groups = [PlacementGroup(PlacementGroupID.from_hex(g["id"])) for g in state["placement_groups"]]
    assert len(groups) == 2
    for group in groups:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        work = ray.remote(num_cpus=1, scheduling_strategy=strategy)(process_id)
        assert ray.get(work.remote()) != os.getpid()
    assert client.post("/api/v1/leases/groups/release").json()["success"]
    assert client.get("/api/v1/leases/groups").json()["state"] == "completed"
