"""The drill in short: some kills of every run's own choosing, and the death of nodes.

Both are programs of their own, beside this run's Ray. ``make drill`` is the long form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.acknowledged import Expected

ROOT = Path(__file__).parents[2]


def run(module, **settings):
    """What the program printed; it must end well."""
    # A Ray of its own: neither this run's address nor its token.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def told_by(out):
    """The program's last line of JSON; Ray's own log lines may come after it, on the same stream."""
    return json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))


def test_a_few_kills_lose_nothing():
    out = run("tests.drills.drill", DRILL_KILLS="6", DRILL_SECONDS="12")
    print(out)
    assert told_by(out)["kills"] > 0


@pytest.fixture(scope="module")
def nodes():
    """What the program of three nodes told."""
    return told_by(run("tests.drills.nodes"))


def test_a_node_that_dies_takes_nothing_with_it_but_what_was_not_saved(nodes):
    told = nodes["node with agents"]
    assert told["agents"] > 0
    assert told["off_the_book_s"] < 10.0


def test_a_scheduler_whose_journal_died_with_its_node_says_so(nodes):
    who_waited, who_asked, who_attached, who_shut_down = nodes["node with the journal"]["told"]
    for told in (who_waited, who_asked, who_shut_down):
        assert told.startswith("SchedulerUnavailableError")
        assert "the node that its journal lies on is gone" in told
    assert "no scheduler 'lost' lives" in who_attached


def test_a_scheduler_whose_journal_is_in_a_database_serves_on(nodes):
    told = nodes["node with the supervisor, journal in a database"]
    if "skipped" in told:
        pytest.skip(told["skipped"])
    assert told["served_s"] < 30.0


def test_the_log_tells_what_must_be_there():
    lines = [
        {"what": "submitted", "task": "a"},
        {"what": "submitted", "task": "b"},
        {"what": "evicted", "task": "b"},
        {"what": "saved", "task": "a", "count": 2},
        {"what": "saved", "task": "a", "count": 1},
        {"what": "completed", "task": "c"},
        {"what": "policy", "value": 1.5},
    ]
    expected = Expected(lines)
    assert expected.tasks == {"a"}
    assert expected.evicted == {"b"}
    assert expected.saved == {"a": 2}
    assert expected.nonsense() == ["c: balance -1"]
    assert expected.policy == 1.5
