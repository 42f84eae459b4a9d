"""The progress of tasks that a caller waits for."""

from __future__ import annotations

import io

from rich.console import Console

from schedulemesh.client.progress import NoDisplay, counted, display


def shown(**console):
    """What is shown of two tasks that end one after the other."""
    out = io.StringIO()
    with display(2, "ended", Console(file=out, width=120, **console)) as progress:
        progress.show(["running", "running"], 0)
        progress.show(["running", "running"], 0)
        progress.show(["completed", "running"], 1)
        progress.show(["completed", "failed"], 2)
    return out.getvalue()


def test_lines_where_there_is_no_terminal_one_for_each_change():
    assert shown().splitlines() == [
        "0 of 2 tasks ended: 2 running",
        "1 of 2 tasks ended: 1 completed, 1 running",
        "2 of 2 tasks ended: 1 completed, 1 failed",
    ]


def test_a_bar_on_a_terminal():
    text = shown(force_terminal=True)
    assert "2/2" in text
    assert "1 completed, 1 failed" in text


def test_nothing_where_none_is_wanted():
    with NoDisplay() as progress:
        progress.show(["running"], 0)
    assert counted([]) == ""
