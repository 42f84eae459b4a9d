"""Requests and answers as bytes: both sides check the same, and nothing but a request is one."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.api.agents import EnsureAgentHealth, ListAgents
from schedulemesh.api.nodes import CordonNode
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsureCohort, EnsurePool, ListPools, ResizePool
from schedulemesh.api.preemption import EvaluatePreemption, PreemptTask
from schedulemesh.api.states import RestoreTask
from schedulemesh.api.tasks import RegisterTask, SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.cohort import LoanLimit
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.engine.messages.stimuli import (
    AgentGone,
    PreemptionRequested,
    SupervisorBegan,
    TaskSubmitted,
)
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import (
    EvictedState,
    Listed,
    Malformed,
    Refusal,
    Response,
    decode_answer,
    encode_answer,
)
from schedulemesh.protocol.requests import decode_request, encode_request

KEY = key_of(b"class")
AGENT = AgentSpec(name="a", pool_name="p", resources=parse_resources({"cpu": 1}), class_key=KEY)
TASK = TaskSpec(task_id="t", pool_name="p", labels={"tier": "gold"}, estimated_duration=3.0)


def submission(**changes):
    blobs = changes.pop("blobs", {KEY: b"class"})
    given = {"agent": AGENT, "task": TASK, "request_id": "r", **changes}
    return SubmitTask(submission=TaskSubmitted(**given), blobs=blobs)


@pytest.mark.parametrize(
    "request_",
    [
        submission(),
        RegisterTask(task=TASK, agent_name="a"),
        EnsurePool(name="p", pg_pool_config={"enable": True, "wait_timeout_s": 3}),
        ResizePool(name="p", target_agents=3),
        ChangePolicy(changes={"protected_pools": ["p"]}, client="host:1"),
        PreemptTask(task_id="t", request_id="r"),
        EvaluatePreemption(priority=5.0, pool_name="p", resources=Resources(cpu=10_000)),
        ListPools(),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_comes_back_as_it_was_sent(request_):
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    "stimulus",
    [
        AgentGone(agent_name="a", incarnation=1),
        SupervisorBegan(epoch=99),
        PreemptionRequested(task_id="t"),
    ],
    ids=lambda stimulus: type(stimulus).__name__,
)
def test_stimuli_are_no_requests(stimulus):
    plain = msgspec.to_builtins(stimulus)
    for tag in (type(stimulus).__name__, "agent_gone", "preempt"):
        with pytest.raises(InvalidRequestError):
            decode_request(msgspec.msgpack.encode({"request": tag, **plain}))


@pytest.mark.parametrize("data", [None, "text", b"", b"\xc1", b"\x91" * 5000, bytearray(b"\x80")])
def test_what_is_no_request_is_refused(data):
    with pytest.raises(InvalidRequestError):
        decode_request(data)


def test_unknown_fields_are_refused():
    with pytest.raises(InvalidRequestError, match="end"):
        decode_request(msgspec.msgpack.encode({"request": "list_pools", "end": True}))


def test_unknown_fields_of_a_submission_are_refused():
    plain = msgspec.to_builtins(submission(blobs={}))
    plain["submission"]["incarnation"] = 3
    with pytest.raises(InvalidRequestError, match="incarnation"):
        decode_request(msgspec.msgpack.encode(plain))


def wrong_agent(**changes):
    return submission(agent=msgspec.structs.replace(AGENT, **changes))


def wrong_task(**changes):
    return submission(task=msgspec.structs.replace(TASK, **changes))


def wrong_limit():
    return LoanLimit(named=(("gpu", -1),))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: wrong_task(task_id=""), "task_id"),
        (lambda: wrong_task(task_id="x" * 254), "task_id.*253"),
        (lambda: wrong_task(task_id="a\nb"), "task_id.*line breaks"),
        (lambda: wrong_task(priority=1e10), "priority is .*at most 1e9"),
        (lambda: wrong_task(priority=float("nan")), "priority"),
        (lambda: wrong_task(priority=10**400), "priority"),
        (lambda: wrong_task(estimated_duration=1e11), "estimated_duration.*at most 1e10"),
        (lambda: wrong_task(estimated_duration=float("inf")), "estimated_duration"),
        (lambda: wrong_task(labels={"a": "\udcff"}), "labels"),
        (lambda: wrong_task(labels={f"k{i}": "v" * 250 for i in range(300)}), "65536"),
        (lambda: wrong_task(owner="x" * 254), "owner.*253"),
        (lambda: wrong_task(owner="a\nb"), "owner.*line breaks"),
        (lambda: wrong_task(owner=" "), "owner"),
        (lambda: wrong_task(asked_priority=1.0), "asked_priority"),
        (lambda: wrong_task(payload_key="k"), "payload"),
        (lambda: wrong_agent(resources=Resources(cpu=10**17)), "resources"),
        (lambda: wrong_agent(resources=Resources(cpu=-1)), "resources"),
        (lambda: wrong_agent(resources=Resources(custom=(("gpu", 1),))), "custom"),
        (lambda: wrong_agent(resources=Resources(custom=(("b", 1), ("a", 1)))), "custom"),
        (lambda: wrong_agent(bundles=(Resources(),)), "bundles"),
        (lambda: wrong_agent(class_key=""), "class"),
        (lambda: wrong_agent(options="[]"), "ray_options"),
        (lambda: wrong_agent(options='{"lifetime": "detached"}'), "lifetime"),
        (lambda: wrong_agent(options='{"name": "a\\nb"}'), "name"),
        (lambda: submission(request_id=""), "request_id"),
        (lambda: submission(request_id=None), "request_id"),
        (lambda: submission(state_key=KEY), "state_key is set by the scheduler"),
        (lambda: PreemptTask(request_id="r"), "task_id or an agent_name"),
        (lambda: PreemptTask(task_id=["x"], request_id="r"), "task_id"),
        (lambda: CordonNode(node_id="", cordoned=True), "node_id"),
        (lambda: EnsureCohort(name=""), "cohort's name"),
        (lambda: EnsureCohort(name="c", parent="a\nb"), "parent"),
        (lambda: EnsureCohort(name="c", weight=0.0), "weight.*above 0"),
        (lambda: EnsurePool(name="p", lending={"cohort": " "}), "cohort"),
        (lambda: EnsurePool(name="p", lending={"weight": -1.0}), "weight"),
        (lambda: EnsurePool(name="p", lending={"lending_limit": LoanLimit()}), "lending_limit"),
        (
            lambda: EnsurePool(name="p", lending={"borrowing_limit": wrong_limit()}),
            "borrowing_limit",
        ),
        (lambda: EnsureAgentHealth(timeout_s=1e10), "timeout"),
        (lambda: EvaluatePreemption(priority=0.0, pool_name="p", limit=-1), "limit"),
        (lambda: ListAgents(pool_name=""), "pool"),
        (lambda: EnsurePool(name="p", resources=Resources(gpu=-1)), "resources"),
        (
            lambda: RestoreTask(
                saved=SavedState(
                    task=TaskSpec(task_id="t", priority=1e300),
                    agent_name="",
                    source="given",
                    saved_at=0.0,
                ),
                request_id="r",
            ),
            "priority",
        ),
    ],
)
def test_a_request_out_of_range_cannot_be_made(make, says):
    with pytest.raises(InvalidRequestError, match=says):
        make()


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"task_id": "t", "pool_name": "p", "priority": 1e300}, "priority"),
        ({"task_id": "t", "pool_name": "p", "priority": float("nan")}, "priority"),
        ({"task_id": "t", "pool_name": "p", "estimated_duration": -1.0}, "estimated_duration"),
        ({"task_id": 4711, "pool_name": "p"}, "Expected `str`"),
        ({"task_id": "t", "pool_name": "p", "owner": "a\x00b"}, "owner"),
        ({"task_id": "t", "pool_name": "p", "owner": None}, "Expected `str`"),
        ({"task_id": "t\x00", "pool_name": "p"}, "task_id"),
    ],
)
def test_bytes_that_no_client_makes_are_checked_again(task, says):
    data = msgspec.msgpack.encode({"request": "register_task", "task": task, "agent_name": "a"})
    with pytest.raises(InvalidRequestError, match=says):
        decode_request(data)


def test_blobs_have_the_hash_that_they_are_kept_under():
    data = encode_request(submission(blobs={KEY: b"another class"}))
    with pytest.raises(InvalidRequestError, match="SHA-256"):
        decode_request(data)


def test_an_answer_comes_back_as_it_was_sent():
    answer = Response(
        outcome=Done(change=Change.CREATED),
        evicted=(EvictedState(task_id="t", reason=PreemptionReason.MANUAL, saved=b"state"),),
    )
    assert decode_answer(encode_answer(answer), Response) == answer
    listed = Listed(rows=[{"name": "p", "free": {"cpu": 1.5}}])
    assert decode_answer(encode_answer(listed), Listed) == listed


def test_refusals_and_malformed_requests_are_decoded_for_every_request():
    refused = Refused(reason=Reason.JOURNAL_UNAVAILABLE, error_text="no")
    assert decode_answer(encode_answer(Refusal(refused=refused)), Listed) == refused
    with pytest.raises(InvalidRequestError, match="so it is"):
        decode_answer(encode_answer(Malformed(error="so it is")), Response)
    with pytest.raises(TypeError, match="Listed"):
        decode_answer(encode_answer(Response(outcome=Done())), Listed)
