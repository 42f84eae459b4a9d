"""What was recorded of a load is decided again in the same way, or otherwise under another policy."""

from __future__ import annotations

import functools
import random

import msgspec
import pytest

from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.sim import Timing
from schedulemesh.sim.rehearsal import Changes, open_history, rehearse, what_if
from schedulemesh.sim.rehearsal.observations import _with as fewer
from schedulemesh.sim.simulation import BEGIN
from tests.sim.disturbed_load import DisturbedWorld
from tests.sim.recorded_load import (
    FailingWorld,
    UnevenWorld,
    policy_of,
    random_jobs,
    recorded_world,
    run_and_write,
    written,
)

SLOW = Timing(start_s=5.0, end_s=2.0)
POLICIES = {
    "priority": policy_of(),
    "attained service": policy_of({"order": "two_level_las", "las_preempts": True}),
    "shortest first": policy_of({"order": "shortest_remaining"}),
    "strict": policy_of(queueing="strict"),
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "mesh.sqlite"
    run_and_write(path, seed=3, count=72, timing=SLOW, policy=policy_of())
    return open_history(str(path))


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for seed, name in enumerate(POLICIES, start=1)]
)
def test_under_the_policy_that_was_in_force_every_decision_is_the_same(name, seed, tmp_path):
    path = tmp_path / "mesh.sqlite"
    run_and_write(path, seed=seed, count=100, timing=SLOW, policy=POLICIES[name])
    found = rehearse(open_history(str(path)))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 100
    assert found.check.left_out == {}
    assert found.rehearsed == found.recorded
    assert found.recorded[""].preemptions > 0


@pytest.mark.parametrize("seed", range(4))
def test_so_it_is_where_every_action_and_every_tick_comes_at_another_time(seed, tmp_path):
    jobs = random_jobs(seed, 44, "ab", mean_s=6.0, shorter=15.0)
    policy = list(POLICIES.values())[seed]
    uneven = functools.partial(UnevenWorld, seed=seed)
    world = recorded_world(jobs, policy, Timing(start_s=1.0, end_s=0.5, save_s=2.0), world=uneven)
    world.run()
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 60
    assert found.rehearsed == found.recorded
    assert found.recorded[""].preemptions > 5


# 30 and 42 end during evictions; in 42 and 90 processes die while they start. Some worlds have all ten kinds
# of interventions, some all but one.
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [(0, 10), (1, 10), (2, 9), (29, 9), (30, 10), (32, 10), (35, 10), (38, 10), (42, 10), (90, 10)],
)
def test_so_it_is_where_clients_operators_and_nodes_intervene(seed, kinds, tmp_path):
    jobs = random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0)
    disturbed = functools.partial(DisturbedWorld, seed=seed, pause_s=8.0)
    timing = Timing(start_s=1.0, end_s=0.5, save_s=2.0)
    world = recorded_world(jobs, policy_of(), timing, world=disturbed)
    world.run_for(400.0)
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 30
    assert found.check.left_out == {}
    assert len(world.happened) == kinds
    submissions = [agent.submission for agent in world.engine.state.agents.values()]
    if seed in (30, 42):
        assert any(one is not None and one.evicting for one in submissions)


@pytest.mark.parametrize("seed", range(2))
def test_so_it_is_where_starts_fail(seed, tmp_path):
    jobs = random_jobs(seed, 40, "ab", mean_s=6.0, shorter=15.0)
    failing = functools.partial(FailingWorld, seed=seed)
    world = recorded_world(jobs, policy_of(), Timing(start_s=1.0, save_s=2.0), world=failing)
    world.run_for(600.0)
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 40


@pytest.mark.parametrize("promote_after_s", [0.0, 60.0])
def test_so_it_is_where_waiting_tasks_are_changed_and_promoted(promote_after_s, tmp_path):
    jobs = random_jobs(1, 40, "ab", mean_s=6.0, shorter=15.0)
    disturbed = functools.partial(DisturbedWorld, pause_s=8.0, only=("_change_waiting",))
    policy = policy_of({"promote_after_s": promote_after_s})
    world = recorded_world(jobs, policy, Timing(start_s=1.0, end_s=0.5), world=disturbed)
    world.run_for(400.0)
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 30


def test_more_nodes_and_more_quota_shorten_the_wait(recording):
    found = rehearse(recording, Changes(nodes=4, pools={"a": 32, "b": 32}))
    before, after = found.recorded[""], found.rehearsed[""]
    assert after.waited_s.mean < before.waited_s.mean / 4
    assert after.tasks == before.tasks == 72
    assert found.waits[0].rehearsed_s < found.waits[0].recorded_s
    assert found.check.differences == ()


def test_what_the_new_policy_leaves_out_stays_as_it_was(recording):
    queue = {"order": "shortest_remaining"}
    found = rehearse(recording, Changes(policy={"policy": {"queue": queue}}))
    assert set(found.rehearsed) == {"", "a", "b"}
    assert found.rehearsed[""].waited_s.mean != found.recorded[""].waited_s.mean
    same = rehearse(recording, Changes(policy={"policy": {"queue": {"order": "priority"}}}))
    assert same.rehearsed == same.recorded


@pytest.mark.parametrize(
    "policy",
    [
        {"pools": [{"name": "a", "queueing": "best_effort"}, {"name": "b"}]},
        {"pools": [{"name": "a", "pg_pool_config": None}, {"name": "a", "labels": {}}]},
        {"cohorts": [{"name": "all"}]},
        {"policy": {"preemption": {"min_runtime": 0}}},
    ],
)
def test_what_is_declared_as_it_was_changes_nothing(recording, policy):
    found = rehearse(recording, Changes(policy=policy))
    assert found.refused == 0
    assert found.rehearsed == found.recorded


def test_a_field_of_a_pool_changes_and_the_others_stay_as_they_were(recording):
    found = rehearse(recording, Changes(policy={"pools": [{"name": "a", "queueing": "strict"}]}))
    assert found.refused == 0
    assert found.rehearsed["a"].tasks == found.recorded["a"].tasks
    assert found.rehearsed["a"].waited_s.mean > found.recorded["a"].waited_s.mean


def test_a_pool_whose_submissions_are_all_refused_stays_in_the_figures(recording):
    alone = {"name": "a", "resources": {}, "cohort": None}
    found = rehearse(recording, Changes(policy={"pools": [alone]}))
    assert found.rehearsed.keys() == found.recorded.keys() == {"", "a", "b"}
    assert found.rehearsed["a"].tasks == 0
    assert found.refused == found.recorded["a"].tasks > 0


def test_what_is_declared_stays_and_what_is_not_changes_when_the_history_defines_it_again(
    tmp_path,
):
    """Pool a gets 32 GPUs and a label during the period; only another service of its queue is declared."""
    path = tmp_path / "mesh.sqlite"
    world = recorded_world(random_jobs(5, 60, "ab"), policy_of(), Timing())
    pool = msgspec.structs.replace(
        policy_of().pools[0], resources=Resources(gpu=32 * UNIT), labels={"of": "history"}
    )
    world.at(BEGIN + 60.0, lambda: world.handle(s.PoolRequested(spec=pool)))
    world.run()
    written(world, path)
    changes = Changes(policy={"pools": [{"name": "a", "queueing": "strict"}]})
    found = what_if._Run(open_history(str(path)), Timing(), "bin_pack")
    found.run(what_if._checked(changes), BEGIN)
    spec = found.world.engine.state.ledger.accounts["a"].spec
    assert spec == msgspec.structs.replace(pool, queueing="strict")


def test_a_change_counts_from_the_beginning_of_the_period(recording):
    middle = recording.submissions[36].attempts[0].submitted_at
    found = rehearse(recording, Changes(nodes=4), since=middle)
    assert found.since == middle
    assert found.recorded[""].tasks == found.rehearsed[""].tasks == 36


def test_nodes_that_are_taken_away_lengthen_the_wait(recording):
    found = rehearse(recording, Changes(nodes=-2))
    assert found.rehearsed[""].waited_s.mean > found.recorded[""].waited_s.mean


def test_an_unknown_pool_is_refused(recording):
    with pytest.raises(InvalidRequestError, match="no pool 'c'"):
        rehearse(recording, Changes(pools={"c": 1}))


def test_damage_inside_a_fact_is_named(recording):
    events = [
        msgspec.structs.replace(one, fact=one.fact[:-5]) if one.kind == "queued" else one
        for one in recording.events
    ]
    with pytest.raises(
        JournalError, match="event 1 of the history, 'queued', has a fact that cannot be read"
    ):
        rehearse(msgspec.structs.replace(recording, events=events))


def test_definitions_that_the_history_does_not_keep_are_those_of_its_end(recording):
    """As of a cluster whose nodes joined before ``keep_s``."""
    kinds = {event.kind for event in recording.definitions}
    assert {"pool_defined", "node_joined"} <= kinds
    part = msgspec.structs.replace(recording, definitions=[], missing=len(recording.definitions))
    found = rehearse(part)
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 72
    assert found.check.left_out == {"lacks_earlier_events": len(recording.definitions)}


def test_own_strategies_are_refused(recording):
    changes = Changes(policy={"strategies": ["bin_pack"]})
    with pytest.raises(InvalidRequestError, match="own strategies"):
        rehearse(recording, changes)


def test_an_export_is_refused(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s\n")
    with pytest.raises(InvalidRequestError, match="schedulemesh simulate"):
        open_history(str(path))


def test_a_folder_without_a_journal_is_refused(tmp_path):
    with pytest.raises(InvalidRequestError, match="contains no journal"):
        open_history(str(tmp_path))


def test_a_journal_without_history_is_refused_and_none_is_created(tmp_path):
    path = tmp_path / "mesh.sqlite"
    run_and_write(path, seed=1, count=2)
    (tmp_path / "mesh.sqlite.history").unlink()
    with pytest.raises(InvalidRequestError, match="no history beside"):
        open_history(str(path))
    assert not (tmp_path / "mesh.sqlite.history").exists()


def test_where_nodes_are_taken_away_that_died_in_the_history_none_are_left():
    assert list(fewer(["a", "b", "c"], -2)) == ["a"]
    assert list(fewer(["a", "b", "c"], -5)) == []


class WorldOfPoolsThatEnd(UnevenWorld):
    """A world in which the priorities of running tasks change, and pools get other names and end."""

    def __init__(self, *given, seed=1):
        super().__init__(*given, seed=seed)
        for number in range(8):
            self.at(self.now + 20.0 + 15.0 * number, self._change_running)
        self.at(self.now + 90.0, functools.partial(self._rename, "b", "c"))
        self.at(self.now + 160.0, functools.partial(self._delete, "c"))

    def _change_running(self):
        running = self.engine.state.running.by_id
        for task_id in sorted(running)[:1]:
            priority = running[task_id].spec.priority + 3.0
            self.handle(s.QueuedTaskChanged(task_id=task_id, priority=priority))

    def _rename(self, name, new_name):
        self.handle(s.PoolRenameRequested(pool_name=name, new_name=new_name))

    def _delete(self, name):
        self.handle(s.PoolDeletionRequested(pool_name=name, drain=True, client="me"))


@pytest.mark.parametrize("seed", range(3))
def test_so_it_is_where_pools_end_and_priorities_of_running_tasks_change(seed, tmp_path):
    jobs = random_jobs(seed, 60, "ab", mean_s=6.0, shorter=15.0)
    ending = functools.partial(WorldOfPoolsThatEnd, seed=seed)
    world = recorded_world(jobs, policy_of(), Timing(start_s=1.0, end_s=0.5), world=ending)
    world.run_for(400.0)
    assert list(world.engine.state.ledger.accounts) == ["a"]
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 30
    assert found.check.left_out == {}


def test_limits_in_time_end_the_same_attempts_again(tmp_path):
    jobs = [
        msgspec.structs.replace(
            job,
            max_run_s=(None, 300.0, 600.0)[number % 3],
            requeued_at_limit=job.savable and number % 2 == 0,
        )
        for number, job in enumerate(random_jobs(7, 60, "ab"))
    ]
    world = recorded_world(jobs, policy_of(), SLOW)
    world.run()
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 100
    assert found.rehearsed == found.recorded


def with_order(jobs, seed):
    """The same jobs, of which some start after earlier ones, and some are arrays."""
    draw, ordered = random.Random(seed), []
    for job in jobs:
        earlier = [one.job_id for one in ordered[-6:]]
        awaited = draw.sample(earlier, min(draw.choice((0, 0, 0, 1, 2)), len(earlier)))
        after = tuple(f"{draw.choice(('ok', 'any', 'fail'))}:{one}" for one in awaited)
        array = draw.choice(("", "", "", "0-5%2", "0-9:3"))
        small = min(job.gpus, 2.0) if array else job.gpus
        ordered.append(msgspec.structs.replace(job, after=after, array=array, gpus=small))
    return ordered


@pytest.mark.parametrize("seed", range(4))
def test_so_it_is_where_tasks_start_after_others_and_are_arrays(seed, tmp_path):
    jobs = with_order(random_jobs(seed, 50, "ab", mean_s=6.0, shorter=15.0), seed)
    uneven = functools.partial(UnevenWorld, seed=seed)
    world = recorded_world(jobs, policy_of(), Timing(start_s=1.0, end_s=0.5), world=uneven)
    world.run()
    written(world, tmp_path / "mesh.sqlite")
    found = rehearse(open_history(str(tmp_path / "mesh.sqlite")))
    assert found.check.differences == ()
    assert found.check.same == found.check.decisions > 60
    assert found.check.left_out == {}
    assert found.rehearsed == found.recorded
