"""A short drill with a few random kills, and the failure of nodes.

Both run in processes of their own with their own Ray. ``make drill`` is the long form.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.acknowledged import Expected
from tests.integration.drivers import environment_of_another_ray

ROOT = Path(__file__).parents[2]


def run(module, **settings):
    """The output of a program, which must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**environment_of_another_ray(), "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if done.returncode != 0:
        # In a few lines, the last of which says what has failed: Ray reports killed processes in long ones.
        told = [line for line in done.stdout.splitlines() if "(raylet)" not in line]
        pytest.fail("\n".join([done.stderr[-5000:], *told[-30:]]), pytrace=False)
    return done.stdout


def output_of(out):
    """The last line of JSON in the output; Ray's own log lines may follow it."""
    return json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))


def test_a_few_kills_lose_nothing():
    out = run("tests.drills.drill", DRILL_KILLS="6", DRILL_SECONDS="12", DRILL_SEED="14200")
    print(out)
    assert output_of(out)["kills"] > 0


def test_what_is_killed_with_its_node_returns_and_its_record_is_true():
    out = run("tests.drills.node_kills", DRILL_KILLS="2", DRILL_TASKS="2", DRILL_SEED="1")
    print(out)
    if "skipped" in out:
        pytest.skip(out.strip().splitlines()[-1])
    assert sum(output_of(out)["kills"].values()) == 2


@pytest.fixture(scope="module")
def nodes():
    """The results of the program with three nodes."""
    return output_of(run("tests.drills.nodes"))


def test_the_failure_of_a_node_loses_only_unsaved_state(nodes):
    results = nodes["node with agents"]
    assert results["agents"] > 0


def test_callers_learn_that_the_journal_was_lost_with_its_node(nodes):
    who_waited, who_asked, who_attached, who_shut_down = nodes["node with the journal"]["errors"]
    for error in (who_waited, who_asked, who_shut_down):
        assert error.startswith("SchedulerUnavailableError")
        assert "the node that its journal lies on is gone" in error
    assert "no scheduler 'lost' lives" in who_attached


def test_a_scheduler_with_a_database_journal_survives_its_node(nodes):
    results = nodes["node with the supervisor, journal in a database"]
    if "skipped" in results:
        pytest.skip(results["skipped"])
    assert results["late"] != "no answer"


def test_the_expected_state_follows_from_the_log():
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
    assert expected.inconsistencies() == ["c: balance -1"]
    assert expected.policy == 1.5
