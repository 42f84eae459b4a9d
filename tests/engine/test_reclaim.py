"""Owners get their quota back: from whom, whatever the priorities, and no more than is needed."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.config.groups import parse_groups
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Refused
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin
from tests.engine.builders import Mesh, amount, names, node, pool

COHORT = {"cohort": "c"}
RULES = {"tier": {"premium": ["batch"]}}


def member(name, cpu=4, **lending):
    return pool(name, cpu=cpu, lending={**COHORT, **lending})


def lent_out(*extra, **policy):
    """p owns 4 CPUs, of which q, which owns none, uses all, in tasks of 1 and of high priority."""
    mesh = Mesh(member("p"), member("q", 0), *extra, **policy)
    for index in range(4):
        mesh.run(f"b{index}", "q", 20.0, cpu=1)
        mesh.now += 10
    return mesh


def paid(mesh, name):
    return {s.pool_name: s.amount.public()["cpu"] for s in mesh.state.agents[name].shares}


def test_the_owner_gets_its_quota_back_whatever_the_priorities():
    mesh = lent_out()
    mesh.submit("own", "p", 0.0, cpu=2)
    mesh.slot("own")
    assert paid(mesh, "own") == {"p": 2.0}
    assert mesh.state.ledger.loans == {("p", "q"): amount(cpu=2)}
    assert mesh.state.past.preemption_counts == {"reclaim": 2}


def test_a_borrower_evicts_nobody_who_runs_on_quota_of_its_own_pool():
    """Else p's task could take back what it borrowed, and the one that it evicted could evict p's."""
    nodes = [node("n1", cpu=2)]
    mesh = Mesh(member("p", 2), member("q", 0), pool("o", cpu=2), nodes=nodes)
    mesh.run("outsider", "o", 5.0, cpu=2)
    refused = mesh.submit("borrower", "q", 20.0, cpu=2)
    assert refused.reason == "preemption_failed"
    assert refused.turned_away == {"own_quota": 1}
    assert names(mesh.dry("owner", "p", 20.0, cpu=2).preempted) == ["outsider"]


def test_a_borrower_evicts_borrowers_whose_priority_is_lower():
    nodes = [node("n1", cpu=2)]
    mesh = Mesh(member("p"), member("q", 0), member("r", 0), nodes=nodes)
    mesh.run("low", "r", 5.0, cpu=2)
    assert names(mesh.dry("borrower", "q", 20.0, cpu=2).preempted) == ["low"]


def test_who_would_borrow_of_its_victims_evicts_nobody_who_runs_on_quota_of_its_own_pool():
    """The quota would come from p, by the eviction of r's task, and the room from o. Nobody reclaims what an
    eviction has o lend.
    """
    nodes = [node("n1", labels={"model": "a"}, cpu=2), node("n2", labels={"model": "b"}, cpu=2)]
    mesh = Mesh(member("p", 2), member("q", 0), member("r", 0), pool("o", cpu=1), nodes=nodes)
    on_n1 = {"node_labels": {"model": "a"}}
    mesh.run("outsider", "o", 5.0, cpu=1, **on_n1)
    mesh.run("low", "r", 5.0, cpu=2, node_labels={"model": "b"})
    assert mesh.submit("borrower", "q", 20.0, cpu=2, **on_n1).reason == "preemption_failed"
    assert names(mesh.dry("smaller", "q", 20.0, cpu=1).preempted) == ["outsider"]


def test_a_loan_of_cpus_makes_no_borrower_of_a_task_with_a_gpu():
    """A pool with GPUs of its own that takes its CPUs from the cohort evicts like any other."""
    own_gpu = pool("q", gpu=1, lending=COHORT)
    nodes = [node("n1", cpu=8, gpu=1)]
    mesh = Mesh(member("p", 8), own_gpu, pool("o", cpu=2, gpu=1), nodes=nodes)
    mesh.run("outsider", "o", 5.0, cpu=1, gpu=1)
    assert names(mesh.dry("high", "q", 20.0, cpu=1, gpu=1).preempted) == ["outsider"]


def test_the_least_lost_work_goes_first_and_no_more_than_is_needed():
    outcome = lent_out().dry("own", "p", 0.0, cpu=2)
    assert sorted(names(outcome.preempted)) == ["b2", "b3"]
    assert {victim.reason for victim in outcome.preempted} == {"reclaim"}


def test_a_task_that_was_evicted_before_has_a_higher_price():
    mesh = lent_out()
    mesh.now += 100
    mesh.submit("b3 again", "p", 0.0, cpu=1, more={"dry_run": True})
    running = mesh.state.running.by_id["b3"]
    running.attempts = type(running.attempts)(preemptions=2)
    assert names(mesh.dry("own", "p", 0.0, cpu=1).preempted) == ["b2"]


def test_a_borrower_that_dominates_by_label_stays():
    mesh = Mesh(member("p"), member("q", 0), label_preemption_rules=RULES)
    mesh.run("premium", "q", 0.0, labels={"tier": "premium"}, cpu=2)
    mesh.run("plain", "q", 0.0, cpu=2)
    refused = mesh.submit("own", "p", 9.0, labels={"tier": "batch"}, cpu=4)
    assert refused.reason == "preemption_failed"
    outcome = mesh.dry("less", "p", 9.0, labels={"tier": "batch"}, cpu=2)
    assert names(outcome.preempted) == ["plain"]


def test_a_borrower_that_cannot_be_saved_stays_where_the_policy_says_so():
    m = Mesh(member("p"), member("q", 0), reclaim_unsavable=False)
    m.submit("saves", "q", cpu=2)
    m.report("saves", capabilities=("save_state",))
    m.now += 10
    m.run("newer", "q", cpu=2)
    assert names(m.dry("own", "p", cpu=2).preempted) == ["saves"]
    assert m.submit("own", "p", cpu=4).reason == "preemption_failed"
    m.policy(reclaim_unsavable=True)
    assert names(m.dry("own", "p", cpu=2).preempted) == ["newer"]


def test_a_task_of_a_protected_pool_stays_even_on_borrowed_quota():
    mesh = lent_out()
    mesh.policy(protected_pools=("q",))
    assert mesh.submit("own", "p", 90.0, cpu=1).reason == "preemption_failed"


def test_the_pool_with_the_highest_share_by_weight_gives_back_first():
    mesh = Mesh(member("p", 8), member("q", 0, weight=4.0), member("r", 0))
    for name, borrower in (("q0", "q"), ("q1", "q"), ("q2", "q"), ("r0", "r"), ("r1", "r")):
        mesh.run(name, borrower, cpu=1 if borrower == "r" else 2)
        mesh.now += 10
    # q holds 6 at weight 4, r holds 2 at weight 1.
    assert names(mesh.dry("own", "p", cpu=1).preempted) == ["r1"]
    mesh.resize(member("q", 0))
    assert names(mesh.dry("own", "p", cpu=1).preempted) == ["q2"]


def test_shares_of_nested_cohorts_are_compared_from_the_outermost():
    mesh = Mesh()
    for name, parent in (("root", None), ("left", "root"), ("right", "root")):
        mesh.cohort(name, parent)
    mesh.resize(member("p", 9, cohort="root"))
    for name, cohort in (("a", "left"), ("b", "left"), ("c", "right")):
        mesh.resize(member(name, 0, cohort=cohort))
    for name, borrower, cpu in (("a0", "a", 2), ("b0", "b", 3), ("c0", "c", 4)):
        mesh.run(name, borrower, cpu=cpu)
    # left holds 5 and right 4, so left gives back, and of it b.
    assert names(mesh.dry("own", "p", cpu=1).preempted) == ["b0"]


def test_idle_quota_of_the_cohort_is_used_before_anyone_is_evicted():
    mesh = lent_out(member("r", 2))
    outcome = mesh.dry("own", "p", cpu=2)
    assert outcome.preempted == ()


def test_a_task_beyond_the_pools_own_quota_reclaims_nothing():
    mesh = lent_out(member("r", 4, lending_limit={"cpu": 0}))
    mesh.run("r0", "r", cpu=3)
    mesh.resize(member("r", 4))
    assert isinstance(mesh.submit("own", "p", cpu=4), Pending)
    assert mesh.submit("more", "p", cpu=2).reason == "preemption_failed"


def test_pools_of_other_trees_and_without_cohort_give_nothing_back():
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=4))
    mesh.run("low", "q", 0.0, cpu=4)
    mesh.run("own", "p", 9.0, cpu=4)
    mesh.submit("high", "p", 9.0, cpu=4)
    mesh.slot("high")
    assert mesh.state.ledger.loans == {("q", "p"): amount(cpu=4)}
    assert mesh.submit("low again", "q", 0.0, cpu=4).reason == "preemption_failed"


def test_the_reclaimed_task_cannot_evict_its_reclaimer():
    mesh = lent_out()
    mesh.submit("own", "p", 0.0, cpu=4)
    mesh.slot("own")
    refused = mesh.submit("b0 again", "q", 1000.0, cpu=1)
    assert refused.reason == "preemption_failed"
    assert refused.turned_away == {"own_quota": 1}


def test_priority_evicts_within_a_cohort_those_that_run_on_loans_alone():
    mesh = Mesh(member("p"), member("q", 0), member("r", 0))
    mesh.run("b", "q", 0.0, cpu=4)
    assert names(mesh.dry("high", "r", 9.0, cpu=4).preempted) == ["b"]
    assert mesh.dry("low", "r", 1.0, cpu=4).reason == "preemption_failed"
    assert mesh.state.running.by_id["b"].payers == ("p",)


def test_a_loan_passes_on_from_its_owner():
    mesh = Mesh(member("p"), member("q", 0), member("r", 0))
    mesh.run("b", "q", 0.0, cpu=4)
    mesh.submit("high", "r", 9.0, cpu=4)
    mesh.slot("high")
    assert mesh.state.ledger.loans == {("p", "r"): amount(cpu=4)}


def test_a_mixed_claim_gives_back_only_what_is_the_owners():
    mesh = Mesh(member("p"), member("q"))
    mesh.run("mixed", "q", 20.0, cpu=6)
    mesh.run("own", "p", cpu=2)
    mesh.submit("more", "p", cpu=2)
    mesh.slot("more")
    assert paid(mesh, "more") == {"p": 2.0}
    assert mesh.state.ledger.accounts["q"].free == amount(cpu=4)


def test_an_owner_that_has_quota_but_no_room_evicts_borrowers_for_the_room():
    mesh = Mesh(member("p", 4), member("q", 0), member("r", 4), nodes=[node("a", cpu=4)])
    mesh.run("b", "q", 20.0, cpu=4)
    assert paid(mesh, "b") == {"p": 4.0} or paid(mesh, "b") == {"r": 4.0}
    for owner in ("p", "r"):
        outcome = mesh.dry("own", owner, 0.0, cpu=4)
        assert names(outcome.preempted) == ["b"]
        assert outcome.node_id == "a"


def test_room_on_one_node_is_made_by_borrowers_of_one_node():
    mesh = Mesh(member("p", 8), member("q", 0), nodes=[node("a", cpu=4), node("b", cpu=4)])
    for index in range(4):
        mesh.run(f"b{index}", "q", cpu=2)
        mesh.now += 10
    outcome = mesh.dry("own", "p", cpu=4)
    where = {mesh.state.agents[victim.agent_name].node_id for victim in outcome.preempted}
    assert where == {outcome.node_id}


def test_pools_with_placement_groups_reclaim_too():
    groups = parse_groups({"enable": True, "max_dynamic_pgs": 4}, "STRICT_PACK")
    owner = pool("p", cpu=4, groups=groups, lending=COHORT)
    mesh = Mesh(owner, member("q", 0), nodes=[node("a", cpu=4)])
    mesh.run("b", "q", 20.0, cpu=4)
    mesh.submit("own", "p", cpu=4)
    mesh.leave("b")
    mesh.make_all()
    mesh.report("own")
    assert paid(mesh, "own") == {"p": 4.0}


def test_a_request_that_may_not_evict_reclaims_nothing():
    refused = lent_out().submit("own", "p", cpu=1, more={"may_preempt": False})
    assert refused.reason == "insufficient_quota"
    assert "pool 'q' cpu 4" in refused.error


def test_evaluate_shows_who_would_be_reclaimed():
    mesh = lent_out()
    answer = mesh.evaluate(0.0, "p", cpu=1)
    assert answer.should_preempt
    assert answer.victims == ("b3",)
    assert names(answer.candidates) == ["b3", "b2", "b1", "b0"]


def test_no_pool_lends_by_preemption_above_its_limit():
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=4, lending={"lending_limit": {"cpu": 3}}))
    mesh.run("own", "p", 9.0, cpu=4)
    for index in range(2):
        mesh.run(f"low{index}", "q", 0.0, cpu=2)
    assert mesh.dry("high", "p", 9.0, cpu=4).reason == "preemption_failed"
    mesh.submit("two", "p", 9.0, cpu=2)
    refused = mesh.submit("high", "p", 9.0, cpu=2)
    assert refused.reason == "preemption_failed"
    mesh.slot("two")
    assert mesh.state.ledger.accounts["q"].lent == amount(cpu=2)


def test_a_pool_borrows_no_more_while_a_promised_loan_is_on_its_way():
    mesh = Mesh(member("p", 0, borrowing_limit={"cpu": 3}), member("q", 0), member("r"))
    mesh.run("b", "q", 0.0, cpu=3)
    mesh.submit("high", "p", 9.0, cpu=3)
    assert mesh.submit("other", "p", 9.0, cpu=1).reason == "preemption_failed"
    mesh.slot("high")
    assert mesh.state.ledger.accounts["p"].borrowed == amount(cpu=3)


def test_the_first_task_of_a_pool_reclaims_although_a_later_one_lacks_only_room():
    owner = pool("p", cpu=8, gpu=2, lending=COHORT)
    mesh = Mesh(owner, member("q"), nodes=[node("a", cpu=4, gpu=2)])
    mesh.run("borrower", "q", gpu=2)
    mesh.run("busy", "p", 20.0, cpu=4)
    mesh.queue("later", "p", 5.0, cpu=1)
    mesh.queue("own", "p", 9.0, gpu=2, class_key="c")
    assert set(mesh.probes) == {"own"}
    mesh.handle(s.ClassProbed(class_key="c"))
    assert list(mesh.ends) == ["borrower"]


POOLS = ("p", "q", "r")
tasks = st.lists(
    st.tuples(
        st.sampled_from(POOLS), st.sampled_from([0.0, 5.0, 20.0]), st.sampled_from([1, 2, 3])
    ),
    max_size=8,
)


@given(
    quotas=st.tuples(*[st.sampled_from([0, 2, 4])] * 3),
    limits=st.tuples(*[st.sampled_from([None, 0, {"cpu": 2}])] * 6),
    crowd=tasks,
    asked=st.tuples(st.sampled_from(POOLS), st.sampled_from([1, 2, 4])),
    nodes=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_reclaim_is_what_trying_every_set_of_borrowers_finds(quotas, limits, crowd, asked, nodes):
    cluster = [node("a", cpu=4), node("b", cpu=3)] if nodes else []
    specs = [
        member(name, cpu, lending_limit=limits[i], borrowing_limit=limits[3 + i])
        for i, (name, cpu) in enumerate(zip(POOLS, quotas, strict=True))
    ]
    mesh = Mesh(*specs, nodes=cluster, enable_cross_pool_preemption=False)
    for number, (name, priority, cpu) in enumerate(crowd):
        if isinstance(mesh.dry(f"t{number}", name, priority, cpu=cpu), Accepted):
            mesh.submit(f"t{number}", name, priority, cpu=cpu)
            if mesh.state.agents[f"t{number}"].phase.value == "waiting":
                mesh.slot(f"t{number}")
            else:
                mesh.report(f"t{number}")
            mesh.now += 7
    owner, cpu = asked
    outcome = mesh.dry("own", owner, -50.0, cpu=cpu)
    sets = list(sufficient(mesh, owner, cpu))
    if isinstance(outcome, Accepted) and not outcome.preempted:
        return
    if isinstance(outcome, Refused):
        assert sets == []
        return
    chosen = {victim.agent_name for victim in outcome.preempted}
    assert chosen in sets
    assert not any(smaller < chosen for smaller in sets)
    assert len(chosen) == 1 or min(map(len, sets)) > 1


def sufficient(mesh, owner, cpu, others=()):
    """Every set of borrowers, and of these other agents, whose end gives the owner enough of its own quota,
    and room on a node.
    """
    state = mesh.state
    account = state.ledger.accounts[owner]
    if cpu * 10_000 > account.spec.resources.cpu:
        return
    borrowers = [
        name
        for name, agent in state.agents.items()
        if agent.spec.pool_name != owner
        and any(share.pool_name != agent.spec.pool_name for share in agent.shares)
    ] + list(others)
    for size in range(1, len(borrowers) + 1):
        for gone in itertools.combinations(borrowers, size):
            shares = [share for name in gone for share in state.agents[name].shares]
            freed = sum(share.amount.cpu for share in shares if share.pool_name == owner)
            room = {n: found.free.cpu for n, found in state.cluster.nodes.items()}
            for name in gone:
                node_id = state.agents[name].node_id
                if node_id in room:
                    room[node_id] += state.agents[name].spec.resources.cpu
            fits = not room or max(room.values()) >= cpu * 10_000
            if account.free.cpu + freed >= cpu * 10_000 and fits:
                yield set(gone)


def test_quota_by_reclaim_and_room_by_priority_are_decided_together():
    mesh = Mesh(
        member("p", 6),
        member("q", 0),
        nodes=[node("a", cpu=4), node("b", cpu=4)],
        same_pool_priority_threshold=1.0,
    )
    mesh.run("low", "p", 1.0, cpu=2, node_id="a")
    mesh.run("high", "p", 9.0, cpu=2, node_id="b")
    mesh.run("borrower", "q", 20.0, cpu=2, node_id="b")
    outcome = mesh.dry("own", "p", 5.0, cpu=4)
    assert {v.task_id: v.reason for v in outcome.preempted} == {
        "borrower": "reclaim",
        "low": "same_pool_preemption",
    }
    mesh.submit("own", "p", 5.0, cpu=4)
    mesh.slot("own")
    assert mesh.state.agents["own"].node_id == "a"
    assert paid(mesh, "own") == {"p": 4.0}
    assert mesh.state.past.preemption_counts == {"reclaim": 1, "same_pool_preemption": 1}


def test_of_both_only_the_kinds_that_are_reclaimed_have_to_be_within_the_own_quota():
    """The same where p and q take their CPUs from the cohort."""
    mesh = Mesh(
        pool("p", gpu=6, lending=COHORT),
        pool("q", lending=COHORT),
        pool("r", cpu=40, lending=COHORT),
        nodes=[node("a", cpu=20, gpu=4), node("b", cpu=20, gpu=4)],
    )
    mesh.run("low", "p", 1.0, cpu=2, gpu=2, node_id="a")
    mesh.run("high", "p", 9.0, cpu=2, gpu=2, node_id="b")
    mesh.run("borrower", "q", 20.0, cpu=2, gpu=2, node_id="b")
    mesh.submit("own", "p", 5.0, cpu=2, gpu=4)
    mesh.slot("own")
    shares = {s.pool_name: s.amount for s in mesh.state.agents["own"].shares}
    assert shares == {"p": amount(gpu=4), "r": amount(cpu=2)}
    assert mesh.state.past.preemption_counts == {"reclaim": 1, "same_pool_preemption": 1}


def test_evaluate_shows_victims_of_both_kinds():
    mesh = Mesh(member("p", 6), member("q", 0), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("low", "p", 1.0, cpu=2, node_id="a")
    mesh.run("high", "p", 9.0, cpu=2, node_id="b")
    mesh.run("borrower", "q", 20.0, cpu=2, node_id="b")
    found = mesh.evaluate(5.0, cpu=4)
    assert sorted(found.victims) == ["borrower", "low"]
    assert [c.reason for c in found.candidates] == ["reclaim", "same_pool_preemption"]


def test_limits_on_evictions_apply_to_the_victims_by_the_rules_only():
    mesh = Mesh(member("p", 6), member("q", 0), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("low", "p", 1.0, cpu=2, node_id="a")
    mesh.run("high", "p", 9.0, cpu=2, node_id="b")
    mesh.run("borrower", "q", 20.0, cpu=2, node_id="b")
    mesh.policy(min_runtime=60.0)
    assert mesh.dry("own", "p", 5.0, cpu=4).reason == "preemption_failed"
    mesh.now += 60
    mesh.policy(preemption_cooldown=0.0)
    assert len(mesh.dry("own", "p", 5.0, cpu=4).preempted) == 2


@given(
    quotas=st.tuples(*[st.sampled_from([0, 2, 4, 6])] * 3),
    crowd=tasks,
    asked=st.tuples(st.sampled_from(POOLS), st.sampled_from([1, 2, 4])),
    nodes=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_reclaim_with_preemption_is_what_trying_every_set_finds(quotas, crowd, asked, nodes):
    cluster = [node("a", cpu=4), node("b", cpu=3)] if nodes else []
    specs = [member(name, cpu) for name, cpu in zip(POOLS, quotas, strict=True)]
    mesh = Mesh(*specs, nodes=cluster, enable_cross_pool_preemption=False)
    for number, (name, priority, cpu) in enumerate(crowd):
        if getattr(mesh.dry(f"t{number}", name, priority, cpu=cpu), "preempted", None) == ():
            mesh.run(f"t{number}", name, priority, cpu=cpu)
            mesh.now += 7
    owner, cpu = asked
    outcome = mesh.dry("own", owner, 9.0, cpu=cpu)
    lower = [
        task.agent_name
        for task in mesh.state.running.by_id.values()
        if task.spec.pool_name == owner and task.spec.priority <= 8
    ]
    sets = list(sufficient(mesh, owner, cpu, lower))
    if isinstance(outcome, Refused):
        assert sets == []
        return
    reasons = {victim.agent_name: victim.reason for victim in outcome.preempted}
    assert all((reason == "reclaim") == (name not in lower) for name, reason in reasons.items())
    if len(set(reasons.values())) == 2:
        chosen = set(reasons)
        assert chosen in sets
        assert not any(smaller < chosen for smaller in sets)
        assert not any(found.isdisjoint(lower) or found <= set(lower) for found in sets)


def test_a_strategy_may_keep_a_borrower():
    mesh = Mesh(member("p"), member("q", 0), plugins=[Keeper()])
    mesh.run("b0", "q", cpu=2)
    mesh.run("b1", "q", cpu=2)
    assert names(mesh.dry("own", "p", 0.0, cpu=2).preempted) == ["b0"]


class Keeper(SchedulingStrategyPlugin):
    """Keeps task b1."""

    def preemption_policy(self, high_priority_task, low_priority_task):
        return False if low_priority_task.task_id == "b1" else None


def test_only_the_kinds_that_are_reclaimed_have_to_be_within_the_own_quota():
    """p owns GPUs and takes its CPUs from the cohort, which has enough of them idle."""
    mesh = Mesh(
        pool("p", gpu=8, lending=COHORT),
        pool("q", cpu=48, lending=COHORT),
        nodes=[node("n1", cpu=48, gpu=8)],
    )
    mesh.run("b0", "q", 20.0, cpu=4, gpu=4)
    mesh.run("b1", "q", 20.0, cpu=4, gpu=4)
    mesh.submit("own", "p", 0.0, cpu=8, gpu=4)
    mesh.slot("own")
    shares = {s.pool_name: s.amount for s in mesh.state.agents["own"].shares}
    assert shares == {"p": amount(gpu=4), "q": amount(cpu=8)}
    assert mesh.state.past.preemption_counts == {"reclaim": 1}


def test_what_was_reclaimed_beside_loans_is_not_reclaimed_back():
    mesh = Mesh(
        pool("p", gpu=8, lending=COHORT),
        pool("q", cpu=48, lending=COHORT),
        nodes=[node("n1", cpu=48, gpu=8)],
    )
    mesh.run("b", "q", 20.0, cpu=4, gpu=8, class_key="c", on_preempted="requeue")
    mesh.queue("own", "p", 0.0, cpu=8, gpu=8)
    mesh.probes.clear()
    mesh.slot("own")
    for _ in range(5):
        mesh.tick(60)
    assert mesh.waiting("q") == ["b"]
    assert mesh.state.past.preemption_counts == {"reclaim": 1}


def test_nobody_is_evicted_where_the_cohort_lacks_what_the_pool_does_not_own():
    mesh = Mesh(pool("p", gpu=8, lending=COHORT), pool("q", cpu=8, lending=COHORT))
    mesh.run("b", "q", 20.0, cpu=6, gpu=8)
    assert mesh.submit("own", "p", 0.0, cpu=4, gpu=8).reason == "preemption_failed"
