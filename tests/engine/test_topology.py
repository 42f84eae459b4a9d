"""Placement by the topology; random clusters are compared with an exhaustive search."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import msgspec
import pytest

from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.topology import Topology, with_levels
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Refused
from schedulemesh.engine.placement.bundles import Room
from tests.counted_calls import calls_of
from tests.engine.builders import Mesh, amount, node, pool
from tests.engine.builders import shape as shape_of

LEVELS = ("block", "rack")


def labels(block, rack):
    return {key: value for key, value in (("block", block), ("rack", rack)) if value}


def racks(*gpus, block=""):
    """Racks ``r1``, ``r2``, ... with so many GPUs free on each of their nodes."""
    return [
        node(f"r{rack}n{number}", cpu=64, gpu=free, labels=labels(block, f"r{rack}"))
        for rack, of_rack in enumerate(gpus, start=1)
        for number, free in enumerate(of_rack, start=1)
    ]


def mesh_of(nodes, levels=LEVELS):
    mesh = Mesh(pool("p", cpu=1000, gpu=1000), nodes=nodes)
    mesh.policy(topology_levels=levels)
    return mesh


def gang_of(count, gpu=1):
    return {"bundles": [{"gpu": gpu}] * count, "payload": GangPayload(strategy="PACK")}


def nodes_of(mesh, name):
    return mesh.state.groups.by_id[mesh.state.agents[name].group_id].node_ids


def racks_of(mesh, name):
    nodes = mesh.state.cluster.nodes
    return [nodes[node_id].labels.get("rack", node_id) for node_id in nodes_of(mesh, name)]


# what peers' users have reported


def test_the_fullest_rack_that_holds_the_gang_is_taken():
    mesh = mesh_of(racks([8, 8], [4, 4], [2, 2]))
    assert isinstance(mesh.submit("g", topology="rack", **gang_of(6)), Pending)
    assert set(racks_of(mesh, "g")) == {"r2"}


def test_a_gang_is_not_divided_although_two_racks_together_have_room():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    outcome = mesh.submit("g", topology="rack", **gang_of(10))
    assert outcome.reason is Reason.CLUSTER_OUT_OF_RESOURCES
    assert "no rack has gpu 10 free: the best, r2, has gpu 8" in outcome.error


def test_what_a_rack_has_now_is_said():
    mesh = mesh_of(racks([8, 8], [6, 6]))
    mesh.run("a", gpu=6, cpu=1, node_id="r1n1")
    outcome = mesh.submit("g", topology="rack", **gang_of(16))
    assert outcome.reason is Reason.GROUP_UNPLACEABLE
    assert "no rack has gpu 16 free: the best, r2, has gpu 12" in outcome.error
    assert isinstance(mesh.submit("h", topology="preferred:rack", **gang_of(16)), Pending)


def test_a_preference_takes_whole_racks_before_parts_of_others():
    """Two of three racks have one node each that is full: both members belong into the third one."""
    mesh = mesh_of(racks([1, 1], [1, 0], [1, 0]))
    how = {"bundles": [{"gpu": 1}] * 2, "payload": GangPayload(strategy="STRICT_SPREAD")}
    mesh.submit("g", topology="preferred:rack", **how)
    assert set(racks_of(mesh, "g")) == {"r1"}


def test_a_preference_goes_on_in_the_rack_that_is_begun():
    mesh = mesh_of(racks([1, 1], [1, 1], [1, 1]))
    mesh.submit("g", topology="preferred:rack", **gang_of(4))
    assert sorted(Counter(racks_of(mesh, "g")).values()) == [2, 2]


def test_racks_of_uneven_size():
    sizes = (1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 6, 6, 6, 8, 11)
    mesh = mesh_of(racks(*([8] * size for size in sizes)))
    for name in ("a", "b"):
        assert isinstance(mesh.submit(name, topology="rack", **gang_of(8, gpu=8)), Pending)
    assert {*racks_of(mesh, "a")} == {"r14"}
    assert {*racks_of(mesh, "b")} == {"r15"}
    assert isinstance(mesh.submit("c", topology="rack", **gang_of(8, gpu=8)), Refused)
    mesh.submit("d", topology="preferred:rack", **gang_of(8, gpu=8))
    assert len({*racks_of(mesh, "d")}) == 2


def test_required_and_preferred_may_be_the_same_level():
    mesh = mesh_of(racks([4, 4], [2, 2]))
    assert isinstance(mesh.submit("g", topology="rack,preferred:rack", **gang_of(4)), Pending)
    assert set(racks_of(mesh, "g")) == {"r2"}


def test_a_rack_that_is_full_of_victims_is_made_free():
    mesh = mesh_of(racks([8, 8], [8, 8]))
    for rack in (1, 2):
        for number in (1, 2):
            name = f"r{rack}n{number}"
            mesh.run(name, priority=float(rack), gpu=8, cpu=1, node_id=name)
    outcome = mesh.dry("g", priority=9.0, topology="rack", **gang_of(16))
    assert sorted(one.task_id for one in outcome.preempted) == ["r1n1", "r1n2"]


def test_victims_are_in_one_rack_where_the_first_in_order_are_in_two():
    """In score order one victim of each rack comes first; together they free no rack."""
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name, priority in (("r1n1", 1.0), ("r2n1", 1.0), ("r1n2", 3.0), ("r2n2", 2.0)):
        mesh.run(name, priority=priority, gpu=4, cpu=1, node_id=name)
    outcome = mesh.dry("g", priority=9.0, topology="rack", **gang_of(8))
    assert sorted(one.task_id for one in outcome.preempted) == ["r2n1", "r2n2"]


def test_fewer_victims_of_the_same_priority_are_preferred():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for number in range(4):
        mesh.run(f"small{number}", priority=1.0, gpu=2, cpu=1, node_id=f"r1n{number // 2 + 1}")
    for name in ("r2n1", "r2n2"):
        mesh.run(name, priority=1.0, gpu=4, cpu=1, node_id=name)
    outcome = mesh.dry("g", priority=9.0, topology="rack", **gang_of(8))
    assert sorted(one.task_id for one in outcome.preempted) == ["r2n1", "r2n2"]


def test_a_preference_evicts_nobody_for_itself():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name in ("r1n1", "r2n1"):
        mesh.run(name, priority=1.0, gpu=4, cpu=1, node_id=name)
    outcome = mesh.dry("g", priority=9.0, topology="preferred:rack", **gang_of(8))
    assert not outcome.preempted


def test_a_preference_has_its_victims_in_one_rack():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name in ("r1n1", "r2n1", "r1n2", "r2n2"):
        mesh.run(name, priority=1.0, gpu=4, cpu=1, node_id=name)
    outcome = mesh.dry("g", priority=9.0, topology="preferred:rack", **gang_of(8))
    assert len({one.task_id[:2] for one in outcome.preempted}) == 1


def test_each_slice_is_in_one_rack():
    mesh = mesh_of(racks([5, 5], [3, 3], [3, 1]))
    mesh.submit("g", topology="slice:4:rack", **gang_of(12))
    in_order = racks_of(mesh, "g")
    slices = [set(in_order[first : first + 4]) for first in (0, 4, 8)]
    assert [len(each) for each in slices] == [1, 1, 1]
    assert isinstance(mesh.submit("h", topology="slice:4:rack", **gang_of(8)), Refused)


@pytest.mark.parametrize(
    ("topology", "how", "error"),
    [
        ("rak", gang_of(4), "topology names the level 'rak' (did you mean 'rack'?)"),
        ("slice:3:rack", gang_of(4), "slices of 3, which do not divide 4 members evenly"),
        ("rack,preferred:block", gang_of(4), "level 'block' inside of level 'rack'"),
        ("rack,slice:2:block", gang_of(4), "level 'block' inside of level 'rack'"),
        ("rack", {"gpu": 1}, "single agent"),
        ("rack", {"bundles": [{"gpu": 1}] * 2, "payload": GangPayload(replicas=4)}, "min_replicas"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(topology, how, error):
    outcome = mesh_of(racks([8, 8])).submit("g", topology=topology, **how)
    assert outcome.reason is Reason.INVALID_TOPOLOGY
    assert error in outcome.error


def test_what_is_wrong_in_every_flavor_is_said_once():
    flavors = {"one": {"block": "b1"}, "two": {"block": "b2"}}
    quota = {"cpu": 100, "custom": {"gpu@one": 8, "gpu@two": 8}}
    mesh = Mesh(pool("p", flavors=flavors, **quota), nodes=racks([8, 8], block="b1"))
    mesh.policy(topology_levels=LEVELS)
    outcome = mesh.submit("g", topology="rak", **gang_of(4))
    assert outcome.error.count("topology names the level") == 1
    assert "alternatives" not in outcome.error


def test_without_levels_none_can_be_asked_for():
    outcome = mesh_of(racks([8, 8]), levels=()).submit("g", topology="rack", **gang_of(4))
    assert "levels of the policy are: none yet" in outcome.error


# leases, jobs, nodes without labels


def test_bundles_of_a_lease_are_in_one_rack():
    mesh = mesh_of(racks([2, 2], [4, 4]))
    payload = LeasePayload(strategy="SPREAD", parts=2)
    mesh.submit("l", topology="rack", bundles=[{"gpu": 1}] * 6, payload=payload)
    assert set(racks_of(mesh, "l")) == {"r2"}
    assert len(set(nodes_of(mesh, "l"))) == 2


def test_each_group_of_a_lease_is_on_one_node_of_the_rack():
    mesh = mesh_of(racks([6, 6, 6], [4, 4]))
    payload = LeasePayload(strategy="STRICT_PACK", parts=3)
    mesh.submit("l", topology="rack", bundles=[{"gpu": 1}] * 12, payload=payload)
    node_ids = nodes_of(mesh, "l")
    assert [len(set(node_ids[first : first + 4])) for first in (0, 4, 8)] == [1, 1, 1]
    assert set(racks_of(mesh, "l")) == {"r1"}


def test_a_job_that_no_node_holds_is_divided_inside_of_a_rack():
    mesh = mesh_of(racks([8, 8], [4, 4]))
    mesh.submit("j", topology="rack", gpu=12, cpu=12, payload=JobPayload())
    assert set(racks_of(mesh, "j")) == {"r1"}


def test_a_job_on_one_node_crosses_nothing():
    mesh = mesh_of([node("plain", gpu=8, cpu=8)])
    assert isinstance(mesh.submit("j", topology="rack", gpu=8, payload=JobPayload()), Pending)


def test_a_node_without_the_label_is_a_domain_by_itself():
    mesh = mesh_of([node("a", gpu=8, cpu=8), node("b", gpu=8, cpu=8)])
    assert isinstance(mesh.submit("g", topology="rack", **gang_of(8)), Pending)
    assert isinstance(mesh.submit("h", topology="rack", **gang_of(9)), Refused)


def test_racks_of_the_same_name_in_two_blocks_are_two():
    mesh = mesh_of(
        [
            node("a", gpu=4, cpu=8, labels=labels("b1", "r1")),
            node("b", gpu=4, cpu=8, labels=labels("b2", "r1")),
        ]
    )
    assert isinstance(mesh.submit("g", topology="rack", **gang_of(8)), Refused)


def test_members_that_differ_are_in_one_rack_slice_by_slice():
    mesh = mesh_of(racks([4, 2], [4, 2], [9]))
    bundles = [{"gpu": 4}, {"gpu": 1}, {"gpu": 1}] * 3
    payload = GangPayload(strategy="PACK")
    mesh.submit("g", topology="slice:3:rack", bundles=bundles, payload=payload)
    in_order = racks_of(mesh, "g")
    assert [len(set(in_order[first : first + 3])) for first in (0, 3, 6)] == [1, 1, 1]
    refused = mesh.submit("h", topology="rack", bundles=bundles[:3], payload=payload)
    assert isinstance(refused, Refused)


def test_where_slices_have_no_room_it_is_said_how_many_do():
    mesh = mesh_of(racks([5, 5], [3, 3], [3, 1]))
    outcome = mesh.submit("g", topology="slice:4:rack", **gang_of(20))
    assert "there is room for 4 of 5 slices of gpu 4, each in one rack" in outcome.error


def unequal_racks(count, block=""):
    """Racks of one node with 4 GPUs, of which no two are equal."""
    return [
        node(f"{block}n{number}", cpu=64 + number, gpu=4, labels=labels(block, f"r{number}"))
        for number in range(count)
    ]


SLICES = {
    "bundles": [{"gpu": 2}, {"gpu": 1}] * 13,
    "payload": GangPayload(strategy="PACK"),
}


def test_a_search_that_ends_before_all_was_tried_says_so():
    mesh = mesh_of(unequal_racks(12))
    outcome = mesh.submit("g", topology="slice:2:rack", **SLICES)
    assert (
        "300 ways to divide members that differ among the domains of rack were tried"
        in outcome.error
    )
    mesh.queue("w", topology="slice:2:rack", **SLICES)
    assert "300 ways" in mesh.engine.explain("w", mesh.now).error


def test_slices_that_have_no_room_at_once_are_said_where_all_was_tried():
    mesh = mesh_of(racks([2], [2], [2]))
    bundles = [{"gpu": 1}, {"gpu": 0.5}] * 4
    payload = GangPayload(strategy="PACK")
    outcome = mesh.submit("g", topology="slice:2:rack", bundles=bundles, payload=payload)
    assert "4 slices have no room at once, each in one rack" in outcome.error


def test_a_search_in_vain_leaves_trials_for_the_domains_after_it():
    mesh = mesh_of([*unequal_racks(12, "b1"), *unequal_racks(13, "b2")])
    assert isinstance(mesh.submit("g", topology="block,slice:2:rack", **SLICES), Pending)
    assert {node_id[:2] for node_id in nodes_of(mesh, "g")} == {"b2"}


def test_racks_that_are_equal_are_one_trial():
    """Forty racks, 41 slices: without that every order of the racks would be tried."""
    mesh = mesh_of(racks(*[[4]] * 40))
    bundles = [{"gpu": 2}, {"gpu": 1}] * 41
    outcome = mesh.submit(
        "g", topology="slice:2:rack", bundles=bundles, payload=GangPayload(strategy="PACK")
    )
    assert "41 slices have no room at once" in outcome.error


def test_a_pool_of_reserved_groups_alone_takes_no_topology_but_of_jobs():
    spec = GroupsSpec(reserved=(shape_of(*[{"gpu": 1}] * 2),), dynamic=False)
    mesh = Mesh(pool("p", cpu=100, gpu=100, groups=spec), nodes=racks([8, 8]))
    mesh.policy(topology_levels=LEVELS)
    for how in (gang_of(2), {"bundles": [{"gpu": 1}] * 2, "payload": LeasePayload(parts=1)}):
        outcome = mesh.submit("g", topology="rack", **how)
        assert outcome.reason is Reason.INVALID_TOPOLOGY
        assert "pool 'p' has only reserved ones" in outcome.error
    job = {"gpu": 12, "cpu": 12, "payload": JobPayload()}
    assert isinstance(mesh.submit("j", topology="rack", **job), Pending)


# queue, reserved starts, returns


def test_a_task_waits_until_one_rack_has_room():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name in ("r1n1", "r2n1"):
        mesh.run(name, gpu=4, cpu=1, node_id=name)
    mesh.queue("g", topology="rack", **gang_of(8))
    mesh.tick(1.0)
    assert mesh.waiting() == ["g"]
    mesh.complete("r2n1")
    assert mesh.waiting() == []
    assert set(racks_of(mesh, "g")) == {"r2"}


def test_the_reserved_start_is_in_the_rack_that_is_free_first():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name, seconds in (("r1n1", 50.0), ("r2n1", 100.0), ("r2n2", 60.0), ("r1n2", 300.0)):
        mesh.run(name, gpu=4, cpu=1, node_id=name, duration=seconds)
    mesh.queue("g", topology="rack", **gang_of(8))
    mesh.tick(1.0)
    reserved = mesh.state.queue.by_id["g"].reservation
    assert (reserved.at, set(reserved.node_ids)) == (mesh.now - 1.0 + 100.0, {"r2n1", "r2n2"})


def test_two_tasks_that_differ_in_topology_alone_are_decided_apart():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name in ("r1n1", "r2n1"):
        mesh.run(name, gpu=4, cpu=1, node_id=name)
    mesh.queue("g", topology="rack", **gang_of(8))
    mesh.queue("h", topology="preferred:rack", **gang_of(8))
    mesh.tick(1.0)
    assert mesh.waiting() == ["g"]


def test_a_gang_that_was_evicted_waits_for_one_rack_again():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    mesh.handle(s.ClassProbed(class_key="c"))
    how = {"on_preempted": "requeue", "run": "train", "class_key": "c"}
    mesh.queue("g", topology="rack", **how, **gang_of(8))
    mesh.make_all()
    mesh.report("g")
    first = {n for n in mesh.state.cluster.nodes if n not in nodes_of(mesh, "g")}
    for name in sorted(first):
        mesh.run(f"on-{name}", priority=9.0, gpu=4, cpu=1, node_id=name)
    mesh.queue("top", priority=9.0, gpu=4)
    mesh.leave("g")
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    assert mesh.waiting() == ["g"]
    mesh.complete(f"on-{min(first)}")
    # Half of each rack is free.
    assert mesh.waiting() == ["g"]
    mesh.complete(f"on-{max(first)}")
    assert mesh.waiting() == []
    assert set(nodes_of(mesh, "g")) == first


# the exhaustive search


class Cluster:
    """A small cluster by its free GPUs: for each node its block, its rack, and what is free."""

    def __init__(self, rng):
        self.nodes = {}
        for number in range(rng.randint(1, 6)):
            block, rack = rng.choice(["", "b1", "b2"]), rng.choice(["", "r1", "r2", "r3"])
            self.nodes[f"n{number}"] = (block, rack, rng.randint(0, 4))

    def reports(self):
        return [
            node(node_id, cpu=100, gpu=free, labels=labels(block, rack))
            for node_id, (block, rack, free) in self.nodes.items()
        ]

    def domain(self, node_id, level):
        """The domain of a node by the words of the document."""
        block, rack, _ = self.nodes[node_id]
        if level < 0:
            return "all"
        if level == 0 and block:
            return block
        return f"{block}|{rack}" if rack else f"{block}||{node_id}"

    def order(self, domain, level):
        inside = [n for n in self.nodes if self.domain(n, level) == domain]
        return sum(self.nodes[n][2] for n in inside)

    def assignments(self, count, need, *, apart):
        """Every valid assignment of so many equal bundles to nodes."""
        for assignment in product(self.nodes, repeat=count):
            taken = Counter(assignment)
            if all(n * need <= self.nodes[node_id][2] for node_id, n in taken.items()) and not (
                apart and max(taken.values()) > 1
            ):
                yield assignment


def asked(rng, count):
    """A topology in its short form, at random."""
    required, preferred = rng.choice(["", "block", "rack"]), rng.choice(["", "block", "rack"])
    if required == "rack" and preferred == "block":
        preferred = "rack"
    terms = [required] if required else []
    terms += [f"preferred:{preferred}"] if preferred else []
    narrowest = "rack" if "rack" in (required, preferred) else rng.choice(["block", "rack"])
    if "block" in (required, preferred):
        narrowest = "rack"
    size = rng.choice([size for size in range(1, count + 1) if count % size == 0])
    if not terms or rng.random() < 0.5:
        terms.append(f"slice:{size}:{narrowest}")
    return ",".join(terms)


def is_valid(cluster, topology, assignment):
    if topology.required:
        domains = {cluster.domain(n, topology.limit) for n in assignment}
        if len(domains) > 1:
            return False
    size = topology.slice_size
    return not size or all(
        len({cluster.domain(n, topology.slice_at) for n in assignment[first : first + size]}) == 1
        for first in range(0, len(assignment), size)
    )


def narrowest_common(cluster, topology, assignment):
    """The first of the levels that are tried of which one domain holds all."""
    for level in range(topology.target, topology.limit - 1, -1):
        if len({cluster.domain(n, level) for n in assignment}) == 1:
            return level
    raise AssertionError("a placement that meets no level")


def fewest(cluster, valid, level):
    """The fewest domains of a level that any of these assignments uses."""
    return min(len({cluster.domain(n, level) for n in one}) for one in valid)


@pytest.mark.parametrize("seed", range(400))
def test_the_choice_is_as_good_as_that_of_an_exhaustive_search(seed):
    rng = random.Random(seed)
    cluster, count, need = Cluster(rng), rng.randint(2, 4), rng.choice([1, 1, 2])
    strategy = rng.choice(["PACK", "SPREAD", "STRICT_SPREAD"])
    topology = with_levels(asked(rng, count), LEVELS)
    mesh = mesh_of(cluster.reports())
    shape = GroupShape(bundles=(amount(gpu=need),) * count, strategy=strategy, topology=topology)
    placement = Room(mesh.state.cluster).placement(shape)
    valid = [
        one
        for one in cluster.assignments(count, need, apart=strategy == "STRICT_SPREAD")
        if is_valid(cluster, topology, one)
    ]
    if placement is None:
        assert not valid
        return
    chosen = placement.node_ids
    assert chosen in valid
    level = narrowest_common(cluster, topology, chosen)
    assert level == max(narrowest_common(cluster, topology, one) for one in valid)
    domain = cluster.domain(chosen[0], level)
    in_one = [one for one in valid if len({cluster.domain(n, level) for n in one}) == 1]
    least = min(cluster.order(cluster.domain(one[0], level), level) for one in in_one)
    assert cluster.order(domain, level) == least
    inside = [one for one in in_one if cluster.domain(one[0], level) == domain]
    while (level := level + 1) < len(LEVELS):
        used = {cluster.domain(n, level) for n in chosen}
        assert len(used) == fewest(cluster, inside, level)
        inside = [one for one in inside if {cluster.domain(n, level) for n in one} == used]


@pytest.mark.parametrize("seed", range(200))
def test_members_that_differ_find_a_placement_wherever_there_is_one(seed):
    rng = random.Random(1000 + seed)
    cluster, count = Cluster(rng), rng.randint(2, 4)
    needs = [rng.choice([1, 2, 3]) for _ in range(count)]
    topology = with_levels(asked(rng, count), LEVELS)
    mesh = mesh_of(cluster.reports())
    bundles = tuple(amount(gpu=need) for need in needs)
    shape = GroupShape(bundles=bundles, strategy="PACK", topology=topology)
    placement = Room(mesh.state.cluster).placement(shape)
    valid = []
    for assignment in product(cluster.nodes, repeat=count):
        taken = Counter()
        for need, node_id in zip(needs, assignment, strict=True):
            taken[node_id] += need
        if all(taken[n] <= cluster.nodes[n][2] for n in taken) and is_valid(
            cluster, topology, assignment
        ):
            valid.append(assignment)
    assert (placement is None) == (not valid)
    if placement is not None:
        assert placement.node_ids in valid
        level = narrowest_common(cluster, topology, placement.node_ids)
        assert level == max(narrowest_common(cluster, topology, one) for one in valid)


def test_nodes_that_cannot_hold_a_member_cost_no_call():
    """So a choice among 10,000 nodes with too little on each takes its 5 ms."""
    asked = GroupShape(
        bundles=(amount(gpu=4),) * 2, strategy="PACK", topology=with_levels("rack", LEVELS)
    )
    calls = []
    for per_rack in (10, 20):
        mesh = mesh_of(racks(*[[3] * per_rack] * 20))
        Room(mesh.state.cluster).placement(asked)  # the nodes are counted by domains
        placement, count = calls_of(lambda mesh=mesh: Room(mesh.state.cluster).placement(asked))
        assert placement is None
        calls.append(count)
    assert calls[0] == calls[1]


def test_rooms_with_removals_are_as_if_these_had_ended():
    mesh = mesh_of(racks([4, 4], [4, 4]))
    for name in ("r1n1", "r2n1", "r2n2"):
        mesh.run(name, gpu=4, cpu=1, node_id=name)
    topology = Topology(levels=LEVELS, required="rack")
    shape = GroupShape(bundles=(amount(gpu=1),) * 8, strategy="PACK", topology=topology)
    room = Room(mesh.state.cluster)
    assert room.placement(shape) is None
    room.release("r1n1", "r1n1")
    assert {n[:2] for n in room.placement(shape).node_ids} == {"r1"}
    assert Room(mesh.state.cluster).placement(shape) is None
    everywhere = msgspec.structs.replace(shape, topology=None)
    assert Room(mesh.state.cluster).placement(everywhere) is None
