"""The waiting classes of a pool by what they ask for, against a walk over all of them; and whole worlds, in
which what is left out must change no decision.
"""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.admission import queue_pass
from schedulemesh.engine.admission.sure_refusals import UnrefusedClasses
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state import need_index
from schedulemesh.engine.state.invariants import BrokenInvariant, check
from schedulemesh.engine.state.need_index import LeastNeed, NeedGroup, NeedIndex
from tests.engine.builders import Mesh, node, pool
from tests.engine.distinct_worlds import World, indexed_from

WORLDS = int(os.environ.get("HYPOTHESIS_EXAMPLES", "5"))


def least_need(number, cpu=1, memory=1, shortest=1.0, priority=5.0):
    """A class whose first task came as this number."""
    entry = (0.0, number, f"t{number}")
    return LeastNeed(
        first=entry, last=entry, cpu=cpu, memory=memory, shortest=shortest, priority=priority
    )


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(need_index, "BLOCK", 4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(20))
def test_the_first_class_that_is_not_refused_is_that_of_a_walk(seed):
    dice, group, there = random.Random(seed), NeedGroup(), {}
    for number in range(300):
        if there and dice.random() < 0.4:
            gone = dice.choice(sorted(there))
            group.remove(there.pop(gone).first)
        elif there and dice.random() < 0.2:
            shorter = there[dice.choice(sorted(there))]
            group.shorten(shorter.first, shorter.shortest / 2)
            assert shorter.shortest < 1.0
        else:
            place = dice.randrange(1_000)
            if place not in there:
                there[place] = least_need(place, dice.randrange(50), dice.randrange(50))
                group.add(there[place])
        cpu, memory, shortest = dice.randrange(50), dice.randrange(50), dice.choice((0.0, 0.3))

        def is_refused(least, cpu=cpu, memory=memory, shortest=shortest):
            return (least.cpu >= cpu and least.memory >= memory) or least.shortest > 1.0 - shortest

        place = dice.choice((None, dice.randrange(1_000)))
        expected = [
            one.first
            for key, one in sorted(there.items())
            if (place is None or key > place) and not is_refused(one)
        ]
        entry = None if place is None else (0.0, place, f"t{place}")
        assert group.first_behind(entry, is_refused) == (expected[0] if expected else None), number
        assert all(1 <= len(block.needs) <= 4 for block in group.blocks)


@pytest.mark.usefixtures("small_blocks")
def test_what_is_refused_is_left_out_by_blocks():
    group, asked = NeedGroup(), []
    for number in range(64):
        group.add(least_need(number, cpu=60 if number != 50 else 2))

    def is_refused(least):
        asked.append(least)
        return least.cpu >= 3

    assert group.first_behind(None, is_refused) == (0.0, 50, "t50")
    assert len(asked) < 64 / 2 + 4
    asked.clear()
    assert group.first_behind(None, lambda least: not asked.append(least)) is None
    assert len(asked) == 1


def test_a_group_without_classes_is_none():
    index = NeedIndex()
    alike = ((), (), UNIT, ())
    index.add(alike, least_need(1))
    index.add(alike, least_need(2))
    index.remove(alike, least_need(1).first)
    assert list(index.groups) == [alike]
    index.remove(alike, least_need(2).first)
    assert index.groups == {}


def crowded():
    """A mesh in which many classes wait that differ in their memory."""
    mesh = Mesh(
        pool("p", cpu=100, memory=1_000, gpu=8), nodes=[node("n", cpu=100, memory=100, gpu=8)]
    )
    mesh.run("busy", cpu=1, memory=100, gpu=1)
    for number in range(40):
        mesh.queue(f"t{number}", cpu=1, memory=60 + number, gpu=1)
    mesh.queue("other", fallbacks=[{"zone": "a"}], cpu=1, memory=60, gpu=1)
    return mesh


def test_the_classes_of_a_pool_are_indexed_once_there_are_many():
    mesh = crowded()
    queued = mesh.state.queue.pools["p"]
    assert queued.by_need is not None
    (group,) = queued.by_need.groups.values()
    assert sum(len(block.needs) for block in group.blocks) == 40
    assert len(queued.apart) == 1
    mesh.complete("busy")
    assert "t0" in mesh.starts
    for number in range(1, 30):
        mesh.cancel(f"t{number}")
    mesh.tick(1.0)
    assert queued.by_need is None
    assert queued.apart == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda queued, block: block.needs.pop(),
        lambda queued, block: setattr(block, "least", msgspec.structs.replace(block.least, cpu=0)),
        lambda queued, block: queued.apart.clear(),
        lambda queued, block: queued.by_need.groups.update({(): NeedGroup()}),
        lambda queued, block: setattr(queued, "by_need", None),
    ],
)
def test_an_index_that_is_not_as_if_made_anew_breaks_an_invariant(change):
    mesh = crowded()
    queued = mesh.state.queue.pools["p"]
    (group,) = queued.by_need.groups.values()
    change(queued, group.blocks[0])
    with pytest.raises(BrokenInvariant):
        check(mesh.state)


def labelled():
    """A mesh in which tasks with ten values of a label wait."""
    mesh = Mesh(
        pool("p", cpu=100, memory=1_000, gpu=8), nodes=[node("n", cpu=100, memory=100, gpu=8)]
    )
    mesh.run("busy", cpu=1, memory=100, gpu=1)
    for number in range(40):
        user = {"user": str(number % 10)}
        mesh.queue(f"t{number}", cpu=1, memory=60 + number, gpu=1, labels=user)
    return mesh


def test_labels_that_no_rule_names_make_no_groups():
    mesh = labelled()
    queued = mesh.state.queue.pools["p"]
    assert list(queued.by_need.groups) == [((), (), UNIT, ())]
    mesh.policy(label_preemption_rules={"user": {"1": ["2"]}})
    mesh.tick(1.0)
    named = {alike[0] for alike in queued.by_need.groups}
    assert named == {(), (("user", "1"),), (("user", "2"),)}
    mesh.policy(label_preemption_rules={})
    mesh.tick(1.0)
    assert len(queued.by_need.groups) == 1


def test_a_label_that_a_rule_names_from_now_on_lets_a_task_evict():
    mesh = labelled()
    mesh.run("low", cpu=1, labels={"user": "2"}, class_key="c")
    mesh.tick(1.0)
    assert not mesh.ends
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("high", cpu=99, labels={"user": "1"}, class_key="c")
    mesh.policy(label_preemption_rules={"user": {"1": ["2"]}})
    mesh.tick(1.0)
    assert [agent.partition("-")[0] for agent in mesh.ends] == ["low"]


def test_a_label_that_names_its_user_makes_no_search_of_its_own(monkeypatch):
    counted = counted_searches(monkeypatch)
    mesh = labelled()
    mesh.run("beside", cpu=1)  # what was in vain before may help now
    counted.clear()
    mesh.tick(1.0)
    assert counted == ["t0"]


@pytest.mark.parametrize("seed", range(WORLDS))
def test_what_is_left_out_changes_no_decision(seed):
    World(seed).run()


def test_classes_of_which_hardly_two_are_alike_are_tried_one_by_one(monkeypatch):
    """They ask for different custom resources: to look through their groups costs more than it spares."""
    sought = []
    monkeypatch.setattr(UnrefusedClasses, "seek", lambda group, *_: sought.append(group.alike))
    mesh = Mesh(
        pool("p", cpu=100, custom={f"k{n}": 8 for n in range(40)}), nodes=[node("n", cpu=1)]
    )
    for number in range(40):
        mesh.queue(f"t{number}", cpu=1, custom={f"k{number}": 1})
    mesh.tick(1.0)
    assert mesh.state.queue.pools["p"].by_need is not None
    assert sought == []


def test_a_smaller_task_starts_behind_many_that_have_no_room():
    with indexed_from(1):
        mesh = crowded()
        mesh.queue("small", cpu=1, memory=40, gpu=1)
        assert not mesh.starts
        mesh.complete("busy")
        assert set(mesh.starts) == {"t0", "small"}


def counted_searches(monkeypatch):
    """The tasks for which victims are searched from now on."""
    counted, search = [], queue_pass.start_with_evictions

    def counting(tx, task, request):
        counted.append(task.task_id)
        return search(tx, task, request)

    monkeypatch.setattr(queue_pass, "start_with_evictions", counting)
    return counted


@pytest.mark.parametrize("busy_priority", [5.0, 9.0])
def test_where_nobody_may_be_evicted_victims_are_searched_for_once(monkeypatch, busy_priority):
    counted = counted_searches(monkeypatch)
    whole = {"cpu": 100, "memory": 1_000, "gpu": 1}
    mesh = Mesh(pool("p", **whole), nodes=[node("n", **whole)])
    mesh.run("busy", "p", busy_priority, cpu=1, memory=1, gpu=1)
    for number in range(40):
        mesh.queue(f"t{number}", cpu=1, memory=90 - number, gpu=1)
    mesh.run("beside", cpu=1)  # what was in vain before may help now
    counted.clear()
    mesh.tick(1.0)
    assert counted == ["t0"]
    mesh.change("t39", priority=20.0)
    mesh.tick(1.0)
    assert "busy" in mesh.ends
