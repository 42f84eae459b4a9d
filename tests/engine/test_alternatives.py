"""Agents that may run in several ways: the first that starts now is taken, and what is evicted frees it."""

import msgspec
import pytest

from schedulemesh.domain.agent import Alternative, check_agent, with_more_memory
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Queued, Refused
from schedulemesh.errors import InvalidRequestError
from tests.engine.builders import Mesh, amount, node, pool
from tests.engine.test_service import pass_time, run

MODEL = "ray.io/accelerator-type"
H100, A100, L40S = {MODEL: "H100"}, {MODEL: "A100"}, {MODEL: "L40S"}
#: An H100, else an A100, else two L40S.
ANY = {"node_labels": H100, "fallbacks": [A100, {**L40S, "takes": {"gpu": 2}}], "gpu": 1}
KINDS = {
    "agent": {},
    "gang": {"payload": GangPayload(), "bundles": ({"gpu": 1},)},
    "job": {"payload": JobPayload()},
    "lease": {"payload": LeasePayload(), "bundles": ({"gpu": 1},)},
}


def fleet(*pools, h=1, a=1, two=2, **more):
    """A node of each model."""
    nodes = [
        node("a", gpu=a, cpu=8, labels=A100),
        node("h", gpu=h, cpu=8, labels=H100),
        node("l", gpu=two, cpu=8, labels=L40S),
    ]
    return Mesh(*(pools or [pool("p", gpu=16, cpu=64)]), nodes=nodes, **more)


def ways_of(kind):
    """An H100, else an A100, else two L40S, for what is of this kind."""
    how = {"node_labels": H100, "fallbacks": [A100, {**L40S, "takes": {"gpu": 2}}], **KINDS[kind]}
    if "bundles" not in how:
        return {**how, "gpu": 1}
    first, second = {**A100, "bundles": [{"gpu": 1}]}, {**L40S, "bundles": [{"gpu": 1}] * 2}
    return {**how, "fallbacks": [first, second]}


def clear(m):
    """All that is evicted leaves, and what waits for it begins."""
    for name in list(m.ends):
        m.leave(name, saved=True)
    m.make_all()


def started(m, name, **how):
    """A task that runs, of whatever kind."""
    m.queue(name, class_key="" if "lease" in how else "c", on_preempted="requeue", **how)
    m.make_all()
    if name in m.starts:
        m.report(name)


def node_of(m, name):
    """The only node on which it holds anything."""
    agent = m.state.agents[name]
    group = m.state.groups.by_id.get(agent.group_id or "")
    nodes = {agent.node_id} if group is None else set(group.node_ids)
    assert len(nodes) == 1
    return nodes.pop()


@pytest.mark.parametrize("kind", ["agent", "gang", "job"])
def test_each_member_of_an_array_takes_the_first_that_fits_with_its_amount(kind):
    m = fleet()
    m.queue("m", run="go", class_key="c", limits={"array": "1-4"}, **ways_of(kind))
    for index, where, gpus in ((1, "h", 1), (2, "a", 1), (3, "l", 2)):
        name = f"m[{index}]"
        spec = m.state.agents[name].spec
        assert node_of(m, name) == where
        assert spec.taken == "hal".index(where) + 1
        assert spec.label_selector == (H100, A100, L40S)["hal".index(where)]
        assert sum(bundle.gpu for bundle in spec.bundles) in (0, spec.resources.gpu)
        assert spec.resources.gpu == amount(gpu=gpus).gpu
    assert m.waiting() == ["m"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_that_fits_is_taken_with_its_amount(kind):
    m = fleet()
    for name, where, gpus in (("1", "h", 1), ("2", "a", 1), ("3", "l", 2)):
        assert isinstance(m.submit(name, **ways_of(kind)), Pending)
        assert node_of(m, name) == where
        assert m.state.agents[name].spec.resources.gpu == amount(gpu=gpus).gpu
        assert m.state.agents[name].spec.taken == "hal".index(where) + 1
    assert m.state.ledger.accounts["p"].free == amount(gpu=12, cpu=64)
    assert isinstance(m.submit("4", **ways_of(kind)), Refused)


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_returns_to_all_of_its_alternatives(kind):
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=50.0)
    started(m, "x", priority=1.0, **ways_of(kind))
    assert node_of(m, "x") == "a"
    m.submit("top", gpu=1, node_labels=A100, priority=90.0)
    clear(m)
    assert node_of(m, "top") == "a"
    if kind == "lease":
        return
    assert node_of(m, "x") == "l"
    assert m.state.agents["x"].spec.resources == amount(gpu=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_says_where_it_would_run(kind):
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=50.0)
    told = m.dry("x", **ways_of(kind))
    assert isinstance(told, Accepted)
    assert (told.node_id, told.resources.gpu) == ("a", amount(gpu=1).gpu)


def test_a_gang_does_not_mix_its_alternatives():
    m = fleet()
    two = {"payload": GangPayload(strategy="SPREAD"), "bundles": ({"gpu": 1},) * 2}
    refused = m.submit(
        "x", node_labels=H100, fallbacks=[{**A100, "bundles": two["bundles"]}], **two
    )
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    told = m.submit("y", node_labels=H100, fallbacks=[{**L40S, "bundles": two["bundles"]}], **two)
    assert isinstance(told, Pending)
    assert node_of(m, "y") == "l"


def test_what_fits_comes_before_what_needs_an_eviction():
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=1.0)
    m.submit("x", priority=9.0, **ANY)
    assert node_of(m, "x") == "a"
    assert m.ends == {}


def test_the_first_that_an_eviction_frees_is_taken():
    m = fleet()
    for name, labels, priority in (("h", H100, 9.0), ("a", A100, 1.0), ("l", L40S, 1.0)):
        run(m, f"b-{name}", gpu=2 if name == "l" else 1, node_labels=labels, priority=priority)
    told = m.dry("x", priority=9.0, **ANY)
    assert [victim.task_id for victim in told.preempted] == ["b-a"]
    m.submit("x", priority=9.0, **ANY)
    clear(m)
    assert node_of(m, "x") == "a"


# what users of Kueue have reported of flavors


def test_an_alternative_without_candidates_does_not_keep_it_from_one_that_fits():
    """Kueue 13607: a flavor without candidates outranked one that fits, and the workload starved."""
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=50.0)
    assert isinstance(m.queue("x", priority=9.0, **ANY), Queued)
    assert node_of(m, "x") == "a"


def test_quota_without_nodes_does_not_keep_it_from_an_eviction():
    """Kueue 10824: the quota of the second flavor was free, its nodes were cordoned, and nobody was evicted
    in the first.
    """
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=1.0)
    for node_id in ("a", "l"):
        m.cordon(node_id)
    m.queue("x", priority=9.0, **ANY)
    clear(m)
    assert node_of(m, "x") == "h"


def test_alternatives_may_name_labels_that_other_nodes_lack():
    """Kueue 12446: a flavor was rejected for a label that only another flavor has."""
    m = fleet()
    m.queue("x", node_labels={**H100, "rack": "r1"}, fallbacks=[{**A100, "zone": "!b"}], gpu=1)
    assert node_of(m, "x") == "a"


def test_each_try_begins_with_the_first():
    """Kueue 2391: the search went on behind the flavor that was tried last, and never came back."""
    m = fleet()
    for name, labels in (("h", H100), ("a", A100), ("l", L40S)):
        run(m, f"b-{name}", gpu=2 if name == "l" else 1, node_labels=labels, priority=50.0)
    m.queue("x", **ANY)
    for _ in range(3):
        pass_time(m, 1.0)
    m.complete("b-h")
    assert node_of(m, "x") == "h"


def test_one_that_waits_does_not_keep_others_from_starting():
    """Kueue 3710: a workload with pending flavors was tried again and again, and smaller ones were not."""
    m = fleet(h=2, a=2)
    for name, labels in (("h", H100), ("a", A100)):
        run(m, f"b-{name}", gpu=1, node_labels=labels, priority=50.0, duration=1000.0)
    m.queue("x", node_labels=H100, fallbacks=[A100], gpu=2)
    pass_time(m, 1.0)
    m.queue("small", gpu=1, node_labels=A100, duration=10.0)
    assert node_of(m, "small") == "a"


def test_an_owner_gets_its_quota_back_in_the_alternative_that_the_borrower_holds():
    """Kueue 4597: a workload could not preempt one with borrowed resources in another flavor."""
    owner = pool("p", gpu=1, lending={"cohort": "c"})
    m = fleet(owner, pool("q", lending={"cohort": "c"}), pool("r", gpu=1))
    m.cordon("l")
    run(m, "other", "r", gpu=1, node_labels=H100, priority=50.0)
    run(m, "borrows", "q", gpu=1, node_labels=A100, priority=50.0)
    m.queue("x", "p", priority=1.0, node_labels=H100, fallbacks=[A100], gpu=1)
    clear(m)
    assert node_of(m, "x") == "a"


# the queue


def test_explain_says_for_each_why_not():
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=50.0)
    run(m, "c", gpu=2, node_labels=L40S, priority=50.0)
    m.cordon("a")
    m.queue(
        "x",
        node_labels=H100,
        fallbacks=[A100, {MODEL: "B200"}, {**L40S, "takes": {"gpu": 2}}],
        gpu=1,
    )
    told = m.engine.explain("x", m.now)
    assert [(one.alternative, one.reason) for one in told.alternatives] == [
        (f"gpu 1 on nodes with {MODEL}=H100", Reason.INSUFFICIENT_RESOURCES),
        (f"gpu 1 on nodes with {MODEL}=A100", Reason.NODES_CORDONED),
        (f"gpu 1 on nodes with {MODEL}=B200", Reason.CLUSTER_OUT_OF_RESOURCES),
        (f"gpu 2 on nodes with {MODEL}=L40S", Reason.INSUFFICIENT_RESOURCES),
    ]
    assert told.reason == Reason.INSUFFICIENT_RESOURCES.value
    m.complete("c")
    assert m.engine.explain("x", m.now).alternative == 4


def test_what_is_impossible_in_every_way_is_refused_with_each_reason():
    m = fleet()
    refused = m.submit(
        "x", node_labels={MODEL: "B200"}, fallbacks=[{**H100, "takes": {"gpu": 99}}], gpu=1
    )
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert f"1. (gpu 1 on nodes with {MODEL}=B200): no node" in refused.error
    assert "2. (gpu 99 on nodes" in refused.error
    assert "16" in refused.error


def test_the_reserved_start_is_in_the_alternative_that_is_free_first():
    m = fleet()
    run(m, "h", gpu=1, node_labels=H100, priority=50.0, duration=900.0)
    run(m, "a", gpu=1, node_labels=A100, priority=50.0, duration=300.0)
    run(m, "l", gpu=2, node_labels=L40S, priority=50.0, duration=600.0)
    m.queue("x", **ANY)
    pass_time(m, 1.0)
    reserved = m.state.queue.by_id["x"].reservation
    assert (reserved.node_ids, reserved.alternative) == (("a",), 1)
    assert m.engine.explain("x", m.now).earliest_start == reserved.at
    m.complete("l")
    assert node_of(m, "x") == "l"


def test_what_would_delay_a_reserved_start_runs_in_another_alternative():
    m = fleet(h=2)
    run(m, "h", gpu=1, node_labels=H100, priority=50.0, duration=100.0)
    m.queue("head", gpu=2, node_labels=H100, priority=9.0)
    pass_time(m, 1.0)
    m.queue("x", node_labels=H100, fallbacks=[A100], gpu=1, duration=1000.0)
    assert node_of(m, "x") == "a"


def test_the_state_survives_a_restart():
    m = fleet()
    run(m, "x", **ANY)
    m.cordon("a")
    m.queue("y", **{**ANY, "fallbacks": [A100]})
    for state in (m.refolded(), m.rewritten()):
        assert state.agents["x"].spec == m.state.agents["x"].spec
        assert state.queue.by_id["y"].submission == m.state.queue.by_id["y"].submission


# groups of pools


def test_a_pool_with_groups_makes_one_in_the_first_alternative_that_has_room():
    m = fleet(pool("p", gpu=8, cpu=64, groups=GroupsSpec(max_dynamic=4)))
    started(m, "b", gpu=1, node_labels=H100, priority=50.0)
    m.submit("x", **ANY)
    assert node_of(m, "x") == "a"


# what may be asked


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"fallbacks": [A100] * 10}, "2 to 10"),
        ({"fallbacks": [{MODEL: "A100", "takes": {"gpu": -1}}]}, "gpu"),
        (
            {
                "payload": GangPayload(replicas=2),
                "bundles": ({"gpu": 1},),
                "fallbacks": [{**A100, "bundles": [{"gpu": 1}] * 2}],
            },
            "as many in every alternative",
        ),
        (
            {
                "payload": LeasePayload(parts=2),
                "bundles": ({"gpu": 1},) * 2,
                "fallbacks": [{**A100, "bundles": [{"gpu": 1}] * 3}],
            },
            "2 groups do not divide evenly",
        ),
        ({"gpu": 1, "fallbacks": [{**A100, "bundles": [{"gpu": 1}] * 2}]}, "give both or neither"),
    ],
)
def test_what_makes_no_sense_is_refused(spec, message):
    m = fleet()
    key = "" if "lease" in spec else "0" * 64
    with pytest.raises(InvalidRequestError, match=message):
        check_agent(m.submission("x", class_key=key, **spec).agent)


def test_more_memory_is_more_in_every_alternative():
    m = fleet()
    agent = m.submission("x", memory=10, fallbacks=[{**A100, "takes": {"memory": 30}}]).agent
    grown = with_more_memory(agent, 0.0, amount(memory=50).memory)
    assert grown.resources == amount(memory=20)
    assert grown.alternatives == (
        Alternative(resources=amount(memory=20)),
        Alternative(node_labels=((MODEL, "A100"),), resources=amount(memory=50)),
    )


def test_the_claim_of_a_job_follows_its_work_to_no_other_model():
    m = fleet(h=2, a=2)
    run(m, "j", gpu=1, payload=JobPayload(), node_labels=H100)
    m.find_work("j", {"a": amount(gpu=1)})
    assert node_of(m, "j") == "h"


# a quota for each model, by a resource of its own


PER_MODEL = {
    "gpu": 1,
    "custom": {"h100": 1},
    "fallbacks": [{"takes": {"gpu": 1, "custom": {"a100": 1}}}],
}


def shared_models():
    """Two pools of a cohort, each with a quota of one H100 and one A100, and two nodes of each model."""
    nodes = [
        node(f"{model}-{number}", gpu=1, custom={model: 1})
        for model in ("h100", "a100")
        for number in (0, 1)
    ]
    quota = {"gpu": 2, "custom": {"h100": 1, "a100": 1}}
    pools = [pool(name, **quota, lending={"cohort": "c"}) for name in ("p", "q")]
    return Mesh(*pools, nodes=nodes)


def test_a_quota_for_each_model_is_lent_and_used_by_model():
    m = shared_models()
    for name, where in (("1", "h100"), ("2", "h100"), ("3", "a100"), ("4", "a100")):
        assert isinstance(m.submit(name, "q", **PER_MODEL), Pending)
        assert node_of(m, name).startswith(where)
    account = m.state.ledger.accounts["p"]
    assert account.lent == amount(gpu=2, custom={"h100": 1, "a100": 1})


def test_an_owner_takes_back_the_model_that_it_asks_for():
    m = shared_models()
    for name in "1234":
        run(m, name, "q", priority=50.0, **PER_MODEL)
    m.queue("x", "p", priority=1.0, gpu=1, custom={"a100": 1})
    (victim,) = m.ends
    assert node_of(m, victim).startswith("a100")
    clear(m)
    assert node_of(m, "x").startswith("a100")
    assert m.state.ledger.accounts["p"].lent == amount(gpu=1, custom={"h100": 1})


def test_a_pool_is_chosen_that_can_hold_any_of_the_alternatives():
    m = fleet(pool("p", labels={"name": "p"}, gpu=2))
    for cordoned in (False, True):
        m.cordon("h", cordoned)
        more = {"pool_name": "", "selector": {"name": "p"}}
        outcome = m.queue(f"x{cordoned}", gpu=9, fallbacks=[{**H100, "takes": {"gpu": 1}}], **more)
        assert isinstance(outcome, Queued)
        assert outcome.pool_name == "p"
    assert node_of(m, "xFalse") == "h"
    assert m.waiting() == ["xTrue"]


# what a client may send that parses nothing itself


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alternative": 1}, "set by the scheduler"),
        ({"alternatives": ()}, "2 to 10"),
        ({"node_labels": ((MODEL, "A100"),)}, "must be what the agent asks for itself"),
        ({"resources": amount(gpu=8)}, "must be what the agent asks for itself"),
    ],
)
def test_an_agent_that_says_other_than_its_first_alternative_is_refused(change, message):
    m = fleet()
    agent = m.submission("x", class_key="0" * 64, **ANY).agent
    check_agent(agent)
    change = {"alternative": 1, **change} if change == {"alternatives": ()} else change
    with pytest.raises(InvalidRequestError, match=message):
        check_agent(msgspec.structs.replace(agent, **change))


def test_the_limits_of_an_owner_hold_in_each_alternative():
    limits = parse_owner_limits({"default": {"gpu": 1}})
    m = fleet(msgspec.structs.replace(pool("p", gpu=16, cpu=64), owner_limits=limits))
    assert isinstance(
        m.submit(
            "1", owner="ada", node_labels=L40S, gpu=2, fallbacks=[{**A100, "takes": {"gpu": 1}}]
        ),
        Pending,
    )
    assert node_of(m, "1") == "a"
    refused = m.submit("2", owner="ada", **ANY)
    assert refused.reason is Reason.OWNER_LIMIT


def test_the_priority_that_is_enough_is_that_of_the_alternative_with_the_lowest():
    m = fleet()
    for name, where, priority in (("x", H100, 50.0), ("y", A100, 5.0), ("z", L40S, 20.0)):
        m.run(name, priority=priority, gpu=1, node_labels=where, class_key="c")
    refused = m.submit("now", priority=1.0, class_key="c", **ANY)
    assert refused.sufficient_priority == 6.0
    assert "with priority 6 or more" in refused.hint
    m.queue("t", priority=1.0, class_key="c", **ANY)
    explained = m.engine.explain("t", m.now)
    assert explained.considered.sufficient_priority == 6.0
    m.change("t", priority=6.0)
    m.tick(1.0)
    assert "y" in m.ends
