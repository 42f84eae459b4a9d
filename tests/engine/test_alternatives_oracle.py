"""The rules of docs/gpu_models.md against brute force, on clusters that are small enough for it.

Nothing here uses what the engine finds out: a claim is on nodes, an alternative fits where any choice of
nodes holds its bundles and the pool has its quota, and evictions help where any set of evictable tasks does.
"""

from __future__ import annotations

import os
import random
from itertools import combinations, product

import pytest

from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages.outcomes import Pending, Queued, Refused
from tests.engine.builders import Mesh, node, pool
from tests.engine.test_service import pass_time

STORIES = int(os.environ.get("MODEL_STORIES", "20"))
STEPS = 14
MODEL = "ray.io/accelerator-type"
MODELS = ("H100", "A100", "L40S", "")
CONDITIONS = ("H100", "A100", "!H100", "in(H100,A100)", "!in(H100,L40S)", "B200")
QUOTA = 6


def holds(condition, model):
    """Whether a node of a model meets a condition, as the table of the page says."""
    negated, values = condition.startswith("!"), condition.strip("!")
    values = values[3:-1].split(",") if values.startswith("in(") else [values]
    return (model in values) is not negated


class World:
    """A cluster and a pool, what is asked for by task, and where it runs by the engine's own facts."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        count = self.chance.randint(2, 4)
        self.models = {f"n{i}": self.chance.choice(MODELS) for i in range(count)}
        self.gpus = {name: self.chance.randint(1, 3) for name in self.models}
        nodes = [
            node(name, gpu=self.gpus[name], cpu=99, labels={MODEL: model} if model else {})
            for name, model in self.models.items()
        ]
        self.nodes = nodes
        self.mesh = Mesh(pool("p", gpu=QUOTA, cpu=999), nodes=nodes)
        self.asked, self.priorities, self.number = {}, {}, 0

    def alternatives(self):
        """Some alternatives: a condition or none, and the GPUs of each bundle."""
        bundles = [
            tuple([self.chance.randint(1, 2)] * self.chance.choice((1, 1, 2))) for _ in range(3)
        ]
        conditions = [self.chance.choice((*CONDITIONS, None)) for _ in bundles]
        return list(zip(conditions, bundles, strict=True))[: self.chance.randint(1, 3)]

    def placements(self):
        """By task that holds something: its nodes, and the GPUs on each."""
        state, holding = self.mesh.state, {}
        for name, agent in state.agents.items():
            group = state.groups.by_id.get(agent.group_id or "")
            on_nodes = [agent.node_id] if group is None else list(group.node_ids)
            spec = agent.spec
            gpus = [b.gpu // UNIT for b in spec.bundles] or [spec.resources.gpu // UNIT]
            holding[name] = list(zip(on_nodes, gpus, strict=True))
        return holding

    def fits(self, alternative, without=()):
        """Whether an alternative has quota and room, by trying every choice of nodes."""
        quota = QUOTA
        for name, places in self.placements().items():
            quota -= sum(gpus for _, gpus in places) if name not in without else 0
        return sum(alternative[1]) <= quota and self.fits_on_nodes(alternative, without)

    def fits_on_nodes(self, alternative, without=()):
        """Whether an alternative has room, by trying every choice of nodes."""
        condition, bundles = alternative
        free = dict(self.gpus)
        for name, places in self.placements().items():
            for node_id, gpus in places if name not in without else ():
                free[node_id] -= gpus
        able = [n for n, m in self.models.items() if condition is None or holds(condition, m)]
        return any(
            all(
                sum(b for b, n in zip(bundles, nodes, strict=True) if n == x) <= free[x]
                for x in able
            )
            for nodes in product(able, repeat=len(bundles))
        )

    def evictions(self, alternative, priority):
        """The sets of tasks whose evictions make an alternative fit; no set contains another one."""
        evictable = [n for n in self.placements() if self.priorities[n] <= priority - 1.0]
        return self.smallest_sets(evictable, lambda names: self.fits(alternative, names))

    def smallest_sets(self, names, is_enough):
        """The sets of these that are enough; no set contains another one."""
        smallest = []
        for count in range(1, len(names) + 1):
            for some in combinations(names, count):
                if not any(set(few) <= set(some) for few in smallest) and is_enough(some):
                    smallest.append(some)
        return smallest

    def submission(self, priority):
        """A task of any kind with some alternatives; its name and how to submit it."""
        self.number += 1
        name, alternatives = f"t{self.number}", self.alternatives()
        kind = self.chance.choice(("agent", "job", "gang", "lease"))
        if kind == "agent":
            alternatives = [(condition, bundles[:1]) for condition, bundles in alternatives]
        how = {
            "agent": {},
            "job": {"payload": JobPayload()},
            "gang": {"payload": GangPayload(strategy="PACK")},
            "lease": {"payload": LeasePayload(strategy="PACK")},
        }[kind]
        (condition, bundles), *others = alternatives
        in_parts = kind != "agent"
        how |= {"bundles": [{"gpu": b} for b in bundles]} if in_parts else {"gpu": bundles[0]}
        how["node_labels"] = {} if condition is None else {MODEL: condition}
        how["fallbacks"] = [
            ({} if c is None else {MODEL: c})
            | ({"bundles": [{"gpu": b} for b in each]} if in_parts else {"takes": {"gpu": each[0]}})
            for c, each in others
        ]
        self.asked[name], self.priorities[name] = alternatives, priority
        return name, how

    def settle(self):
        """All evictions end, groups are gone from Ray, and what starts runs."""
        for _ in range(20):
            leaving, starting = list(self.mesh.ends), list(self.mesh.starts)
            ending = list(self.mesh.state.groups.ending)
            for name in leaving:
                self.mesh.leave(name, saved=True)
            for group_id in ending:
                self.mesh.remove(group_id)
            self.mesh.make_all()
            for name in list(self.mesh.starts):
                self.mesh.report(name)
            if not leaving and not starting and not ending:
                return
        raise AssertionError("something ends and starts for ever")

    def check_nodes(self):
        """Whatever holds nodes is on those of the alternative that it took, with its amounts."""
        for name, places in self.placements().items():
            agent = self.mesh.state.agents[name].spec
            condition, bundles = self.asked[name][agent.alternative]
            assert [gpus for _, gpus in places] == list(bundles)
            for node_id, _ in places:
                assert condition is None or holds(condition, self.models[node_id])
        for state in (self.mesh.refolded(), self.mesh.rewritten()):
            assert {n: a.spec for n, a in state.agents.items()} == {
                n: a.spec for n, a in self.mesh.state.agents.items()
            }


def submit(world):
    """Submit a task; by brute force the outcome is what the rules 2, 3 and 4 say."""
    priority = float(world.chance.randint(1, 5))
    name, how = world.submission(priority)
    alternatives = world.asked[name]
    fitting = [n for n, each in enumerate(alternatives) if world.fits(each)]
    helped = {
        n: sets for n, each in enumerate(alternatives) if (sets := world.evictions(each, priority))
    }
    before = world.placements()
    outcome = world.mesh.submit(name, priority=priority, **how)
    if not fitting and not helped:
        assert isinstance(outcome, Refused), (alternatives, before)
        return
    assert isinstance(outcome, Pending), (outcome, alternatives, before)
    taken = world.mesh.state.agents[name].spec.alternative
    victims = tuple(sorted(world.mesh.ends))
    if fitting:
        assert (taken, victims) == (fitting[0], ()), (name, how, before, world.models, world.gpus)
    else:
        assert taken == min(helped), (alternatives, before, helped)
        assert victims in {tuple(sorted(names)) for names in helped[taken]}
    world.settle()


def end_one(world):
    """A task that runs is completed."""
    running = sorted(world.mesh.state.agents)
    if running:
        world.mesh.complete(world.chance.choice(running))
        world.settle()


@pytest.mark.parametrize("seed", range(STORIES))
def test_the_first_that_fits_else_the_first_that_evictions_free(seed):
    world = World(seed)
    for _ in range(STEPS):
        world.chance.choice((submit, submit, end_one))(world)
        world.check_nodes()


def wait(world):
    """A task joins the queue."""
    priority = float(world.chance.randint(1, 5))
    name, how = world.submission(priority)
    duration = world.chance.choice((None, 5.0, 50.0))
    outcome = world.mesh.queue(name, priority=priority, duration=duration, **how)
    assert isinstance(outcome, (Queued, Refused))
    world.settle()


def could_ever(world, name):
    """Whether any alternative of a task has room on the empty cluster."""
    return any(world.fits(each, tuple(world.placements())) for each in world.asked[name])


def check_first(world):
    """The first task that waits and could ever start fits in none of its alternatives, nor would with any
    evictions; and explain has a line for each.
    """
    waiting = [name for name in world.mesh.waiting() if could_ever(world, name)]
    if not waiting:
        return
    first = waiting[0]
    alternatives, priority = world.asked[first], world.priorities[first]
    assert not any(map(world.fits, alternatives)), (first, alternatives, world.placements())
    assert not any(world.evictions(each, priority) for each in alternatives), (first, alternatives)
    told = world.mesh.engine.explain(first, world.mesh.now)
    assert len(told.alternatives) == (len(alternatives) if len(alternatives) > 1 else 0)


@pytest.mark.parametrize("seed", range(1000, 1000 + STORIES))
def test_nothing_that_could_start_waits_as_the_first(seed):
    world = World(seed)
    for _ in range(STEPS):
        world.chance.choice((wait, wait, end_one))(world)
        pass_time(world.mesh, 1.0)
        world.settle()
        pass_time(world.mesh, 1.0)
        world.settle()
        world.check_nodes()
        check_first(world)
