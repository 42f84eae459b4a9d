"""Leases in the engine: agents without a process, which hold placement groups."""

from __future__ import annotations

import pytest

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.admission.groups import stays
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Queued, Refused
from schedulemesh.engine.state.groups import GroupPhase
from tests.engine.builders import Mesh, amount, node, pool, shape

TWO = [{"cpu": 1}, {"cpu": 1}]


@pytest.fixture
def mesh():
    """Two nodes with 4 CPUs each, and a pool of 8."""
    return Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=4)])


def request(mesh, name="l", bundles=None, **how):
    lease = LeasePayload(parts=how.pop("parts", 1), strategy=how.pop("strategy", ""))
    return mesh.submit(name, bundles=bundles or TWO, payload=lease, **how)


def granted(mesh, name="l", **how):
    """A lease that is granted; its group."""
    assert isinstance(request(mesh, name, **how), Pending)
    mesh.make_all()
    outcome = mesh.report(name)
    assert isinstance(outcome, Accepted)
    return mesh.state.groups.by_id[outcome.group_id]


def test_a_lease_holds_the_quota_and_the_nodes_of_its_groups(mesh):
    group = granted(mesh, parts=2, bundles=[{"cpu": 2}, {"cpu": 2}], strategy="STRICT_PACK")
    assert (group.shape.parts, group.phase, group.agent) == (2, GroupPhase.READY, "l")
    assert mesh.state.ledger.accounts["p"].used == amount(cpu=4)
    assert sum(n.free.cpu for n in mesh.state.cluster.nodes.values()) == amount(cpu=4).cpu


def test_groups_that_are_parts_of_one_are_not_those_of_a_single_group(mesh):
    keeping = Mesh(
        pool("p", cpu=8, groups=GroupsSpec(reserved=(shape(*TWO),), max_dynamic=3)),
        nodes=[node("a", cpu=4), node("b", cpu=4)],
    )
    keeping.make_all()
    assert granted(keeping, "one", priority=9.0, strategy="STRICT_PACK").reserved
    keeping.handle(s.TaskFinished(task_id="one", end_agent=True))
    keeping.handle(s.AgentGone(agent_name="one", incarnation=keeping.ends["one"].incarnation))
    assert not granted(keeping, "two", priority=9.0, parts=2, strategy="STRICT_PACK").reserved


def test_a_released_lease_frees_its_quota_once_it_has_ended(mesh):
    group = granted(mesh)
    mesh.handle(s.TaskFinished(task_id="l", end_agent=True))
    assert mesh.state.ledger.accounts["p"].used == amount(cpu=2)
    mesh.handle(s.AgentGone(agent_name="l", incarnation=mesh.ends["l"].incarnation))
    assert not mesh.state.ledger.accounts["p"].used
    assert group.group_id in mesh.removes


def test_an_evicted_lease_is_not_submitted_again(mesh):
    granted(mesh, priority=1.0, bundles=[{"cpu": 3}, {"cpu": 3}])
    mesh.policy(preemption_grace_s=47.0)
    assert isinstance(mesh.submit("urgent", priority=9.0, cpu=4), Pending)
    assert mesh.ends["l"].grace_s == 47.0
    mesh.handle(s.AgentGone(agent_name="l", incarnation=mesh.ends["l"].incarnation))
    assert mesh.state.ended["l"].reason == "preempted"
    assert not mesh.waiting()


def test_the_group_of_a_victim_is_kept_for_a_lease_of_the_same_shape(mesh):
    group = granted(mesh, priority=1.0, bundles=[{"cpu": 4}, {"cpu": 4}])
    agent = mesh.state.agents["l"]
    assert not stays(mesh.state, agent)
    assert isinstance(request(mesh, "next", priority=9.0, bundles=[{"cpu": 4}] * 2), Pending)
    assert group.promised_to == "next"
    assert stays(mesh.state, agent)


def test_the_group_of_a_pool_that_reuses_groups_stays(mesh):
    keeping = Mesh(pool("p", cpu=8, groups=GroupsSpec(max_dynamic=1)), nodes=[node("a", cpu=4)])
    granted(keeping)
    keeping.handle(s.TaskFinished(task_id="l", end_agent=True))
    assert stays(keeping.state, keeping.state.agents["l"])


def test_a_lease_whose_group_is_lost_is_lost_with_it(mesh):
    group = granted(mesh)
    mesh.handle(s.GroupGone(group_id=group.group_id))
    mesh.handle(s.AgentGone(agent_name="l", incarnation=mesh.ends["l"].incarnation))
    assert mesh.state.ended["l"].state == "lost"
    refused = mesh.handle(s.RebuildRequested(agent_name="l")).outcome
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NOT_RESTARTABLE
    assert "its holder asks for another" in refused.error


def test_a_lease_waits_in_the_queue_and_is_granted_from_it(mesh):
    granted(mesh, "first", priority=5.0, bundles=[{"cpu": 4}, {"cpu": 4}])
    lease = LeasePayload()
    outcome = mesh.queue("second", bundles=TWO, payload=lease)
    assert isinstance(outcome, Queued)
    mesh.change("second", held=True)
    mesh.change("second", held=False)
    mesh.handle(s.TaskFinished(task_id="first", end_agent=True))
    mesh.handle(s.AgentGone(agent_name="first", incarnation=mesh.ends["first"].incarnation))
    for group_id in list(mesh.removes):
        mesh.remove(group_id)
    mesh.make_all()
    assert "second" in mesh.starts


@pytest.mark.parametrize("reason", [TaskEndReason.HOLDER_ENDED, TaskEndReason.EXPIRED])
def test_the_record_says_why_a_lease_was_ended(mesh, reason):
    granted(mesh)
    mesh.cancel("l", reason=reason, error="a sentence")
    ended = mesh.state.ended["l"]
    assert (ended.state, ended.reason, ended.error) == ("cancelled", reason, "a sentence")
    assert "l" in mesh.ends


def test_a_lease_in_the_queue_whose_holder_has_ended_is_cancelled(mesh):
    granted(mesh, "first", bundles=[{"cpu": 4}, {"cpu": 4}])
    mesh.queue("second", bundles=TWO, payload=LeasePayload(holder_job="01"))
    mesh.cancel("second", reason=TaskEndReason.HOLDER_ENDED, error="job 01 has ended")
    assert not mesh.waiting()
    assert mesh.state.ended["second"].error == "job 01 has ended"


def test_the_explanation_says_what_kind_of_task_it_is(mesh):
    granted(mesh, bundles=[{"cpu": 4}, {"cpu": 4}])
    mesh.queue("waits", bundles=TWO, payload=LeasePayload())
    mesh.queue("agent", cpu=2)

    def kinds():
        found = {t: mesh.engine.explain(t, mesh.now) for t in ("l", "waits", "agent")}
        return {task_id: (one.kind, one.state) for task_id, one in found.items()}

    assert kinds() == {
        "l": ("lease", "running"),
        "waits": ("lease", "queued"),
        "agent": ("agent", "queued"),
    }
    mesh.cancel("waits")
    mesh.cancel("l", reason=TaskEndReason.HOLDER_ENDED, error="its job has ended")
    mesh.cancel("agent")
    assert kinds() == {
        "l": ("lease", "cancelled"),
        "waits": ("lease", "cancelled"),
        "agent": ("agent", "cancelled"),
    }


def test_a_recovered_lease_stays_as_it_is(mesh):
    group = granted(mesh)
    incarnation = mesh.state.agents["l"].incarnation
    mesh.handle(
        s.RecoveryObserved(
            living=frozenset({("l", incarnation)}), groups=frozenset({group.group_id})
        )
    )
    assert mesh.state.agents["l"].phase.value == "running"
    assert not mesh.ends
