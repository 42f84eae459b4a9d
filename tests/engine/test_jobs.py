"""Jobs: claims that are held in the state alone, on one node or over several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.domain.end_reasons import EndReason, TaskEndReason
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.placement import GroupsSpec, InGroup, OnNode
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, sum_of
from schedulemesh.domain.task import EndState
from schedulemesh.engine.admission.needs import divided
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Refused
from schedulemesh.engine.state.agents import Running, Waiting
from tests.engine.builders import Mesh, amount, differences, node, pool

JOB = JobPayload()
GPUS = {"cpu": 8, "gpu": 4}


@pytest.fixture
def mesh():
    """Two nodes with 4 GPUs each."""
    return Mesh(pool("p", cpu=16, gpu=8), nodes=[node("n1", **GPUS), node("n2", **GPUS)])


def started(mesh, name="j", **how):
    outcome = mesh.submit(name, payload=JOB, **how)
    assert isinstance(outcome, Pending), outcome
    mesh.make_all()
    assert isinstance(mesh.report(name), Accepted)
    return mesh.state.agents[name]


def group_of(mesh, agent):
    return mesh.state.groups.by_id[agent.group_id]


def test_a_job_that_fits_on_a_node_claims_it_there(mesh):
    agent = started(mesh, cpu=8, gpu=4)
    assert isinstance(agent.place, OnNode)
    assert not mesh.state.groups.by_id


def test_a_job_that_no_node_can_hold_claims_a_part_for_each_gpu_on_several(mesh):
    agent = started(mesh, cpu=12, gpu=6)
    group = group_of(mesh, agent)
    assert group.shape.virtual
    assert group.shape.bundles == (amount(cpu=2, gpu=1),) * 6
    assert set(group.node_ids) == {"n1", "n2"}
    assert isinstance(agent.place, InGroup)
    free = [found.free for found in mesh.state.cluster.nodes.values()]
    assert sum_of(free) == amount(cpu=4, gpu=2)


def test_the_virtual_group_of_a_job_is_not_a_group_of_its_pool():
    mesh = Mesh(pool("p", cpu=16, groups=GroupsSpec(max_dynamic=1)), nodes=[node("n1", cpu=8)])
    started(mesh, cpu=2, bundles=[{"cpu": 1}, {"cpu": 1}])
    table = mesh.state.groups
    assert (table.dynamic_count("p"), table.count("p")) == (0, 0)
    assert table.counts["p"].created == 0
    assert isinstance(mesh.submit("a", cpu=2), Pending), "the one dynamic group is left for it"
    mesh.make_all()
    assert mesh.report("a").group_path == "created"
    assert (table.dynamic_count("p"), table.counts["p"].created) == (1, 1)


def test_evicting_a_job_does_not_make_one_group_less(mesh):
    mesh = Mesh(pool("p", cpu=16, groups=GroupsSpec(max_dynamic=1)), nodes=[node("n1", cpu=8)])
    started(mesh, priority=1.0, bundles=[{"cpu": 2}, {"cpu": 2}])
    mesh.submit("held", cpu=2, priority=9.0)
    mesh.make_all()
    mesh.report("held")
    assert isinstance(mesh.submit("next", cpu=2, priority=9.0), Refused)
    assert not mesh.ends


def test_a_job_without_gpus_is_divided_by_its_cpus(mesh):
    group = group_of(mesh, started(mesh, cpu=10))
    assert group.shape.bundles == (amount(cpu=1),) * 10


def test_the_parts_of_a_job_may_be_given(mesh):
    group = group_of(mesh, started(mesh, bundles=[{"gpu": 3}, {"gpu": 3}]))
    assert (group.shape.bundles, sorted(group.node_ids)) == ((amount(gpu=3),) * 2, ["n1", "n2"])


def test_the_parts_of_a_job_are_placed_as_it_says(mesh):
    for strategy, nodes in (("SPREAD", {"n1", "n2"}), ("PACK", {"n1"}), ("STRICT_PACK", {"n1"})):
        job = JobPayload(strategy=strategy)
        outcome = mesh.submit(strategy, payload=job, bundles=[{"gpu": 1}, {"gpu": 1}])
        assert isinstance(outcome, Pending), outcome
        group = group_of(mesh, mesh.state.agents[strategy])
        assert (group.shape.strategy, set(group.node_ids)) == (strategy, nodes)
        assert group.shape.virtual
        mesh.make_all()
        mesh.report(strategy)
        mesh.complete(strategy)
        mesh.remove(*mesh.removes)


def test_a_job_that_says_only_how_its_parts_are_placed_has_one_for_each_gpu(mesh):
    assert isinstance(
        mesh.submit("j", payload=JobPayload(strategy="SPREAD"), cpu=8, gpu=4), Pending
    )
    group = group_of(mesh, mesh.state.agents["j"])
    assert group.shape.bundles == (amount(cpu=2, gpu=1),) * 4
    assert sorted(group.node_ids) == ["n1", "n1", "n2", "n2"]


def test_parts_that_no_nodes_can_hold_as_they_are_to_be_placed_are_refused(mesh):
    job = JobPayload(strategy="STRICT_SPREAD")
    refused = mesh.submit("j", payload=job, bundles=[{"gpu": 1}] * 3)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES


def test_jobs_that_differ_in_how_they_are_placed_wait_apart(mesh):
    """One that does not fit says nothing about the other."""
    for name in ("a", "b", "c", "d"):
        mesh.run(name, gpu=2)
    on_node = {mesh.state.agents[name].node_id: name for name in ("a", "b", "c", "d")}
    parts, queued = [{"gpu": 2}] * 2, {"queue": True}
    mesh.submit("packed", payload=JobPayload(strategy="STRICT_PACK"), bundles=parts, more=queued)
    mesh.submit("spread", payload=JobPayload(strategy="STRICT_SPREAD"), bundles=parts, more=queued)
    for name in on_node.values():
        mesh.complete(name)
    assert mesh.waiting() == ["packed"]


def free_gpus(mesh):
    """The free GPUs of each node."""
    return {node_id: found.free.gpu / UNIT for node_id, found in mesh.state.cluster.nodes.items()}


def uses(node_id, **external):
    """The report of a node on which other work uses so much."""
    return node(node_id, others=amount(**external), **GPUS)


@pytest.fixture
def elsewhere(mesh):
    """A job that claims 2 GPUs on one node, whose work Ray has placed on the other one; and both nodes."""
    here = started(mesh, cpu=2, gpu=2).node_id
    there = "n2" if here == "n1" else "n1"
    mesh.observe(node(here, **GPUS), uses(there, cpu=2, gpu=2))
    assert free_gpus(mesh) == {here: 2, there: 2}
    return here, there


def test_the_claim_of_a_job_follows_its_work_to_another_node(mesh, elsewhere):
    here, there = elsewhere
    mesh.find_work("j", {there: amount(cpu=2, gpu=2)})
    assert free_gpus(mesh) == {here: 4, there: 2}
    assert mesh.state.cluster.nodes[there].external_usage == NOTHING
    agent = mesh.state.agents["j"]
    assert (agent.node_id, group_of(mesh, agent).node_ids) == (here, (there,))
    assert isinstance(mesh.submit("next", cpu=1, gpu=4), Pending)
    assert mesh.state.agents["next"].node_id == here


def test_a_part_of_the_claim_follows_a_part_of_the_work(mesh, elsewhere):
    here, there = elsewhere
    mesh.find_work("j", {here: amount(cpu=1, gpu=1), there: amount(cpu=1, gpu=1)})
    assert free_gpus(mesh) == {here: 3, there: 2}
    mesh.find_work("j", {here: amount(cpu=2, gpu=2)})
    assert free_gpus(mesh) == {here: 2, there: 3}


def test_a_claim_that_has_moved_ends_with_its_job(mesh, elsewhere):
    here, there = elsewhere
    mesh.find_work("j", {there: amount(cpu=2, gpu=2)})
    mesh.complete("j")
    mesh.remove(*mesh.removes)
    assert mesh.state.groups.by_id == {}
    assert free_gpus(mesh) == {here: 4, there: 4}


def test_a_claim_neither_grows_nor_shrinks_as_it_moves(mesh, elsewhere):
    here, there = elsewhere
    for claims in ({there: amount(cpu=2, gpu=3)}, {there: amount(cpu=1, gpu=1)}, {"n9": NOTHING}):
        mesh.find_work("j", claims)
        assert free_gpus(mesh) == {here: 2, there: 2}


def test_a_claim_moves_to_no_node_without_room_for_it(mesh, elsewhere):
    """What is external usage there is the work; more of the room than that may be another's."""
    here, there = elsewhere
    mesh.observe(node(here, **GPUS), uses(there, gpu=1))
    mesh.run("other", gpu=3)
    assert mesh.state.agents["other"].node_id == there
    mesh.find_work("j", {there: amount(cpu=2, gpu=2)})
    assert free_gpus(mesh) == {here: 2, there: 0}


def test_the_claim_of_a_job_that_is_being_evicted_stays(mesh, elsewhere):
    here, there = elsewhere
    mesh.submit("high", priority=9.0, gpu=4)
    assert mesh.ends.keys() == {"j"}
    mesh.find_work("j", {there: amount(cpu=2, gpu=2)})
    assert mesh.state.agents["j"].node_id == here
    assert not mesh.state.groups.by_id


def test_a_job_is_lost_with_the_node_of_its_claim_only(mesh, elsewhere):
    here, there = elsewhere
    mesh.find_work("j", {there: amount(cpu=2, gpu=2)})
    mesh.observe(node(there, **GPUS))
    assert not mesh.ends
    mesh.observe(node(here, **GPUS))
    assert mesh.ends.keys() == {"j"}


def test_a_drained_node_is_left_also_by_a_job_with_nothing_but_its_runner_there(mesh, elsewhere):
    here, there = elsewhere
    mesh.find_work("j", {there: amount(cpu=2, gpu=2)})
    mesh.handle(s.DrainRequested(node_id=here, drained=True, client="me"))
    assert mesh.ends.keys() == {"j"}


def test_a_claim_that_has_moved_is_the_same_after_the_journal_and_a_snapshot(mesh, elsewhere):
    mesh.find_work("j", {elsewhere[1]: amount(cpu=2, gpu=2)})
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


@pytest.fixture
def adopted(mesh):
    """A job that somebody else has started, on both nodes, which are full of other work."""
    mesh.observe(*(uses(node_id, **GPUS) for node_id in ("n1", "n2")))
    how = {"payload": JobPayload(adopts="01"), "more": {"choose_node": False}}
    assert isinstance(mesh.submit("j", priority=1.0, cpu=3, gpu=3, **how), Pending)
    assert isinstance(mesh.report("j", "n1"), Accepted)
    return mesh.state.agents["j"]


def test_an_adopted_job_needs_no_room_and_claims_quota_at_once(mesh, adopted):
    assert mesh.state.ledger.accounts["p"].used == amount(cpu=3, gpu=3)
    assert free_gpus(mesh) == {"n1": 0, "n2": 0}
    assert all(not found.allocations for found in mesh.state.cluster.nodes.values())


def test_a_ray_job_is_adopted_once(mesh, adopted):
    how = {"payload": JobPayload(adopts="01"), "more": {"choose_node": False}}
    refused = mesh.submit("again", cpu=3, gpu=3, **how)
    assert (refused.reason, "'j'" in refused.error) == (Reason.DUPLICATE_TASK, True)
    assert mesh.state.ledger.accounts["p"].used == amount(cpu=3, gpu=3)
    other = {**how, "payload": JobPayload(adopts="02")}
    assert isinstance(mesh.submit("other", cpu=1, **other), Pending)


def test_the_claim_of_an_adopted_job_is_where_its_work_is(mesh, adopted):
    mesh.find_work("j", {"n1": amount(cpu=1, gpu=1), "n2": amount(cpu=2, gpu=2)})
    assert [found.external_usage.gpu / UNIT for found in mesh.state.cluster.nodes.values()] == [
        3,
        2,
    ]
    assert free_gpus(mesh) == {"n1": 0, "n2": 0}
    assert group_of(mesh, adopted).node_ids == ("n1", "n2")
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_an_adopted_job_is_evicted_for_its_room_and_does_not_return(mesh, adopted):
    mesh.find_work("j", {"n1": amount(cpu=1, gpu=1), "n2": amount(cpu=2, gpu=2)})
    assert isinstance(mesh.submit("high", priority=9.0, cpu=2, gpu=2), Pending)
    assert mesh.ends.keys() == {"j"}
    mesh.leave("j", saved=True)
    mesh.remove(*mesh.removes)
    assert isinstance(mesh.report("high"), Accepted)
    assert (mesh.state.agents["high"].node_id, mesh.waiting()) == ("n2", [])


def test_a_job_is_adopted_also_in_a_pool_that_keeps_placement_groups():
    spec = GroupsSpec(max_dynamic=1)
    mesh = Mesh(pool("p", cpu=8, groups=spec), nodes=[node("n1", cpu=8)])
    how = {"payload": JobPayload(adopts="01"), "more": {"choose_node": False}}
    assert isinstance(mesh.submit("j", cpu=2, **how), Pending)
    mesh.report("j", "n1")
    assert mesh.state.agents["j"].group_id is None


def over(mesh, seconds, name="j"):
    """A job is found to have held a CPU too much for so long."""
    agent = mesh.state.agents[name]
    mesh.handle(
        JobBeyondClaim(
            agent_name=name,
            incarnation=agent.incarnation,
            beyond=amount(cpu=1),
            since=mesh.now - seconds,
        )
    )


def test_a_job_beyond_its_claim_runs_on_unless_the_policy_ends_it(mesh):
    started(mesh, cpu=1)
    over(mesh, 1000.0)
    assert mesh.ends == {}


def test_a_job_beyond_its_claim_for_too_long_fails_with_that_reason(mesh):
    mesh.policy(over_claim="end", over_claim_s=30.0)
    started(mesh, cpu=1, run="run_driver", retries=3, class_key="k")
    over(mesh, 29.0)
    assert mesh.ends == {}
    over(mesh, 30.0)
    assert mesh.ends.keys() == {"j"}
    assert mesh.state.agents["j"].phase.reason is EndReason.OVER_CLAIM
    mesh.leave("j")
    ended = mesh.state.ended["j"]
    assert (ended.state, ended.reason) == (EndState.FAILED, TaskEndReason.OVER_CLAIM)
    assert "held cpu 1 more in Ray than the cpu 1 that it claims, for 30 s" in ended.error
    assert mesh.waiting() == []


@pytest.mark.parametrize(
    ("own", "general", "ends"), [("end", "warn", True), ("warn", "end", False)]
)
def test_a_job_may_say_for_itself_what_happens_beyond_its_claim(mesh, own, general, ends):
    mesh.policy(over_claim=general, over_claim_s=0.0)
    mesh.submit("j", payload=JobPayload(over_claim=own), cpu=1)
    mesh.report("j")
    over(mesh, 1.0)
    assert bool(mesh.ends) == ends


def test_a_job_beyond_its_claim_that_is_being_evicted_returns(mesh):
    mesh.policy(over_claim="end", over_claim_s=0.0)
    started(mesh, cpu=8, gpu=4, on_preempted="requeue", class_key="k")
    started(mesh, "other", cpu=8, gpu=4, priority=9.0)
    mesh.submit("high", priority=9.0, cpu=8, gpu=4)
    over(mesh, 1.0)
    mesh.leave("j", saved=True)
    assert mesh.waiting() == ["j"]


def test_its_claim_ends_with_it(mesh):
    started(mesh, cpu=12, gpu=6)
    mesh.complete("j")
    mesh.remove(*mesh.removes)
    assert mesh.state.groups.by_id == {}
    assert all(found.free == found.total for found in mesh.state.cluster.nodes.values())


def test_an_evicted_job_leaves_the_nodes_of_all_its_parts(mesh):
    started(mesh, cpu=12, gpu=6, priority=1.0)
    assert isinstance(mesh.submit("high", priority=9.0, cpu=8, gpu=4), Pending)
    assert mesh.ends.keys() == {"j"}
    mesh.leave("j", saved=True)
    mesh.remove(*mesh.removes)
    assert isinstance(mesh.report("high"), Accepted)


def test_a_job_over_several_nodes_is_lost_with_any_of_them(mesh):
    started(mesh, cpu=12, gpu=6)
    mesh.observe(node("n1", **GPUS))
    assert mesh.ends.keys() == {"j"}
    mesh.leave("j")
    mesh.remove(*mesh.removes)
    assert mesh.state.cluster.nodes["n1"].free == amount(**GPUS)


def test_a_job_that_has_lost_a_node_holds_what_it_claims_on_the_others_until_it_has_ended(mesh):
    """Its driver and the actors there have not ended yet."""
    started(mesh, cpu=12, gpu=6)
    claimed = mesh.state.cluster.nodes["n1"].free
    mesh.observe(node("n1", **GPUS))
    assert list(mesh.removes) == []
    assert mesh.state.cluster.nodes["n1"].free == claimed
    mesh.submit("next", cpu=8, gpu=4)
    assert isinstance(mesh.state.agents["next"].phase, Waiting)
    mesh.leave("j")
    mesh.remove(*mesh.removes)
    assert isinstance(mesh.report("next"), Accepted)


def test_a_node_that_returns_holds_the_claims_of_jobs_that_have_not_ended(mesh):
    started(mesh, cpu=12, gpu=6)
    claimed = mesh.state.cluster.nodes["n2"].free
    mesh.observe(node("n1", **GPUS))
    mesh.observe(node("n1", **GPUS), node("n2", **GPUS))
    assert mesh.state.cluster.nodes["n2"].free == claimed
    mesh.leave("j")
    mesh.remove(*mesh.removes)
    assert all(each.free == each.total for each in mesh.state.cluster.nodes.values())


def test_a_job_that_is_stopped_because_it_is_lost_is_not_completed(mesh):
    """Its driver ends early, and may do so with exit code 0."""
    agent = started(mesh, cpu=12, gpu=6, run="run_driver", retries=1, class_key="k")
    mesh.observe(node("n1", **GPUS))
    ended = {"task_id": "j", "agent_name": "j", "incarnation": agent.incarnation}
    mesh.handle(s.RunEnded(**ended, cancelled=True))
    mesh.leave("j")
    assert mesh.waiting() == ["j"]


def test_what_all_nodes_together_cannot_hold_is_refused(mesh):
    mesh.resize(pool("p", cpu=64, gpu=64))
    refused = mesh.submit("j", payload=JOB, cpu=12, gpu=12)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES


def test_a_job_takes_no_placement_group_of_its_pool_and_leaves_none():
    spec = GroupsSpec(max_dynamic=2, reuse=True)
    mesh = Mesh(pool("p", cpu=8, gpu=4, groups=spec), nodes=[node("n1", **GPUS)])
    assert isinstance(mesh.submit("real", cpu=1), Pending)
    mesh.make_all()
    mesh.report("real")
    mesh.complete("real")
    (idle,) = mesh.state.groups.by_id.values()
    group = group_of(mesh, started(mesh, cpu=1))
    assert (group.shape.virtual, idle.shape.virtual) == (True, False)
    assert group.group_id != idle.group_id
    mesh.complete("j")
    assert mesh.removes == {group.group_id}


def test_no_task_gets_the_virtual_group_of_a_job_that_it_evicts():
    spec = GroupsSpec(max_dynamic=4)
    mesh = Mesh(pool("p", cpu=8, groups=spec), nodes=[node("n1", cpu=8)])
    group = group_of(mesh, started(mesh, cpu=8, priority=1.0))
    assert isinstance(mesh.submit("high", priority=9.0, cpu=8), Pending)
    mesh.leave("j", saved=True)
    mesh.remove(*mesh.removes)
    mesh.make_all()
    mesh.report("high")
    taken = group_of(mesh, mesh.state.agents["high"])
    assert (taken.group_id == group.group_id, taken.shape.virtual) == (False, False)


def test_jobs_are_the_same_after_the_journal_and_a_snapshot(mesh):
    started(mesh, cpu=12, gpu=6)
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def test_after_a_recovery_the_claim_stands(mesh):
    agent = started(mesh, cpu=12, gpu=6)
    living = frozenset({("j", agent.incarnation)})
    mesh.handle(s.RecoveryObserved(living=living, groups=frozenset({agent.group_id})))
    assert group_of(mesh, mesh.state.agents["j"]).shape.virtual


def test_a_large_job_waits_in_the_queue_until_its_parts_fit(mesh):
    mesh.run("first", cpu=1, gpu=4)
    mesh.submit("j", payload=JOB, cpu=12, gpu=6, priority=1.0, more={"queue": True})
    assert mesh.waiting() == ["j"]
    mesh.complete("first")
    assert mesh.waiting() == []
    mesh.make_all()
    mesh.report("j")
    assert isinstance(mesh.state.agents["j"].phase, Running)
    assert len(group_of(mesh, mesh.state.agents["j"]).shape.bundles) == 6


units = st.integers(0, 200 * UNIT)


@given(
    need=st.builds(
        Resources,
        cpu=units,
        memory=units,
        gpu=units,
        custom=st.integers(1, 5 * UNIT).map(lambda amount: (("disk", amount),)),
    ),
    count=st.integers(0, 50),
)
def test_parts_are_equal_but_the_first_and_sum_up_to_the_whole(need, count):
    parts = divided(need, count)
    assert len(parts) == max(1, count)
    assert sum_of(parts) == need
    assert len(set(parts[1:])) <= 1
    assert all(part.gpu % UNIT == 0 for part in parts[1:])
    assert parts[-1].fits(parts[0])
