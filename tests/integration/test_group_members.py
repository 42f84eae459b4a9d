"""Members of groups: the mesh that they report, their death and eviction in mid-call, and their return."""

import os
import re
import signal
import time

import pytest
import ray

from schedulemesh.core import ShardHolder, WorkerGroup, reshard
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.worker_groups import members
from schedulemesh.dispatch import Dispatch, ParallelLayout, Sharding, dispatch
from schedulemesh.errors import InvalidRequestError, WorkerDiedError, WorkerTimeoutError
from tests.integration.polling import until

np = pytest.importorskip("numpy")

TWO = ParallelLayout.of(dp=2)


class Member(ShardHolder, AgentActor):
    """Counts, and can be saved and restored."""

    def __init__(self, name, labels, count=0):
        super().__init__(name, labels)
        self.count = count

    @dispatch(Dispatch.ALL_TO_ALL)
    def sleep(self, seconds):
        time.sleep(seconds)  # a call that takes its time

    def add(self, n):
        self.count += n
        return self.count

    def pid(self):
        return os.getpid()

    def save_state(self):
        return {"count": self.count}

    def restore_state(self, saved):
        self.count = saved["count"]


class Meshed(AgentActor):
    """Reports tp=2, dp=2 in the order of ranks, or what it is given by rank."""

    def __init__(self, name, labels, reports=None):
        super().__init__(name, labels)
        self.reports = reports

    def parallel_mesh(self):
        rank = int(self.labels["rank"])
        if self.reports is not None:
            return self.reports[rank]
        return {"dp": (rank // 2, 2), "tp": (rank % 2, 2)}

    def rank(self):
        return int(self.labels["rank"])


@pytest.fixture(autouse=True)
def noticed(monkeypatch):
    """Errors say what the scheduler knows once it has noticed a death, also where it takes long for that."""
    monkeypatch.setattr(members, "_NOTICE_S", 30.0)


@pytest.fixture
def mesh(scheduler):
    scheduler.create_pool("pool", resources={"cpu": 2})
    return scheduler


@pytest.fixture
def group(mesh):
    return WorkerGroup.submit(mesh, "g", Member, layout=TWO, pool="pool", resources={"cpu": 1})


def meshed(mesh, name, **options):
    return WorkerGroup.submit(
        mesh, name, Meshed, pool="pool", resources={"cpu": 0.25}, timeout_s=60, **options
    )


def test_the_layout_is_the_one_that_the_workers_report(mesh):
    group = meshed(mesh, "m", size=4)
    assert group.layout == ParallelLayout.of(tp=2, dp=2)
    assert WorkerGroup("again", group.handles).layout == group.layout
    assert WorkerGroup.of_agents(mesh, "named", group.agents).layout == group.layout
    swapped = (group.agents[0], group.agents[2], group.agents[3], group.agents[1])
    with pytest.raises(InvalidRequestError, match=r"rank 2 \(agent m-3\) reports dp=1/2,tp=1/2"):
        WorkerGroup.of_agents(mesh, "swapped", swapped)
    with pytest.raises(InvalidRequestError, match="reports dp=0/2,tp=0/2; in the layout dp=4"):
        WorkerGroup.of_agents(mesh, "flat", group.agents, ParallelLayout.of(dp=4))


def test_a_group_whose_workers_disagree_is_not_started(mesh):
    wrong = [{"dp": (0, 2)}, {"dp": (0, 2)}]
    with pytest.raises(InvalidRequestError, match="agents m-0 and m-1 both report dp=0"):
        meshed(mesh, "m", size=2, actor_kwargs={"reports": wrong})
    with pytest.raises(InvalidRequestError, match="in the layout dp=2"):
        meshed(mesh, "m", layout=TWO, actor_kwargs={"reports": [{"tp": (0, 2)}, {"tp": (1, 2)}]})
    until(lambda: mesh.list_agents()["agents"] == [], "agents are left")
    assert mesh.list_tasks()["tasks"] == []


def test_the_number_of_ranks_must_be_known(mesh):
    for wrong in ({}, {"layout": TWO, "size": 3}):
        with pytest.raises(
            InvalidRequestError, match="allowed is a layout, or the number of ranks"
        ):
            meshed(mesh, "m", **wrong)


def killed_in_mid_call(group, rank):
    """The error of a call during which a rank is killed with -9."""
    pid = ray.get(group.handles[rank].pid.remote())
    pending = group.call("sleep", [0.0 if each != rank else 600.0 for each in group.ranks])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError) as told:
        pending.collect(timeout_s=60)
    return told.value


def test_a_member_that_is_killed_in_mid_call_is_made_again_with_its_state(mesh, group):
    assert group.call("add", 7).outputs() == [7, 7]
    mesh.save_task_state("g-1")
    (node,) = mesh.cluster_snapshot()["nodes"]
    # Until the error is made, so that it does not run again before that.
    assert mesh.cordon_node(node["node_id"])["success"]
    error = killed_in_mid_call(group, 1)
    assert mesh.cordon_node(node["node_id"], cordoned=False)["success"]
    assert (error.group, error.rank, error.agent, error.method) == ("g", 1, "g-1", "sleep")
    assert re.search(
        r"rank 1 \(agent g-1\) of group g, method sleep: the worker is dead: (.|\n)*"
        r"Its task g-1 is (queued|starting|ending)(.|\n)*wait_until_ready\(\) waits until it runs",
        str(error),
    ), error
    assert group.wait_until_ready(timeout_s=60) == (1,)
    assert group.call("add", 1).outputs() == [8, 8]
    assert group.wait_until_ready(timeout_s=60) == ()
    group.stop()
    until(lambda: mesh.list_agents()["agents"] == [], "agents are left")
    assert mesh.list_queue()["tasks"] == []


def test_a_member_without_retries_is_rebuilt_when_it_is_waited_for(mesh):
    group = WorkerGroup.submit(
        mesh, "g", Member, layout=TWO, pool="pool", resources={"cpu": 1}, max_retries=0
    )
    error = killed_in_mid_call(group, 0)
    assert "Its task g-0 is lost" in str(error)
    assert group.wait_until_ready(timeout_s=60) == (0,)
    assert group.call("add", 1).outputs() == [1, 1]


def test_a_member_whose_room_is_taken_is_named(mesh):
    group = WorkerGroup.submit(
        mesh, "g", Member, layout=TWO, pool="pool", resources={"cpu": 1}, max_retries=0
    )
    killed_in_mid_call(group, 1)
    assert mesh.create_agent("other", "pool", Member, resources={"cpu": 1})["success"]
    with pytest.raises(
        WorkerDiedError, match=r"rank 1 \(agent g-1\) of group g does not run again"
    ):
        group.wait_until_ready(timeout_s=60)


def test_an_evicted_member_returns_with_its_state_and_gets_the_weights_again(mesh, group):
    rows = Sharding.of(TWO, dp=0)
    weights = np.arange(16.0).reshape(4, 4)
    source = WorkerGroup("source", group.handles[:1], ParallelLayout.of(dp=1))
    whole = Sharding(layout=source.layout)
    group.call("add", 5).outputs()
    pending = group.call("sleep", [600.0, 600.0])
    answer = mesh.submit_task_with_preemption(
        "urgent", "pool", Member, resources={"cpu": 1}, priority=99.0
    )
    assert answer["success"], answer
    (victim,) = (task["task_id"] for task in answer["preempted"])
    rank = group.agents.index(victim)
    with pytest.raises(WorkerDiedError, match=f"Its task {victim} is .*evicted for urgent") as told:
        pending.collect(timeout_s=60)
    assert (told.value.rank, told.value.method) == (rank, "sleep")
    with pytest.raises(WorkerTimeoutError, match=rf"rank {rank} .*its task is queued"):
        group.wait_until_ready(timeout_s=0.5)
    other = 1 - rank
    ray.kill(group.handles[other])  # ends its call, which nobody waits for any more
    mesh.complete_task("urgent", end_agent=True)
    assert set(group.wait_until_ready(timeout_s=60)) == {0, 1}
    assert group.call("add", 1).outputs()[rank] == 6
    source = WorkerGroup("source", group.handles[:1], ParallelLayout.of(dp=1))
    source.dispatch("keep_shards", weights, whole, arguments={"key": "w"}).outputs()
    reshard(source, group, "w", source=whole, destination=rows, into="part")
    parts = group.call("shards", "part").outputs()
    assert [part.tolist() for part in parts] == [weights[:2].tolist(), weights[2:].tolist()]


def test_a_group_of_handles_cannot_wait_for_its_members(group):
    with pytest.raises(InvalidRequestError, match="tasks are not known"):
        WorkerGroup("handles", group.handles).wait_until_ready()
