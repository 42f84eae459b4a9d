"""The rules of flavors in docs/gpu_models.md against brute force, on clusters that are small enough for it.

Nothing here uses what the engine finds out: an alternative fits in a flavor where any choice of that flavor's
nodes holds its bundles, and the flavor has its quota.
"""

from __future__ import annotations

import os

import pytest

from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages.outcomes import Pending, Refused
from tests.engine.builders import Mesh, pool
from tests.engine.test_alternatives_oracle import MODEL, World, end_one, holds, wait
from tests.engine.test_service import pass_time

STORIES = int(os.environ.get("FLAVOR_STORIES", "20"))
STEPS = 14
#: The last two overlap: a node may be in several flavors.
FLAVORS = {"h100": "H100", "a100": "in(A100,L40S)", "other": "!in(H100,A100)"}


class FlavoredWorld(World):
    """A cluster, and pools that have quotas by flavor and lend them to each other."""

    def __init__(self, seed, pools=("p",)):
        super().__init__(seed)
        self.flavors = self.chance.sample(sorted(FLAVORS), self.chance.randint(1, 3))
        self.quotas = {
            (name, flavor): self.chance.randint(0, 4) for name in pools for flavor in self.flavors
        }
        self.pool_of = {}
        self.mesh = Mesh(*map(self.pool, pools), nodes=self.nodes)

    def pool(self, name):
        gpus = {f"gpu@{f}": n for (owner, f), n in self.quotas.items() if owner == name and n}
        return pool(
            name,
            cpu=999,
            custom=gpus,
            flavors={flavor: {MODEL: FLAVORS[flavor]} for flavor in self.flavors},
            lending={"cohort": "all"},
        )

    def held(self, pool_name, flavor, without=()):
        """The GPUs that the tasks of a pool hold in a flavor."""
        return sum(
            agent.spec.resources.gpu // UNIT
            for name, agent in self.mesh.state.agents.items()
            if agent.spec.pool_name == pool_name
            and agent.spec.taken_flavor == flavor
            and name not in without
        )

    def ways(self, name):
        """The alternatives of a task in each flavor, in the order of the rules."""
        return [
            (number, flavor) for number, _ in enumerate(self.asked[name]) for flavor in self.flavors
        ]

    def has_quota(self, name, way, without=()):
        """Whether all pools together have the quota free, which is as much as its pool may have."""
        number, flavor = way
        pools = sorted({owner for owner, _ in self.quotas})
        total = sum(self.quotas[owner, flavor] for owner in pools)
        held = sum(self.held(owner, flavor, without) for owner in pools)
        return sum(self.asked[name][number][1]) <= total - held

    def has_room(self, name, way, without=()):
        number, flavor = way
        condition, bundles = self.asked[name][number]
        models = self.models
        try:
            self.models = {
                node_id: model for node_id, model in models.items() if holds(FLAVORS[flavor], model)
            }
            return bool(self.models) and self.fits_on_nodes((condition, bundles), without)
        finally:
            self.models = models

    def fits_in(self, name, way, without=()):
        """Whether a task fits in an alternative and a flavor once some tasks are gone."""
        return self.has_quota(name, way, without) and self.has_room(name, way, without)

    def sets_that_help(self, name, way):
        """The smallest sets of evictable tasks without which a task fits in an alternative and a flavor."""
        limit = self.priorities[name] - 1.0
        evictable = [n for n in self.placements() if self.priorities[n] <= limit]
        return self.smallest_sets(evictable, lambda names: self.fits_in(name, way, names))

    def check_flavors(self):
        """No flavor is used beyond its quota, and everything runs on the nodes of its flavor."""
        self.check_nodes()
        pools = sorted({owner for owner, _ in self.quotas})
        for flavor in self.flavors:
            total = sum(self.quotas[owner, flavor] for owner in pools)
            assert sum(self.held(owner, flavor) for owner in pools) <= total
        for name, places in self.placements().items():
            flavor = self.mesh.state.agents[name].spec.taken_flavor
            assert all(holds(FLAVORS[flavor], self.models[node_id]) for node_id, _ in places)


def taken_by(world, name):
    spec = world.mesh.state.agents[name].spec
    return spec.alternative, spec.taken_flavor


def submit(world):
    """Submit a task; by brute force the outcome is what the rules say."""
    priority = float(world.chance.randint(1, 5))
    name, how = world.submission(priority)
    ways = world.ways(name)
    fitting = [way for way in ways if world.fits_in(name, way)]
    helped = {way: sets for way in ways if (sets := world.sets_that_help(name, way))}
    before = world.placements()
    outcome = world.mesh.submit(name, priority=priority, **how)
    if not fitting and not helped:
        assert isinstance(outcome, Refused), (ways, before)
        return
    assert isinstance(outcome, Pending), (outcome, world.asked[name], before)
    victims = tuple(sorted(world.mesh.ends))
    if fitting:
        assert (taken_by(world, name), victims) == (fitting[0], ()), (how, before, world.quotas)
    else:
        assert taken_by(world, name) == min(helped, key=ways.index), (how, before, helped)
        assert victims in {tuple(sorted(names)) for names in helped[taken_by(world, name)]}
    world.settle()


@pytest.mark.parametrize("seed", range(STORIES))
def test_the_first_that_fits_else_the_first_that_evictions_free(seed):
    world = FlavoredWorld(seed)
    for _ in range(STEPS):
        world.chance.choice((submit, submit, end_one))(world)
        world.check_flavors()


def check_first(world):
    """The first task that waits and could ever start fits in none of its ways, nor would with any evictions;
    and explain has a line for each that is possible by its labels.
    """
    everything = tuple(world.placements())
    waiting = [
        name
        for name in world.mesh.waiting()
        if any(world.fits_in(name, way, everything) for way in world.ways(name))
    ]
    if not waiting:
        return
    name = waiting[0]
    ways = world.ways(name)
    assert not any(world.fits_in(name, way) for way in ways), (name, ways, world.placements())
    assert not any(world.sets_that_help(name, way) for way in ways), (name, ways)
    told = world.mesh.engine.explain(name, world.mesh.now)
    assert told.alternatives


@pytest.mark.parametrize("seed", range(1000, 1000 + STORIES))
def test_nothing_that_could_start_waits_as_the_first(seed):
    world = FlavoredWorld(seed)
    for _ in range(STEPS):
        world.chance.choice((wait, wait, end_one))(world)
        for _ in range(2):
            pass_time(world.mesh, 1.0)
            world.settle()
        world.check_flavors()
        check_first(world)


def lend(world):
    """A task of some pool, all of one priority: it borrows what is idle of a flavor, or takes back what its
    pool has lent of it.
    """
    pool_name = world.chance.choice(("p", "q"))
    name, how = world.submission(5.0)
    ways, before = world.ways(name), world.placements()
    fitting = [way for way in ways if world.fits_in(name, way)]
    lent_by_way = {way: world.borrowers_of(pool_name, way[1]) for way in ways}
    entitled = [
        way
        for way in ways
        if world.is_entitled(pool_name, name, way) and world.has_room(name, way, lent_by_way[way])
    ]
    outcome = world.mesh.submit(name, pool_name, priority=5.0, **how)
    if fitting:
        assert (taken_by(world, name), world.mesh.ends) == (fitting[0], {}), (how, before)
    elif entitled:
        assert isinstance(outcome, Pending), (outcome, how, before, world.quotas)
        assert world.mesh.ends
        flavor = taken_by(world, name)[1]
        for victim in world.mesh.ends:
            spec = world.mesh.state.agents[victim].spec
            assert spec.pool_name != pool_name
            assert spec.taken_flavor == flavor, "for quota of another flavor"
    world.settle()


class LendingWorld(FlavoredWorld):
    """Two pools of one cohort."""

    def __init__(self, seed):
        super().__init__(seed, ("p", "q"))

    def borrowers_of(self, owner, flavor):
        """The tasks of the other pool that hold this one's quota of a flavor alone."""
        agents = self.mesh.state.agents.items()
        return tuple(
            name
            for name, agent in agents
            if agent.spec.pool_name != owner
            and agent.spec.taken_flavor == flavor
            and {share.pool_name for share in agent.shares if share.amount.custom} == {owner}
        )

    def is_entitled(self, owner, name, way):
        """Whether the own quota of a pool covers a task in a flavor beside its other tasks, and so much of it
        is lent to tasks that hold nothing else.
        """
        number, flavor = way
        need = sum(self.asked[name][number][1])
        borrowers = self.borrowers_of(owner, flavor)
        within_quota = self.held(owner, flavor) + need <= self.quotas[owner, flavor]
        return bool(borrowers) and within_quota and self.has_quota(name, way, borrowers)


@pytest.mark.parametrize("seed", range(2000, 2000 + STORIES))
def test_flavors_are_lent_and_taken_back_by_themselves(seed):
    world = LendingWorld(seed)
    for _ in range(STEPS):
        world.chance.choice((lend, lend, end_one))(world)
        world.check_flavors()
