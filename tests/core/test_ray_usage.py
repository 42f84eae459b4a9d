"""What entries of Ray's tables say about who holds what; the tables themselves are tested on a real Ray."""

from __future__ import annotations

from collections import Counter

import pytest
import ray
from ray.core.generated import gcs_pb2

from schedulemesh.core.backend import ray_tasks, ray_usage
from schedulemesh.core.backend.ray_internals import SUBMISSIONS
from schedulemesh.core.backend.ray_usage import (
    DemandReader,
    UsageReader,
    actor_holder,
    group_holder,
    job_of,
)
from schedulemesh.domain.resources import parse_resources

NODE, OTHER, NO_NODE = b"\x01" * 28, b"\x02" * 28, b"\xff" * 28


def actor(state=gcs_pb2.ActorTableData.ALIVE, worker=b"\x07" * 28, **more):
    data = gcs_pb2.ActorTableData(
        actor_id=b"\x0a" * 16, job_id=b"\x01\0\0\0", state=state, name="a", ray_namespace="space"
    )
    data.address.node_id = NODE
    data.address.worker_id = worker
    for name, amount in more.pop("needs", {"CPU": 2.0}).items():
        data.required_resources[name] = amount
    data.placement_group_id = more.pop("group", b"")
    assert not more
    return data.SerializeToString()


def group(*nodes, state=gcs_pb2.PlacementGroupTableData.CREATED):
    data = gcs_pb2.PlacementGroupTableData(
        placement_group_id=b"\x0b" * 18, creator_job_id=b"\x02\0\0\0", state=state
    )
    for node in nodes:
        bundle = data.bundles.add(node_id=node)
        bundle.unit_resources["CPU"] = 1.0
    return data.SerializeToString()


def submission(monkeypatch, *drivers, ended=False):
    """The usage with a submission that holds two GPUs, and these drivers of it."""
    data = gcs_pb2.ActorTableData.FromString(actor(needs={"GPU": 2.0}))
    data.name, data.ray_namespace = "_ray_internal_job_actor_raysubmit_x", SUBMISSIONS
    data.pid, data.start_time = 7, 5000
    entries = [data.SerializeToString()]
    jobs = []
    for job_id in drivers:
        job = gcs_pb2.JobTableData(job_id=bytes.fromhex(job_id), is_dead=ended)
        job.config.metadata["job_submission_id"] = "raysubmit_x"
        jobs.append(job.SerializeToString())
    monkeypatch.setattr(ray_usage, "actor_entries", lambda _states: entries)
    monkeypatch.setattr(ray_usage, "group_entries", list)
    monkeypatch.setattr(ray_usage, "job_entries", lambda: jobs)
    monkeypatch.setattr(ray_usage, "submission_info", lambda _id: {"entrypoint": "python train.py"})
    return UsageReader().read()


def test_what_ray_job_submit_holds_for_a_command_belongs_to_the_submission(monkeypatch):
    usage = submission(monkeypatch)
    (holder,), (job,) = usage.holders, usage.jobs.values()
    assert holder.job_id == job.job_id == "raysubmit_x"
    assert holder.held == ((NODE.hex(), parse_resources({"gpu": 2})),)
    assert (job.driver_pid, job.driver_node_id, job.started_at) == (7, NODE.hex(), 5.0)
    assert (job.entrypoint, job.metadata) == (
        "python train.py",
        {"job_submission_id": "raysubmit_x"},
    )


def test_with_a_driver_it_belongs_to_the_first_that_lives(monkeypatch):
    usage = submission(monkeypatch, "05000000", "03000000")
    assert [holder.job_id for holder in usage.holders] == ["03000000"]
    assert "raysubmit_x" not in usage.jobs
    ended = submission(monkeypatch, "03000000", ended=True)
    assert [holder.job_id for holder in ended.holders] == ["raysubmit_x"]


CPU, CPUS = parse_resources({"cpu": 1}), parse_resources({"cpu": 2})


def test_an_actor_holds_what_it_asked_for_on_its_node_also_while_it_is_being_built():
    for state in (gcs_pb2.ActorTableData.ALIVE, gcs_pb2.ActorTableData.PENDING_CREATION):
        found = actor_holder(actor(state))
        assert (found.job_id, found.name, found.namespace) == ("01000000", "a", "space")
        assert (found.held, found.waiting) == (((NODE.hex(), CPUS),), ())


def test_an_actor_without_a_worker_waits_and_holds_nothing():
    found = actor_holder(actor(gcs_pb2.ActorTableData.PENDING_CREATION, worker=b""))
    assert (found.held, found.waiting) == ((), (CPUS,))


@pytest.mark.parametrize(
    "entry",
    [
        actor(gcs_pb2.ActorTableData.DEAD),
        actor(needs={}),
        actor(group=b"\x0b" * 18),
        actor(needs={"CPU_group_0_" + "0b" * 18: 1.0, "bundle_group_" + "0b" * 18: 0.001}),
        actor(needs={"node:10.0.0.1": 0.01}),
    ],
    ids=["dead", "without resources", "in a group", "of a group", "marker"],
)
def test_what_holds_nothing_of_its_own_is_left_out(entry):
    assert actor_holder(entry) is None


def test_each_bundle_of_a_group_is_held_on_its_node():
    found = group_holder(group(NODE, OTHER))
    assert (found.is_group, found.job_id) == (True, "02000000")
    assert found.held == ((NODE.hex(), CPU), (OTHER.hex(), CPU))


def test_bundles_without_a_node_wait():
    rescheduling = group(NODE, NO_NODE, state=gcs_pb2.PlacementGroupTableData.RESCHEDULING)
    found = group_holder(rescheduling)
    assert (found.held, found.waiting) == (((NODE.hex(), CPU),), (CPU,))
    pending = group_holder(group(b"", state=gcs_pb2.PlacementGroupTableData.PENDING))
    assert (pending.held, pending.waiting) == ((), (CPU,))
    assert group_holder(group(NODE, state=gcs_pb2.PlacementGroupTableData.REMOVED)) is None


def test_a_job_is_described_by_its_driver():
    data = gcs_pb2.JobTableData(
        job_id=b"\x03\0\0\0", driver_pid=77, entrypoint="python train.py", start_time=5_500
    )
    data.driver_address.node_id = NODE
    data.config.ray_namespace = "space"
    data.config.metadata["team"] = "a"
    found = job_of(data.SerializeToString())
    assert (found.job_id, found.driver_pid, found.driver_node_id) == ("03000000", 77, NODE.hex())
    assert (found.entrypoint, found.namespace) == ("python train.py", "space")
    assert (found.metadata, found.started_at, found.ended) == ({"team": "a"}, 5.5, False)


class Accessor:
    """Ray's tables as lists. ``old``: of a version that cannot leave out fields of jobs."""

    def __init__(self, actors, groups=(), old=False):
        self.actors, self.groups, self.old = actors, list(groups), old

    def get_actor_table(self, job, state):
        assert job is None
        return self.actors.get(state, [])

    def get_placement_group_table(self):
        return self.groups

    def get_job_table(self, **fields):
        if self.old and fields:
            raise TypeError("takes no keyword arguments")
        return [gcs_pb2.JobTableData(job_id=b"\x03\0\0\0").SerializeToString()]


@pytest.fixture
def read(monkeypatch):
    """Reads an Accessor with one reader."""
    reader = UsageReader()

    def read(accessor):
        monkeypatch.setattr(ray._private.state.state, "_connect_and_get_accessor", lambda: accessor)
        return reader.read()

    return read


def test_unchanged_tables_give_the_same_object(read):
    tables = Accessor({"ALIVE": [actor()]}, [group(NODE)])
    first = read(tables)
    assert [holder.is_group for holder in first.holders] == [False, True]
    assert read(tables) is first
    tables.groups.clear()
    assert [holder.is_group for holder in read(tables).holders] == [False]


def test_an_actor_seen_in_two_states_counts_once_in_the_later(read):
    waits = actor(gcs_pb2.ActorTableData.PENDING_CREATION, worker=b"")
    (found,) = read(Accessor({"PENDING_CREATION": [waits], "ALIVE": [actor()]})).holders
    assert found.held


def test_a_version_that_cannot_leave_out_fields_of_jobs_is_read_too(read):
    assert list(read(Accessor({}, old=True)).jobs) == ["03000000"]


class Queues(Accessor):
    """The tables, and what waits: (what it asks for, how many, how many of them in the backlog)."""

    def __init__(self, actors, *queued):
        super().__init__(actors)
        self.usage = gcs_pb2.ResourceUsageBatchData()
        for needs, count, backlog in queued:
            demand = self.usage.resource_load_by_shape.resource_demands.add()
            demand.num_ready_requests_queued, demand.backlog_size = count - backlog, backlog
            demand.shape.update(needs)

    def get_all_resource_usage(self):
        return self.usage.SerializeToString()


@pytest.fixture
def demand(monkeypatch):
    """How many parts wait, by job, whether they are plain tasks, and amount.

    ``events``: how many tasks of each job ask for one CPU.
    """

    def read(accessor, **events):
        known = Counter({(job, frozenset({"CPU": 1.0}.items())): n for job, n in events.items()})
        monkeypatch.setattr(ray_tasks, "_owners", lambda: known)
        monkeypatch.setattr(ray._private.state.state, "_connect_and_get_accessor", lambda: accessor)
        return {
            (holder.job_id, holder.are_tasks, holder.waiting[0]): len(holder.waiting)
            for holder in DemandReader().read().holders
        }

    return read


def waiting_actor(**needs):
    return actor(gcs_pb2.ActorTableData.PENDING_CREATION, worker=b"", needs=needs)


def test_what_is_queued_beside_the_actors_that_wait_are_plain_tasks(demand):
    pending = {"PENDING_CREATION": [waiting_actor(CPU=2.0)]}
    tables = Queues(pending, ({"CPU": 2.0}, 1, 0), ({"CPU": 1.0}, 12, 9))
    assert demand(tables) == {("01000000", False, CPUS): 1, ("", True, CPU): 12}
    more = Queues(pending, ({"CPU": 2.0}, 3, 0))
    assert demand(more) == {("01000000", False, CPUS): 1, ("", True, CPUS): 2}


def test_an_actor_that_is_being_started_is_neither_queued_nor_a_plain_task(demand):
    assert demand(Queues({"PENDING_CREATION": [waiting_actor(CPU=2.0)]})) == {}


@pytest.mark.parametrize(
    "needs", [{}, {"CPU_group_0_" + "0b" * 18: 1.0}, {"node:10.0.0.1": 0.01}], ids=str
)
def test_plain_tasks_that_take_nothing_of_a_node_are_no_demand(demand, needs):
    assert demand(Queues({}, (needs, 4, 0))) == {}


def test_tasks_are_counted_for_their_jobs_as_far_as_these_are_known_and_they_still_wait(demand):
    tables = Queues({}, ({"CPU": 1.0}, 5, 0), ({"CPU": 2.0}, 1, 0))
    assert demand(tables, j1=2, j2=9) == {
        ("j1", True, CPU): 2,
        ("j2", True, CPU): 5,
        ("", True, CPUS): 1,
    }
    assert demand(Queues({}), j1=2) == {}


def test_very_many_tasks_are_told_apart_up_to_a_number(demand):
    assert demand(Queues({}, ({"CPU": 1.0}, 5000, 4990))) == {("", True, CPU): 100}


def test_plain_tasks_have_the_namespace_of_their_driver(monkeypatch):
    class Named(Queues):
        def get_job_table(self, **fields):
            data = gcs_pb2.JobTableData(job_id=b"\x03\0\0\0")
            data.config.ray_namespace = "space"
            return [data.SerializeToString()]

    key = ("03000000", frozenset({"CPU": 1.0}.items()))
    monkeypatch.setattr(ray_tasks, "_owners", lambda: Counter({key: 1}))
    tables = Named({}, ({"CPU": 1.0}, 1, 0))
    monkeypatch.setattr(ray._private.state.state, "_connect_and_get_accessor", lambda: tables)
    (found,) = DemandReader().read().holders
    assert (found.job_id, found.namespace) == ("03000000", "space")
