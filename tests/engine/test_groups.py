"""The book of groups: what is free for whom, what is lacking, what a group is made like."""

from __future__ import annotations

import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.engine.state.groups import (
    Group,
    GroupPhase,
    GroupTable,
    dynamic_shape,
)
from tests.engine.builders import Mesh, amount, node, pool, shape

SMALL, BIG = shape({"cpu": 2}), shape({"cpu": 4})


def group(group_id, *, reserved=False, its=SMALL, idle_since=0.0, phase=GroupPhase.READY):
    return Group(
        group_id=group_id,
        pool_name="p",
        shape=its,
        reserved=reserved,
        phase=phase,
        node_ids=("n",),
        idle_since=idle_since,
    )


def booked(*groups, **spec):
    book = GroupTable()
    book.define("p", GroupsSpec(**spec))
    for one in groups:
        book.add(one)
    book.check()
    return book


def free(book, its=SMALL, *, reserved=False):
    return [found.group_id for found in book.free_of("p", reserved=reserved, shape=its)]


def test_free_groups_are_listed_by_kind_the_longest_free_first():
    book = booked(
        group("late", idle_since=5.0),
        group("early", idle_since=1.0),
        group("big", its=BIG),
        group("kept", reserved=True),
        group("made", phase=GroupPhase.CREATING),
    )
    assert free(book) == ["early", "late"]
    assert free(book, BIG) == ["big"]
    assert free(book, reserved=True) == ["kept"]
    idle = book.idle()
    assert (len(idle), book.idle_count("p"), book.idle_count("q")) == (3, 3, 0)
    assert [found.group_id for found in idle] == ["big", "early", "late"]
    assert [found.group_id for found in book.idle()[1:]] == ["early", "late"]
    assert book.idle()[-1].group_id == "late"


@pytest.mark.parametrize(
    "change",
    [{"agent": "a"}, {"leaves_for": "a"}, {"phase": GroupPhase.CREATING}],
    ids=lambda change: next(iter(change)),
)
def test_a_group_that_somebody_uses_or_waits_for_is_not_free(change):
    one = group("g")
    book = booked(one)
    for field, value in change.items():
        setattr(one, field, value)
    book.sort(one)
    assert free(book) == []
    book.check()


def test_groups_that_end_are_neither_free_nor_counted():
    one = group("g", reserved=True)
    book = booked(one, reserved=(SMALL,))
    assert (book.count("p"), dict(book.lacking("p"))) == (1, {})

    book.end(one)

    assert (book.count("p"), dict(book.lacking("p")), list(book.ending)) == (0, {SMALL: 1}, ["g"])
    book.check()
    book.remove("g")
    assert not book.ending
    book.check()


def test_what_is_lacking_is_told_in_the_order_of_the_definition():
    book = booked(reserved=(BIG, SMALL, BIG))
    assert list(book.lacking("p").items()) == [(BIG, 2), (SMALL, 1)]
    book.add(group("b", its=BIG, reserved=True))
    assert list(book.lacking("p").items()) == [(BIG, 1), (SMALL, 1)]
    book.add(group("d", its=SMALL))
    assert book.lacking("p")[SMALL] == 1, "a dynamic group stands for no reserved one"
    book.check()


def test_a_dropped_group_is_not_lacking():
    book = booked(reserved=(SMALL, SMALL))
    book.drop("p", SMALL)
    assert (book.reserved_count("p", SMALL), book.lacking("p")[SMALL]) == (1, 1)
    book.drop("p", SMALL)
    assert not book.lacking("p")
    book.check()


def test_a_pool_that_keeps_groups_no_more_lacks_none():
    book = booked(reserved=(SMALL,))
    book.define("p", None)
    assert (dict(book.lacking("p")), list(book.reserved_shapes("p"))) == ({}, [])
    book.check()


def test_a_dynamic_shape_is_what_was_asked_for_with_the_pools_strategy_and_labels():
    spec = GroupsSpec(strategy="SPREAD", node_labels={"zone": "a", "disk": "ssd"})
    made = dynamic_shape(spec, (amount(cpu=1), amount(cpu=2)))
    assert made == shape({"cpu": 1}, {"cpu": 2}, strategy="SPREAD", zone="a", disk="ssd")


def test_the_same_from_a_journal_and_from_a_snapshot():
    spec = GroupsSpec(reserved=(SMALL, BIG), max_dynamic=2)
    mesh = Mesh(pool("p", cpu=20, groups=spec), nodes=[node("a", cpu=8)])
    mesh.make_all()
    mesh.run("r", priority=9.0, cpu=2)
    mesh.submit("d", cpu=1)
    mesh.make_all()
    mesh.report("d")
    mesh.delete("r", True)
    mesh.leave("r")
    for state in (mesh.refolded(), mesh.rewritten()):
        book = state.groups
        book.check()
        assert book.reserved_count("p", SMALL) == 0
        assert book.dynamic_count("p") == 1
        assert free(book, BIG, reserved=True) == free(mesh.state.groups, BIG, reserved=True)
