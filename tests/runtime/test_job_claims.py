"""What jobs use of their claims: external usage is neither hidden by claims nor made of what jobs use."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.nodes import ListExternalUsage, ListNodes
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import CreatePool
from schedulemesh.api.tasks import ExplainTask, SubmitTask
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, parse_resources
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages.outcomes import Queued
from schedulemesh.metrics import catalogue as c
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import (
    Explained,
    Listed,
    PoolResponse,
    Response,
    decode_answer,
)
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.cluster.monitor import QUIET_S
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayHolder, RayJob
from schedulemesh.runtime.jobs.claims import (
    OWNER,
    ClaimOfJob,
    ClaimWatch,
    owners_of_jobs,
    unused_claims,
)
from schedulemesh.runtime.services.metrics import MetricsService
from tests.engine.builders import Mesh
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend

KEY = key_of(b"class")


def cpus(amount):
    return parse_resources({"cpu": amount}) if amount else NOTHING


def ray_job(job_id, owner=""):
    return RayJob(
        job_id=job_id,
        namespace="space",
        metadata={OWNER: owner} if owner else {},
        driver_node_id="n1",
        driver_pid=1,
        entrypoint="python train.py",
        started_at=1.0,
        ended=False,
    )


def holder(job_id, *held):
    return RayHolder(
        ray_id=f"{job_id} {held}", is_group=False, job_id=job_id, name="", namespace="s", held=held
    )


def claim(claimed, used, name="j"):
    by_node = {"n1": cpus(claimed)}
    return ClaimOfJob(
        agent_name=name, incarnation=1, claimed=by_node, used={"n1": cpus(used)} if used else {}
    )


def view(used, total=16, node_id="n1"):
    return NodeView(node_id=node_id, total=cpus(total), free=cpus(total - used), labels={})


def unused(claims, in_tables, in_use):
    """CPUs of the claims that are free on a node where so many are in use."""
    usage = ClusterUsage(
        jobs={}, holders=(holder("1", ("n1", cpus(in_tables))),) if in_tables else ()
    )
    return unused_claims(claims, usage, [view(in_use, total=64)]).get("n1", NOTHING).cpu / UNIT


def test_what_a_job_does_not_use_of_its_claim_is_unused():
    assert unused([claim(4, 0)], 0, 0) == 4
    assert unused([claim(4, 3)], 3, 3) == 1
    assert unused([claim(4, 4)], 4, 4) == 0


def test_what_a_job_uses_beyond_its_claim_is_not_another_jobs():
    assert unused([claim(4, 6), claim(4, 0, "k")], 6, 6) == 4


def test_plain_tasks_are_taken_for_those_of_jobs_with_unused_claims():
    assert unused([claim(4, 1)], 1, 3) == 1
    assert unused([claim(4, 1)], 1, 16) == 0


amounts = st.integers(0, 4)


@given(claims=st.lists(st.tuples(amounts, amounts), max_size=4), foreign=amounts, tasks=amounts)
def test_foreign_actors_are_external_whatever_jobs_claim_and_use(claims, foreign, tasks):
    """The external usage is that of foreign actors, of jobs beyond their claims, and of the plain tasks for
    which no claim is left.
    """
    found = [claim(claimed, used, f"j{n}") for n, (claimed, used) in enumerate(claims)]
    in_tables = sum(used for _, used in claims) + foreign
    left = unused(found, in_tables, in_tables + tasks) if found else 0
    external = in_tables + tasks - (sum(claimed for claimed, _ in claims) - left)
    beyond = sum(max(0, used - claimed) for claimed, used in claims)
    free_claims = sum(max(0, claimed - used) for claimed, used in claims)
    assert external == foreign + beyond + max(0, tasks - free_claims)


def test_a_job_that_uses_more_than_it_claims_is_warned_of_once(caplog):
    watch = ClaimWatch()
    with caplog.at_level(logging.WARNING):
        assert watch.look([claim(4, 4)], 0.0) == []
        assert not caplog.messages
        watch.look([claim(4, 6)], 1.0)
        (over,) = watch.look([claim(4, 7)], 2.0)
    assert (over.agent_name, over.beyond, over.since) == ("j", cpus(3), 1.0)
    assert watch.beyond == {"j": cpus(3)}
    (said,) = caplog.messages
    assert said.startswith("job j uses cpu 2 more than it claims")
    watch.forget([])
    watch.look([claim(4, 6)], 3.0)
    assert len(caplog.messages) == 2


def test_a_job_is_over_its_claim_since_it_was_last_within_it():
    watch = ClaimWatch()
    for now, used in ((1.0, 6), (2.0, 4), (3.0, 6)):
        found = watch.look([claim(4, used)], now)
    assert [over.since for over in found] == [3.0]


def test_use_on_other_nodes_than_claimed_is_within_the_claim():
    found = ClaimOfJob(agent_name="j", incarnation=1, claimed={"n1": cpus(4)}, used={"n2": cpus(3)})
    assert found.beyond == NOTHING
    assert (found.unused("n1"), found.unused("n2")) == (cpus(4), NOTHING)


class Stage:
    """A supervisor with a pool, on two nodes of 8 CPUs."""

    def __init__(self, journal_file):
        self.backend = FakeBackend()
        self.journal_file = journal_file
        self.nodes()

    def nodes(self, **used):
        self.backend.free = [view(used.get(n, 0), total=8, node_id=n) for n in ("n1", "n2")]

    async def begin(self):
        self.service = supervisor(self.backend, self.journal_file)
        self.running = (await self.service.ready()).running
        spec = PoolSpec(name="p", resources=cpus(16))
        await self.ask(CreatePool(spec=spec), PoolResponse)

    async def ask(self, request, kind):
        answer = await self.service.ask(encode_request(request))
        return decode_answer(answer[0] if isinstance(answer, tuple) else answer, kind)

    async def submit(self, **need):
        given = Mesh().submission("j", payload=JobPayload(), class_key=KEY, **need)
        submission = msgspec.structs.replace(given, request_id="submit")
        request = SubmitTask(submission=submission, blobs={KEY: b"class"})
        return (await self.ask(request, Response)).outcome

    def uses(self, *holders):
        actor = self.backend.actors[-1]
        jobs = (ray_job("ours", "/".join(actor.address)), ray_job("theirs"))
        self.backend.used = ClusterUsage(jobs={job.job_id: job for job in jobs}, holders=holders)

    async def external(self):
        """CPUs of external usage by node, once the claims have not changed for long enough."""
        await self.running.monitor.observe()
        watch = self.running.monitor._watch
        watch._quiet = {
            n: type(q)(q.version, q.since - 2 * QUIET_S) for n, q in watch._quiet.items()
        }
        await self.running.monitor.observe()
        rows = (await self.ask(ListNodes(), Listed)).rows
        return {row["node_id"]: row["external_usage"].get("cpu", 0) for row in rows}

    async def end(self):
        self.running.executor.stop_all()
        await self.running.reactor.close(destroy=False)


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "mesh.sqlite")


def run(story):
    return asyncio.run(asyncio.wait_for(story, 30.0))


def test_the_claim_of_a_job_hides_no_foreign_usage_and_its_own_usage_is_none(stage):
    async def story():
        await stage.begin()
        outcome = await stage.submit(cpu=6)
        node_id = outcome.node_id
        stage.nodes(**{node_id: 2})
        stage.uses(holder("theirs", (node_id, cpus(2))))
        assert (await stage.external())[node_id] == 2
        stage.nodes(**{node_id: 8})
        stage.uses(holder("theirs", (node_id, cpus(2))), holder("ours", (node_id, cpus(6))))
        assert (await stage.external())[node_id] == 2
        (job,) = (await stage.ask(ListExternalUsage(), Listed)).rows
        assert job["job_id"] == "theirs"
        await stage.end()

    run(story())


def of_submission(job_id, submission_id):
    metadata = {"job_submission_id": submission_id}
    return msgspec.structs.replace(ray_job(job_id), metadata=metadata)


def test_what_a_driver_holds_is_of_its_submission_only_where_that_is_adopted():
    jobs = {
        "02": of_submission("02", "raysubmit_x"),
        "03": of_submission("03", "raysubmit_x"),
        "04": of_submission("04", "raysubmit_y"),
        "05": ray_job("05", "space/j#1"),
        "06": ray_job("06"),
    }
    by_id = {"02": "02", "03": "03", "04": "04", "05": "space/j#1", "06": "06"}
    assert owners_of_jobs(jobs, {"space/j#1"}) == by_id
    assert owners_of_jobs(jobs, {"02"}) == by_id
    of_x = {**by_id, "02": "raysubmit_x", "03": "raysubmit_x"}
    assert owners_of_jobs(jobs, {"raysubmit_x"}) == of_x
    assert owners_of_jobs(jobs, {"raysubmit_x", "02"}) == {**of_x, "02": "02"}


def test_an_adopted_submission_keeps_its_claim_when_its_driver_connects_to_ray(stage):
    async def story():
        await stage.begin()
        spec = JobPayload(adopts="raysubmit_x")
        more = {"choose_node": False, "request_id": "adopt"}
        submission = Mesh().submission("j", payload=spec, class_key=KEY, more=more, cpu=2)
        request = SubmitTask(submission=submission, blobs={KEY: b"class"})
        await stage.ask(request, Response)
        stage.nodes(n1=2)
        for job in (ray_job("raysubmit_x"), of_submission("03000000", "raysubmit_x")):
            stage.backend.used = ClusterUsage(
                jobs={job.job_id: job}, holders=(holder(job.job_id, ("n1", cpus(2))),)
            )
            assert (await stage.external())["n1"] == 0
            assert (await stage.ask(ListExternalUsage(), Listed)).rows == []
            (row,) = (await stage.ask(ListJobs(), Listed)).rows
            assert row["used"] == row["claimed"]["n1"] == {"cpu": 2.0}
        await stage.end()

    run(story())


def test_a_job_that_holds_too_much_for_too_long_is_ended_where_the_policy_says_so(stage):
    async def story():
        await stage.begin()
        node_id = (await stage.submit(cpu=2)).node_id
        stage.uses(holder("ours", (node_id, cpus(3))))
        await stage.running.monitor.observe()
        shown = dict(MetricsService(stage.running).families(stage.running.reactor.state))
        assert [(x.labels, x.value) for x in shown[c.JOBS_BEYOND]] == [(("p", "cpu"), 1.0)]
        await stage.running.monitor.observe()
        assert "j" in stage.running.reactor.state.agents
        changes = {"over_claim": "end", "over_claim_s": 0.0}
        await stage.service.ask(encode_request(ChangePolicy(changes=changes, client="me")))
        await stage.running.monitor.observe()
        ended = stage.running.reactor.state.ended["j"]
        assert (ended.state, ended.reason) == (EndState.FAILED, TaskEndReason.OVER_CLAIM)
        assert "held cpu 1 more in Ray than the cpu 2 that it claims" in ended.error
        while stage.running.reactor.state.agents:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0)
        assert not stage.backend.actors[0].alive
        await stage.end()

    run(story())


def test_a_job_that_holds_more_than_it_claims_is_named_wherever_its_room_is_missing(stage):
    async def story():
        await stage.begin()
        node_id = (await stage.submit(cpu=2)).node_id
        other_id = "n2" if node_id == "n1" else "n1"
        stage.nodes(**{node_id: 8, other_id: 8})
        used = (holder("ours", (node_id, cpus(8))), holder("theirs", (other_id, cpus(8))))
        stage.uses(*used)
        assert await stage.external() == {node_id: 6, other_id: 8}
        theirs, ours = (await stage.ask(ListExternalUsage(), Listed)).rows
        assert (theirs["job_id"], theirs["task_id"]) == ("theirs", "")
        assert (ours["job_id"], ours["task_id"]) == ("", "j")
        assert ours["nodes"] == {node_id: {"cpu": 6.0}}
        rows = {row["node_id"]: row for row in (await stage.ask(ListNodes(), Listed)).rows}
        assert [job["task_id"] for job in rows[node_id]["external_jobs"]] == ["j"]
        assert [job["job_id"] for job in rows[other_id]["external_jobs"]] == ["theirs"]
        more = {"queue": True, "request_id": "w"}
        waiting = Mesh().submission("w", cpu=4, class_key=KEY, more=more)
        request = SubmitTask(submission=waiting, blobs={KEY: b"class"})
        assert isinstance((await stage.ask(request, Response)).outcome, Queued)
        found = (await stage.ask(ExplainTask(task_id="w"), Explained)).explanation
        reasons = [(found.reason, found.error), *((o.reason, o.error) for o in found.others)]
        (said,) = [error for reason, error in reasons if reason == "external_ray_work"]
        assert said.endswith(": job 'j' holds cpu 6 more than it claims")
        await stage.end()

    run(story())


def test_the_runner_of_a_job_over_several_nodes_starts_outside_of_placement_groups(stage):
    async def story():
        await stage.begin()
        outcome = await stage.submit(cpu=12)
        (actor,) = stage.backend.actors
        assert (actor.request.slot, actor.request.resources) == (None, Resources())
        assert actor.request.node_id == outcome.node_id
        assert stage.backend.made == 0
        free = {n.node_id: n.free for n in stage.running.reactor.state.cluster.nodes.values()}
        assert sum(amount.cpu for amount in free.values()) == 4 * UNIT
        stage.nodes(n1=6, n2=6)
        stage.uses(*(holder("ours", (n, cpus(6))) for n in ("n1", "n2")))
        claimed = {n: 8 - amount.cpu / UNIT for n, amount in free.items()}
        beyond = {n: max(0, 6 - claimed[n]) for n in ("n1", "n2")}
        assert await stage.external() == beyond
        await stage.end()

    run(story())


def test_a_restarted_supervisor_keeps_the_claim_over_several_nodes(stage):
    async def story():
        await stage.begin()
        await stage.submit(cpu=12)
        await stage.end()
        stage.backend.restarted = True
        again = supervisor(stage.backend, stage.journal_file)
        running = (await again.ready()).running
        agent = running.reactor.state.agents["j"]
        group = running.reactor.state.groups.by_id[agent.group_id]
        assert (group.shape.virtual, group.agent) == (True, "j")
        assert stage.backend.actors[0].alive
        running.executor.stop_all()
        await running.reactor.close(destroy=False)

    run(story())
