"""Which nodes a window of an amount gets, as docs/calendar.md says: compared with every possible choice."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from schedulemesh.domain.resources import UNIT, parse_resources
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.window_facts import WindowNodesChosen
from tests.engine.builders import Mesh, differences, node, pool
from tests.engine.calendar_oracle import (
    Calendar,
    Candidate,
    Whose,
    best_choices,
    is_for,
    is_free_for,
    openings,
)

HOUR, DAY = 3600.0, 86_400.0
LEAVING_S = 60.0


def window(name="w", *, start, gpu=8, hours=1.0, **how):
    how.setdefault("pools", ("q",))
    return MaintenanceWindow(
        name=name,
        start=start,
        duration_s=hours * HOUR,
        resources=parse_resources({"gpu": gpu}),
        **how,
    )


def create(mesh, one):
    outcome = mesh.handle(s.WindowRequested(window=one)).outcome
    assert not isinstance(outcome, Refused), outcome


def cluster(**sizes):
    nodes = [node(name, gpu=size, cpu=64) for name, size in sizes.items()]
    mesh = Mesh(pool("p", gpu=100, cpu=999), pool("q", gpu=100, cpu=999), nodes=nodes)
    mesh.policy(preemption_grace_s=10.0, save_timeout=30.0, cancel_timeout=20.0)
    return mesh


def chosen(mesh, name="w"):
    return mesh.state.windows.chosen[name].node_ids


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [(8, ("b",)), (4, ("c",)), (9, ("a", "d")), (17, ("a", "b", "d")), (99, ("a", "b", "c", "d"))],
)
def test_as_few_whole_nodes_are_chosen_as_have_the_amount(gpu, expected):
    mesh = cluster(a=8, b=8, c=4, d=2)
    mesh.run("x", gpu=8, cpu=1, node_labels={})
    if gpu != 8:
        mesh.complete("x")

    create(mesh, window(start=mesh.now + DAY, gpu=gpu))

    assert chosen(mesh) == expected


def test_nothing_starts_that_would_reach_into_it_and_what_runs_leaves_in_time():
    mesh = cluster(a=8, b=4)
    create(mesh, window(start=mesh.now + 2 * HOUR))
    assert chosen(mesh) == ("a",)

    mesh.queue("long", gpu=8, cpu=1, duration=5 * HOUR, class_key="c")
    assert mesh.waiting() == ["long"]
    told = mesh.engine.explain("long", mesh.now)
    assert told.reason == "node_reserved"
    assert "'w'" in told.error
    assert told.earliest_start == mesh.now + 3 * HOUR

    mesh.run("unknown", gpu=6, cpu=1, on_preempted="requeue")
    mesh.run("of q", "q", gpu=2, cpu=1, duration=5 * HOUR)
    assert [mesh.state.agents[n].node_id for n in ("unknown", "of q")] == ["a", "a"]
    mesh.tick(2 * HOUR - LEAVING_S - 1.0)
    assert mesh.ends == {}
    mesh.tick(1.0)
    assert list(mesh.ends) == ["unknown"]


def test_a_node_that_is_lost_or_closed_is_replaced_and_the_others_stay():
    mesh = cluster(a=8, b=8, c=8, d=8)
    create(mesh, window(start=mesh.now + DAY, gpu=16))
    assert chosen(mesh) == ("a", "b")

    mesh.observe(*(node(n, gpu=8, cpu=64) for n in "bcd"))
    mesh.tick(1.0)
    assert chosen(mesh) == ("b", "c")

    mesh.cordon("b")
    mesh.tick(1.0)
    assert chosen(mesh) == ("c", "d")

    mesh.cordon("c")
    mesh.tick(1.0)
    assert chosen(mesh) == ("d",)
    shortage = mesh.state.windows.short_of(mesh.state.windows.by_name["w"])
    assert shortage == parse_resources({"gpu": 8})

    mesh.cordon("b", False)
    mesh.tick(1.0)
    assert chosen(mesh) == ("b", "d")


def test_a_window_for_nodes_takes_them_from_one_of_an_amount():
    mesh = cluster(a=8, b=8)
    create(mesh, window(start=mesh.now + DAY))
    assert chosen(mesh) == ("a",)

    maintenance = window("m", start=mesh.now + DAY + 1800, gpu=1, pools=())
    maintenance = msgspec.structs.replace(
        maintenance, resources=parse_resources({}), node_ids=("a",)
    )
    create(mesh, maintenance)

    assert chosen(mesh) == ("b",)


def test_two_amounts_at_the_same_time_are_on_different_nodes():
    mesh = cluster(a=8, b=8)
    create(mesh, window("first", start=mesh.now + DAY))
    create(mesh, window("second", start=mesh.now + DAY + 1800))
    create(mesh, window("third", start=mesh.now + 2 * DAY, hours=2))

    assert [chosen(mesh, n) for n in ("first", "second", "third")] == [("a",), ("b",), ("a",)]


def test_the_nodes_are_chosen_anew_for_the_next_opening():
    mesh = cluster(a=8, b=8)
    create(mesh, window(start=mesh.now + HOUR, repeat="weekly"))
    assert chosen(mesh) == ("a",)
    mesh.tick(2 * HOUR)
    mesh.run("x", gpu=8, cpu=1)
    assert mesh.state.agents["x"].node_id == "a"

    mesh.tick(1.0)

    assert chosen(mesh) == ("a",)  # it was chosen on the tick on which the opening was over
    mesh.tick(7 * DAY)
    assert chosen(mesh) == ("b",)


def test_it_is_restored_with_its_nodes():
    mesh = cluster(a=8, b=8)
    create(mesh, window(start=mesh.now + HOUR, repeat="daily"))
    for twin in (mesh.refolded(), mesh.rewritten()):
        assert differences(mesh.state, twin) == []
        assert twin.windows.chosen == mesh.state.windows.chosen


class World:
    """Nodes of several sizes that come and go, tasks that hold them, and windows of amounts and others."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.labels = {
            name: rng.choice([{"model": "x"}, {"model": "y"}])
            for name in "abcdef"[: rng.randint(2, 6)]
        }
        self.reports = {
            name: node(name, gpu=rng.choice((2, 4, 4, 8)), cpu=64, labels=labels)
            for name, labels in self.labels.items()
        }
        self.there = dict(self.reports)
        self.mesh = Mesh(
            pool("p", gpu=99, cpu=999), pool("q", gpu=99, cpu=999), nodes=self.there.values()
        )
        self.mesh.now = 1_000_000.0
        self.mesh.policy(preemption_grace_s=10.0, save_timeout=30.0, cancel_timeout=20.0)
        self.calendar = Calendar()
        self.numbers = itertools.count()
        self.cordoned = set()

    # -- what the page says

    def usable(self, one, opening):
        """The nodes from which a window may choose."""
        return [
            Candidate(n, self.there[n].total.gpu / UNIT, self.leaving(one, n))
            for n in sorted(self.there)
            if n not in self.cordoned
            and is_free_for(self.calendar, one, opening, n, self.labels[n])
        ]

    def leaving(self, one, node_id):
        """How many agents on a node would have to leave it for a window."""
        state = self.mesh.state
        return sum(
            agent.node_id == node_id and not is_for(one, Whose(agent.spec.pool_name, "", {}))
            for agent in state.agents.values()
        )

    def follow(self, act):
        """Do something, with a tick behind it, and compare each choice with all that are possible."""
        seen = len(self.mesh.facts)
        act()
        self.mesh.tick()
        self.calendar.forget_past(self.mesh.now)
        choices = [x for x in self.mesh.facts[seen:] if isinstance(x, WindowNodesChosen)]
        for one in self.calendar.windows.values():
            if one.resources:
                self.check(one, [x for x in choices if x.name == one.name])

    def check(self, one, choices):
        opening = next(openings(one, self.mesh.now))
        start, before = self.calendar.chosen.get(one.name, (None, frozenset()))
        usable = {each.node_id: each for each in self.usable(one, opening)}
        kept = frozenset(before & usable.keys()) if start == opening[0] else frozenset()
        lacking = one.resources.gpu / UNIT - sum(usable[n].size for n in kept)
        expected = {kept}
        if lacking > 0:
            others = [each for n, each in usable.items() if n not in kept]
            expected = {kept | more for more in best_choices(others, lacking)}
        present = frozenset(chosen(self.mesh, one.name))
        assert present in expected, (one, present, expected)
        assert len(choices) <= 1
        assert bool(choices) == ((start, before) != (opening[0], present))
        self.calendar.chosen[one.name] = (opening[0], present)

    # -- what happens

    def announce(self):
        rng, name = self.rng, f"w{next(self.numbers)}"
        one = window(
            name,
            start=self.mesh.now + rng.choice((600.0, HOUR, 5 * HOUR, 30 * HOUR)),
            gpu=rng.choice((1, 4, 6, 8, 13, 40)),
            hours=rng.choice((0.5, 3.0)),
            repeat=rng.choice(("", "daily", "weekly")),
            node_labels=rng.choice(((), (), (("model", "x"),))),
        )
        if rng.random() < 0.3:
            named = rng.choice(sorted(self.reports))
            one = msgspec.structs.replace(
                one,
                resources=parse_resources({}),
                node_labels=(),
                node_ids=(named,),
                pools=rng.choice(((), ("q",))),
            )
        if len(self.calendar.windows) < 3:
            self.calendar.windows[name] = one
            create(self.mesh, one)

    def delete(self):
        if self.calendar.windows:
            name = self.rng.choice(sorted(self.calendar.windows))
            del self.calendar.windows[name]
            self.calendar.chosen.pop(name, None)
            self.mesh.handle(s.WindowDeletionRequested(name=name))

    def cordon(self):
        closing = {n for n, d in self.mesh.state.drains.nodes.items() if d.window}
        names = sorted(self.there.keys() - closing)
        if names:
            name = self.rng.choice(names)
            self.cordoned ^= {name}
            self.mesh.cordon(name, name in self.cordoned)

    def come_and_go(self):
        name = self.rng.choice(sorted(self.reports))
        if name in self.there and len(self.there) > 1:
            del self.there[name]
            self.cordoned.discard(name)
        else:
            self.there[name] = self.reports[name]
        self.mesh.observe(*self.there.values())

    def submit(self):
        rng = self.rng
        self.mesh.submit(
            f"t{next(self.numbers)}",
            rng.choice("pq"),
            gpu=rng.choice((1, 2, 4)),
            cpu=1,
            duration=rng.choice((None, 600.0)),
            class_key="c",
            more={"may_preempt": False},
        )
        for name in list(self.mesh.starts):
            self.mesh.report(name)

    def leave(self):
        for name in list(self.mesh.ends):
            self.mesh.leave(name)

    def wait(self):
        self.mesh.now += self.rng.choice((1.0, HOUR, 5 * HOUR, DAY))


@pytest.mark.parametrize("seed", range(25))
def test_of_all_choices_the_one_of_the_page_is_made(seed):
    world = World(seed)
    steps = [world.announce] * 3 + [world.submit] * 4 + [world.wait] * 3
    steps += [world.delete, world.cordon, world.come_and_go, world.leave]
    for _ in range(60):
        world.follow(world.rng.choice(steps))
    for twin in (world.mesh.refolded(), world.mesh.rewritten()):
        assert twin.windows.chosen == world.mesh.state.windows.chosen
