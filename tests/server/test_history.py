"""The history over HTTP: pages, filters and order are made by the supervisor."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.api.history import ENDS, STATES, QueryHistory
from schedulemesh.errors import InvalidRequestError
from schedulemesh.server.history import QUESTIONS
from schedulemesh.store.history.attempts import (
    PREEMPTING,
    QUEUED,
    RETURNED,
    RUNNING,
    STARTING,
    WITH_AGENT,
)
from tests.server.work import filled


@pytest.fixture
def busy(mesh, api):
    """An API whose scheduler has tasks that run, wait, and were evicted."""
    filled(mesh)
    return api


def pages(api, path, **parameters):
    """All rows of a call, page by page."""
    found, page = [], api.get(path, params=parameters)
    while True:
        found += page["items"]
        if page["next"] is None:
            return found
        page = api.get(path, params={**parameters, "cursor": page["next"]})


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.path)
def test_answers_have_the_documented_fields(busy, question):
    answer = busy.get(
        question.path, params={"with_events": "true"} if question.path == "/history" else {}
    )
    assert answer["items"]
    assert set(answer) == {"success", "items", *question.beside}
    for row in answer["items"]:
        assert set(row) <= set(question.row.__annotations__)
        msgspec.convert(row, question.row)


def test_attempts_are_paged_from_both_ends(busy):
    whole = busy.get("/history")["items"]
    assert {row["task_id"] for row in whole} == {"low", "first", "second", "waits-1", "waits-2"}
    newest_first = pages(busy, "/history", limit=2)
    assert [row["cursor"] for row in newest_first] == [row["cursor"] for row in whole]
    oldest_first = pages(busy, "/history", limit=2, sort="cursor")
    assert [row["cursor"] for row in oldest_first] == sorted(row["cursor"] for row in whole)


def test_attempts_are_filtered(busy):
    def tasks(**parameters):
        return {row["task_id"] for row in busy.get("/history", params=parameters)["items"]}

    assert tasks(state="preempted") == {"low"}
    assert tasks(task_id="first") == {"first"}
    assert tasks(owner="nobody") == set()
    assert tasks(label=["team=x"], state="queued") == {"waits-1", "waits-2"}
    assert tasks(label=["team=y"]) == set()
    assert tasks(until="1h") == set()
    assert len(tasks(since="1h")) == 5


def test_a_task_is_shown_with_its_events(busy):
    (row,) = busy.get("/history?task_id=low&with_events=true")["items"]
    kinds = [event["kind"] for event in row["events"]]
    # Its class has no save_state, so that nothing of its work was saved.
    assert kinds[-3:] == ["started", "preempting", "preempted"]
    assert "events" not in busy.get("/history?task_id=low")["items"][0]


def test_use_is_listed_like_other_rows(busy):
    by_owner = busy.get("/usage?by=owner")
    assert [row["owner"] for row in by_owner["items"]] == ["ada"]
    assert (by_owner["total"], by_owner["next"]) == (1, None)
    assert [row["label"] for row in busy.get("/usage?by=label&label_key=team")["items"]] == [
        "team=x"
    ]
    assert busy.get("/usage?by=label&label=team%3Dy")["items"] == []
    assert busy.get("/usage?pool=p")["total"] == 1
    assert busy.get("/usage?pool=other", 404)["reason"] == "pool_not_found"
    assert busy.get("/usage?since=2h&sort=-started")["items"][0]["started"] == 3


def test_events_are_paged_filtered_and_continued(busy):
    whole = busy.get("/events")
    cursors = [row["cursor"] for row in whole["items"]]
    # Some numbers are those of steps, which are no events.
    assert cursors == sorted(set(cursors))
    assert cursors[-1] <= whole["cursor"]
    # More may happen meanwhile.
    assert pages(busy, "/events", limit=3)[: len(whole["items"])] == whole["items"]
    started = busy.get("/events?kind=started&kind=preempted")["items"]
    assert {row["kind"] for row in started} == {"started", "preempted"}
    of_task = busy.get("/events?task_id=low")["items"]
    assert {row["task_id"] for row in of_task} == {"low"}
    of_pool = busy.get("/events?pool_name=p")["items"]
    assert {row["pool_name"] or row["subject"] for row in of_pool} == {"p"}
    assert "pool_defined" in {row["kind"] for row in of_pool}
    later = busy.get(f"/events?cursor={whole['cursor']}")["items"]
    assert whole["cursor"] < min([row["cursor"] for row in later], default=float("inf"))


@pytest.mark.parametrize(
    "query",
    [
        "history?limit=0",
        "history?limit=1001",
        "history?cursor=-1",
        "history?cursor=x",
        "history?sort=priority",
        "history?label=team",
        "history?since=yesterday",
        "history?since=nan",
        "history?since=1h&until=2h",
        "history?stat=queued",
        "history?state=queued&state=running",
        "history?with_events=yes",
        "usage?by=team",
        "usage?label_key=team",
        "usage?sort=priority",
        "usage?gpu=1",
        "events?cursor=9999999999999999",
        "events?kind=",
        "events?task=1",
    ],
)
def test_what_is_not_valid_is_refused_before_the_supervisor_is_asked(api, query):
    assert api.get(f"/{query}", 400)["reason"] == "invalid_request"
    assert [kind for kind in map(type, api.gateway.asked) if kind.__name__ != "QueryUsage"] == []


def test_equal_questions_and_roles(busy):
    spec = {"name": "eve", "role": "viewer"}
    secret = busy.send("POST", "/tokens", spec)["token"]
    with busy.client_with(secret) as viewer:
        for question in QUESTIONS:
            assert viewer.get(f"/api/v1{question.path}").status_code == 200


def test_the_states_that_may_be_asked_for_are_those_of_attempts():
    assert set(STATES) == {QUEUED, STARTING, RUNNING, PREEMPTING, *ENDS}
    assert {RETURNED, *(state for state, _ in WITH_AGENT.values())} < set(ENDS)
    with pytest.raises(InvalidRequestError, match=r"'runing' \(did you mean 'running'\?\); it may"):
        QueryHistory(state="runing")
