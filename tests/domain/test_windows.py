"""Times with their offset from UTC, and what a maintenance window may be."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from schedulemesh.api.windows import CreateWindow
from schedulemesh.domain.windows import parse_instant
from schedulemesh.errors import InvalidRequestError

AT = datetime(2026, 12, 5, 21, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("2026-12-05T21:00Z", 0),
        ("2026-12-05 21:00:00+00:00", 0),
        ("2026-12-05T22:00+01:00", 60),
        (" 2026-12-06T05:00:00+08:00 ", 480),
        ("2026-12-05T14:30-06:30", -390),
    ],
)
def test_a_time_has_its_offset(text, offset):
    assert parse_instant(text, "start") == (AT, offset)


@pytest.mark.parametrize(
    "value",
    ["", "2026-12-05", "2026-12-05T22:00", "22:00+01:00", "2026-13-05T22:00Z", "1h", AT, None, "Z"],
)
def test_anything_else_is_refused(value):
    with pytest.raises(InvalidRequestError, match="start is"):
        parse_instant(value, "start")


_FOR_P = {"pools": ("p",), "all_nodes": False}


def request(**how):
    fields = {"start": "2026-12-05T21:00Z", "duration_s": 60.0, "all_nodes": True, **how}
    return CreateWindow(name="w", client="me", **fields)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"all_nodes": False}, "give one of the three"),
        ({"nodes": ("a",)}, "give one of the three"),
        ({"resources": {"gpu": 8}, "pools": ("p",)}, "leave out nodes and all_nodes"),
        ({"resources": {"gpu": 8}, "all_nodes": False}, "give pools, owners or labels"),
        ({"resources": {"gpu": 8, "cpu": 1}, **_FOR_P}, "an amount of one kind"),
        ({"resources": {}, **_FOR_P}, "an amount of one kind"),
        ({"resources": {"gpus": 8}, **_FOR_P}, "gpu"),
        ({"resources": {"gpu": -1}, **_FOR_P}, "gpu"),
        ({"resources": {"gpu@h100": 8}, **_FOR_P}, "choose the nodes by node_labels"),
        ({"repeat": "yearly"}, "repeat is 'yearly'; allowed are 'daily', 'weekly'"),
        ({"repeat": "daily", "duration_s": 86_400.0}, "would be open for ever"),
        ({"duration_s": 0.0}, "duration must be"),
        ({"notice_s": -1.0}, "notice"),
        ({"comment": "a\nb"}, "comment"),
        ({"all_nodes": False, "node_labels": {"rack": "!"}}, "node_labels"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(how, error):
    with pytest.raises(InvalidRequestError, match=error):
        request(**how)


def test_a_window_is_what_was_asked_for():
    window = request(all_nodes=False, node_labels={"rack": "r1"}, repeat="weekly").window
    assert (window.start, window.utc_offset, window.period_s) == (AT, 0, 7 * 86_400)
    assert window.node_labels == (("rack", "r1"),)


def test_a_window_reserves_an_amount_on_nodes_with_labels():
    window = request(resources={"gpu": 8}, node_labels={"model": "H100"}, **_FOR_P).window
    assert (str(window.resources), window.node_labels) == ("gpu 8", (("model", "H100"),))
    assert window.is_amount
    assert not request().window.is_amount
