"""Fair pools: the tasks of the owner come first who has used least."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.state.fair_order import Entry, FairFirsts, FairOrder
from schedulemesh.engine.state.owners import Owners, OwnerUse
from tests.engine.builders import Mesh, differences, node, pool


def fair(spec, **changes):
    return msgspec.structs.replace(spec, owner_order="fair", **changes)


def mesh_of(cpu=4, *, spec=None, half_life_s=100.0, **policy):
    return Mesh(
        fair(pool("p", cpu=cpu)) if spec is None else spec,
        nodes=[node("n", cpu=cpu)],
        usage_half_life_s=half_life_s,
        **policy,
    )


def finish(mesh, name, after=0.0):
    mesh.now += after
    if name in mesh.starts:
        mesh.report(name)
    mesh.complete(name)


def differs(mesh):
    return differences(mesh.state, mesh.refolded()) + differences(mesh.state, mesh.rewritten())


def test_the_owner_who_has_used_less_starts_first():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada")
    for name in ("a2", "a3"):
        mesh.queue(name, cpu=4, owner="ada")
    mesh.queue("b1", cpu=4, owner="ben")
    assert mesh.waiting() == ["b1", "a2", "a3"]
    finish(mesh, "a1", after=50.0)
    assert list(mesh.starts)[-1] == "b1"
    mesh.queue("b2", cpu=4, owner="ben")
    finish(mesh, "b1", after=10.0)
    # Ada has used it for 50 s, ben for 10 s since.
    assert list(mesh.starts)[-1] == "b2"
    assert differs(mesh) == []


def test_past_use_is_forgotten_by_half_lives():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada")
    finish(mesh, "a1", after=50.0)
    mesh.now += 1000.0
    mesh.queue("b1", cpu=4, owner="ben")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.queue("b2", cpu=4, owner="ben")
    finish(mesh, "b1", after=10.0)
    assert list(mesh.starts)[-1] == "a2"
    assert differs(mesh) == []


def test_what_is_held_now_counts_at_once():
    mesh = mesh_of()
    mesh.queue("c1", cpu=4, owner="cid")
    for name, owner in (("a1", "ada"), ("a2", "ada"), ("b1", "ben"), ("b2", "ben")):
        mesh.queue(name, cpu=2, owner=owner)
    finish(mesh, "c1", after=1.0)
    assert list(mesh.starts) == ["a1", "b1"]


def test_among_tasks_of_one_owner_the_priority_decides():
    mesh = mesh_of()
    mesh.queue("c1", cpu=4, owner="cid", priority=9.0)
    mesh.queue("a1", cpu=4, owner="ada", priority=1.0)
    mesh.queue("a2", cpu=4, owner="ada", priority=5.0)
    assert mesh.waiting() == ["a2", "a1"]


def test_one_that_was_moved_to_the_front_comes_first():
    mesh = mesh_of()
    mesh.queue("a1", cpu=4, owner="ada")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.queue("b1", cpu=4, owner="ben")
    mesh.change("a2", to_front=True)
    assert mesh.waiting() == ["a2", "b1"]
    finish(mesh, "a1", after=5.0)
    assert list(mesh.starts)[-1] == "a2"


def test_one_that_was_passed_does_not_evict_who_came_first():
    mesh = mesh_of()
    mesh.queue("c1", cpu=4, owner="cid", priority=99.0)
    mesh.report("c1")
    mesh.now += 5.0
    mesh.queue("a1", cpu=4, owner="cid", priority=9.0)
    mesh.queue("b1", cpu=4, owner="ben", priority=1.0)
    finish(mesh, "c1")
    assert list(mesh.starts) == ["b1"]
    mesh.report("b1")
    mesh.tick(60.0)
    assert mesh.ends == {}
    mesh.queue("d1", cpu=4, owner="dan", priority=9.0)
    mesh.tick(60.0)
    assert list(mesh.ends) == ["b1"]
    assert differs(mesh) == []


def test_the_first_by_use_has_the_reserved_start():
    mesh = mesh_of()
    mesh.queue("a1", cpu=3, owner="ada", duration=100.0)
    mesh.report("a1")
    mesh.queue("a2", cpu=1, owner="ada", duration=500.0)
    mesh.report("a2")
    mesh.queue("a3", cpu=3, owner="ada")
    mesh.queue("b1", cpu=4, owner="ben")
    mesh.tick()
    assert list(mesh.state.queue.reserved) == ["b1"]
    finish(mesh, "a1", after=10.0)
    assert mesh.waiting() == ["b1", "a3"]


def test_limits_and_order_together():
    limits = parse_owner_limits({"default": {"cpu": 2}})
    mesh = mesh_of(spec=fair(pool("p", cpu=4), owner_limits=limits))
    for name in ("a1", "a2", "a3"):
        mesh.queue(name, cpu=1, owner="ada")
    mesh.queue("b1", cpu=2, owner="ben")
    mesh.queue("b2", cpu=1, owner="ben")
    assert list(mesh.starts) == ["a1", "a2", "b1"]
    finish(mesh, "a1", after=1.0)
    assert list(mesh.starts)[-1] == "a3"
    assert differs(mesh) == []


@pytest.mark.parametrize("queueing", ["best_effort", "strict", "greedy"])
def test_it_is_switched_on_and_off_while_tasks_wait(queueing):
    off = msgspec.structs.replace(pool("p", cpu=4), queueing=queueing)
    mesh = mesh_of(spec=off)
    mesh.queue("a1", cpu=4, owner="ada")
    mesh.queue("a2", cpu=4, owner="ada")
    mesh.queue("b1", cpu=4, owner="ben")
    mesh.tick(5.0)
    assert mesh.waiting() == ["a2", "b1"]
    mesh.resize(fair(off))
    assert mesh.waiting() == ["b1", "a2"]
    assert differs(mesh) == []
    mesh.resize(off)
    assert mesh.waiting() == ["a2", "b1"]
    mesh.resize(fair(off))
    finish(mesh, "a1", after=5.0)
    assert list(mesh.starts)[-1] == "b1"
    mesh.rename_pool("p", "q")
    mesh.queue("c1", "q", cpu=4, owner="cid")
    finish(mesh, "b1", after=5.0)
    assert list(mesh.starts)[-1] == "c1"
    assert differs(mesh) == []


def test_the_first_task_of_a_fair_pool_is_compared_with_other_pools_by_the_order_of_the_queue():
    mesh = Mesh(
        fair(pool("p", cpu=9)),
        fair(pool("q", cpu=9)),
        fair(pool("r", cpu=9)),
        nodes=[node("n", cpu=2)],
    )
    mesh.queue("r1", "r", cpu=2, owner="ada")
    mesh.queue("p1", "p", cpu=1, owner="ada")
    mesh.queue("q1", "q", cpu=1, owner="ben")
    mesh.queue("p2", "p", cpu=1, owner="ben")
    # Ada also waits with another task, so that her share counts against that of p2 as soon as p1 starts.
    mesh.queue("p3", "p", priority=4.0, cpu=1, owner="ada")
    finish(mesh, "r1", after=1.0)
    assert list(mesh.starts)[-2:] == ["p1", "q1"]
    assert differs(mesh) == []


def test_a_first_entry_is_found_as_by_sorting_all_of_them_again():
    numbers, owners, now = Random(5), Owners(), 0.0
    owners.half_life_s = 100.0
    owners.define(fair(pool("p", cpu=8)), (), now)
    firsts = FairFirsts()
    entries: dict[str, Entry] = {}
    for number in range(400):
        now += numbers.choice((0.0, 1.0, 50.0))
        owner = numbers.choice("abcdef")
        kind = numbers.choice(("add", "remove", "use", "use", "less"))
        use = owners.uses["p"].setdefault(owner, OwnerUse(mean_at=now))
        if kind == "add":
            value = FairOrder.of(numbers.choice((1.0, 2.0)), owners.rank_of("p", owner))
            entry = entries[f"t{number}"] = (value, number, f"t{number}")
            firsts.add(entry)
        elif kind == "remove" and entries:
            firsts.remove(entries.pop(numbers.choice(sorted(entries))))
        elif kind == "use" or (kind == "less" and use.running):
            change = 1 if kind == "use" else -1
            use.remember(now, owners.half_life_s)
            owners.changed_at["p"] = now
            use.held, use.running = use.held + Resources(cpu=change * UNIT), use.running + change
            owners.rank_anew("p", owner, {one[0].rank.owner for one in entries.values()})
            firsts.sort_anew(owner)
        if entries:
            shares = {o: owners.share("p", o, owners.changed_at["p"]) for o in "abcdef"}
            ranked = sorted(
                entries.values(), key=lambda e: (shares[e[0].rank.owner], float(e[0]), e[1])
            )
            assert firsts[0] == ranked[0]
            assert list(firsts) == ranked


def test_a_task_that_is_short_of_quota_keeps_the_place_of_its_fair_pool_among_others():
    pools = (fair(pool("p", cpu=3)), fair(pool("q", cpu=9)), fair(pool("r", cpu=9)))
    mesh = Mesh(*pools, nodes=[node("n", cpu=4)])
    for name in ("p1", "p2"):
        mesh.queue(name, "p", cpu=1, owner="zoe")
    mesh.queue("r1", "r", cpu=2, owner="zoe")
    mesh.queue("p3", "p", cpu=1, owner="zoe")
    mesh.queue("q1", "q", cpu=1, owner="zoe")
    mesh.queue("p4", "p", cpu=3, owner="ada")
    finish(mesh, "p1", after=1.0)
    # Of p, ada's task comes first, which was submitted after that of q.
    assert list(mesh.starts)[-1] == "q1"
    assert differs(mesh) == []


def test_a_share_falls_from_what_was_held_on_average_and_never_below_what_is_held():
    use = OwnerUse(held=Resources(cpu=2 * UNIT), mean={"cpu": 6.0 * UNIT}, mean_at=0.0)
    owners = Owners()
    owners.half_life_s = 100.0
    owners.define(fair(pool("p", cpu=8)), (), 0.0)
    owners.uses["p"]["ada"] = use
    assert [owners.share("p", "ada", at) for at in (0.0, 100.0, 200.0)] == [0.75, 0.5, 0.375]
    use.held = Resources()
    assert [owners.share("p", "ada", at) for at in (0.0, 100.0, 200.0)] == [0.75, 0.375, 0.1875]
    use.held = Resources(cpu=7 * UNIT)
    assert [owners.share("p", "ada", at) for at in (0.0, 100.0, 200.0)] == [0.875] * 3
