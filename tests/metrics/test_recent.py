"""The values that alert rules compare: recent preemptions, what is in progress, lost states."""

from __future__ import annotations

import pytest

from schedulemesh.metrics import recent
from schedulemesh.metrics.reactor_times import ReactorTimes
from tests.engine.builders import Mesh, pool
from tests.metrics.metered import values

#: Seconds.
RECENT_S = 300.0


@pytest.fixture
def mesh():
    return Mesh(pool("p", cpu=2), pool("idle", cpu=1))


def found(mesh, name):
    """A value of each pool."""
    shown = values(recent.families(mesh.state, mesh.now, RECENT_S))
    return {key[1]: value for key, value in shown.items() if key[0] == f"schedulemesh_{name}"}


def test_a_preemption_in_progress_then_a_recent_one_then_none(mesh):
    mesh.run("low", priority=1.0, cpu=2)
    assert found(mesh, "recent_preemptions") == {"p": 0, "idle": 0}
    mesh.submit("high", priority=9.0, cpu=2)
    mesh.tick(3.0)
    assert found(mesh, "preemption_oldest_seconds") == {"p": 3, "idle": 0}
    assert found(mesh, "admission_oldest_seconds") == {"p": 3, "idle": 0}
    assert found(mesh, "recent_preemptions") == {"p": 0, "idle": 0}
    mesh.slot("high")
    assert found(mesh, "preemption_oldest_seconds") == {"p": 0, "idle": 0}
    assert found(mesh, "admission_oldest_seconds") == {"p": 0, "idle": 0}
    mesh.tick(RECENT_S)
    assert found(mesh, "recent_preemptions") == {"p": 1, "idle": 0}
    mesh.tick(1.0)
    assert found(mesh, "recent_preemptions") == {"p": 0, "idle": 0}


def test_a_task_that_is_lost_without_a_saved_state_has_lost_its_work(mesh):
    mesh.run("unsaved", cpu=1)
    mesh.run("saved", cpu=1)
    mesh.save("saved")
    mesh.die("unsaved")
    mesh.die("saved")
    assert found(mesh, "recent_lost_states") == {"p": 1, "idle": 0}
    mesh.tick(RECENT_S + 1.0)
    assert found(mesh, "recent_lost_states") == {"p": 0, "idle": 0}


def test_the_first_supervisor_has_no_restart_age():
    assert values([recent.restart_age(1, 5.0)]) == {}
    assert values([recent.restart_age(2, 5.0)]) == {
        ("schedulemesh_supervisor_restart_age_seconds",): 5
    }


def test_errors_of_the_journal_are_recent():
    times = ReactorTimes()
    assert values(times.families())[("schedulemesh_recent_journal_errors",)] == 0
    times.failed()
    times.healed()
    shown = values(times.families())
    assert shown[("schedulemesh_recent_journal_errors",)] == 1
    assert shown[("schedulemesh_journal_writable",)] == 1
