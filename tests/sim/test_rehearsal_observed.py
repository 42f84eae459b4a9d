"""What external work takes and waits for, and what is measured of agents, is rehearsed as it was seen."""

from __future__ import annotations

import functools

import msgspec
import pytest

from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.demand_facts import ExternalDemandSeen, RoomLost
from schedulemesh.engine.messages.measurement_facts import EndMeasured, GpusBusy, GpusIdle
from schedulemesh.engine.messages.queue_facts import Ticked
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.sim import Timing
from schedulemesh.sim.rehearsal import open_history
from schedulemesh.sim.rehearsal.observations import Observations
from schedulemesh.sim.rehearsal.recording import fact_of
from schedulemesh.store.history.events import OBSERVED, Event
from tests.sim.mixed_load import KINDS, MixedWorld
from tests.sim.recorded_load import policy_of, random_jobs, recorded_world, written
from tests.sim.test_rehearsal_mixed import assert_same

TIMING = Timing(start_s=1.0, end_s=0.5, save_s=2.0)
OF_OTHERS = ("_use", "_use_many", "_demand", "_take_room")
MEASURED = ("_idle", "_report_end")


class ObservedWorld(MixedWorld):
    """One with external work beside the scheduler's, and whose agents are measured."""

    kinds = (*MixedWorld.kinds, *OF_OTHERS, *MEASURED)

    def __init__(self, *given, **more):
        #: What external work waits for, and whether it takes the room of the next start.
        self._waiting, self._takes = (), False
        super().__init__(*given, **more)

    def _use(self):
        """External work takes some of a node, or gives it back."""
        if (node_id := self._any(self._nodes)) is not None:
            self._use_of(node_id)
        self._look()

    def _use_many(self):
        """It does so on all nodes at once, and waits for other things, too."""
        for node_id in self._nodes:
            self._use_of(node_id)
        self._demand()

    def _use_of(self, node_id):
        used = self._draw.choice((NOTHING, Resources(gpu=2 * UNIT), Resources(gpu=6 * UNIT)))
        report = msgspec.structs.replace(self._nodes[node_id], external_usage=used)
        self._nodes[node_id] = report

    def _demand(self):
        """External work waits for something, or for nothing any more."""
        gpus = self._draw.choice((0, 1, 4, 8))
        demand = ExternalDemand(amount=Resources(gpu=gpus * UNIT), job_id="01", namespace="theirs")
        self._waiting = (demand,) if gpus else ()
        self._look()

    def _look(self):
        nodes = tuple(self._nodes.values())
        self.handle(s.ClusterObserved(nodes=nodes, external_demand=self._waiting))

    def _tick_and_again(self):
        self._look()  # as each second, whether or not it has changed
        super()._tick_and_again()

    def _take_room(self):
        self._takes = True

    def _report_started(self, order):
        agent = self.engine.state.agents.get(order.agent.name)
        evicted = agent is not None and agent.submission and agent.submission.evicting
        run = self._runs[order.agent.name]
        if not (self._takes and evicted and run.incarnation == order.incarnation):
            super()._report_started(order)
            return
        self._takes = False
        run.lost(self.now)
        self._free(run)
        self.handle(
            s.AgentStartFailed(
                agent_name=order.agent.name,
                incarnation=order.incarnation,
                reason=Reason.CLUSTER_OUT_OF_RESOURCES,
                error="its room was taken",
            )
        )

    def _idle(self):
        """Others are idle than before."""
        running = [
            name
            for name, agent in sorted(self.engine.state.agents.items())
            if isinstance(agent.phase, Running)
        ]
        some = self._draw.sample(running, len(running) // 3)
        self.handle(s.AgentsMeasured(idle=tuple((name, self.now - 60.0) for name in some)))

    def _report_end(self):
        """A task reports how far it is, or reports nothing any more."""
        task_id = self._any(self.engine.state.running.by_id)
        if task_id is not None:
            ends_at = self._draw.choice((None, self.now + self._draw.uniform(5.0, 500.0)))
            idle = tuple(self.engine.state.running.idle.items())
            self.handle(s.AgentsMeasured(idle=idle, ends=((task_id, ends_at),)))


def recording_of(path, seed, submitted=KINDS, only=(), **queue):
    policy = policy_of(queue, idle_gpu_percent=5.0, idle_gpu_s=60.0, measured_progress=True)
    jobs = random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0)
    given = {"seed": seed, "pause_s": 5.0, "submitted": submitted, "only": only}
    made = functools.partial(ObservedWorld, **given)
    world = recorded_world(jobs, policy, TIMING, world=made)
    world.run_for(400.0)
    written(world, path / "mesh.sqlite")
    recording = open_history(str(path / "mesh.sqlite"))
    return recording, {type(fact_of(one)) for one in recording.events if one.kind == "observed"}


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_what_others_use_wait_for_and_take_is_rehearsed(seed, tmp_path):
    recording, seen = recording_of(tmp_path, seed, only=OF_OTHERS)
    assert {ExternalDemandSeen, RoomLost} <= seen
    assert_same(recording)


@pytest.mark.parametrize("order", ["priority", "shortest_remaining"])
def test_idle_gpus_and_reported_ends_are_rehearsed(order, tmp_path):
    recording, seen = recording_of(tmp_path, 1, ("called",), MEASURED, order=order)
    assert seen - {Ticked} == {GpusIdle, GpusBusy, EndMeasured}
    assert_same(recording)


@pytest.mark.parametrize("seed", [4, 8, 9, 10])
def test_all_of_it_is_rehearsed_where_everything_happens(seed, tmp_path):
    recording, seen = recording_of(tmp_path, seed)
    if seed in (9, 10):  # the others lack a kind of observation
        assert {ExternalDemandSeen, GpusIdle, EndMeasured, Ticked} <= seen
    assert_same(recording)


def test_an_end_moves_with_the_start_of_its_task():
    """As where a task starts earlier, because there are more nodes than there were."""
    early = Observations(MeshState, late_s={"task": -30.0}.__getitem__)
    for known, moved in ((100.0, 70.0), (None, None)):
        fact = EndMeasured(task_id="task", ends_at=known)
        event = Event(number=1, at=50.0, kind=OBSERVED, fact=encode_facts((fact,)).decode())
        assert early.measured(event) == s.AgentsMeasured(ends=(("task", moved),))
