"""The actors of an agent are named when it is admitted, and its fact says how."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.actor_names import ActorName, ActorNames
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentAdmitted
from tests.engine.builders import Mesh, differences, node, pool

NAMES = ActorNames(scheduler="a:b", namespace="space")


@pytest.fixture
def mesh():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("n1", cpu=8)])
    mesh.handle(s.SupervisorBegan(epoch=1, actor_names=NAMES))
    return mesh


def submit(mesh, name, options="{}", **how):
    submission = mesh.submission(name, **how)
    agent = msgspec.structs.replace(submission.agent, options=options)
    mesh.handle(msgspec.structs.replace(submission, agent=agent))
    (admitted,) = [f for f in mesh.facts if isinstance(f, AgentAdmitted) and f.agent.name == name]
    assert mesh.state.agents[name].actors == admitted.actors
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []
    return [actor.address for actor in admitted.actors]


def gang(size, **fields):
    return {"bundles": [{"cpu": 1}] * size, "payload": GangPayload(**fields)}


def test_the_members_of_a_gang_are_named_after_the_scheduler_and_the_gang(mesh):
    assert submit(mesh, "g", **gang(2)) == [
        ("space", "schedulemesh:a%3Ab:g-0#1"),
        ("space", "schedulemesh:a%3Ab:g-1#1"),
    ]
    mesh.make_all()
    assert [actor.namespace for actor in mesh.starts["g"].actors] == ["space", "space"]


def test_or_after_the_name_that_the_user_has_chosen(mesh):
    options = '{"name": "mine", "namespace": "other", "runtime_env": {"env_vars": {}}}'
    assert submit(mesh, "g", options, **gang(2)) == [("other", "mine-0"), ("other", "mine-1")]


def test_a_single_process_is_named_only_where_the_user_has_chosen_its_name(mesh):
    assert submit(mesh, "a", cpu=1) == []
    assert submit(mesh, "b", '{"name": "mine"}', cpu=1) == [("space", "mine")]
    assert NAMES.of_process("a", 1) == ActorName(namespace="space", name="schedulemesh:a%3Ab:a#1")


def test_extra_members_of_an_elastic_gang_go_on_counting(mesh):
    submit(mesh, "g", '{"name": "mine"}', **gang(2, replicas=4))
    mesh.make_all()
    mesh.report("g")
    mesh.tick(1.0)
    names = [mesh.starts[name].actors[0].name for name in ("g-2", "g-3")]
    assert names == ["mine-2", "mine-3"]
