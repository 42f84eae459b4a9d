"""Answers of public calls: they are what their types say, and changes made at the same time are all kept."""

from __future__ import annotations

import asyncio
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pytest

from schedulemesh.api.pools import ResizePool
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.stimuli import AgentGone, PoolRequested
from schedulemesh.errors import InvalidRequestError
from schedulemesh.runtime.agents.references import NO_REFS
from schedulemesh.runtime.reactor import JournalCondition
from tests.core.test_request_service import client
from tests.runtime.composition import InThread


@pytest.fixture
def service(tmp_path):
    """A service with an empty journal."""
    found = InThread(tmp_path / "j.sqlite")
    yield found
    found.close()


def test_a_change_of_a_pool_overwrites_no_change_that_was_made_meanwhile(service):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 1})

    async def resized_while_the_state_is_read_again():
        reactor = service.running.reactor
        reactor._become(JournalCondition.RELOADING)
        resize = asyncio.ensure_future(
            service.requests._execute(ResizePool(name="p", target_agents=3), NO_REFS)
        )
        await asyncio.sleep(0)
        other = PoolSpec(name="p", resources=parse_resources({"cpu": 2}))
        reactor.engine.handle(PoolRequested(spec=other), reactor.now())
        reactor._become(JournalCondition.OK)
        return (await resize).spec

    spec = service.do(resized_while_the_state_is_read_again())
    assert (spec.resources.public(), spec.target_agents) == ({"cpu": 2.0}, 3)


def test_changes_of_a_pool_at_the_same_time_are_all_kept(service):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 1})

    async def both():
        changes = {"target_agents": 4}, {"resources": parse_resources({"cpu": 8})}
        await asyncio.gather(
            *(service.requests._execute(ResizePool(name="p", **c), NO_REFS) for c in changes)
        )

    service.do(both())
    (pool,) = asked.list_pools()["pools"]
    assert (pool["resources"], pool["target_agents"]) == ({"cpu": 8.0}, 4)


def test_a_pool_is_created_in_its_cohort(service):
    asked = client(service)
    lending = {"cohort": "team", "lending_limit": {"cpu": 1}, "borrowing_limit": 0, "weight": 2}
    for detail in ("created", "unchanged"):
        answer = asked.create_pool("p", resources={"cpu": 2}, **lending)
        assert answer["detail"] == detail, answer
    (pool,) = asked.list_pools()["pools"]
    assert (pool["cohort"], pool["lending_limit"], pool["weight"]) == ("team", {"cpu": 1.0}, 2.0)
    assert asked.list_cohorts()["cohorts"][0]["pools"] == ["p"]
    other = asked.create_pool("p", resources={"cpu": 2})
    assert other["reason"] == "pool_exists", "one without a cohort is another definition"


def test_a_pool_may_be_named_in_both_words(service):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 1})
    for word in ("pool", "pool_name"):
        assert asked.list_queue(**{word: "p"}) == {"success": True, "tasks": [], "total": 0}
        assert asked.list_agents(**{word: "none"})["reason"] == "pool_not_found"
        spec = {"task_id": word, word: "p", "actor_class": AgentActor, "queue": True}
        assert asked.submit_many([spec])["success"]
    with pytest.raises(InvalidRequestError, match=r"specs\[0\] has pool and pool_name"):
        asked.submit_many([{**spec, "pool": "p"}])


def test_a_lost_task_without_a_saved_state_is_listed(service):
    asked = client(service)
    asked.create_pool("p", resources={"cpu": 1})
    assert asked.submit_task_with_preemption("t", "p", AgentActor, {"cpu": 1})["success"]
    agent = next(iter(service.running.reactor.state.agents.values()))
    gone = AgentGone(agent_name=agent.spec.name, incarnation=agent.incarnation)
    service.do(service.running.reactor.report(gone))
    (listed,) = asked.list_saved_states()["saved_states"]
    assert (listed["task_id"], listed["status"]) == ("t", "lost")
    assert listed["state_saved"] is False
    assert asked.get_saved_state("t")["reason"] == "state_not_found"
    again = asked.restore_task({"task_id": "t"})
    assert again["success"], again


def wrong_keys(value, kind, where=""):
    """The keys of an answer that its TypedDict does not have, at any depth."""
    kind = (
        next((a for a in get_args(kind) if a is not type(None)), kind) if is_union(kind) else kind
    )
    if is_typeddict(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        found = [f"{where}.{key}" for key in value if key not in hints]
        known = [(key, item) for key, item in value.items() if key in hints]
        return found + [w for k, v in known for w in wrong_keys(v, hints[k], f"{where}.{k}")]
    if get_origin(kind) is list and isinstance(value, list):
        return [w for item in value for w in wrong_keys(item, get_args(kind)[0], f"{where}[]")]
    if get_origin(kind) is dict and isinstance(value, dict):
        return [
            w
            for item in value.values()
            for w in wrong_keys(item, get_args(kind)[1], f"{where}{{}}")
        ]
    return []


def is_union(kind):
    return get_origin(kind) in (Union, UnionType)


def test_answers_have_the_keys_and_values_that_their_types_promise(service):
    asked = client(service)
    groups = {"enable": True, "max_dynamic_pgs": 2}
    calls = [
        (
            "create_pool",
            ("p",),
            {"labels": {"a": "b"}, "resources": {"cpu": 2, "custom": {"x": 1}}},
        ),
        ("create_pool", ("g",), {"resources": {"cpu": 4}, "pg_pool_config": groups}),
        ("ensure_cohort", ("c",), {"weight": 2}),
        (
            "ensure_pool",
            ("p",),
            {"target_agents": 1, "cohort": "c", "lending_limit": {"cpu": 1}, "borrowing_limit": 0},
        ),
        ("submit_task_with_preemption", ("t", "p", AgentActor, {"cpu": 1}), {}),
        ("submit_task_with_preemption", ("u", "p", AgentActor, {"cpu": 9}), {}),
        ("register_running_task", ("r", "elsewhere", "p"), {}),
        ("update_preemption_policy", (), {"cancel_timeout": 1.0}),
        ("save_task_state", ("t",), {}),
        ("evaluate_preemption", (9.0, "p"), {"resources": {"cpu": 2}}),
        ("explain", ("t",), {}),
        ("explain", ("none",), {}),
        ("submit_task_with_preemption", ("w", "p", AgentActor, {"cpu": 2}), {"queue": True}),
        ("explain", ("w",), {}),
        ("list_pools", (), {}),
        ("list_cohorts", (), {}),
        ("shares", (), {}),
        ("budgets", (), {}),
        ("list_tasks", (), {}),
        ("list_agents", (), {}),
        ("pg_pool_stats", (), {}),
        ("cluster_snapshot", (), {}),
        ("preempt_task", ("t",), {}),
        ("get_saved_state", ("t",), {}),
        ("list_saved_states", (), {}),
        ("restore_task", ({"task_id": "t"},), {}),
        ("get_preemption_policy", (), {}),
        ("get_preemption_stats", (), {}),
        ("list_preemptions", (), {"pool_name": "p"}),
        ("stats", (), {}),
        ("strategies", (), {}),
        ("complete_task", ("t",), {"end_agent": True}),
        ("delete_agent", ("none",), {}),
    ]
    for name, args, kwargs in calls:
        answer = getattr(asked, name)(*args, **kwargs)
        kind = get_type_hints(getattr(RayScheduler, name))["return"]
        assert wrong_keys(answer, kind) == [], name
        plain = {key: value for key, value in answer.items() if key not in ("agent", "agents")}
        msgspec.convert(plain, kind)
