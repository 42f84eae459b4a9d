"""Rows are filtered, sorted and cut into pages; pages neither repeat nor leave out rows that stay."""

from __future__ import annotations

import asyncio
import base64
from typing import TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from schedulemesh.api.pages import PageQuery, Selection
from schedulemesh.api.rows import scalar_fields
from schedulemesh.protocol.portions import PORTION, PortionTurns
from schedulemesh.server.listings import page_of
from schedulemesh.server.problems import Problem
from tests.server.work import filled


class Row(TypedDict, total=False):
    name: str
    count: int
    score: float | None
    held: bool
    rank: int
    labels: dict[str, str]
    more: list[str]


ROWS = [
    {"name": "a", "count": 3, "score": 0.5, "held": False, "labels": {"team": "x"}},
    {"name": "b", "count": 1, "score": None, "held": True, "labels": {"team": "y"}},
    {"name": "池", "count": 2, "score": 1.5, "held": False, "labels": {}},
]


def page(query, rows=ROWS):
    return asyncio.run(page_of(rows, Row, ("name",), QueryParams(query), PortionTurns()))


def names(query):
    return [row["name"] for row in page(query).items]


def test_only_fields_with_one_value_select_rows():
    assert scalar_fields(Row) == {
        "name": str,
        "count": int,
        "score": float,
        "held": bool,
        "rank": int,
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["a", "b", "池"]),
        ("name=b", ["b"]),
        ("name=b&name=a", ["a", "b"]),
        ("count=2", ["池"]),
        ("held=true", ["b"]),
        ("score=", ["b"]),
        ("score=0.5&held=false", ["a"]),
        ("label=team=x", ["a"]),
        ("label=team", ["a", "b"]),
        ("label=team=", []),
        ("name=%E6%B1%A0", ["池"]),
        ("sort=-name", ["池", "b", "a"]),
        ("sort=count", ["b", "池", "a"]),
        ("sort=score", ["a", "池", "b"]),
        ("sort=-score", ["池", "a", "b"]),
        ("sort=held,-count", ["a", "池", "b"]),
        ("limit=1", ["a"]),
    ],
)
def test_rows_are_selected_and_sorted(query, found):
    assert names(query) == found


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        f"limit={'1' * 5_000}",
        "limit=²",
        "nmae=a",
        "more=a",
        "sort=more",
        "sort=--name",
        "sort=name,count,score,held,rank",
        "count=x",
        "count=1e999",
        "held=maybe",
        "label==x",
        "cursor=",
        "cursor=x",
        "cursor=%00",
        "cursor=bnVsbA",
        "cursor=W10",
    ],
)
def test_a_parameter_that_is_not_valid_is_refused(query):
    with pytest.raises(Problem) as refused:
        page(query)
    assert refused.value.status == 400


def test_a_cursor_is_for_its_sort_only():
    cursor = page("limit=1&sort=count").following
    with pytest.raises(Problem, match="another sort"):
        page(f"limit=1&sort=-count&cursor={cursor}")


def test_a_cursor_with_values_of_other_types_is_refused():
    other = page("limit=1", [{"name": 1}, {"name": 2}]).following
    with pytest.raises(Problem, match="cursor"):
        page(f"cursor={other}")


@pytest.mark.parametrize("direction", ["", "-"])
@pytest.mark.parametrize(
    ("field", "value"), [("name", 1), ("name", True), ("count", "x"), ("score", "x"), ("held", "x")]
)
def test_a_cursor_with_a_text_for_a_number_or_a_number_for_a_text_is_refused(
    direction, field, value
):
    content = {f"{direction}{field}": value} | ({} if field == "name" else {"name": "a"})
    cursor = msgspec.json.encode([",".join(content), list(content.values())])
    encoded = base64.urlsafe_b64encode(cursor).decode().rstrip("=")
    with pytest.raises(Problem, match="the cursor is not one that this listing returned"):
        page(f"sort={direction}{field}&cursor={encoded}")


ANY_ROW = st.fixed_dictionaries(
    {"count": st.integers(0, 3), "score": st.none() | st.floats(0, 2), "held": st.booleans()}
)


@settings(max_examples=100, deadline=None)
@given(
    found=st.lists(ANY_ROW, max_size=20),
    sort=st.sampled_from(["", "count", "-count", "score,-held", "-score", "held,count"]),
    limit=st.integers(1, 7),
)
def test_all_pages_together_are_the_whole_listing(found, sort, limit):
    rows = [{**row, "name": f"{number:02}"} for number, row in enumerate(found)]
    whole = page(f"limit=1000&sort={sort}", rows)
    collected, query = [], f"limit={limit}&sort={sort}"
    while query is not None:
        part = page(query, rows)
        assert part.total == len(rows)
        collected += part.items
        query = part.following and f"limit={limit}&sort={sort}&cursor={part.following}"
    assert collected == whole.items


@settings(max_examples=100, deadline=None)
@given(
    before=st.sets(st.integers(0, 30), min_size=3),
    gone=st.sets(st.integers(0, 30)),
    new=st.sets(st.integers(31, 60)),
    limit=st.integers(1, 5),
)
def test_rows_that_come_and_go_do_not_repeat_or_hide_others(before, gone, new, limit):
    def rows(numbers):
        return [{"name": f"{number:02}"} for number in numbers]

    first = page(f"limit={limit}", rows(before))
    if first.following is None:
        return
    after = (before - gone) | new
    second = page(f"limit=1000&cursor={first.following}", rows(after))
    shown = {row["name"] for row in first.items}
    assert not shown & {row["name"] for row in second.items}
    stayed = {row["name"] for row in rows(before - gone)}
    assert stayed <= shown | {row["name"] for row in second.items}


NONSENSE = {
    "/tasks?phase=runing": "did you mean 'running'?",
    "/tasks?priority=high": "priority is a number, which 'high' is not",
    "/tasks?priority=nan": "priority is a number",
    "/tasks?pool_name=nope": "there is no pool 'nope'",
    "/tasks?node_id=nope": "there is no node 'nope'",
    "/tasks?kind=gange": "did you mean 'gang'?",
    "/queue?held=maybe": "held is yes or no (true or false)",
    "/queue?reason=insuficient_quota": "insufficient_quota",
    "/nodes?cordoned=maybe": "cordoned is yes or no",
    "/audit?outcome=failed": "it may be done, refused, open",
    "/agents?pool=nope": "there is no pool 'nope'",
    "/pools?cohort=nope": "there is no cohort 'nope'",
    "/preemptions?reason=nope": "it may be label_based_preemption",
    "/saved_states?status=gone": "it may be running, preempted, lost",
    "/history?pool_name=nope": "there is no pool 'nope'",
    "/history?state=dead": "state is 'dead'",
    "/events?pool_name=nope": "there is no pool 'nope'",
    "/events?kind=start": "kind is 'start'",
    "/alerts?severity=high": "it may be info, warning, critical",
}


@pytest.mark.parametrize("path", NONSENSE)
def test_a_filter_that_no_row_can_answer_is_refused(mesh, api, path):
    filled(mesh)
    answer = api.get(path, 404 if "there is no" in NONSENSE[path] else 400)
    assert NONSENSE[path] in answer["error"]


def test_what_can_be_but_is_not_there_is_an_empty_page(mesh, api):
    filled(mesh)
    for path in ("/tasks?owner=nope", "/tasks?phase=ending", "/tasks?pool_name=p&priority=77"):
        assert api.get(path)["items"] == []
    assert api.get("/tasks?phase=RUNNING")["total"] == api.get("/tasks?phase=running")["total"] > 0


@pytest.mark.parametrize(
    ("method", "path", "body", "hint"),
    [
        ("PUT", "/pools/p", {"resourcs": {}}, "did you mean 'resources'?"),
        ("PUT", "/pools/p", {"resources": {"gpus": 1}}, "(did you mean 'gpu'?); there are cpu,"),
        ("POST", "/jobs", {"bundles": [{"gpuu": 1}]}, "did you mean 'gpu'?"),
        ("POST", "/jobs", {"prio": 1}, "there are task_id,"),
        ("POST", "/leases", {"groups": [[{"gpuu": 1}]]}, "did you mean 'gpu'?"),
        ("POST", "/tokens", {"rol": "viewer"}, "did you mean 'role'?"),
        ("PATCH", "/queue/x", {"hold": True}, "did you mean 'held'?"),
        ("POST", "/tasks/x/save", {"a": 1}, "there is none"),
        ("PATCH", "/policy", {"kapa": 1}, "kap"),
    ],
)
def test_a_field_that_a_body_does_not_have_is_refused_with_those_it_has(
    mesh, api, method, path, body, hint
):
    answer = api.send(method, path, body, 400)
    assert answer["reason"] == "invalid_request"
    assert hint in answer["error"]


class Compared(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    count = 0

    def __lt__(self, other):
        Compared.count += 1
        return str.__lt__(self, other)

    def __eq__(self, other):
        Compared.count += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("descending", [False, True])
def test_no_portion_of_a_long_listing_takes_more_than_the_others(descending):
    """Neither are the rows sorted when all were looked at, nor from time to time."""
    names = [f"{number * 7919 % 5_000:04}" for number in range(5_000)]
    order = tuple((field, descending) for field in ("a", "b", "c", "name"))
    selection = Selection(PageQuery(order=order, limit=1_000), dict.get)
    counts = []
    for first in range(0, len(names), PORTION):
        before = Compared.count
        selection.add(
            {field: Compared(name if field == "name" else "x") for field, _ in order}
            for name in names[first : first + PORTION]
        )
        counts.append(Compared.count - before)
    before = Compared.count
    items = selection.selected().items
    assert Compared.count == before
    assert [item["name"] for item in items] == sorted(names, reverse=descending)[:1_000]
    # Of four fields, each with the rows that halving meets among a thousand, and with the last one.
    assert max(counts) <= PORTION * 4 * 2 * 12
