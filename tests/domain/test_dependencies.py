"""What a task starts after, as it is written."""

from __future__ import annotations

import pytest

from schedulemesh.domain.dependencies import dependency, parse_after
from schedulemesh.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ("a", ("ok:a",)),
        ("a,any:b, fail:c", ("ok:a", "any:b", "fail:c")),
        (["a,b", "any:b:c"], ("ok:a,b", "any:b:c")),
        (("a", "ok:a"), ("ok:a",)),
        ("ok:any:a", ("ok:any:a",)),
        ("train:7", ("ok:train:7",)),
        ([], ()),
    ],
)
def test_ids_with_and_without_conditions(value, parsed):
    assert parse_after(value) == parsed
    assert parse_after(parsed) == parsed, "what is written is read as it was"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "each task id of after"),
        ("a,,b", "each task id of after"),
        ("any:", "each task id of after"),
        ([3], "after has 3"),
        ({"a": 1}, "a list of task ids"),
        ("a,any:a", "names task 'a' with ok and with any"),
        ([f"t{number}" for number in range(1001)], "names 1,001 tasks"),
    ],
)
def test_what_is_no_list_of_tasks_is_refused(value, words):
    with pytest.raises(InvalidRequestError, match=words):
        parse_after(value)


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "lost"])
def test_conditions(state):
    met = [how for how in ("ok", "any", "fail") if dependency(f"{how}:a").is_met_by(state)]
    assert met == (["ok", "any"] if state == "completed" else ["any", "fail"])
