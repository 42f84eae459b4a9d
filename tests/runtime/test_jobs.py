"""Jobs, as a whole supervisor on a fake backend handles them."""

from __future__ import annotations

import asyncio
import io
import zipfile

import msgspec
import pytest

from schedulemesh.api.logs import TaskKey
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.job_folders import LogWriter, job_folder
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.errors import InvalidRequestError, TaskFailedError
from schedulemesh.protocol.agents import DEVICES_NAMESPACE, AgentInit
from schedulemesh.runtime.backend import BackendError, JobRemains, NodeView
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayHolder, RayJob
from schedulemesh.runtime.jobs.claims import OWNER
from schedulemesh.runtime.services.logs import writer_of
from tests.core.test_request_service import client
from tests.runtime.composition import InThread


@pytest.fixture
def service(tmp_path, monkeypatch):
    found = InThread(tmp_path / "j.sqlite", state_path=str(tmp_path / "state"))
    total = parse_resources({"cpu": 8})
    node = NodeView(node_id="own", total=total, free=total, labels={})
    other = NodeView(node_id="other", total=total, free=total, labels={})
    found.backend.free = [node, other]
    # Drivers run until they are ended.
    monkeypatch.setattr(found.backend, "run_task", lambda handle, order: asyncio.Event().wait())
    found.do(found.running.monitor.observe())
    yield found
    found.close()


def calls_with_a_pool(service):
    """The public calls, with a pool. No runner of the fake backend answers when it is told to cancel."""
    found = client(service)
    assert found.update_preemption_policy(cancel_timeout=0.05)["success"]
    assert found.ensure_pool("p", resources={"cpu": 4})["success"]
    return found


@pytest.fixture
def calls(service):
    return calls_with_a_pool(service)


@pytest.fixture
def write(tmp_path, service):
    """Writes what the driver of an attempt has written on every node."""

    def written(attempt, data, task_id="j"):
        writer = writer_of(service.running.reactor.state, task_id)
        key = TaskKey(
            root=str(tmp_path / "state"),
            namespace="space",
            scheduler="mesh",
            task_id=task_id,
            agent_name="nobody" if writer is None else writer.agent_name,
        )
        folder = job_folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        log = LogWriter(folder, attempt)
        log.write(data)
        log.close()

    return written


def submit(calls, task_id="j", **fields):
    given = {"resources": {"cpu": 2}, **fields}
    answer = calls.submit_job(task_id, ["true"], "p", **given)
    assert answer["success"], answer


def test_the_runner_takes_nothing_and_is_told_its_attempt(calls, service):
    submit(calls)
    (actor,) = service.backend.actors
    assert actor.request.resources == NOTHING
    assert service.running.reactor.state.ledger.accounts["p"].used == parse_resources({"cpu": 2})
    job = msgspec.msgpack.decode(actor.request.init, type=AgentInit).job
    assert (job.task_id, job.attempt, job.scheduler, job.namespace) == ("j", 1, "mesh", "space")
    assert job.owner == f"space/{actor.request.name}"
    assert job.claimed == {actor.node_id: (2.0, 0.0)}
    (listed,) = calls.jobs()["jobs"]
    assert (listed["task_id"], listed["state"], listed["attempt"]) == ("j", "running", 1)
    assert listed["resources"] == {"cpu": 2.0}


def test_the_claim_is_held_until_nothing_of_the_job_is_left(calls, service):
    submit(calls)
    owner = f"space/{service.backend.actors[0].request.name}"
    service.backend.left_of_jobs[owner] = 3

    assert calls.cancel_task("j")["success"]

    assert service.backend.left_of_jobs == {}
    assert calls.list_agents()["agents"] == []
    (listed,) = calls.jobs()["jobs"]
    assert (listed["state"], listed["attempt"]) == ("cancelled", 1)


def test_what_workers_of_a_job_have_left_ends_on_every_node_where_it_was(calls, service):
    submit(calls)
    (actor,) = service.backend.actors
    service.backend.remains_of_jobs = JobRemains(
        node_ids=frozenset({"other", "a node that is gone"}), staying={"other": (77,)}
    )
    mark = service.backend.process_mark("space", actor.request.name)

    assert calls.cancel_task("j")["success"]

    ended = {
        cleaner.node_id: subject
        for cleaner in service.backend.cleaners
        for method, subject in cleaner.calls
        if method == "terminate_workers"
    }
    assert ended == {actor.node_id: (mark,), "other": (mark, 77)}


def test_the_claim_is_held_until_no_process_of_its_workers_is_left(calls, service):
    submit(calls)
    (actor,) = service.backend.actors
    (cleaner,) = (c for c in service.backend.cleaners if c.node_id == actor.node_id)
    # The runner's own processes have ended; of its workers' one takes long.
    cleaner.answers.extend([(), (78,), ()])
    assert calls.cancel_task("j")["success"]
    methods = [method for method, _ in cleaner.calls]
    assert methods == ["terminate", "terminate_workers", "terminate_workers"]
    assert calls.list_agents()["agents"] == []


def test_an_agent_that_is_no_job_is_not_looked_for(calls, service):
    assert calls.submit_task_with_preemption("t", "p", AgentActor, {"cpu": 1})["success"]
    owner = f"space/{service.backend.actors[0].request.name}"
    service.backend.left_of_jobs[owner] = 1
    calls.cancel_task("t")
    assert service.backend.left_of_jobs == {owner: 1}


def test_a_job_that_waits_is_listed(calls):
    submit(calls, "first", resources={"cpu": 4})
    submit(calls, "second", resources={"cpu": 4}, queue=True)
    states = {job["task_id"]: job["state"] for job in calls.jobs()["jobs"]}
    assert states == {"first": "running", "second": "queued"}


def test_logs_are_read_by_attempt_and_from_the_end(calls, write):
    submit(calls)
    assert "".join(calls.job_logs("j")) == ""
    write(1, "eins\nzwei\n你好\n".encode())
    write(2, b"again\n")
    assert "".join(calls.job_logs("j")) == "again\n"
    assert "".join(calls.job_logs("j", 1)) == "eins\nzwei\n你好\n"
    assert "".join(calls.job_logs("j", 1, tail=1)) == "你好\n"
    assert "".join(calls.job_logs("j", 1, tail=0)) == ""


def test_the_logs_of_a_job_are_not_those_of_an_earlier_one_of_the_same_id(calls, write):
    submit(calls)
    write(1, b"earlier\n")
    write(2, b"earlier still\n")
    assert calls.cancel_task("j")["success"]
    calls.wait("j")
    submit(calls)
    assert "".join(calls.job_logs("j")) == ""
    write(1, b"later\n")
    assert "".join(calls.job_logs("j")) == "later\n"


def test_a_log_is_followed_over_attempts_until_the_job_ends(calls, write):
    submit(calls)
    write(1, b"one\n")
    pieces = calls.job_logs("j", follow=True)
    assert next(pieces) == "one\n"
    write(1, b"rest of one\n")
    write(2, b"two\n")
    calls.cancel_task("j")
    assert "".join(pieces) == "rest of one\ntwo\n"


@pytest.mark.parametrize("which", [("nothing",), ("j", 7), ("plain",)])
def test_what_has_no_log_is_refused(calls, write, which):
    submit(calls)
    calls.register_running_task("plain", "somewhere", "p")
    write(1, b"text", "nothing")
    write(1, b"text", "plain")
    with pytest.raises(TaskFailedError, match=which[0]) as refused:
        list(calls.job_logs(*which))
    assert refused.value.reason == "task_not_found"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"entrypoint": ""}, "entrypoint"),
        ({"entrypoint": []}, "entrypoint"),
        ({"entrypoint": ["a", 1]}, "entrypoint"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"working_dir": "/no/such/folder"}, "no folder of this machine"),
        ({"working_dir": "/tmp", "runtime_env": {"working_dir": "/tmp"}}, "given twice"),
        ({"runtime_env": {"py_modules": ["./own"]}}, "py_modules"),
        ({"keep_actors": ["weights"]}, "NAMESPACE/NAME"),
        ({"checkpoint_dir": "relative"}, "absolute"),
        ({"checkpoint_dir": 3}, "checkpoint_dir"),
        ({"grace_s": -1}, "grace_s"),
        ({"replicas": 2}, "replicas"),
    ],
)
def test_a_malformed_job_is_refused_in_the_callers_process(calls, given, said):
    with pytest.raises(InvalidRequestError, match=said):
        calls.submit_job("bad", **{"entrypoint": "true", "pool_name": "p", **given})
    assert calls.jobs()["jobs"] == []


def test_the_folder_of_a_job_is_handed_to_ray_before_its_runner_starts(calls, service, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("x")
    submit(calls, working_dir=tmp_path / "code")
    (actor,) = service.backend.actors
    ((uri, archive),) = service.backend.folders.items()
    assert zipfile.ZipFile(io.BytesIO(archive)).namelist() == ["train.py"]
    assert actor.request.options["runtime_env"] == {"working_dir": uri}
    job = msgspec.msgpack.decode(actor.request.init, type=AgentInit).job
    assert job.working_dir == uri

    # Ray may have forgotten it meanwhile.
    service.backend.folders.clear()
    calls.cancel_task("j")
    submit(calls, "again", working_dir=tmp_path / "code")
    assert service.backend.folders == {uri: archive}


def test_what_the_driver_itself_holds_is_used_of_its_claim_and_not_external(service, calls):
    submit(calls)
    (runner,) = service.backend.actors
    holder = RayHolder(
        ray_id="d",
        is_group=False,
        job_id="01000000",
        name="/".join(runner.address),
        namespace=DEVICES_NAMESPACE,
        held=(("own", parse_resources({"cpu": 1})),),
    )
    service.backend.used = ClusterUsage(jobs={}, holders=(holder,))
    (job,) = calls.jobs()["jobs"]
    assert (job["used"], job["beyond_claim"]) == ({"cpu": 1.0}, {})
    assert calls.external_usage()["jobs"] == []


def test_a_running_job_is_listed_with_what_its_drivers_hold(service, calls):
    submit(calls)
    claimed = calls.jobs()["jobs"][0]["resources"]["cpu"]
    (runner,) = service.backend.actors
    job = RayJob(
        job_id="07000000",
        namespace="",
        metadata={OWNER: "/".join(runner.address)},
        driver_node_id="own",
        driver_pid=1,
        entrypoint="python train.py",
        started_at=1.0,
        ended=False,
    )
    holder = RayHolder(
        ray_id="a",
        is_group=False,
        job_id="07000000",
        name="",
        namespace="",
        held=(("own", parse_resources({"cpu": claimed})), ("other", parse_resources({"cpu": 2}))),
    )
    service.backend.used = ClusterUsage(jobs={job.job_id: job}, holders=(holder,))
    (row,) = calls.jobs()["jobs"]
    assert (row["used"], row["beyond_claim"]) == ({"cpu": claimed + 2}, {"cpu": 2.0})


def test_jobs_are_listed_while_ray_does_not_say_what_they_hold(service, calls, monkeypatch):
    async def refused():
        raise BackendError("Ray does not answer")

    submit(calls)
    monkeypatch.setattr(service.backend, "usage", refused)
    (row,) = calls.jobs()["jobs"]
    assert (row["state"], "used" in row) == ("running", False)


@pytest.mark.parametrize("writes", [True, False])
def test_every_record_says_whether_a_job_has_saved(calls, service, writes):
    submit(calls, grace_s=0.0)
    name = writer_of(service.running.reactor.state, "j").agent_name
    incarnation = service.running.reactor.state.agents[name].incarnation
    if writes:
        service.do(service.service.work_saved(name, incarnation, b"", 0.0))
    for wrong in (-1.0, float("nan"), "0", None):
        service.do(service.service.work_saved(name, incarnation, b"", wrong))
    (evicted,) = calls.preempt_task("j")["preempted"]
    (row,) = calls.list_preemptions()["preemptions"]
    explained = calls.explain("j")["eviction"]
    (saved,) = {evicted["state_saved"], row["state_saved"], explained["state_saved"]}
    assert saved is writes
    assert all(("save_error" in found) is not writes for found in (evicted, row))
    assert "checkpoint folder" in evicted.get("save_error", "checkpoint folder")
    assert (row["saved_at"] is not None) is writes
