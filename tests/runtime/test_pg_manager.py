"""The hand that makes and removes placement groups, on a Ray that is made up."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.engine.messages.instructions import CreateGroup
from schedulemesh.engine.messages.stimuli import GroupCreated, GroupCreateFailed
from schedulemesh.engine.state.groups import Group, GroupPhase, GroupTable
from schedulemesh.runtime.agents.endings import Endings
from schedulemesh.runtime.backend import GroupView, NodeView
from schedulemesh.runtime.groups import manager
from schedulemesh.runtime.groups.manager import Groups, groups_gone, ready_groups
from tests.runtime.fake_backend import FakeBackend, HeldCalls, Verdict

CPU = parse_resources({"cpu": 1})
SHAPE = GroupShape(bundles=(CPU, CPU), strategy="PACK")


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def groups(backend):
    return Groups(backend, "mesh", "space")


def order(group_id="g", node_ids=("a", "b"), wait_s=10.0):
    return CreateGroup(group_id=group_id, shape=SHAPE, node_ids=node_ids, wait_s=wait_s)


def run(story):
    return asyncio.run(asyncio.wait_for(story, 20.0))


def view(group_id="g", state="CREATED", node_ids=("a", "b"), ray_id="f" * 36):
    name = f"schedulemesh:mesh@space:group:{group_id}"
    return GroupView(ray_id=ray_id, name=name, state=state, node_ids=node_ids)


def book(**phases):
    found = GroupTable()
    for group_id, phase in phases.items():
        found.by_id[group_id] = Group(
            group_id=group_id,
            pool_name="p",
            shape=SHAPE,
            reserved=True,
            phase=phase,
            node_ids=("a", "b"),
        )
    return found


async def recovered(groups, table):
    return await groups.recover(table, await groups.living(), Endings())


async def writing():
    """A supervisor without a successor."""
    return True


async def superseded():
    return False


def test_a_group_is_made_under_its_name_and_can_be_lived_in(backend, groups):
    assert run(groups.create(order())) == GroupCreated(group_id="g")
    (made,) = list(backend.by_id.values())
    assert made.name == groups.name("g") == "schedulemesh:mesh@space:group:g"
    assert groups.slot("g").ray_id == made.ray_id
    assert groups.slot("g").shape == SHAPE
    assert groups.slot("other") is None


def test_a_group_that_is_placed_at_once_takes_one_call(backend, groups):
    async def story():
        backend.control = held = HeldCalls()
        making = asyncio.ensure_future(groups.create(order()))
        (await held.next("create_group")).let()
        return await making  # another call would be held

    assert run(story()) == GroupCreated(group_id="g")


def test_a_group_that_was_made_and_could_not_be_looked_at_is_looked_at_again(
    backend, groups, monkeypatch
):
    create = backend._create
    monkeypatch.setattr(
        backend,
        "_create",
        lambda request: replace(create(request), state="UNKNOWN", node_ids=()),
    )
    assert run(groups.create(order())) == GroupCreated(group_id="g")
    assert groups.slot("g").ray_id in backend.by_id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("mesh", "space"), ("mesh", "space:group:b")),
        (("mesh@a", "b"), ("mesh", "a@b")),
        (("mesh:a", "b"), ("mesh%3Aa", "b")),
    ],
)
def test_groups_of_another_scheduler_are_nobody_elses_whatever_the_names_are(backend, one, other):
    async def story():
        first, second = Groups(backend, *one), Groups(backend, *other)
        await first.create(order("g"))
        await second.create(order("h"))
        assert ([*await first.living()], [*await second.living()]) == (["g"], ["h"])
        for groups in (first, second):
            await recovered(groups, book(g=GroupPhase.READY, h=GroupPhase.READY))

    run(story())
    assert len(backend.by_id) == 2


def test_an_existing_group_of_its_name_is_adopted(backend, groups):
    backend.by_id["f" * 36] = view()
    assert isinstance(run(groups.create(order())), GroupCreated)
    assert (backend.made, groups.slot("g").ray_id) == (0, "f" * 36)


def test_a_group_that_is_not_placed_in_time_is_withdrawn_with_a_reason(backend, groups):
    backend.full = {"b"}
    backend.free = [
        NodeView(node_id="a", total=CPU, free=CPU, labels={}),
        NodeView(node_id="b", total=CPU, free=NOTHING, labels={}),
    ]
    failed = run(groups.create(order(wait_s=0.01)))
    assert isinstance(failed, GroupCreateFailed)
    assert "not placed within 0.01 s" in failed.error
    assert (
        "bundle 1 needs cpu 1 on node b, which lacks cpu 1: nothing is free there" in failed.error
    )
    assert list(backend.by_id.values()) == []
    assert groups.slot("g") is None
    backend.full = set()
    assert isinstance(run(groups.create(order())), GroupCreated), "it may be tried again"


def test_one_that_is_ordered_twice_is_made_once_and_not_again_after_it_failed(backend, groups):
    backend.full = {"b"}

    async def story():
        return await asyncio.gather(*(groups.create(order(wait_s=0.01)) for _ in range(2)))

    first, second = run(story())
    assert isinstance(first, GroupCreateFailed)
    assert second is None
    assert (backend.made, backend.by_id) == (1, {})


def test_a_shortage_is_reported_bundle_by_bundle(backend, groups):
    backend.full = {"a"}
    backend.free = [NodeView(node_id="a", total=CPU, free=CPU, labels={})]
    both = run(groups.create(order(node_ids=("a", "a"), wait_s=0.01))).error
    assert "bundle 1 needs cpu 1 on node a" in both, "the first takes what is free"
    lost = run(groups.create(order(node_ids=("a", "c"), wait_s=0.01))).error
    assert "node c, which is gone" in lost


def test_removing_one_that_is_being_made_ends_the_wait(backend, groups):
    backend.full = {"a"}

    async def story():
        making = asyncio.ensure_future(groups.create(order(wait_s=3600.0)))
        await asyncio.sleep(0.05)  # until it waits, which has no event
        await groups.remove("g")
        assert await making is None

    run(story())
    assert list(backend.by_id.values()) == []


def test_removing_one_that_is_being_made_again_leaves_nothing(backend, groups):
    async def story():
        await groups.create(order())
        backend.control = held = HeldCalls("groups", "group", "create_group")
        again = asyncio.ensure_future(groups.create_again(order()))
        withdrawn = await held.next("remove_group")
        removal = asyncio.ensure_future(groups.remove("g"))
        withdrawn.let()
        (await held.next("remove_group")).let()
        await asyncio.gather(again, removal)

    run(story())
    assert (backend.made, backend.by_id) == (2, {})


def test_removing_one_that_is_being_made_after_another_removal_leaves_nothing(backend, groups):
    """As after a recovery, which removes one on a wrong node while the engine orders it again."""

    async def story():
        await groups.create(order())
        backend.control = held = HeldCalls("groups", "group")
        first = asyncio.ensure_future(groups.remove("g"))
        removed = await held.next("remove_group")
        making = asyncio.ensure_future(groups.create(order()))
        await asyncio.sleep(0)
        removed.let()
        await first
        made = await held.next("create_group")
        held.through.add("remove_group")
        second = asyncio.ensure_future(groups.remove("g"))
        await asyncio.sleep(0)
        made.let()
        await asyncio.gather(making, second)
        assert await making is None

    run(story())
    assert (backend.made, backend.by_id) == (2, {})
    assert groups.slot("g") is None


def test_a_removal_that_waits_for_another_one_still_ends_the_wait_for_a_placement(backend, groups):
    async def story():
        await groups.create(order())
        backend.full = {"a"}
        backend.control = held = HeldCalls("groups", "group", "create_group", "nodes")
        first = asyncio.ensure_future(groups.remove("g"))
        removed = await held.next("remove_group")
        making = asyncio.ensure_future(groups.create(order(wait_s=3600.0)))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(groups.remove("g"))
        await asyncio.sleep(0)
        removed.let()
        held.through.add("remove_group")
        await asyncio.gather(first, making, second)

    run(story())
    assert backend.by_id == {}


def test_one_that_is_being_removed_is_not_made_again_after_that(backend, groups):
    async def story():
        await groups.create(order())
        backend.control = held = HeldCalls("groups", "group", "create_group")
        removal = asyncio.ensure_future(groups.remove("g"))
        withdrawn = await held.next("remove_group")
        again = asyncio.ensure_future(groups.create_again(order()))
        await asyncio.sleep(0)
        withdrawn.let()
        await asyncio.gather(again, removal)

    run(story())
    assert (backend.made, backend.by_id) == (1, {})


def test_a_group_placed_on_other_nodes_is_withdrawn(backend, groups):
    backend.by_id["f" * 36] = view(node_ids=("a", "c"))
    failed = run(groups.create(order()))
    assert "on a, c instead of a, b" in failed.error
    assert list(backend.by_id.values()) == []


def test_after_a_recovery_orphans_are_removed_and_the_rest_adopted(backend, groups):
    backend.by_id.update(
        {
            "1" * 36: view("known", ray_id="1" * 36),
            "2" * 36: view("orphan", ray_id="2" * 36),
            "3" * 36: view("moved", ray_id="3" * 36, node_ids=("a", "c")),
            "4" * 36: view("pending", "PENDING", ("", ""), ray_id="4" * 36),
            "5" * 36: GroupView(ray_id="5" * 36, name="a user's", state="CREATED", node_ids=("a",)),
            "6" * 36: GroupView(
                ray_id="6" * 36,
                name="schedulemesh:mesh@another:group:known",
                state="CREATED",
                node_ids=("a",),
            ),
        }
    )
    on_book = book(
        known=GroupPhase.READY,
        moved=GroupPhase.READY,
        pending=GroupPhase.CREATING,
        gone=GroupPhase.READY,
    )
    assert run(recovered(groups, on_book)) == {"known", "pending"}
    assert sorted(v.ray_id[0] for v in list(backend.by_id.values())) == ["1", "4", "5", "6"]
    assert groups.slot("known").ray_id == "1" * 36
    assert groups.slot("moved") is None


def test_a_group_that_a_former_supervisor_requested_and_ray_made_late_is_removed(backend, groups):
    table = book(of_the_state=GroupPhase.CREATING)
    backend.by_id = {
        "1" * 36: view("late", ray_id="1" * 36),
        "2" * 36: view("room:late#1", ray_id="2" * 36),
        "3" * 36: view("of_the_state", ray_id="3" * 36),
        "4" * 36: view("orphan", ray_id="4" * 36),
        "5" * 36: GroupView(ray_id="5" * 36, name="other", state="CREATED", node_ids=("a",)),
    }
    groups.orphans = {"orphan"}

    async def story():
        await groups.create(order("made"))
        backend.control = held = HeldCalls("group", "groups", "remove_group")
        making = asyncio.ensure_future(groups.create(order("being_made")))
        call = await held.next("create_group")
        backend.by_id["6" * 36] = view("being_made", ray_id="6" * 36)
        await groups.remove_late(table, writing, Endings())
        call.let(Verdict.REFUSED)
        await making

    run(story())
    left = {group.name.rpartition(":")[2] for group in backend.by_id.values()}
    assert left == {"of_the_state", "orphan", "other", "made", "being_made"}


def test_a_group_that_may_be_a_successors_is_not_removed(backend, groups):
    backend.by_id["f" * 36] = view()
    run(groups.remove_late(book(), superseded, Endings()))
    assert len(backend.by_id) == 1


def test_a_late_group_is_removed_also_where_this_supervisor_could_not_make_one_of_its_name(
    backend, groups
):
    backend.full = {"b"}
    assert isinstance(run(groups.create(order(wait_s=0.01))), GroupCreateFailed)
    backend.by_id["f" * 36] = view()
    run(groups.remove_late(book(), writing, Endings()))
    assert backend.by_id == {}
    assert groups._locks == {}


def test_a_late_group_that_cannot_be_removed_does_not_hold_up_who_looks(
    backend, groups, monkeypatch
):
    monkeypatch.setattr(manager, "REMOVED_S", 0.01)
    backend.by_id["f" * 36] = view("late", ray_id="f" * 36)

    async def story():
        backend.control, endings = HeldCalls("group", "groups"), Endings()
        held = backend.control
        looking = asyncio.ensure_future(groups.remove_late(book(), writing, endings))
        call = await held.next("remove_group")
        await looking
        await groups.remove_late(book(), writing, endings)
        assert held.pending == [call], "it is asked for once"
        call.let()
        await endings.once(("late", "group"), asyncio.Event().wait)

    run(story())
    assert backend.by_id == {}


def test_lost_and_moved_groups_are_detected():
    on_book = book(
        well=GroupPhase.READY,
        gone=GroupPhase.READY,
        moved=GroupPhase.READY,
        torn=GroupPhase.READY,
        ending=GroupPhase.ENDING,
        fresh=GroupPhase.READY,
    )
    assert "ending" not in ready_groups(on_book)
    living = {
        "well": view("well"),
        "moved": view("moved", node_ids=("a", "c")),
        "torn": view("torn", "RESCHEDULING", ("a", "")),
    }
    before = ["well", "gone", "moved", "torn", "ending", "unknown"]
    found = dict(groups_gone(on_book, before, living))
    assert set(found) == {"gone", "moved", "torn"}


def test_at_the_end_nothing_of_ours_is_left(backend, groups):
    backend.by_id["5" * 36] = GroupView(
        ray_id="5" * 36, name="other", state="CREATED", node_ids=("a",)
    )
    backend.by_id["1" * 36] = view("unknown", ray_id="1" * 36)
    backend.full = {"c"}

    async def story():
        assert isinstance(await groups.create(order()), GroupCreated)
        making = asyncio.ensure_future(groups.create(order("h", ("c", "c"), 3600.0)))
        await asyncio.sleep(0.02)  # until it waits, which has no event
        making.cancel()
        await groups.remove_all()

    run(story())
    assert [v.name for v in list(backend.by_id.values())] == ["other"]


def test_the_end_waits_for_a_group_whose_creation_was_given_up(backend, groups):
    async def story():
        backend.control = held = HeldCalls("groups", "group", "remove_group")
        creating = asyncio.ensure_future(groups.create(order()))
        call = await held.next()
        creating.cancel()
        leaving = asyncio.ensure_future(groups.remove_all())
        await asyncio.wait([creating])
        assert not leaving.done()
        call.let()
        await leaving

    run(story())
    assert (backend.made, backend.by_id) == (1, {})


def test_one_whose_creation_was_answered_with_an_error_is_found_by_its_name(backend, groups):
    async def story():
        backend.control = held = HeldCalls("groups", "group")
        creating = asyncio.ensure_future(groups.create(order()))
        (await held.next()).let(Verdict.ANSWER_LOST)
        return await creating

    assert isinstance(run(story()), GroupCreated)
    assert backend.made == 1


def test_of_a_virtual_group_nothing_is_made_in_ray(backend, groups):
    virtual = GroupShape(bundles=(CPU, CPU), strategy="PACK", virtual=True)
    made = CreateGroup(group_id="g", shape=virtual, node_ids=("a", "b"), wait_s=10.0)
    assert run(groups.create(made)) == GroupCreated(group_id="g")
    assert (backend.made, groups.slot("g").shape.virtual) == (0, True)
    assert run(groups.vacate("g", ())) == []
    run(groups.remove("g"))
    assert (backend.removed, groups.slot("g")) == ([], None)


def test_a_virtual_group_of_the_state_exists_and_is_never_looked_for_in_ray(groups):
    table = book(
        g=GroupPhase.READY, h=GroupPhase.ENDING, i=GroupPhase.CREATING, real=GroupPhase.READY
    )
    for group_id in "ghi":
        table.by_id[group_id].shape = GroupShape(bundles=(CPU, CPU), strategy="PACK", virtual=True)
    assert run(recovered(groups, table)) == {"g", "h"}
    assert ready_groups(table) == ["real"]
