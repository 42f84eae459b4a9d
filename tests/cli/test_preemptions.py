"""The table of preemptions keeps every fact readable on a narrow terminal."""

from __future__ import annotations

import pytest

from schedulemesh.cli.command import Output
from schedulemesh.cli.output import emit
from schedulemesh.cli.preemptions import preemption_listing, rounded_score

ROW = {
    "timestamp": 1_700_000_000.0,
    "task_id": "train-7b",
    "owner": "ada",
    "pool_name": "research",
    "priority": 1.0,
    "reason": "cross_pool_preemption",
    "preempt_score": 8.25,
    "state_saved": True,
    "evictor": {
        "task_id": "serve-now",
        "agent_name": "serve-agent",
        "pool_name": "serving",
        "owner": "bob",
        "priority": 9.0,
    },
    "requested_by": None,
    "lost_work": 12.0,
    "lost_gpu_seconds": 96.0,
    "time_to_evicted": 2.0,
    "time_to_freed": 2.5,
    "time_to_start": 4.25,
    "used": True,
    "requeued": True,
    "time_to_run_again": None,
    "idle_since": None,
}


@pytest.fixture
def shown(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def show(*rows):
        emit(preemption_listing(list(rows)), Output())
        return capsys.readouterr().out

    return show


def test_both_owners_see_who_why_and_what_it_cost_in_80_columns(shown):
    text = shown(ROW)
    assert max(map(len, text.splitlines())) <= 80
    for words in ("train-7b", "ada in", "research", "serve-now", "bob in", "serving"):
        assert words in text
    for words in ("cross_pool", "score 8.25", "12s", "96 GPU-s", "free after", "requeued"):
        assert words in text


def test_a_score_has_as_many_digits_as_explain_says(shown):
    assert "score 32.9 " in shown({**ROW, "preempt_score": 32.9022204161})
    assert [rounded_score(score) for score in (32.9022204161, 2763.4, 8.0, None)] == [
        "32.9",
        "2763",
        "8",
        "-",
    ]


def test_one_by_request_that_is_in_progress(shown):
    text = shown(
        {
            **ROW,
            "evictor": None,
            "requested_by": "host:7",
            "preempt_score": None,
            "reason": "manual",
            "time_to_evicted": None,
            "time_to_freed": None,
            "time_to_start": None,
            "used": None,
            "requeued": False,
        }
    )
    for words in ("requested", "host:7", "being", "evicted", "manual"):
        assert words in text


@pytest.mark.parametrize(
    ("reason", "client", "english", "chinese"),
    [
        ("time_limit", None, "by its limit", "因时限"),
        ("idle_limit", None, "by its limit", "因时限"),
        ("for_window", "window course", "for a window\ncourse", "因维护或预留窗口\ncourse"),
        ("drained", "host:7", "for a drain\nhost:7", "因排空\nhost:7"),
        ("drained", None, "for a drain", "因排空"),
        ("called_back", None, "as lent quota was called back", "因出借的配额被收回"),
        ("manual", None, "by request", "应人工请求"),
        ("manual", "host:7", "requested by host:7", "由 host:7 请求"),
        ("same_pool_preemption", None, "by request", "应人工请求"),
    ],
)
def test_what_was_evicted_for_no_task_says_why(reason, client, english, chinese, monkeypatch):
    row = {**ROW, "evictor": None, "reason": reason, "requested_by": client}
    shows = next(
        column.show for column in preemption_listing([row]).columns if column.heading == "for"
    )
    for language, text in (("en", english), ("zh", chinese)):
        monkeypatch.setenv("SCHEDULEMESH_LANG", language)
        assert shows(row) == text


def test_what_was_freed_in_vain_is_said(shown):
    text = shown({**ROW, "used": False, "time_to_start": None, "time_to_run_again": 70.0})
    assert "not used" in text
    assert "ran again" in text
