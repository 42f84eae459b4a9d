"""What is wrong is said clearly and at once, and nothing is held afterwards."""

from __future__ import annotations

import re

import pytest

from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.errors import InvalidRequestError, ScheduleMeshError
from tests.integration.agents import Plain
from tests.integration.polling import assert_nothing_held, quota

#: Less than the start_timeout of 120 s, so that nothing waits for an agent that can never start.
pytestmark = pytest.mark.timeout(100)

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def mesh(ray_cluster):
    """One scheduler for all that never gets as far as changing anything."""
    scheduler = RayScheduler("bad-input", namespace="test-bad-input")
    scheduler.create_pool("pool", labels={"tier": "gold"}, resources={"cpu": 4.0, "gpu": 2.0})
    yield scheduler
    scheduler.shutdown()


@pytest.fixture(autouse=True)
def nothing_held(request):
    """After every test of this file the module's scheduler is as before."""
    mesh = request.getfixturevalue("mesh")
    yield
    assert_nothing_held(mesh)


def submit(mesh, **changes):
    given = {
        "task_id": "t",
        "pool_name": "pool",
        "resources": {"cpu": 1.0},
        "actor_class": Plain,
    }
    return mesh.submit_task_with_preemption(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"resources": {"cpus": 1}}, "'cpus'"),
        ({"resources": {"cpu": -1}}, r"resources\['cpu'\].*-1"),
        ({"resources": {"cpu": NAN}}, r"resources\['cpu'\].*nan"),
        ({"resources": {"memory": INF}}, r"resources\['memory'\].*inf"),
        ({"resources": {"gpu": 1.5}}, r"resources\['gpu'\] is 1.5"),
        ({"resources": {"cpu": "two"}}, r"resources\['cpu'\].*'two'"),
        ({"resources": {"custom": {"a": -1}}}, r"resources\['custom'\]\['a'\]"),
        ({"resources": {"custom": 3}}, r"resources\['custom'\]"),
        ({"resources": [1]}, r"resources must be a dict.*\[1\]"),
        ({"task_id": None}, "task_id"),
        ({"task_id": ""}, "task_id"),
        ({"task_id": 7}, "task_id"),
        ({"task_id": "\udcff"}, "task_id"),
        ({"labels": {"tier": "\udcff"}}, "labels"),
        ({"pool_name": None}, "pool"),
        ({"pool_name": 3}, "pool"),
        ({"actor_class": None}, "actor_class must be a class or a function, not None"),
        ({"actor_class": Plain("a", {})}, "actor_class must be a class"),
        ({"actor_class": len}, "the function len takes .*missing a required argument"),
        ({"priority": "highest"}, "priority.*'highest'"),
        ({"priority": NAN}, "priority.*nan"),
        ({"labels": ["tier"]}, "labels"),
        ({"labels": {"tier": 1}}, "labels.*'tier': 1"),
        ({"estimated_duration": -1}, "estimated_duration is -1"),
        ({"actor_args": "abc"}, "actor_args must be a list"),
        ({"actor_kwargs": [1]}, "actor_kwargs must be a dict"),
        ({"actor_kwargs": {1: 2}}, "actor_kwargs must be a dict"),
        ({"agent_name": " "}, "agent_name"),
        ({"pool_selector": {"tier": "gold"}}, "not both"),
        ({"pool_name": None, "pool_selector": {"tier": 3}}, r"pool_selector\['tier'\]"),
        ({"ray_options": [1]}, "ray_options must be a dict"),
        ({"ray_options": {"num_cpus": 2}}, r"ray_options\['num_cpus'\] is 2.*1.0"),
        ({"ray_options": {"resources": {"x": 1}}}, r"ray_options\['resources'\]"),
        ({"ray_options": {"lifetime": "detached"}}, "'lifetime'"),
        ({"ray_options": {"max_restart": 1}}, "'max_restart'; allowed"),
        (
            {"ray_options": {"scheduling_strategy": object()}},
            r"ray_options\['scheduling_strategy'\]",
        ),
        ({"resources": None, "ray_options": {"num_cpus": 4}}, "'num_cpus'; say it in resources"),
        ({"payload": bytes(17 * 2**20)}, "17.0 MB"),
        ({"actor_args": [bytes(17 * 2**20)]}, "17.0 MB.*ray.put"),
    ],
)
def test_a_malformed_submission_raises_in_the_callers_process(mesh, changes, says):
    with pytest.raises(ValueError, match=says) as raised:
        submit(mesh, **changes)
    assert isinstance(raised.value, ScheduleMeshError)


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        (
            {"pool_name": "pooll"},
            "pool_not_found",
            r"'pooll' \(did you mean 'pool'\?\); pools are: pool",
        ),
        (
            {"pool_name": None, "pool_selector": {"tier": "silver"}},
            "no_matching_pool",
            "'tier': 'gold'",
        ),
        ({"resources": {"cpu": 5.0}}, "exceeds_pool_capacity", "cpu 5.* cpu 4"),
        ({"resources": {"gpu": 3}}, "exceeds_pool_capacity", "gpu 3"),
    ],
)
def test_an_impossible_submission_is_refused(mesh, changes, reason, says):
    for dry_run in (True, False):
        answer = submit(mesh, dry_run=dry_run, **changes)
        assert (answer["success"], answer["reason"]) == (False, reason)
        assert re.search(says, answer["error"]), answer["error"]


def test_a_request_beyond_every_node_is_out_of_cluster_resources(make_scheduler):
    scheduler = make_scheduler()
    scheduler.create_pool("dream", resources={"cpu": 1000.0, "custom": {"unobtainium": 1.0}})
    for need in ({"cpu": 500.0}, {"custom": {"unobtainium": 0.5}}, {"cpu": 9.0}):
        answer = submit(scheduler, pool_name="dream", resources=need)
        assert (answer["success"], answer["reason"]) == (False, "cluster_out_of_resources")
        assert answer["short"]["node"]
        found = scheduler.evaluate_preemption(9.0, "dream", resources=need)
        assert (found["should_preempt"], found["reason"]) == (False, "cluster_out_of_resources")
    assert_nothing_held(scheduler)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label_preemption_rules": {"t": {"a": ["b"], "b": ["c"], "c": ["a"]}}}, "a > b > c > a"),
        ({"label_preemption_rules": {"t": {"a": ["a"]}}}, "cycle: a > a"),
        ({"label_preemption_rules": {"t": ["a"]}}, "label_preemption_rules"),
        ({"same_pool_priority_threshold": 0}, "same_pool_priority_threshold is 0"),
        ({"cross_pool_priority_threshold": -1.0}, "cross_pool_priority_threshold"),
        ({"min_preempt_score": NAN}, "min_preempt_score"),
        ({"enable_label_preemption": "yes"}, "enable_label_preemption"),
        ({"protected_pools": "pool"}, "protected_pools"),
        (
            {"threshold": 1.0},
            r"no 'threshold' .did you mean 'label_priority_threshold'.*; it has same_pool",
        ),
        ({"preemption_aggressiveness": "wild"}, "'wild'; allowed are high"),
        ({"preemption_aggressiveness": 3}, "3; allowed are high"),
    ],
)
def test_a_bad_policy_changes_nothing(mesh, changes, says):
    before = mesh.get_preemption_policy()
    with pytest.raises(InvalidRequestError, match=says):
        mesh.update_preemption_policy(**changes)
    assert mesh.get_preemption_policy() == before


def test_bad_pools(mesh):
    for changes, says in (
        ({"name": ""}, "name"),
        ({"target_agents": -1}, "target_agents"),
        ({"placement_strategy": "LOOSE"}, "STRICT_PACK, PACK"),
        ({"resources": {"cpu": "many"}}, "cpu"),
        ({"labels": {"a": None}}, "labels"),
    ):
        with pytest.raises(ValueError, match=says):
            mesh.create_pool(**{"name": "p", "resources": {"cpu": 1}, **changes})
    again = mesh.create_pool("pool", labels={"tier": "gold"}, resources={"cpu": 4.0, "gpu": 2.0})
    assert again["success"]
    other = mesh.create_pool("pool", resources={"cpu": 5.0})
    assert (other["success"], other["reason"]) == (False, "pool_exists")


def test_other_bad_calls(mesh):
    for call, says in (
        (mesh.preempt_task, "task_id or an agent_name"),
        (lambda: mesh.restore_task({}), "task_id"),
        (lambda: mesh.restore_task("state"), "saved state"),
        (lambda: mesh.register_state_handlers("pool", preserver=3), "preserver must be a function"),
        (lambda: mesh.complete_task(""), "task_id"),
        (lambda: mesh.delete_agent(None), "name"),
        (lambda: mesh.create_agent("", "pool", Plain), "name"),
        (lambda: mesh.register_running_task("t", "", "pool"), "agent_name"),
        (lambda: RayScheduler(""), "name"),
        (lambda: RayScheduler("x", node_strategy="best"), "bin_pack, spread"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    for answer, reason in (
        (mesh.complete_task("unknown"), "task_not_found"),
        (mesh.execute_preemption("unknown", "agent"), "task_not_found"),
        (mesh.preempt_task(agent_name="unknown"), "agent_not_found"),
        (mesh.delete_agent("unknown"), "agent_not_found"),
        (mesh.cordon_node("unknown"), "node_not_found"),
        (mesh.get_saved_state("unknown"), "state_not_found"),
    ):
        assert (answer["success"], answer["reason"]) == (False, reason)
        assert "unknown" in answer["error"]


@pytest.mark.parametrize("bad", ["soon", NAN, None])
def test_an_evaluation_of_a_bad_priority_raises(mesh, bad):
    with pytest.raises(ValueError, match="incoming_task_priority"):
        mesh.evaluate_preemption(bad, "pool")


def test_duplicates(make_scheduler):
    scheduler = make_scheduler()
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    assert submit(scheduler, agent_name="a")["success"]
    answer = submit(scheduler)
    assert (answer["success"], answer["reason"]) == (False, "duplicate_task")
    assert "'t'" in answer["error"]
    answer = submit(scheduler, task_id="u", agent_name="a")
    assert (answer["success"], answer["reason"]) == (False, "duplicate_agent")
    assert quota(scheduler, "pool")["used"] == {"cpu": 1.0}

    def registered(**changes):
        given = {"task_id": "r", "agent_name": "a", "pool_name": "pool", "payload": [1]}
        return scheduler.register_running_task(**{**given, **changes})

    assert registered()["success"]
    assert registered()["success"], "the same again is the same"
    answer = registered(priority=6.0)
    assert (answer["success"], answer["reason"]) == (False, "duplicate_task")
    answer = registered(payload=[2])
    assert (answer["success"], answer["reason"]) == (False, "duplicate_task")
    assert len(scheduler.list_tasks()["tasks"]) == 2
    kept = scheduler.complete_task("t", end_agent=True)
    assert kept["detail"] == "agent_kept", "the other task runs on it"
    scheduler.complete_task("r", end_agent=True)
    assert_nothing_held(scheduler)


def test_the_same_request_again_gets_the_first_answer(make_scheduler):
    scheduler = make_scheduler()
    scheduler.create_pool("pool", resources={"cpu": 2.0})
    first = submit(scheduler, request_id="r-1")
    again = submit(scheduler, request_id="r-1")
    assert again == first
    assert len(scheduler.list_agents()["agents"]) == 1
    dry = submit(scheduler, task_id="dry", dry_run=True)
    assert dry["dry_run"] is True
    assert len(scheduler.list_agents()["agents"]) == 1
