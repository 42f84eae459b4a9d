"""What entries of Ray's tables say about who holds what; the tables themselves are tested on a real Ray."""

from __future__ import annotations

import pytest
import ray
from ray.core.generated import gcs_pb2

from schedulemesh.core.backend.ray_usage import UsageReader, actor_holder, group_holder, job_of
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
