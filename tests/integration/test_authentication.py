"""Calls that need a token, on a real Ray: jobs, agents, the HTTP API, and a killed supervisor."""

from __future__ import annotations

import os
import signal
import time

import httpx
import msgspec
import pytest
import ray

from schedulemesh import MetricsReportingAgent, NotAllowedError, RayScheduler, SchedulerExistsError
from schedulemesh.api.tokens import CreateToken
from schedulemesh.config.discovery import found, path_of
from schedulemesh.config.http import home_folder
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.protocol.answers import read_answer
from schedulemesh.protocol.credentials import Credential, hash_of, new_secret
from schedulemesh.protocol.requests import encode_request
from tests.integration.polling import process_exists, until
from tests.runtime.request_samples import allowed, classes, refused_by_role, sample


class Counting(MetricsReportingAgent):
    """Counts, reports and saves."""

    count = 0

    def work(self):
        for _ in range(3):
            self.count += 1
            self.report_metrics({"count": self.count}, at_once=True)
        return self.count

    def save_state(self):
        return {"count": self.count}

    def cancel(self):
        return True


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folder of the user's files; no token is in the environment."""
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SCHEDULEMESH_TOKEN", raising=False)
    return home_folder(os.environ)


def killed(scheduler):
    """Kill the supervisor's process; Ray starts it again."""
    pid = scheduler.about()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not process_exists(pid), "the supervisor still runs")


def test_a_job_is_refused_without_the_token_that_its_own_user_finds(
    make_scheduler, namespace, home, monkeypatch
):
    scheduler = make_scheduler(auth="token", detached=True)
    file = path_of(home, namespace, "mesh")
    assert file.stat().st_mode & 0o777 == 0o600
    secret = found(home, namespace, "mesh").token
    assert RayScheduler.attach("mesh", namespace=namespace).list_pools()["success"]
    assert RayScheduler.attach("mesh", namespace=namespace, token=secret).list_pools()["success"]
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(home / "of somebody else"))
    for given in ({}, {"token": new_secret()}):
        with pytest.raises(NotAllowedError) as refused:
            RayScheduler.attach("mesh", namespace=namespace, **given)
        assert given.get("token", "x" * 20) not in str(refused.value)
    with pytest.raises(NotAllowedError):
        RayScheduler("mesh", namespace=namespace, auth="token", detached=True)
    assert not path_of(home / "of somebody else", namespace, "mesh").exists()
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", secret)
    assert RayScheduler.attach("mesh", namespace=namespace).list_pools()["success"]
    killed(scheduler)
    monkeypatch.delenv("SCHEDULEMESH_TOKEN")
    with pytest.raises(NotAllowedError):
        RayScheduler.attach("mesh", namespace=namespace)
    assert scheduler.list_pools()["success"]
    monkeypatch.setenv("SCHEDULEMESH_HOME", str(home))
    scheduler.shutdown()
    assert not file.exists()


def test_a_file_that_others_may_read_is_not_used(make_scheduler, namespace, home):
    make_scheduler(auth="token", detached=True)
    file = path_of(home, namespace, "mesh")
    file.chmod(0o644)
    with pytest.raises(NotAllowedError):
        RayScheduler.attach("mesh", namespace=namespace)
    file.chmod(0o600)


def test_a_living_scheduler_without_tokens_is_not_taken_for_one_with(make_scheduler, namespace):
    make_scheduler(detached=True)
    with pytest.raises(SchedulerExistsError, match="auth"):
        RayScheduler("mesh", namespace=namespace, detached=True, auth="token")


def test_agents_work_and_are_evicted_with_their_state_also_after_a_kill(make_scheduler):
    scheduler = make_scheduler(auth="token")
    scheduler.ensure_pool("p", resources={"cpu": 1})
    submitted = scheduler.submit_task_with_preemption("low", "p", Counting, {"cpu": 1}, 1.0)
    assert ray.get(submitted["agent"]["handle"].work.remote()) == 3
    until(
        lambda: scheduler.list_agents()["agents"][0]["last_metrics"].get("count") == 3, "no metrics"
    )
    killed(scheduler)
    urgent = scheduler.submit_task_with_preemption("urgent", "p", Counting, {"cpu": 1}, 9.0)
    assert urgent["success"], urgent
    assert scheduler.get_saved_state("low")["saved_state"]["state"] == {"count": 3}


def test_two_schedulers_have_tokens_of_their_own(make_scheduler, namespace):
    first, second = new_secret(), new_secret()
    one = make_scheduler("one", auth="token", token=first, detached=True)
    two = make_scheduler("two", auth="token", token=second, detached=True)
    assert one.list_pools()["success"]
    assert two.list_pools()["success"]
    for name, wrong in (("one", second), ("two", first)):
        with pytest.raises(NotAllowedError):
            RayScheduler.attach(name, namespace=namespace, token=wrong)


def test_nobody_reaches_past_the_token_with_the_supervisors_handle(make_scheduler):
    scheduler = make_scheduler(auth="token")
    handle = scheduler.supervisor_handle()
    for call in (
        handle.shutdown.remote,
        handle.hello.remote,
        lambda: handle.poll.remote("a", 1),
        lambda: handle.ask_as.remote(b"", b"", b""),
        lambda: handle.http_serves.remote("http://evil"),
    ):
        with pytest.raises(NotAllowedError):
            ray.get(call())
    assert scheduler.list_pools()["success"]


def test_the_http_api_and_the_metrics_serve_with_tokens(make_scheduler, namespace, home):
    scheduler = make_scheduler(auth="token", http=0)
    until(lambda: scheduler.about()["http"], "the HTTP API does not serve")
    told = found(home, namespace, "mesh")
    with httpx.Client(base_url=told.url, trust_env=False, timeout=60) as client:
        assert client.get("/api/v1/status").status_code == 401
        headers = {"authorization": f"Bearer {told.token}"}
        assert client.get("/api/v1/status", headers=headers).json()["name"] == "mesh"
        killed(scheduler)
        began = time.monotonic()
        while client.get("/api/v1/status", headers=headers).status_code != 200:
            assert time.monotonic() - began < 60
    assert RayScheduler.attach("mesh", namespace=namespace).list_pools()["success"]


def test_every_request_over_ray_is_allowed_or_refused_by_role(make_scheduler):
    secret = new_secret()
    scheduler = make_scheduler(auth="token", token=secret)
    handle = scheduler.supervisor_handle()

    def ask(request, token):
        sent = msgspec.msgpack.encode(Credential(token=token, pid=os.getpid()))
        answer = ray.get(handle.ask.remote(encode_request(request), ([], []), sent))
        return read_answer(answer[0] if isinstance(answer, tuple) else answer)

    tokens = {Role.OPERATOR: secret}
    for role, limits in ((Role.VIEWER, {}), (Role.SUBMITTER, {"owner": "ada"})):
        tokens[role] = new_secret()
        spec = TokenSpec(name=role.value, role=role, secret_hash=hash_of(tokens[role]), **limits)
        ask(CreateToken(spec=spec, client="test", request_id=role.value), secret)
    killed(scheduler)
    for cls in classes():
        request = sample(cls)
        assert ask(request, new_secret()).refused.reason == "token_not_accepted"
        for role, token in tokens.items():
            answer = ask(request, token)
            assert refused_by_role(answer) != allowed(role, cls), (cls, role, answer)
    changed = [change["call"] for change in scheduler.audit(limit=1000)["changes"]]
    assert {"create_token", "ensure_pool", "change_policy", "drain"} <= set(changed)
