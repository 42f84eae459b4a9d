from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.state.device_guarantees import MOST_WAITING, has_room, is_sure, surely_fits
from tests.engine.builders import Mesh, amount, leaving_for, node, on, pool

TENTH = UNIT // 10
tenths = st.integers(1, 10).map(lambda n: n * TENTH)


def could_be_kept_out(free, gpu, others):
    """Whether some way to put the others leaves no room, found by trying them all."""
    if not ways(free, gpu):
        return True
    return any(
        could_be_kept_out(left, gpu, others[:i] + others[i + 1 :])
        for i, other in enumerate(others)
        for left in ways(free, other)
    )


def ways(free, gpu):
    """What is left of the devices, for each way to put this amount there."""
    if gpu > UNIT:
        left = list(free)
        for _ in range(gpu // UNIT):
            if UNIT not in left:
                return []
            left[left.index(UNIT)] = 0
        return [left]
    return [[*free[:i], f - gpu, *free[i + 1 :]] for i, f in enumerate(free) if f >= gpu]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(tenths, min_size=1, max_size=4),
    tenths | st.just(2 * UNIT),
    st.lists(tenths | st.just(2 * UNIT), max_size=4),
)
def test_what_surely_fits_cannot_be_kept_out(free, gpu, others):
    if surely_fits(free, gpu, others):
        assert not could_be_kept_out(free, gpu, others)


@settings(max_examples=200, deadline=None)
@given(st.lists(tenths, min_size=1, max_size=4), tenths)
def test_alone_it_fits_where_a_device_has_room(free, gpu):
    assert surely_fits(free, gpu, ()) == any(units >= gpu for units in free)


@pytest.mark.parametrize(("parts", "gpus"), [(2, 1), (2, 2), (2, 8), (4, 2), (3, 4), (10, 3)])
def test_equal_shares_fit_as_long_as_a_device_has_room_for_one_more(parts, gpus):
    share = UNIT // parts
    assert surely_fits([UNIT] * gpus, share, [share] * (gpus * parts - 1))
    assert not surely_fits([UNIT] * gpus, share, [share] * (gpus * parts))


def meshed(gpus=2):
    return Mesh(pool("p", cpu=99, gpu=9), nodes=[node("a", cpu=8, gpu=gpus)])


def victims_of(mesh, name, gpu):
    """Who is told to leave when this is submitted."""
    mesh.submit(name, priority=9.0, gpu=gpu)
    return [victim.agent_name for victim in mesh.state.agents[name].submission.evicting]


def test_a_share_that_may_lie_anywhere_is_counted_before_somebody_is_evicted():
    """The victim's half is not enough where the untold share may lie on the same device."""
    mesh = meshed()
    mesh.run("victim", priority=0.0, gpu=0.5, devices=on((0, 0.5)))
    mesh.run("fixed", priority=9.0, gpu=0.5, devices=on((1, 0.5)))
    mesh.submit("untold", priority=9.0, gpu=0.3)
    assert mesh.dry("new", priority=9.0, gpu=1).reason == "preemption_failed"
    mesh.report("untold", "a", on((1, 0.3)))
    assert [v.agent_name for v in mesh.dry("new", priority=9.0, gpu=1).preempted] == ["victim"]


def test_who_may_break_a_promise_waits_until_it_is_kept():
    mesh = meshed()
    mesh.run("victim", priority=0.0, gpu=0.5, devices=on((0, 0.5)))
    mesh.run("fixed", priority=9.0, gpu=0.5, devices=on((1, 0.5)))
    mesh.submit("new", priority=9.0, gpu=1)
    assert mesh.dry("late", priority=0.0, gpu=0.5).reason == "preemption_failed"
    mesh.slot("new")
    assert mesh.submit("late", priority=0.0, gpu=0.5).agent_name == "late"


def test_a_share_that_leaves_enough_wherever_it_goes_is_admitted_beside_a_promise():
    mesh = meshed(gpus=1)
    mesh.run("victim", priority=0.0, gpu=0.5)
    mesh.submit("new", priority=9.0, gpu=0.7)
    assert mesh.submit("late", priority=0.0, gpu=0.3).agent_name == "late"
    assert mesh.dry("later", priority=0.0, gpu=0.2).reason == "preemption_failed"


def test_who_counts_on_what_the_victims_of_another_leave_over_waits_for_them():
    """All three fit in the end, but not if the one that frees more than it takes starts last."""
    mesh = meshed(gpus=1)
    for name, priority, gpu in (("large", 0.0, 0.3), ("middle", 5.0, 0.25), ("small", 1.0, 0.2)):
        mesh.run(name, priority=priority, gpu=gpu)
    mesh.run("done soon", priority=9.0, gpu=0.25)
    mesh.submit("frees more", priority=4.0, gpu=0.2)
    mesh.complete("done soon")
    assert victims_of(mesh, "takes more", 0.5) == ["small"]
    assert victims_of(mesh, "last", 0.3) == ["middle"]
    assert leaving_for(mesh.state.agents["takes more"]) == ["large", "small"]
    mesh.leave("small")
    assert not mesh.starts
    mesh.leave("middle")
    mesh.report("last")
    mesh.leave("large")
    mesh.report("frees more")
    mesh.report("takes more")


def test_few_shares_wait_on_one_node_at_a_time():
    """Each may start before or after each other, and all of these orders are looked at."""
    mesh = meshed(gpus=1)
    for i in range(MOST_WAITING + 1):
        mesh.run(f"old{i}", priority=0.0, gpu=0.14)
    for i in range(MOST_WAITING):
        assert len(victims_of(mesh, f"new{i}", 0.14)) == 1
    assert mesh.dry("late", priority=9.0, gpu=0.14).reason == "preemption_failed"
    mesh.slot("new0")
    assert len(victims_of(mesh, "late", 0.14)) == 1


@pytest.mark.parametrize("parts", [2, 4])
def test_equal_shares_fill_all_the_devices_of_one_victim(parts):
    mesh = Mesh(pool("p", gpu=8), nodes=[node("a", gpu=4), node("b", gpu=4)])
    for name in ("v1", "v2"):
        mesh.run(name, priority=1.0, gpu=4)
    for number in range(4 * parts):
        mesh.submit(f"t{number}", priority=9.0, gpu=1 / parts)
    assert len(mesh.ends) == 1


def test_any_number_waits_for_whole_devices():
    gpus = 2 * MOST_WAITING
    mesh = Mesh(pool("p", cpu=99, gpu=gpus), nodes=[node("a", cpu=99, gpu=gpus)])
    for i in range(gpus):
        mesh.run(f"old{i}", priority=0.0, gpu=1)
    for i in range(gpus):
        assert len(victims_of(mesh, f"new{i}", 1)) == 1


def test_cpu_alone_is_no_danger_to_a_promise():
    mesh = meshed()
    mesh.run("victim", priority=0.0, gpu=2)
    mesh.submit("new", priority=9.0, gpu=1)
    found = mesh.state.cluster.nodes["a"]
    assert found.promised == ("new",)
    assert is_sure(found, (0,))
    assert has_room(found, amount(cpu=1))


def test_a_promise_survives_a_snapshot():
    mesh = meshed()
    mesh.run("victim", priority=0.0, gpu=2)
    mesh.submit("new", priority=9.0, gpu=1)
    twin = mesh.rewritten().cluster.nodes["a"]
    assert twin.promised == ("new",)
    assert twin.allocations["new"].wants == UNIT
    assert twin.allocations["victim"].leaves_for == "new"
