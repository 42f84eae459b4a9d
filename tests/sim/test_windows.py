"""Maintenance windows in simulations and rehearsals."""

from __future__ import annotations

import functools

import pytest

from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.drain_facts import DrainEnded, DrainStarted
from schedulemesh.engine.messages.facts import EvictionStarted
from schedulemesh.sim import Timing
from schedulemesh.sim.rehearsal import open_history, rehearse
from schedulemesh.sim.simulation import BEGIN
from tests.sim.disturbed_load import DisturbedWorld
from tests.sim.recorded_load import policy_of, random_jobs, recorded_world, written


class MaintainedWorld(DisturbedWorld):
    """Windows are announced and deleted while a load runs, and nodes are cordoned and drained."""

    #: How many windows were of an amount.
    amounts = 0
    kinds = ("_announce", "_announce", "_forget", "_cordon", "_drain_node", "_lose_or_join")

    def _announce(self):
        node_id, gpus = self._any(self._nodes), self._draw.choice((4, 8, 12))
        pools = self._draw.choice(((), ("a",))) if self.amounts else ("a",)
        where = self._draw.choice(({"node_ids": (node_id,)}, {}))
        if pools and (not self.amounts or self._draw.random() < 0.5):
            where = {"resources": Resources(gpu=gpus * UNIT)}
            self.amounts += 1
        window = MaintenanceWindow(
            name=f"w{self.happened['_announce']}",
            start=self.now + self._draw.choice((-5.0, 20.0, 60.0)),
            duration_s=self._draw.choice((5.0, 30.0)),
            repeat=self._draw.choice(("", "daily")),
            notice_s=10.0,
            pools=pools,
            **where,
        )
        self.handle(s.WindowRequested(window=window, client="me"))

    def _forget(self):
        name = self._any(self.engine.state.windows.by_name)
        if name is not None:
            self.handle(s.WindowDeletionRequested(name=name, client="me"))


@pytest.mark.parametrize("seed", range(6))
def test_a_rehearsal_has_the_windows_of_the_history(seed, tmp_path):
    jobs = random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0)
    maintained = functools.partial(MaintainedWorld, seed=seed, pause_s=12.0)
    timing = Timing(start_s=1.0, end_s=0.5, save_s=2.0)
    world = recorded_world(jobs, policy_of(), timing, world=maintained)
    world.run_for(400.0)
    written(world, tmp_path / "mesh.sqlite")
    rehearsed = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert rehearsed.check.differences == ()
    assert rehearsed.check.left_out == {}
    assert rehearsed.check.same == rehearsed.check.decisions > 20
    assert world.happened["_announce"] > 3
    assert world.amounts > 0


def test_a_simulated_window_evicts_and_opens_in_time(tmp_path):
    """Ticks come when windows have something to do, also where nothing else happens."""
    jobs = random_jobs(1, 12, "ab", mean_s=1.0, shorter=1.0)
    world = recorded_world(jobs, policy_of(), Timing(start_s=1.0, end_s=0.5))
    start = BEGIN + 40.0
    window = MaintenanceWindow(name="w", start=start, duration_s=30.0)
    world.at(BEGIN + 1.0, lambda: world.handle(s.WindowRequested(window=window)))
    changes = []
    handle = world.handle

    def noted(stimulus):
        step = handle(stimulus)
        changes.extend(
            (type(fact).__name__, world.now)
            for fact in step.facts
            if isinstance(fact, (DrainStarted, DrainEnded))
            or (isinstance(fact, EvictionStarted) and fact.reason == "for_window")
        )
        return step

    world.handle = noted
    world.run()
    assert {at for name, at in changes if name == "DrainStarted"} == {start + 1.0}, "the next tick"
    assert {at for name, at in changes if name == "DrainEnded"} == {start + 31.0}
    evicted = {at for name, at in changes if name == "EvictionStarted"}
    assert evicted
    assert max(evicted) <= start
