"""Clients' calls about placement groups, with a supervisor that is made up."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import UNSET

from schedulemesh.api.pools import EnsurePool, ResizePool
from schedulemesh.config.groups import NO_LIMIT
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.task_request import Caller
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.engine.messages.outcomes import Accepted, Done, ProbeNeeded, Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import (
    Details,
    GroupPlace,
    PoolResponse,
    Refusal,
    Response,
    encode_answer,
)
from schedulemesh.protocol.requests import decode_request
from schedulemesh.simple import SimpleTaskSpec
from tests.integration.agents import Counter, Plain


class FakeConnection:
    """Answers with what it was given, in turn, and remembers what it was asked; all of it as bytes."""

    def __init__(self, *answers, env=None):
        self.answers = list(answers)
        self.asked = []
        self.caller = Caller(namespace="space", runtime_env=env or {})
        self.shipped = set()

    def call(self, method, data, *refs, what):
        assert method == "ask"
        self.asked.append(decode_request(data))
        answer = self.answers.pop(0)
        return encode_answer(answer(self.asked[-1]) if callable(answer) else answer)


class Calls(RayScheduler):
    def __init__(self, *answers, env=None):
        self._connection = FakeConnection(*answers, env=env)

    @property
    def asked(self):
        return self._connection.asked

    @property
    def submissions(self):
        return [request.submission for request in self.asked]


RUNS = Accepted(
    agent_name="a",
    pool_name="p",
    resources=parse_resources({"cpu": 1}),
    node_id="n",
    group_id="g",
    group_path="reserved",
)


def reply(outcome, **more):
    return Response(outcome=outcome, **more)


def refused(reason):
    return reply(Refused(reason=reason, error_text="so it is"))


def submit(calls, **fields):
    fields = {"pool_name": "p", "actor_class": Plain, "resources": {"cpu": 1}, **fields}
    return calls.submit_with_pg_preemption("t", **fields)


def test_a_success_has_the_group_and_the_path():
    calls = Calls(reply(RUNS, group=GroupPlace(name="schedulemesh:g", node_ids=("n",))))
    answer = submit(calls)
    assert answer["placement_group"] == {
        "id": "g",
        "name": "schedulemesh:g",
        "node_ids": ["n"],
        "path": "reserved",
    }
    assert (answer["path"], answer["success"]) == ("pg", True)
    (asked,) = calls.submissions
    assert (asked.for_group, asked.may_preempt) == (True, True)


def test_an_ordinary_submission_is_none_for_a_group():
    calls = Calls(reply(RUNS))
    answer = calls.submit_task_with_preemption("t", "p", Plain)
    assert "path" not in answer
    assert not calls.submissions[0].for_group


@pytest.mark.parametrize("reason", ["insufficient_quota", "group_unplaceable", "no_pg_pool"])
def test_short_quota_or_no_group_is_answered_or_falls_back(reason):
    calls = Calls(refused(reason))
    assert submit(calls) == {"success": False, "error": "so it is", "reason": reason}
    calls = Calls(refused(reason), reply(RUNS))
    answer = submit(calls, fallback=True, request_id="r")
    assert (answer["success"], answer["path"]) == (True, "fallback")
    first, second = calls.submissions
    assert (first.for_group, first.request_id) == (True, "r")
    assert (second.for_group, second.request_id) == (False, "r:fallback")
    assert first.agent == second.agent


def test_a_second_refusal_is_returned_unchanged():
    calls = Calls(refused("insufficient_quota"), refused("preemption_failed"))
    answer = submit(calls, fallback=True)
    assert (answer["reason"], answer["path"]) == ("preemption_failed", "fallback")


@pytest.mark.parametrize("reason", ["duplicate_task", "conflicting_options", "agent_start_failed"])
def test_what_another_way_does_not_mend_is_not_tried(reason):
    calls = Calls(refused(reason))
    assert submit(calls, fallback=True)["reason"] == reason


def test_bytes_of_the_class_are_sent_on_request():
    calls = Calls(reply(ProbeNeeded(class_key="k")), reply(RUNS))
    assert submit(calls)["success"]
    assert len(calls.asked) == 2


def test_a_malformed_request_is_refused_before_anything_is_sent():
    calls = Calls()
    with pytest.raises(InvalidRequestError, match="fallback must be"):
        submit(calls, fallback="yes")
    with pytest.raises(InvalidRequestError, match=r"'prioritty' .did you mean 'priority'"):
        submit(calls, prioritty=3)
    with pytest.raises(
        InvalidRequestError, match=r"resources are cpu 1, but the bundles make cpu 2"
    ):
        submit(calls, bundles=[{"cpu": 1}, {"cpu": 1}])
    with pytest.raises(InvalidRequestError, match=r"bundles\[1\]"):
        submit(calls, resources=None, bundles=[{"cpu": 1}, {}])
    with pytest.raises(InvalidRequestError, match=r"leaves the first of several bundles free"):
        submit(calls, driver_bundle=False)
    with pytest.raises(InvalidRequestError, match=r"each member of a gang takes its own"):
        submit(calls, replicas=2, driver_bundle=False)
    assert calls.asked == []


def test_bundles_travel_with_their_sum():
    calls = Calls(reply(RUNS), reply(RUNS), reply(RUNS))
    bundles = [{"cpu": 1, "gpu": 1}, {"cpu": 2}]
    submit(calls, resources=None, bundles=bundles, ray_options={"num_cpus": 1, "num_gpus": 1})
    submit(calls, resources={"cpu": 3, "gpu": 1}, bundles=bundles)
    calls.create_agent("a", "p", Plain, bundles=bundles)
    assert all(asked.agent.driver_bundle for asked in calls.submissions)
    for asked in calls.submissions:
        agent = asked.agent
        assert agent.resources == parse_resources({"cpu": 3, "gpu": 1})
        assert agent.bundles == tuple(map(parse_resources, bundles))
        assert not asked.default_resources
    assert SimpleTaskSpec(task_id="t", actor_class=Plain, bundles=bundles).bundles == bundles


def test_the_result_of_a_pool_has_the_status_of_its_groups():
    standing = {"reserved": 1, "ready": 0, "unplaced": [{"error": "no room"}]}

    def made(request):
        return PoolResponse(outcome=Done(change=Change.CREATED), spec=request.spec, groups=standing)

    calls = Calls(made, PoolResponse(outcome=Done()))
    config = {"high_priority_pg_specs": [{"cpu": 1}]}
    answer = calls.create_pool("p", None, {"cpu": 4}, pg_pool_config=config)
    assert answer["placement_groups"] == standing
    assert answer["pool"]["pg_pool_config"]["max_dynamic_pgs"] is None
    calls.ensure_pool("p", None, {"cpu": 4})
    created, ensured = calls.asked
    assert created.spec.groups.max_dynamic == NO_LIMIT
    assert (type(ensured), ensured.labels, ensured.config) == (EnsurePool, {}, UNSET)


def test_the_warm_class_is_shipped_like_a_submissions():
    calls = Calls(PoolResponse(outcome=Done()), reply(RUNS), env={"env_vars": {"A": "1"}})
    warm = {"actor_class": Counter, "count": 2, "runtime_env": {"env_vars": {"B": "2"}}}
    calls.ensure_pool("p", resources={"cpu": 1}, pg_pool_config={"warm": warm})
    spec = calls.asked[0].config["warm"]
    assert isinstance(spec, WarmSpec)
    assert (list(calls.asked[0].blobs), spec.count) == ([spec.class_key], 2)
    assert json.loads(spec.options) == {"runtime_env": {"env_vars": {"A": "1", "B": "2"}}}
    submit(calls, actor_class=Counter, ray_options={"runtime_env": {"env_vars": {"B": "2"}}})
    agent = calls.asked[1].submission.agent
    assert (agent.class_key, agent.options) == (spec.class_key, spec.options), "so it gets the host"


@pytest.mark.parametrize(
    ("warm", "word"),
    [
        (3, "actor_class"),
        ({"count": 1}, "actor_class"),
        ({"actor_class": 3}, "must be a class"),
        ({"actor_class": Plain, "count": 0}, "at least 1"),
        ({"actor_class": Plain, "count": True}, "at least 1"),
        ({"actor_class": Plain, "classes": 1}, "unknown key 'classes'"),
        ({"actor_class": Plain, "runtime_env": {"py_modules": [object()]}}, "runtime_env"),
    ],
)
def test_an_invalid_warm_class_is_refused(warm, word):
    calls = Calls()
    with pytest.raises(InvalidRequestError, match=word):
        calls.ensure_pool("p", resources={"cpu": 1}, pg_pool_config={"warm": warm})
    assert calls.asked == []


def test_a_class_that_ray_restarts_cannot_be_warm():
    import ray

    calls, restarted = Calls(), ray.remote(max_restarts=1)(Plain)
    with pytest.raises(InvalidRequestError, match="decorated with max_restarts"):
        calls.resize_pool("p", pg_pool_config={"warm": {"actor_class": restarted}})


def without_ids(requests):
    """The requests with one and the same id, by which a repeated one is recognised; each has its own."""
    assert len({request.request_id for request in requests}) == len(requests)
    return [msgspec.structs.replace(request, request_id="same") for request in requests]


def test_a_resize_sends_only_what_is_given():
    calls = Calls(PoolResponse(outcome=Refused(reason=Reason.POOL_NOT_FOUND, error_text="no")))
    answer = calls.resize_pool("p", target_agents=3, pg_pool_config={"max_dynamic_pgs": 1})
    assert (answer["success"], answer["reason"]) == (False, "pool_not_found")
    assert without_ids(calls.asked) == without_ids(
        [ResizePool(name="p", target_agents=3, pg_pool_config={"max_dynamic_pgs": 1})]
    )
    for wrong in ({"target_agents": -1}, {"resources": {"cpu": -1}}, {"pg_pool_config": {"x": 1}}):
        with pytest.raises(InvalidRequestError):
            calls.resize_pool("p", **wrong)


def test_ensuring_sends_only_what_is_given_and_nothing_as_empty():
    calls = Calls(PoolResponse(outcome=Done()), PoolResponse(outcome=Done()))
    calls.ensure_pool("p", target_agents=2)
    calls.ensure_pool("p", None, None, None, None, None)
    assert without_ids(calls.asked) == without_ids(
        [
            EnsurePool(name="p", target_agents=2),
            EnsurePool(
                name="p",
                labels={},
                resources=NOTHING,
                target_agents=0,
                placement_strategy="STRICT_PACK",
                pg_pool_config=None,
            ),
        ]
    )


def test_stats_of_an_unknown_pool_are_refused():
    unknown = Refused(reason=Reason.POOL_NOT_FOUND, error_text="no")
    calls = Calls(Refusal(refused=unknown), Details(facts={"reserved": 0}))
    assert calls.pg_pool_stats("p")["reason"] == "pool_not_found"
    assert calls.pg_pool_stats() == {"success": True, "reserved": 0}
