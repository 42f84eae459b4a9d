"""Rows are filtered, sorted and cut into pages; pages neither repeat nor leave out rows that stay."""

from __future__ import annotations

from typing import TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from schedulemesh.server.listings import page_of, scalar_fields
from schedulemesh.server.problems import Problem


class Row(TypedDict, total=False):
    name: str
    count: int
    score: float | None
    held: bool
    labels: dict[str, str]
    more: list[str]


ROWS = [
    {"name": "a", "count": 3, "score": 0.5, "held": False, "labels": {"team": "x"}},
    {"name": "b", "count": 1, "score": None, "held": True, "labels": {"team": "y"}},
    {"name": "池", "count": 2, "score": 1.5, "held": False, "labels": {}},
]


def page(query, rows=ROWS):
    return page_of(rows, Row, ("name",), QueryParams(query))


def names(query):
    return [row["name"] for row in page(query).items]


def test_only_fields_with_one_value_select_rows():
    assert scalar_fields(Row) == {"name": str, "count": int, "score": float, "held": bool}


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
        "count=x",
        "count=1e999",
        "held=yes",
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
