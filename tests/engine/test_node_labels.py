"""Agents that ask for nodes with labels, such as a model of GPU, are placed there and nowhere else."""

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Queued, Refused
from tests.engine.builders import Mesh, amount, node, pool, shape
from tests.engine.test_service import pass_time, run

MODEL = "ray.io/accelerator-type"
H100, A100 = {MODEL: "H100"}, {MODEL: "A100"}


def fleet(*pools, gpu=1, **more):
    """A node with H100s, one with A100s, and one without GPUs."""
    nodes = [
        node("a", gpu=gpu, cpu=8, labels=A100),
        node("c", cpu=8),
        node("h", gpu=gpu, cpu=8, labels=H100),
    ]
    return Mesh(*(pools or [pool("p", gpu=8, cpu=64)]), nodes=nodes, **more)


def node_of(m, name):
    return m.state.agents[name].node_id


@pytest.mark.parametrize("strategy", ["bin_pack", "spread", "best_fit", "fragmentation_aware"])
@pytest.mark.parametrize(
    ("labels", "expected"), [(H100, "h"), (A100, "a"), ({MODEL: "!A100"}, "h")]
)
def test_an_agent_runs_on_a_node_with_its_labels(strategy, labels, expected):
    m = fleet(strategy=strategy)
    assert isinstance(m.submit("x", node_labels=labels, gpu=1), Pending)
    assert node_of(m, "x") == expected
    assert m.starts["x"].node_id == expected


def test_labels_that_are_absent_meet_a_negated_condition():
    m = fleet()
    m.submit("x", node_labels={MODEL: "!in(A100, H100)"}, cpu=1)
    assert node_of(m, "x") == "c"


@pytest.mark.parametrize("how", ["submit", "dry"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_model_that_no_node_has_is_refused_at_once_with_those_that_there_are(how, busy):
    m = fleet()
    if busy:
        run(m, "b", gpu=1, priority=1.0)
    refused = getattr(m, how)("x", priority=30.0, node_labels={MODEL: "B200"}, gpu=1)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert f"no node of the cluster as it is now has {MODEL}=B200" in refused.error
    assert "A100, H100" in refused.error
    assert m.ends == {}
    assert m.state.ledger.accounts["p"].free == amount(gpu=7 if busy else 8, cpu=64)


def test_more_than_the_nodes_of_a_model_have_is_refused_though_others_have_it():
    m = Mesh(
        pool("p", gpu=8),
        nodes=[node("a", gpu=4, labels=A100), node("h", gpu=1, labels=H100)],
    )
    refused = m.submit("x", node_labels=H100, gpu=4)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert "lacks gpu 3" in refused.error


@pytest.mark.parametrize("order", [("low-a", "low-h"), ("low-h", "low-a")])
def test_the_holder_of_the_model_is_evicted_and_no_other(order):
    m = fleet()
    for name in order:
        run(m, name, priority=1.0, gpu=1, node_labels=A100 if name == "low-a" else H100)
    dry = m.dry("x", priority=30.0, node_labels=H100, gpu=1)
    assert isinstance(dry, Accepted)
    assert [c.task_id for c in dry.preempted] == ["low-h"]
    assert dry.node_id == "h"
    m.submit("x", priority=30.0, node_labels=H100, gpu=1)
    assert list(m.ends) == ["low-h"]
    m.leave("low-h")
    assert m.starts["x"].node_id == "h"


def test_nobody_is_evicted_where_only_the_other_model_would_become_free():
    m = fleet()
    run(m, "low-a", priority=1.0, gpu=1, node_labels=A100)
    run(m, "high-h", priority=50.0, gpu=1, node_labels=H100)
    refused = m.submit("x", priority=30.0, node_labels=H100, gpu=1)
    assert refused.reason is Reason.PREEMPTION_FAILED
    assert f"no node with {MODEL}=H100 has room" in refused.error
    assert refused.sufficient_priority == 51.0
    assert m.ends == {}


def test_several_victims_are_sought_on_the_nodes_of_the_model_alone():
    m = fleet(gpu=4)
    for name, labels in (("a1", A100), ("a2", A100), ("h1", H100), ("h2", H100)):
        run(m, name, priority=1.0 if name[0] == "a" else 2.0, gpu=2, node_labels=labels)
    m.submit("x", priority=30.0, node_labels=H100, gpu=4)
    assert set(m.ends) == {"h1", "h2"}


def test_quota_alone_is_freed_by_victims_on_any_node():
    m = fleet(pool("p", gpu=1, cpu=8))
    run(m, "low", priority=1.0, gpu=1, node_labels=A100)
    m.submit("x", priority=30.0, node_labels=H100, gpu=1)
    assert list(m.ends) == ["low"]
    m.leave("low")
    assert m.starts["x"].node_id == "h"


def test_a_queued_task_waits_for_its_model_and_starts_there():
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100)
    assert isinstance(m.queue("x", node_labels=H100, gpu=1), Queued)
    m.queue("y", node_labels=A100, gpu=1)
    assert m.starts["y"].node_id == "a", "what has room elsewhere does not wait for it"
    pass_time(m, 5.0)
    assert m.waiting() == ["x"]
    m.complete("b")
    assert m.starts["x"].node_id == "h"


def test_a_queued_task_whose_model_no_node_has_starts_when_one_joins():
    m = fleet()
    m.queue("x", node_labels={MODEL: "B200"}, gpu=1)
    pass_time(m, 3.0)
    assert m.waiting() == ["x"]
    old = [node("a", gpu=1, cpu=8, labels=A100), node("h", gpu=1, cpu=8, labels=H100)]
    m.observe(*old, node("b", gpu=1, labels={MODEL: "B200"}))
    assert m.starts["x"].node_id == "b"


def test_labels_that_change_let_a_task_start():
    m = Mesh(pool("p", gpu=8), nodes=[node("a", gpu=1, labels={"zone": "x"})])
    m.queue("t", node_labels={"zone": "y"}, gpu=1)
    assert m.waiting() == ["t"]
    m.observe(node("a", gpu=1, labels={"zone": "y"}))
    assert m.starts["t"].node_id == "a"


def test_a_start_is_reserved_on_a_node_of_the_model_and_lets_others_pass():
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, duration=100.0)
    m.queue("first", node_labels=H100, gpu=1)
    pass_time(m, 2.0)
    assert m.state.queue.by_id["first"].reservation.node_ids == ("h",)
    m.queue("other", gpu=1)
    assert m.starts["other"].node_id == "a"


def test_a_free_node_of_another_model_gives_no_reserved_start():
    m = fleet(gpu=2)
    run(m, "b", gpu=2, node_labels=H100)
    m.queue("first", node_labels=H100, gpu=2)
    pass_time(m, 2.0)
    found = m.state.queue.by_id["first"].reservation
    assert (found.at, found.node_ids) == (None, ("h",))


def test_a_task_is_moved_only_where_its_own_labels_are():
    nodes = [
        node("h1", gpu=8, labels=H100),
        node("h2", gpu=8, labels=H100),
        node("a", gpu=8, labels=A100),
    ]
    m = Mesh(pool("p", gpu=24), nodes=nodes, defragment_after_s=600.0)
    run(m, "s1", gpu=1, savable=True, node_labels=H100)
    run(m, "s2", gpu=7, savable=True, node_labels=H100)
    assert node_of(m, "s1") == node_of(m, "s2")
    run(m, "s3", gpu=7, node_labels=H100)
    m.complete("s2")
    m.queue("large", gpu=8, node_labels=H100)
    pass_time(m, 700.0)
    assert list(m.ends) == ["s1"], "it has room beside s3"
    m.leave("s1", saved=True)
    assert m.starts["s1"].node_id == node_of(m, "s3")


def test_a_task_without_room_of_its_own_model_is_not_moved():
    nodes = [node("h", gpu=8, labels=H100), node("a", gpu=8, labels=A100)]
    m = Mesh(pool("p", gpu=24), nodes=nodes, defragment_after_s=600.0)
    run(m, "small", gpu=1, savable=True, node_labels=H100)
    m.queue("large", gpu=8, node_labels=H100)
    pass_time(m, 700.0)
    assert m.ends == {}


def test_an_evicted_task_comes_back_on_its_own_model():
    m = fleet()
    run(m, "t", priority=1.0, gpu=1, savable=True, node_labels=H100)
    m.submit("x", priority=30.0, node_labels=H100, gpu=1)
    m.leave("t", saved=True)
    pass_time(m, 5.0)
    assert m.waiting() == ["t"], "the A100 is free, and none of its own"
    m.report("x")
    m.complete("x")
    assert m.starts["t"].node_id == "h"


def test_fallbacks_are_taken_in_their_order_where_the_first_choice_is_busy():
    m = fleet()
    wanted = {"node_labels": H100, "fallbacks": [A100, {"zone": "none"}], "gpu": 1}
    m.submit("one", **wanted)
    m.submit("two", **wanted)
    assert (node_of(m, "one"), node_of(m, "two")) == ("h", "a")
    assert m.submit("three", **wanted).reason is Reason.PREEMPTION_FAILED


def test_explain_says_which_labels_are_short():
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100, priority=50.0)
    m.queue("x", node_labels=H100, gpu=1)
    m.queue("never", node_labels={MODEL: "B200"}, gpu=1)
    short = m.engine.explain("x", m.now)
    assert short.reason == Reason.INSUFFICIENT_RESOURCES.value
    assert f"no node with {MODEL}=H100 has room" in short.error
    assert [holder.agent_name for holder in short.holders] == ["b"]
    never = m.engine.explain("never", m.now)
    assert never.reason == Reason.CLUSTER_OUT_OF_RESOURCES.value
    assert "B200" in never.error


# placement groups


def test_a_gang_is_placed_on_the_nodes_of_its_labels():
    nodes = [node(f"a{n}", gpu=1, labels=A100) for n in (1, 2)]
    nodes += [node(f"h{n}", gpu=1, labels=H100) for n in (1, 2)]
    m = Mesh(pool("p", gpu=8), nodes=nodes)
    gang = {"bundles": [{"gpu": 1}] * 2, "payload": GangPayload()}
    m.submit("g", node_labels=H100, **gang)
    (group,) = m.makes.values()
    assert sorted(group.node_ids) == ["h1", "h2"]
    larger = {"bundles": [{"gpu": 1}] * 3, "payload": GangPayload()}
    refused = m.submit("h", node_labels=H100, **larger)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert f"{MODEL}=H100" in refused.error


def ready(m, reserved=True):
    for group_id in list(m.makes):
        m.make(group_id)
    return {g.group_id: g.node_ids for g in m.state.groups.by_id.values()}


def test_ready_groups_on_other_nodes_are_not_used():
    spec = GroupsSpec(reserved=(shape({"gpu": 1}),), max_dynamic=4, entitled_above=0.0)
    m = fleet(pool("p", gpu=8, cpu=8, groups=spec))
    assert set(ready(m).values()) == {("a",)}
    m.submit("x", node_labels=H100, gpu=1)
    assert m.state.groups.by_id[m.state.agents["x"].group_id].node_ids == ("h",)
    m.submit("y", node_labels=A100, gpu=1)
    assert m.state.groups.by_id[m.state.agents["y"].group_id].reserved


def test_a_group_of_a_victim_on_another_node_is_not_taken():
    spec = GroupsSpec(max_dynamic=4)
    m = fleet(pool("p", gpu=8, cpu=8, groups=spec))
    for name, labels in (("low-a", A100), ("low-h", H100)):
        m.submit(name, priority=1.0, node_labels=labels, gpu=1)
        ready(m)
        m.report(name)
    m.submit("x", priority=30.0, node_labels=H100, gpu=1)
    assert list(m.ends) == ["low-h"]


def test_a_model_that_no_node_has_is_refused_in_a_pool_with_groups_too():
    spec = GroupsSpec(reserved=(shape({"gpu": 1}),), max_dynamic=4, entitled_above=0.0)
    m = fleet(pool("p", gpu=8, cpu=8, groups=spec))
    ready(m)
    refused = m.submit("x", node_labels={MODEL: "B200"}, gpu=1)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES


def test_the_labels_of_a_pools_groups_hold_beside_those_of_a_task():
    nodes = [
        node("1", gpu=1, labels={**H100, "zone": "x"}),
        node("2", gpu=1, labels={**H100, "zone": "y"}),
    ]
    spec = GroupsSpec(max_dynamic=4, node_labels={"zone": "!x"})
    m = Mesh(pool("p", gpu=8, groups=spec), nodes=nodes)
    m.submit("t", node_labels=H100, gpu=1)
    assert m.state.groups.by_id[m.state.agents["t"].group_id].node_ids == ("2",)
    refused = m.submit("u", node_labels={**H100, "zone": "x"}, gpu=1)
    assert refused.reason is Reason.CLUSTER_OUT_OF_RESOURCES


def test_the_labels_survive_a_restart():
    m = fleet()
    run(m, "b", gpu=1, node_labels=H100)
    m.queue("x", node_labels=H100, fallbacks=[{"zone": "none"}], gpu=1)
    for state in (m.refolded(), m.rewritten()):
        agent = state.queue.by_id["x"].submission.agent
        assert [each.node_labels for each in agent.each_alternative] == [
            ((MODEL, "H100"),),
            (("zone", "none"),),
        ]
