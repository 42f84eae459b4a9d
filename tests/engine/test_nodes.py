"""The book of nodes and devices: what is physically free where."""

from __future__ import annotations

import pytest

from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.messages.outcomes import Pending
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.devices import devices_for
from tests.engine.builders import Mesh, amount, node, on, pool, shape


def cluster(*nodes):
    book = Cluster()
    for report in nodes:
        book.see(report)
    return book


def chosen(book, strategy="bin_pack", **need):
    found = book.choose(shape(need), strategy)
    return None if found is None else found.node_id


@pytest.mark.parametrize(
    ("free", "gpu", "expected"),
    [
        ((1.0, 1.0), 0, on()),
        ((0.5, 0.5), 0.5, on((0, 0.5))),
        ((0.3, 0.9), 0.3, on((1, 0.3))),
        ((0.5, 0.5), 1, None),
        ((0.5, 1.0), 1, on((1, 1))),
        ((1.0, 0.5, 1.0), 2, on((0, 1), (2, 1))),
        ((1.0, 1.0), 3, None),
        ((), 0.5, None),
    ],
)
def test_a_share_goes_on_the_emptiest_device_and_whole_ones_must_be_wholly_free(
    free, gpu, expected
):
    assert devices_for([round(part * UNIT) for part in free], round(gpu * UNIT)) == expected


def test_bin_pack_takes_the_fullest_node_with_room_and_spread_the_emptiest():
    book = cluster(node("a", cpu=4), node("b", cpu=8), node("c", cpu=2))
    assert chosen(book, cpu=3) == "a"
    assert chosen(book, "spread", cpu=3) == "b"
    assert chosen(book, cpu=9) is None


def test_nodes_that_are_alike_are_taken_in_the_order_of_their_ids():
    assert chosen(cluster(node("b", cpu=4), node("a", cpu=4)), cpu=1) == "a"


def test_a_task_without_gpus_goes_where_the_fewest_gpus_are_free():
    assert chosen(cluster(node("a", cpu=4, gpu=2), node("b", cpu=8)), cpu=1) == "b"


def test_half_and_half_on_two_devices_is_not_one():
    book = cluster(node("a", cpu=4, gpu=2))
    book.take("a", "x", amount(cpu=1), on((0, 0.5)))
    book.take("a", "y", amount(cpu=1), on((1, 0.5)))
    assert book.nodes["a"].free.gpu == UNIT
    assert chosen(book, gpu=1) is None
    assert chosen(book, gpu=0.5) == "a"


def test_a_cordoned_node_takes_no_new_agents_and_keeps_the_old():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("old", cpu=1, node_id="a")

    mesh.cordon("a")
    for name in ("x", "y", "z", "w"):
        mesh.run(name, cpu=1)

    assert mesh.state.agents["old"].node_id == "a"
    assert {mesh.state.agents[name].node_id for name in "xyzw"} == {"b"}
    mesh.cordon("a", cordoned=False)
    mesh.run("new", cpu=1)
    assert mesh.state.agents["new"].node_id == "a"


def test_what_the_agent_reports_is_the_truth():
    mesh = Mesh(pool("p", cpu=8, gpu=4), nodes=[node("a", cpu=4, gpu=2), node("b", cpu=4, gpu=2)])
    mesh.submit("x", gpu=0.5, cpu=1)
    assert mesh.state.cluster.nodes["a"].devices == [UNIT // 2, UNIT]

    mesh.report("x", "b", on((1, 0.5)))

    assert mesh.state.cluster.nodes["a"].devices == [UNIT, UNIT]
    assert mesh.state.cluster.nodes["b"].devices == [UNIT, UNIT // 2]
    assert mesh.state.cluster.nodes["b"].free.cpu == 3 * UNIT


def test_an_assumed_device_moves_out_of_the_way_of_a_reported_one():
    mesh = Mesh(pool("p", gpu=4), nodes=[node("a", gpu=2)])
    mesh.submit("x", gpu=1)
    mesh.submit("y", gpu=0.5)
    mesh.report("y", "a", on((0, 0.5)))
    assert mesh.state.cluster.nodes["a"].allocations["x"].devices == on((1, 1))


def test_an_assumed_device_moves_out_of_the_way_of_one_reported_from_another_node():
    mesh = Mesh(pool("p", gpu=4), nodes=[node("a", gpu=2), node("b", gpu=1)])
    mesh.submit("b-agent", gpu=1)
    mesh.submit("a-agent", gpu=1)
    assert mesh.state.cluster.nodes["a"].allocations["a-agent"].devices == on((0, 1))

    mesh.report("b-agent", "a", on((0, 1)))

    assert mesh.state.cluster.nodes["a"].allocations["a-agent"].devices == on((1, 1))
    assert mesh.state.cluster.nodes["a"].devices == [0, 0]


def test_whole_devices_that_are_assumed_are_placed_before_shares():
    mesh = Mesh(pool("p", gpu=4), nodes=[node("a", gpu=3)])
    mesh.submit("share", gpu=0.5)
    mesh.submit("whole", gpu=1)
    mesh.submit("other", gpu=0.5)
    assert mesh.state.cluster.nodes["a"].allocations["other"].devices == on((2, 0.5))

    mesh.report("other", "a", on((1, 0.5)))

    assert sorted(mesh.state.cluster.nodes["a"].devices) == [0, UNIT // 2, UNIT // 2]


def test_an_agent_that_cannot_tell_its_devices_keeps_those_assumed_for_it():
    mesh = Mesh(pool("p", gpu=4), nodes=[node("a", gpu=2)])
    mesh.submit("x", gpu=1)
    mesh.report("x", "a", Devices())
    assert mesh.state.cluster.nodes["a"].devices == [0, UNIT]

    mesh.submit("y", gpu=1, more={"choose_node": False})
    mesh.report("y", "a", Devices())
    assert mesh.state.cluster.nodes["a"].devices == [0, 0]


def test_an_agent_placed_by_its_own_options_stands_where_it_reports():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.submit("x", cpu=3, more={"choose_node": False})
    assert mesh.state.cluster.nodes["a"].free == amount(cpu=4)
    mesh.report("x", "a")
    assert mesh.state.cluster.nodes["a"].free == amount(cpu=1)


def test_agents_that_reported_before_their_node_was_seen_stand_there_once_it_is():
    mesh = Mesh(pool("p", cpu=8, gpu=4))
    mesh.run("x", cpu=3, gpu=1, node_id="a", devices=on((1, 1)))

    mesh.observe(node("a", cpu=4, gpu=2))

    assert mesh.state.cluster.nodes["a"].free == amount(cpu=1, gpu=1)
    assert mesh.state.cluster.nodes["a"].devices == [UNIT, 0]
    assert mesh.submit("y", priority=0.0, cpu=2).reason == "preemption_failed"


def test_a_node_that_is_lost_takes_what_stood_there_with_it():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("x", cpu=3, node_id="a")

    mesh.observe(node("b", cpu=4))
    assert set(mesh.state.cluster.nodes) == {"b"}
    mesh.die("x")
    assert mesh.free() == amount(cpu=8)


def test_a_node_that_comes_back_holds_the_agents_that_still_live_there():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4), node("b", cpu=1)])
    mesh.run("x", cpu=3, node_id="a")
    mesh.observe(node("b", cpu=1))

    mesh.observe(node("a", cpu=4), node("b", cpu=1))

    assert mesh.state.cluster.nodes["a"].free == amount(cpu=1)
    mesh.die("x")
    assert mesh.state.cluster.nodes["a"].free == amount(cpu=4)


def test_only_what_changed_about_nodes_becomes_a_fact():
    mesh = Mesh(nodes=[node("a", cpu=4)])
    assert mesh.observe(node("a", cpu=4)).facts == ()
    assert mesh.observe(node("a", cpu=4, others=None)).facts == ()
    assert len(mesh.observe(node("a", cpu=4, others=amount(cpu=1))).facts) == 1
    assert mesh.state.cluster.nodes["a"].free == amount(cpu=3)


def test_what_others_use_is_kept_while_it_is_not_known():
    mesh = Mesh(nodes=[node("a", cpu=4, others=amount(cpu=1))])
    mesh.observe(node("a", cpu=8, others=None))
    assert mesh.state.cluster.nodes["a"].free == amount(cpu=7)


def test_what_others_use_never_causes_an_eviction_by_itself():
    mesh = Mesh(pool("p", cpu=4, gpu=1), nodes=[node("a", cpu=4, gpu=1)])
    mesh.run("x", priority=0.0, cpu=2, gpu=1)

    step = mesh.observe(node("a", cpu=4, gpu=1, others=amount(cpu=4, gpu=0.5)))

    assert [type(fact).__name__ for fact in step.facts] == ["NodeSeen"]
    assert step.instructions == ()


def test_others_using_more_gpu_than_is_left_do_not_make_a_cpu_task_evict():
    mesh = Mesh(pool("p", cpu=4, gpu=1), nodes=[node("a", cpu=4, gpu=1)])
    mesh.run("x", priority=0.0, cpu=1, gpu=1)
    mesh.observe(node("a", cpu=4, gpu=1, others=amount(gpu=0.5)))
    assert mesh.state.cluster.nodes["a"].free.gpu < 0

    assert isinstance(mesh.submit("y", priority=9.0, cpu=1), Pending)
    assert mesh.ends == {}


def test_others_using_more_cpu_than_is_left_do_not_make_a_gpu_task_evict():
    mesh = Mesh(pool("p", cpu=4, gpu=2), nodes=[node("a", cpu=4, gpu=2)])
    mesh.run("x", priority=0.0, cpu=2, gpu=1)
    mesh.observe(node("a", cpu=4, gpu=2, others=amount(cpu=3)))

    assert isinstance(mesh.submit("y", priority=9.0, gpu=1), Pending)
    assert mesh.ends == {}


def test_others_are_assumed_on_the_devices_that_our_agents_do_not_hold():
    mesh = Mesh(pool("p", gpu=3), nodes=[node("a", gpu=2)])
    mesh.run("x", priority=0.0, gpu=1, devices=on((0, 1)))
    mesh.observe(node("a", gpu=2, others=amount(gpu=1)))
    assert mesh.state.cluster.nodes["a"].devices == [0, 0]


def gpu_names(mesh, *reports):
    """Agents of these shares of a GPU report these names."""
    for name, share, ids in reports:
        mesh.submit(name, gpu=share)
        mesh.starts.pop(name)
        incarnation = mesh.state.agents[name].incarnation
        mesh.handle(
            s.AgentReported(agent_name=name, incarnation=incarnation, node_id="a", gpu_ids=ids)
        )
    return {
        name: found.devices for name, found in mesh.state.cluster.nodes["a"].allocations.items()
    }


def test_gpus_are_known_by_the_names_that_their_node_gives_them():
    """A node that was started with CUDA_VISIBLE_DEVICES=4,5 has no device 0."""
    mesh = Mesh(pool("p", gpu=2), nodes=[node("a", gpu=2)])
    stands = gpu_names(mesh, ("x", 0.5, ("5",)), ("y", 0.5, ("4",)), ("z", 0.5, ("5",)))
    assert stands["x"] == stands["z"] != stands["y"]
    assert mesh.state.cluster.nodes["a"].devices in ([0, UNIT // 2], [UNIT // 2, 0])
    assert mesh.dry("w", gpu=1).reason == "preemption_failed"
    assert mesh.rewritten().cluster.nodes["a"].slots == mesh.state.cluster.nodes["a"].slots


def test_names_need_not_be_numbers():
    mesh = Mesh(pool("p", gpu=2), nodes=[node("a", gpu=2)])
    stands = gpu_names(mesh, ("x", 0.5, ("GPU-8932f937",)), ("y", 1, ("MIG-b1/0",)))
    assert {i for i, _ in (*stands["x"].units, *stands["y"].units)} == {0, 1}
    assert mesh.dry("w", gpu=0.5).agent_name == "w"


@pytest.mark.parametrize("ids", [(), ("0", "1"), ("0", "0"), ("7", "8", "9")])
def test_names_that_cannot_be_what_the_agent_has_are_as_good_as_none(ids):
    mesh = Mesh(pool("p", gpu=2), nodes=[node("a", gpu=2)])
    gpu_names(mesh, ("x", 1, ids))
    assert not mesh.state.cluster.nodes["a"].allocations["x"].reported
    assert mesh.state.cluster.nodes["a"].slots == {}


def test_of_two_reports_that_exclude_each_other_the_later_one_counts():
    mesh = Mesh(pool("p", gpu=2), nodes=[node("a", gpu=2)])
    gpu_names(mesh, ("x", 1, ("4",)), ("y", 1, ("4",)))
    found = mesh.state.cluster.nodes["a"]
    assert found.allocations["y"].reported
    assert not found.allocations["x"].reported
    assert found.allocations["x"].devices != found.allocations["y"].devices


def test_a_name_that_nobody_uses_makes_room_for_a_new_one():
    mesh = Mesh(pool("p", gpu=1), nodes=[node("a", gpu=1)])
    gpu_names(mesh, ("x", 1, ("wrong",)))
    mesh.delete("x")
    mesh.leave("x")
    gpu_names(mesh, ("y", 1, ("right",)))
    assert mesh.state.cluster.nodes["a"].slots == {"right": 0}


def test_an_agent_on_a_device_that_its_node_has_no_more_breaks_nothing():
    mesh = Mesh(pool("p", gpu=2, cpu=4), nodes=[node("a", gpu=2, cpu=4)])
    gpu_names(mesh, ("x", 1, ("0",)), ("y", 1, ("1",)))
    mesh.submit("new", priority=9.0, gpu=2)
    mesh.observe(node("a", gpu=1, cpu=4))
    for victim in ("x", "y"):
        mesh.leave(victim)
    assert mesh.state.cluster.nodes["a"].free.gpu == UNIT
    assert "new" not in mesh.state.agents
