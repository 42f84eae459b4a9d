"""Which Ray jobs use the cluster beside the scheduler, as a whole supervisor on a fake backend says it."""

from __future__ import annotations

import pytest

from schedulemesh.api.nodes import ListNodeNames, ListNodes
from schedulemesh.api.tasks import ExplainTask
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.answers import Explained, Listed, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayHolder, RayJob
from schedulemesh.runtime.services import external_usage
from tests.core.test_request_service import client
from tests.runtime.composition import InThread
from tests.runtime.fake_backend import OWN_NODE, Control, Verdict

TWO, SIX = parse_resources({"cpu": 2}), parse_resources({"cpu": 6})
TRAINING = RayJob(
    job_id="03000000",
    namespace="team",
    metadata={"owner": "ada"},
    driver_node_id=OWN_NODE,
    driver_pid=77,
    entrypoint="python train.py",
    started_at=5.5,
    ended=False,
)


def holder(ray_id, job_id="03000000", name="", namespace="team", *, is_group=False, **more):
    given = {"held": ((OWN_NODE, TWO),), **more}
    return RayHolder(
        ray_id=ray_id, is_group=is_group, job_id=job_id, name=name, namespace=namespace, **given
    )


@pytest.fixture
def service(tmp_path):
    found = InThread(tmp_path / "j.sqlite")
    total = parse_resources({"cpu": 8})
    found.backend.free = [
        NodeView(node_id=OWN_NODE, total=total, free=parse_resources({"cpu": 2}), labels={})
    ]
    found.do(found.running.monitor.observe())
    yield found
    found.close()


def uses(service, *holders):
    service.backend.used = ClusterUsage(jobs={TRAINING.job_id: TRAINING}, holders=holders)


def answer(service, request, kind):
    return decode_answer(service.do(service.service.ask(encode_request(request))), kind)


def listed(service, request):
    return answer(service, request, Listed).rows


def test_jobs_are_listed_with_what_they_hold_and_wait_for(service):
    uses(
        service,
        holder("a1"),
        holder("g1", is_group=True, held=((OWN_NODE, TWO), ("other", TWO))),
        holder("a2", held=(), waiting=(SIX,)),
        holder("a3", job_id="04000000", namespace="elsewhere"),
    )
    training, forgotten = client(service).external_usage()["jobs"]
    assert training == {
        "job_id": "03000000",
        "task_id": "",
        "namespace": "team",
        "entrypoint": "python train.py",
        "driver_node_id": OWN_NODE,
        "driver_pid": 77,
        "started_at": 5.5,
        "ended": False,
        "metadata": {"owner": "ada"},
        "resources": {"cpu": 6.0},
        "nodes": {OWN_NODE: {"cpu": 4.0}, "other": {"cpu": 2.0}},
        "waiting": {"cpu": 6.0},
        "actors": 2,
        "placement_groups": 1,
    }
    assert (forgotten["job_id"], forgotten["namespace"]) == ("04000000", "elsewhere")
    assert (forgotten["entrypoint"], forgotten["driver_pid"]) == ("", None)


def test_one_job_is_listed_once_per_namespace(service):
    uses(service, holder("a1"), holder("a2", namespace="serve"))
    found = client(service).external_usage()["jobs"]
    assert [job["namespace"] for job in found] == ["serve", "team"]


def test_plain_tasks_that_wait_are_listed_with_what_they_wait_for(service):
    tasks = holder("tasks", held=(), waiting=(SIX, SIX), are_tasks=True)
    uses(service, tasks)
    (found,) = client(service).external_usage()["jobs"]
    assert (found["waiting"], found["resources"]) == ({"cpu": 12.0}, {})
    assert (found["actors"], found["placement_groups"]) == (0, 0)


def test_what_is_the_schedulers_own_is_left_out(service):
    calls = client(service)
    assert calls.ensure_pool("pool", resources={"cpu": 8})["success"]
    done = calls.submit_task_with_preemption("t", "pool", AgentActor, {"cpu": 1})
    assert done["success"], done
    own = [
        holder(str(number), name=name, namespace=namespace)
        for number, (namespace, name) in enumerate(sorted(service.backend.living()))
    ]
    assert len(own) == 1
    group = service.running.groups.name("g-1")
    uses(service, *own, holder("g", name=group, is_group=True), holder("a", name="theirs"))
    (job,) = calls.external_usage()["jobs"]
    assert (job["actors"], job["placement_groups"]) == (1, 0)


def test_each_node_names_the_jobs_that_use_it(service):
    uses(service, holder("a1"), holder("a2", held=(("other", TWO),)))
    (node,) = client(service).cluster_snapshot()["nodes"]
    assert node["external_usage"] == {"cpu": 6.0}
    assert node["external_jobs"] == [
        {
            "job_id": "03000000",
            "task_id": "",
            "namespace": "team",
            "entrypoint": "python train.py",
            "resources": {"cpu": 2.0},
        }
    ]


def test_an_explanation_names_the_jobs_on_the_nodes_that_are_short(service):
    calls = client(service)
    assert calls.ensure_pool("pool", resources={"cpu": 8})["success"]
    done = calls.submit_task_with_preemption("t", "pool", AgentActor, {"cpu": 8}, queue=True)
    assert done["state"] == "queued"
    uses(service, holder("a1"))
    (usage,) = calls.explain("t")["external_usage"]
    assert [job["job_id"] for job in usage["jobs"]] == ["03000000"]


def test_nodes_are_listed_and_tasks_explained_while_the_cluster_does_not_say_who_uses_it(service):
    calls = client(service)
    assert calls.ensure_pool("pool", resources={"cpu": 8})["success"]
    assert calls.submit_task_with_preemption("t", "pool", AgentActor, {"cpu": 8}, queue=True)[
        "success"
    ]
    uses(service, holder("a1"))
    control = service.backend.control = _Fails("usage")
    (node,) = listed(service, ListNodes())
    assert (node["external_usage"], node["external_jobs"]) == ({"cpu": 6.0}, [])
    found = answer(service, ExplainTask(task_id="t"), Explained).explanation
    assert [usage.jobs for usage in found.external] == [()]
    assert control.failed == 2


class _Fails(Control):
    """Refuses one call, and lets all others through."""

    def __init__(self, call):
        self._call, self.failed = call, 0

    async def turn(self, call, subject):
        self.failed += call == self._call
        return Verdict.REFUSED if call == self._call else Verdict.DONE


def test_names_are_worked_out_anew_only_where_nodes_come_or_are_called_otherwise(
    service, monkeypatch
):
    made, names_of_nodes = [], external_usage.names_of_nodes

    def counted(nodes):
        made.append(len(nodes))
        return names_of_nodes(nodes)

    def shown():
        rows = [listed(service, call) for call in (ListNodeNames(), ListNodes())]
        assert len({tuple(row["name"] for row in each) for each in rows}) == 1
        return [row["name"] for row in rows[0]]

    def see(*hosts):
        total = parse_resources({"cpu": 8})
        service.backend.free = [
            NodeView(node_id=f"{n:056x}", total=total, free=total, labels={}, host=host)
            for n, host in enumerate(hosts)
        ]
        service.do(service.running.monitor.observe())

    monkeypatch.setattr(external_usage, "names_of_nodes", counted)
    see("one", "two")
    for _ in range(3):
        assert shown()[-2:] == ["one", "two"]
    assert len(made) == 1
    see("one", "two", "three")
    assert shown()[-3:] == ["one", "two", "three"]
    see("one", "second", "three")
    assert shown()[-2:] == ["second", "three"]
    assert len(made) == 3
