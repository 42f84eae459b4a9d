"""Leases in the runtime: nothing is started for them, and what runs in their groups ends with them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import msgspec
import pytest

from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.api.pools import CreatePool
from schedulemesh.api.preemption import ExecutePreemption
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Accepted, Done, Refused
from schedulemesh.protocol.answers import LeaseView, Response, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import BackendError, GroupMember, NodeView
from schedulemesh.runtime.services.leases import LeaseService
from tests.engine.builders import Mesh
from tests.runtime import virtual_time
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend, HeldCalls, Verdict

FOUR = parse_resources({"cpu": 4})
TWO = [{"cpu": 2}, {"cpu": 2}]


class HeldLooks(HeldCalls):
    """Holds the calls that ask what runs in a group, or those of another name, and no others."""

    def __init__(self, held="members"):
        super().__init__()
        self._held = held

    async def turn(self, call, subject):
        return await super().turn(call, subject) if call == self._held else Verdict.DONE


def copied(file, to):
    """What is durable in a journal at this moment, as a file of its own."""
    with (
        contextlib.closing(sqlite3.connect(file)) as living,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        living.backup(copy)
    return to


class Scene:
    """A supervisor with one pool on one node, and its clients."""

    def __init__(self, folder):
        self.backend = FakeBackend()
        self.backend.free = [NodeView(node_id="n1", total=FOUR, free=FOUR, labels={})]
        self.backend.jobs = {"the job", "01"}
        self.file = folder / "mesh.sqlite"
        self.service = None

    def begun(self):
        return supervisor(self.backend, self.file, clock=virtual_time.clock())

    async def pool(self, groups=None, quota=None):
        await self.ask(CreatePool(spec=PoolSpec(name="p", resources=quota or FOUR, groups=groups)))

    async def ask(self, request):
        answer = await self.service.ask(encode_request(request))
        return answer[0] if isinstance(answer, tuple) else answer

    async def lease(self, name="l", **fields):
        return decode_answer(await self.ask(self.submission(name, **fields)), Response)

    @staticmethod
    def submission(name="l", priority=5.0, agent_name="", **fields):
        fields.setdefault("holder_job", "01")
        given = Mesh().submission(
            name, priority=priority, bundles=TWO, payload=LeasePayload(**fields)
        )
        agent = msgspec.structs.replace(given.agent, name=agent_name or name)
        request_id = f"submit {name} {agent_name}"
        submission = msgspec.structs.replace(given, agent=agent, request_id=request_id)
        return SubmitTask(submission=submission)

    async def free_group(self, most=1, quota=None):
        """A pool with a group that nobody holds; Ray's id of it."""
        await self.pool(GroupsSpec(max_dynamic=most), quota)
        ray_id = (await self.lease("first")).group.ray_id
        await self.release("first")
        return ray_id

    async def view(self, name="l", **fields):
        return decode_answer(await self.ask(WatchLease(task_id=name, **fields)), LeaseView)

    async def release(self, name="l", number=1, **fields):
        request = ReleaseLease(task_id=name, request_id=f"release {name} {number}", **fields)
        return decode_answer(await self.ask(request), Response).outcome

    def uses(self, ray_id, actor_id="x"):
        """The holder has an actor in a group."""
        member = GroupMember(name="", namespace="", node_id="n1", pid=7, actor_id=actor_id)
        self.backend.foreign.setdefault(ray_id, []).append(member)

    @property
    def state(self):
        return self.service._requests.running.reactor.state

    @property
    def commits(self):
        return self.service._requests.running.reactor.last

    async def die(self):
        running = (await self.service.ready()).running
        running.executor.stop_all()
        await running.reactor.close(destroy=False)

    def play(self, story):
        async def whole():
            self.service = self.begun()
            await story(self)
            if self.service is not None:
                await self.die()

        virtual_time.run(whole())


def test_a_lease_is_granted_without_a_process(tmp_path):
    async def story(scene):
        await scene.pool()
        response = await scene.lease(parts=2)
        assert isinstance(response.outcome, Accepted)
        assert response.group.ray_id in scene.backend.by_id
        assert response.group.shape.parts == 2
        assert not scene.backend.actors
        view = await scene.view()
        assert (view.state, view.ray_id, view.grace_s) == (
            "running",
            response.group.ray_id,
            None,
        )

    Scene(tmp_path).play(story)


def test_no_handles_come_beside_a_lease(tmp_path):
    async def story(scene):
        await scene.pool()
        request = scene.submission()
        assert request.waits
        answer = await scene.service.ask(encode_request(request))
        assert isinstance(answer, bytes)
        assert isinstance(decode_answer(answer, Response).outcome, Accepted)

    Scene(tmp_path).play(story)


def test_what_runs_in_a_released_lease_is_ended_before_it_has_ended(tmp_path):
    async def story(scene):
        await scene.pool()
        response = await scene.lease()
        scene.uses(response.group.ray_id)
        assert isinstance(await scene.release(), Done)
        assert scene.backend.ended_members == {"x"}
        assert not scene.state.agents
        assert (await scene.release(number=2)).change == "already_ended"
        assert (await scene.view()).state == "completed"

    Scene(tmp_path).play(story)


def test_a_group_that_was_released_clean_is_handed_on_as_it_is(tmp_path):
    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=1))
        first = (await scene.lease()).group.ray_id
        scene.uses(first)
        await scene.release()
        assert (await scene.lease("next")).group.ray_id == first

    Scene(tmp_path).play(story)


@pytest.mark.parametrize(("kept", "commits"), [(True, 1), (False, 2)])
def test_a_lease_starts_with_its_admission_in_a_vacant_group_and_with_the_creation_of_a_new_one(
    tmp_path, kept, commits
):
    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=1) if kept else None)
        await scene.lease("first")
        await scene.release("first")
        await asyncio.sleep(1.0)  # virtual
        before = scene.commits
        assert isinstance((await scene.lease("next")).outcome, Accepted)
        assert scene.commits - before == commits

    Scene(tmp_path).play(story)


def test_a_lease_in_a_free_group_is_answered_once_it_is_durable_and_nothing_is_in_the_group(
    tmp_path,
):
    async def story(scene):
        first = await scene.free_group()
        scene.backend.control = held = HeldLooks()
        asked = asyncio.ensure_future(scene.lease("next"))
        look = await held.next("members")
        await scene.service._requests.running.reactor.flushed()
        assert "next" in scene.state.running.by_id
        assert not asked.done(), "something may be left in the group"
        look.let()
        assert (await asked).group.ray_id == first

    Scene(tmp_path).play(story)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b")])
def test_two_that_ask_at_once_for_the_one_free_group_both_get_a_group(tmp_path, names):
    async def story(scene):
        eight = FOUR + FOUR
        scene.backend.free = [NodeView(node_id="n1", total=eight, free=eight, labels={})]
        ray_id = await scene.free_group(most=2, quota=eight)
        answers = await asyncio.gather(*(scene.lease(name) for name in names))
        assert all(isinstance(answer.outcome, Accepted) for answer in answers)
        got = {answer.group.ray_id for answer in answers}
        assert ray_id in got
        assert got == scene.backend.by_id.keys()
        assert len(got) == len(set(names)) == len(scene.state.running.by_id)

    Scene(tmp_path).play(story)


def test_a_free_group_in_which_others_run_is_created_again_before_its_lease_is_granted(tmp_path):
    async def story(scene):
        first = await scene.free_group()
        scene.uses(first)
        response = await scene.lease("next")
        assert isinstance(response.outcome, Accepted)
        assert response.group.ray_id not in (first, "")
        assert first in scene.backend.removed
        assert (await scene.view("next")).ray_id == response.group.ray_id

    Scene(tmp_path).play(story)


def test_a_shutdown_leaves_no_group_that_was_being_created_again(tmp_path):
    async def story(scene):
        scene.uses(await scene.free_group())
        scene.backend.control = held = HeldLooks("remove_group")
        asked = asyncio.ensure_future(scene.lease("next"))
        removal = await held.next()
        shutdown = asyncio.ensure_future(scene.service.shutdown())
        await asyncio.sleep(1.0)  # virtual
        scene.backend.control = HeldLooks("")
        removal.let()
        for call in list(held.pending):
            call.let()
        await shutdown
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(5.0)  # virtual
        assert not scene.backend.by_id, "placement groups stay in Ray for ever"
        scene.service = None

    Scene(tmp_path).play(story)


def test_where_ray_does_not_say_what_is_in_a_free_group_it_is_asked_again(tmp_path):
    async def story(scene):
        first = await scene.free_group()
        scene.backend.control = held = HeldLooks()
        asked = asyncio.ensure_future(scene.lease("next"))
        (await held.next("members")).let(Verdict.REFUSED)
        (await held.next("members")).let()
        assert (await asked).group.ray_id == first

    Scene(tmp_path).play(story)


@pytest.mark.parametrize("kept", [True, False])
def test_a_lease_that_its_submission_answered_survives_the_death_of_the_supervisor(tmp_path, kept):
    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=1) if kept else None)
        await scene.lease("first")
        await scene.release("first")
        granted = await scene.lease("next")
        stored = copied(scene.file, tmp_path / "at the grant.sqlite")
        scene.uses(granted.group.ray_id)
        await scene.die()
        scene.file, scene.backend.restarted = stored, True
        scene.service = scene.begun()
        view = await scene.view("next")
        assert (view.state, view.ray_id) == ("running", granted.group.ray_id)
        again = await scene.lease("next")
        assert again == granted, "the repeated submission gets its first answer"
        assert len(scene.state.agents) == 1
        assert not scene.backend.ended_members, "what runs in it was ended"

    Scene(tmp_path).play(story)


def test_two_leases_at_a_time_never_get_the_same_group(tmp_path):
    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=1))
        await scene.lease("first")
        await scene.release("first")
        one, other = await asyncio.gather(scene.lease("one"), scene.lease("other"))
        assert isinstance(one.outcome, Accepted)
        assert isinstance(other.outcome, Refused), "there is quota for one"
        assert not scene.backend.ended_members

    Scene(tmp_path).play(story)


def test_a_group_in_which_tasks_run_is_created_again_for_the_next(tmp_path):
    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=1))
        first = (await scene.lease()).group.ray_id
        scene.backend.busy_groups.add(first)
        await scene.release()
        assert (await scene.lease("next")).group.ray_id != first
        assert first in scene.backend.removed

    Scene(tmp_path).play(story)


def test_the_holder_has_its_time_after_the_notice(tmp_path):
    async def story(scene):
        await scene.pool()
        first = (await scene.lease(priority=1.0, grace_s=20.0)).group.ray_id
        watching = asyncio.ensure_future(scene.view(known="running", wait_s=30.0))
        urgent = asyncio.ensure_future(scene.lease("urgent", priority=9.0))
        view = await watching
        if view.grace_s is None:
            view = await scene.view(known="preempting", wait_s=30.0)
        assert view.state == "preempting"
        assert 19.0 < view.grace_s <= 20.0
        await asyncio.sleep(10.0)  # virtual
        assert not urgent.done()
        assert isinstance(await scene.release(), Done)
        assert (await urgent).group.ray_id == first, "released and unused, it is handed on"
        assert (await scene.view()).reason == "preempted"

    Scene(tmp_path).play(story)


@pytest.mark.parametrize("saves", [True, False])
def test_a_lease_has_saved_what_its_holder_says(tmp_path, saves):
    async def story(scene):
        await scene.pool()
        await scene.lease(priority=1.0)
        await asyncio.sleep(50.0)  # virtual
        if saves:
            answer = await scene.ask(SaveLease(task_id="l", request_id="saved"))
            assert isinstance(decode_answer(answer, Response).outcome, Done)
        await asyncio.sleep(10.0)  # virtual
        began = asyncio.get_running_loop().time()
        await scene.lease("urgent", priority=9.0)
        assert asyncio.get_running_loop().time() - began >= 30.0, "its holder has 30 s by default"
        record = scene.state.evictions.of_task("l")
        assert record.state_saved is saves
        assert record.lost_s == pytest.approx(10.0 if saves else 60.0, abs=1.0)
        assert bool(record.save_error) is not saves
        answer = await scene.ask(SaveLease(task_id="l", request_id="late"))
        assert decode_answer(answer, Response).outcome.reason == "lease_ended"

    Scene(tmp_path).play(story)


def test_the_groups_of_a_holder_that_ignores_the_notice_are_created_again(tmp_path):
    async def story(scene):
        await scene.pool()
        first = (await scene.lease(priority=1.0, grace_s=5.0)).group.ray_id
        scene.uses(first)
        urgent = (await scene.lease("urgent", priority=9.0)).group.ray_id
        assert urgent != first
        assert scene.backend.ended_members == {"x"}

    Scene(tmp_path).play(story)


def test_a_lease_ends_with_the_job_of_its_holder(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease()
        await asyncio.sleep(5.0)  # virtual
        assert "l" in scene.state.running.by_id
        scene.backend.jobs.discard("01")
        view = await scene.view(known="running", wait_s=30.0)
        assert (view.state, view.reason) == ("cancelled", "holder_ended")
        assert "job 01" in view.error
        await asyncio.sleep(1.0)  # virtual
        assert not scene.state.agents

    Scene(tmp_path).play(story)


@pytest.mark.parametrize("error", [BackendError("away"), ValueError("of Ray's client")])
def test_a_holder_of_whom_nothing_can_be_found_out_keeps_no_other_lease(
    tmp_path, monkeypatch, error
):
    monkeypatch.setitem(globals(), "FOUR", parse_resources({"cpu": 8}))  # there is room for two

    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=2))
        scene.backend.jobs.add("02")
        job_runs = scene.backend.job_runs

        async def fails_for_one(job_id):
            if job_id == "01":
                raise error
            return await job_runs(job_id)

        await scene.lease("first")
        await scene.lease("second", holder_job="02")
        scene.backend.job_runs = fails_for_one
        scene.backend.jobs.discard("02")
        view = await scene.view("second", known="running", wait_s=30.0)
        assert view.reason == "holder_ended"
        assert (await scene.view("first")).state == "running"

    Scene(tmp_path).play(story)


def test_a_lease_ends_unless_it_is_renewed_in_time(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease(ttl_s=10.0)
        for _ in range(4):
            await asyncio.sleep(8.0)  # virtual
            data = await scene.ask(RenewLease(task_id="l"))
            assert isinstance(decode_answer(data, Response).outcome, Done)
        view = await scene.view(known="running", wait_s=30.0)
        assert (view.state, view.reason) == ("cancelled", "lease_expired")
        refused = decode_answer(await scene.ask(RenewLease(task_id="l")), Response).outcome
        assert isinstance(refused, Refused)
        assert refused.reason == "lease_ended"

    Scene(tmp_path).play(story)


def test_the_time_to_live_of_a_lease_begins_when_it_is_granted(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease(priority=1.0, grace_s=30.0)
        asked = asyncio.ensure_future(scene.lease("urgent", priority=9.0, ttl_s=5.0))
        await asyncio.sleep(20.0)  # virtual
        assert not asked.done(), "it waits for the end of the first one"
        assert isinstance((await asked).outcome, Accepted)
        await asyncio.sleep(3.0)  # virtual
        assert (await scene.view("urgent")).state == "running"
        view = await scene.view("urgent", known="running", wait_s=30.0)
        assert view.reason == "lease_expired"

    Scene(tmp_path).play(story)


def test_a_lease_that_is_being_evicted_does_not_expire_before_its_grace_is_over(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease(priority=1.0, grace_s=30.0, ttl_s=5.0)
        urgent = asyncio.ensure_future(scene.lease("urgent", priority=9.0))
        await asyncio.sleep(20.0)  # virtual
        assert (await scene.view()).state == "preempting"
        assert isinstance((await urgent).outcome, Accepted)
        assert (await scene.view()).reason == "preempted"

    Scene(tmp_path).play(story)


def test_who_held_an_earlier_lease_of_the_same_id_does_not_touch_the_later_one(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease(ttl_s=10.0)
        earlier = (await scene.view()).agent_name
        assert (await scene.release()) == Done()
        await scene.lease(agent_name="another", ttl_s=10.0)
        assert (await scene.view(agent_name=earlier)).state == "unknown"
        assert (await scene.release(number=2, agent_name=earlier)).change == "already_ended"
        data = await scene.ask(RenewLease(task_id="l", agent_name=earlier))
        assert decode_answer(data, Response).outcome.reason == "lease_ended"
        later = await scene.view()
        assert (later.state, later.agent_name != earlier) == ("running", True)
        assert (await scene.release(number=3, agent_name=later.agent_name)) == Done()
        assert not scene.state.agents

    Scene(tmp_path).play(story)


def test_a_lease_in_the_queue_ends_with_the_job_of_its_holder(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease()
        scene.backend.jobs.add("02")
        given = Mesh().submission("q", bundles=TWO, payload=LeasePayload(holder_job="02"))
        submission = msgspec.structs.replace(given, request_id="q", queue=True)
        await scene.ask(SubmitTask(submission=submission))
        assert (await scene.view("q")).state == "queued"
        scene.backend.jobs.discard("02")
        assert (await scene.view("q", known="queued", wait_s=30.0)).state == "cancelled"

    Scene(tmp_path).play(story)


def test_a_supervisor_that_is_started_again_finds_the_lease_as_it_was(tmp_path):
    async def story(scene):
        await scene.pool()
        first = (await scene.lease(ttl_s=20.0)).group.ray_id
        scene.uses(first)
        await scene.die()
        scene.backend.restarted = True
        scene.service = scene.begun()
        view = await scene.view()
        assert (view.state, view.ray_id) == ("running", first)
        await asyncio.sleep(15.0)  # virtual
        assert not scene.backend.ended_members
        assert (await scene.view()).state == "running", "its time to live began again"
        scene.backend.jobs.discard("01")
        assert (await scene.view(known="running", wait_s=30.0)).reason == "holder_ended"

    Scene(tmp_path).play(story)


def test_the_health_check_does_not_concern_leases(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease()
        found = await (await scene.service.ready()).agents.ensure_health(1.0)
        assert found["checked"] == 0
        assert "l" in scene.state.running.by_id

    Scene(tmp_path).play(story)


def test_a_lease_is_not_evicted_without_its_groups(tmp_path):
    async def story(scene):
        await scene.pool()
        await scene.lease()
        request = ExecutePreemption(task_id="l", agent_name="l", request_id="evict")
        outcome = decode_answer(await scene.ask(request), Response).outcome
        assert outcome.runs_on
        assert "preempt_task" in outcome.error
        assert (await scene.view()).state == "running"

    Scene(tmp_path).play(story)


def test_a_watched_lease_is_not_looked_at_when_another_changes(tmp_path, monkeypatch):
    looks = []
    view_of = LeaseService._view_of
    monkeypatch.setattr(
        LeaseService, "_view_of", lambda self, r: (looks.append(r.task_id), view_of(self, r))[1]
    )

    async def story(scene):
        eight = parse_resources({"cpu": 8})
        scene.backend.free.append(NodeView(node_id="n2", total=FOUR, free=FOUR, labels={}))
        await scene.ask(CreatePool(spec=PoolSpec(name="p", resources=eight)))
        await scene.lease("l")
        known = {"known": "running", "wait_s": 20.0}
        watch = asyncio.ensure_future(scene.view("l", **known))
        await asyncio.sleep(1.0)  # virtual seconds
        assert looks == ["l"]
        assert isinstance((await scene.lease("other")).outcome, Accepted)
        assert isinstance(await scene.release("other"), Done)
        looks.remove("other")
        assert looks == ["l"]
        assert not watch.done()
        await scene.release("l")
        assert (await watch).state == "completed"

    Scene(tmp_path).play(story)
