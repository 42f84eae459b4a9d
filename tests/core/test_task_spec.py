"""A field of TaskSpec is shown by every listing and given to every handler without code of its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray import cloudpickle

from schedulemesh.api.results import CandidateInfo
from schedulemesh.api.tasks import TaskInfo
from schedulemesh.core.agent import user_workers
from schedulemesh.core.transport.user_code import ship_function
from schedulemesh.domain.saved_state import SavedState, public_state
from schedulemesh.domain.task import FIELDS, INTERNAL, TaskSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.protocol.agents import Handled, pack, unpack
from schedulemesh.protocol.public import candidate
from schedulemesh.runtime.queries import StateView, saved_state
from tests.api.written_parts import value_of
from tests.engine.builders import Mesh, pool

SPEC = TaskSpec(
    **{
        name: tuple(value) if isinstance(value := value_of(name), list) else value
        for name, field in FIELDS.items()
        # A parent is a task that runs.
        if field.shown and name != "parent"
    }
)
#: As rows have it, in which sequences are lists.
SHOWN = {
    name: list(value) if isinstance(value := getattr(SPEC, name), tuple) else value
    for name in TaskSpec.__struct_fields__
    if name not in INTERNAL
}


def as_in_spec(row):
    return {name: row.get(name) for name in SHOWN}


def view(mesh):
    metrics = SimpleNamespace(newest_of=lambda _agent: {})
    usage = SimpleNamespace(newest_of=lambda _agent, _now: None)
    agents = SimpleNamespace(metrics=metrics, usage=usage, handle=lambda *_: None)
    return StateView(mesh.state, agents, SimpleNamespace(), mesh.now)


@pytest.fixture
def mesh():
    """The task runs, registered on an agent that runs."""
    mesh = Mesh(pool("p", cpu=4))
    mesh.run("agent", task=False, cpu=1)
    assert mesh.handle(s.TaskAnnounced(task=SPEC, agent_name="agent")).outcome is not None
    return mesh


def test_the_lists_of_tasks_and_agents(mesh):
    task = view(mesh).running_task(mesh.state.running.by_id[SPEC.task_id])
    assert as_in_spec(task) == SHOWN
    agent = view(mesh).agent(*view(mesh).agents())
    assert agent["tasks"] == [SPEC.task_id]
    assert agent["task_details"] == [{**SHOWN, "priority_class": None}]


def test_saved_states_and_recent_preemptions(mesh):
    mesh.handle(s.StateStored(task_id=SPEC.task_id, state_key="k"))
    running = saved_state(*view(mesh).saved_states())
    assert running == {**SHOWN, "priority_class": None, "status": "running", "state_saved": True}
    mesh.preempt(task_id=SPEC.task_id)
    mesh.handle(s.CancelAnswered(task_id=SPEC.task_id, cancel_success=True))
    preempted = saved_state(*view(mesh).saved_states())
    assert preempted == {
        **SHOWN,
        "priority_class": None,
        "status": "preempted",
        "state_saved": True,
    }
    (record,) = view(mesh).preemption_stats()["recent_preemptions"]
    assert as_in_spec(record) == SHOWN


def test_candidates_of_a_preemption(mesh):
    query = PreemptionQuery(priority=100.0, pool_name="p")
    (found,) = mesh.engine.evaluate(query, mesh.now).candidates
    assert as_in_spec(candidate(found)) == SHOWN


def test_the_saved_state_and_what_a_preserver_gets():
    saved = SavedState(task=SPEC, agent_name="agent", source="payload", saved_at=0.0)
    assert as_in_spec(public_state(saved, cloudpickle.loads)) == SHOWN

    def fields_of(state):
        return vars(state)

    handler = ship_function(fields_of, "preserver")
    handled = unpack(user_workers.preserve(handler, pack(saved), 0.0, 10_000), Handled)
    assert handled.error == ""
    assert as_in_spec(cloudpickle.loads(handled.data)) == SHOWN


def test_the_public_types_name_every_field():
    for kind in (TaskInfo, CandidateInfo):
        assert set(SHOWN) <= set(kind.__annotations__)
