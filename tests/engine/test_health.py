"""Agents that died without our doing are remembered and made again."""

from __future__ import annotations

import pytest

from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Refused
from tests.engine.builders import Mesh, amount, node, on, pool


def rebuild(mesh: Mesh, name: str, request_id: str | None = None):
    return mesh.handle(s.RebuildRequested(agent_name=name, request_id=request_id)).outcome


def dead(cpu: float = 2, **how) -> Mesh:
    """A pool whose only agent, with two tasks, has died after its state was saved."""
    mesh = Mesh(pool("p", cpu=cpu))
    mesh.run("a", cpu=2, class_key="c", **how)
    mesh.announce("b", "a")
    mesh.save("a")
    mesh.die("a")
    return mesh


def test_a_lost_agent_is_remembered_with_its_tasks_and_saved_states():
    lost = dead().state.lost["a"]
    assert [(task.task_id, key) for task, key in lost.tasks] == [("a", "state-a"), ("b", None)]


def test_an_agent_that_was_ended_is_not_lost():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=2)
    mesh.delete("a")
    mesh.leave("a")
    assert mesh.state.lost == {}


def test_it_is_made_again_from_its_last_saved_state_with_all_its_tasks():
    mesh = dead()
    assert rebuild(mesh, "a", "r") == Pending(agent_name="a")
    assert mesh.starts["a"].state_key == "state-a"
    assert mesh.report("a").agent_name == "a"
    assert mesh.state.running.on_agent("a") == ("a", "b")
    assert mesh.state.lost == {}
    assert mesh.state.answers["r"].outcome.agent_name == "a"


def test_the_state_that_it_was_made_from_is_still_its_last_one():
    mesh = dead()
    rebuild(mesh, "a")
    mesh.report("a")
    mesh.die("a")
    assert mesh.state.lost["a"].tasks[0][1] == "state-a"


def test_nobody_is_evicted_for_a_rebuilt_agent_and_the_loss_is_told_once():
    mesh = dead()
    mesh.run("other", priority=0.0, cpu=2)
    refused = rebuild(mesh, "a")
    assert isinstance(refused, Refused)
    assert refused.reason == "insufficient_quota"
    assert mesh.state.lost["a"].reported
    assert mesh.free() == amount()


def test_a_task_whose_id_was_taken_meanwhile_is_left_out_of_the_rebuilt_agent():
    mesh = dead()
    mesh.announce("b", "elsewhere")
    assert rebuild(mesh, "a") == Pending(agent_name="a")
    mesh.report("a")
    assert mesh.state.running.on_agent("a") == ("a",)
    assert mesh.state.running.on_agent("elsewhere") == ("b",)


def test_where_the_first_task_is_taken_the_agent_is_built_for_the_second():
    mesh = dead()
    mesh.announce("a", "elsewhere")
    assert rebuild(mesh, "a") == Pending(agent_name="a")
    assert mesh.starts["a"].state_key is None
    mesh.report("a")
    assert mesh.state.running.on_agent("a") == ("b",)


def test_an_agent_whose_tasks_all_run_elsewhere_is_not_rebuilt():
    mesh = dead()
    for task_id in ("a", "b"):
        mesh.announce(task_id, "elsewhere")
    assert mesh.state.lost == {}
    assert rebuild(mesh, "a").reason == "agent_not_found"
    assert mesh.free() == amount(cpu=2)


def test_one_with_references_within_its_arguments_cannot_be_rebuilt():
    mesh = dead(restartable=False)
    assert rebuild(mesh, "a").reason == "not_restartable"
    assert mesh.state.lost["a"].reported


def test_a_new_agent_of_the_name_takes_its_place():
    mesh = dead()
    mesh.run("a", cpu=1)
    assert mesh.state.lost == {}
    assert rebuild(mesh, "a").reason == "agent_not_found"


def test_a_process_that_ray_restarted_elsewhere_stands_there():
    mesh = Mesh(pool("p", cpu=2, gpu=2), nodes=[node("n1", cpu=4, gpu=2), node("n2", cpu=4, gpu=2)])
    mesh.run("a", cpu=1, gpu=0.5, node_id="n1", devices=on((0, 0.5)))
    moved = s.AgentRestarted(
        agent_name="a",
        incarnation=mesh.state.agents["a"].incarnation,
        pid=77,
        node_id="n2",
        gpu_ids=("1",),
    )
    mesh.handle(moved)
    nodes = mesh.state.cluster.nodes
    assert (nodes["n1"].free, nodes["n1"].allocations) == (amount(cpu=4, gpu=2), {})
    assert nodes["n2"].allocations["a"].devices == on((1, 0.5))
    mesh.observe(node("n2", cpu=4, gpu=2))
    assert mesh.state.agents["a"].node_id == "n2"
    mesh.die("a")
    assert nodes["n2"].free == amount(cpu=4, gpu=2)


def test_a_process_that_ray_restarted_is_a_new_life():
    mesh = Mesh(pool("p", cpu=2))
    mesh.run("a", cpu=2)
    incarnation = mesh.state.agents["a"].incarnation
    mesh.handle(s.AgentRestarted(agent_name="a", incarnation=incarnation, pid=77))
    agent = mesh.state.agents["a"]
    assert (agent.phase.pid, agent.restarts) == (77, 1)
    late = s.AgentRestarted(agent_name="a", incarnation=incarnation - 1, pid=1)
    assert mesh.handle(late).facts == ()


def lost_on(nodes, mesh):
    """What is said of task ``t`` once only these nodes are left and its processes are gone."""
    mesh.observe(*nodes)
    mesh.die("t")
    return mesh.engine.explain("t", mesh.now)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"cpu": 1}, "node a was lost, on which agent 't' ran; no state of it is stored"),
        (
            {"bundles": [{"cpu": 1}] * 2, "payload": GangPayload(strategy="STRICT_SPREAD")},
            "node a was lost, on which gang 't' ran; no state of it is stored",
        ),
        (
            {"bundles": [{"cpu": 1}] * 2, "payload": LeasePayload(strategy="STRICT_SPREAD")},
            "node a was lost, on which lease 't' had placement groups",
        ),
    ],
)
def test_a_loss_names_the_node(how, said):
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2), node("b", cpu=2)])
    is_lease = isinstance(how.get("payload"), LeasePayload)
    mesh.submit("t", **({} if is_lease else {"class_key": "c"}), **how)
    mesh.make_all()
    mesh.report("t", **({"node_id": "a"} if "cpu" in how else {}))
    found = lost_on([node("b", cpu=2)], mesh)
    assert (found.state, found.error) == ("lost", said)
    assert ("lease()" in found.hint) is is_lease


def test_a_process_that_dies_on_a_living_node_is_called_that():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2)])
    mesh.run("t", cpu=1, class_key="c")
    mesh.save("t")
    found = lost_on([node("a", cpu=2)], mesh)
    died = "the process of agent 't' died although nobody ended it"
    assert found.error == f"{died}; its last saved state is stored"


def test_a_job_whose_task_was_evicted_is_not_rebuilt_when_its_node_is_lost():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2), node("b", cpu=2)])
    mesh.run("t", cpu=2, class_key="c", payload=JobPayload(), run="run_driver")
    mesh.preempt(task_id="t")
    mesh.observe(*(node(n, cpu=2) for n in "ab" if n != mesh.state.agents["t"].node_id))
    mesh.die("t")
    assert "t" in mesh.state.lost
    refused = mesh.handle(s.RebuildRequested(agent_name="t")).outcome
    assert refused.reason is Reason.NOT_RESTARTABLE
    assert "after its task had been evicted" in refused.error
    assert mesh.state.agents == {}
