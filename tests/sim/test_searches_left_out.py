"""Searches that are left out, and what is kept of others, change no decision."""

import random

import pytest

from schedulemesh.engine.admission import needs
from schedulemesh.engine.admission.ends import Ends
from schedulemesh.engine.admission.projection import Projection
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.preemption import search
from schedulemesh.engine.preemption.gpu_bound import GpuBound
from schedulemesh.engine.preemption.moves import SmallerTasks
from schedulemesh.engine.preemption.savable import SavableTasks
from schedulemesh.engine.preemption.service import SecondLevel
from schedulemesh.engine.preemption.sites import Sites
from schedulemesh.engine.state.lending import payment_for
from schedulemesh.engine.state.spared_work import SparedWork
from schedulemesh.sim import Job, NodeKind, simulate
from schedulemesh.sim.policy import parse_policy
from tests.sim.test_random_loads import node_names, random_changes, random_load, random_policy

LAS = parse_policy(
    {
        "pools": [
            {"name": name, "cohort": "all", "resources": {"gpu": 16}, "on_preempted": "requeue"}
            for name in ("a", "b")
        ],
        "policy": {
            "queue": {
                "order": "two_level_las",
                "las_preempts": True,
                "las_threshold_gpu_hours": 0.5,
            },
            "preemption": {"defragment_after_s": 120, "min_runtime": 60},
        },
    }
)


def load(seed, estimates=None):
    draw = random.Random(seed)
    return [
        Job(
            job_id=f"job-{n}",
            submit_s=float(draw.randrange(14_000)),
            duration_s=float(draw.choice([60, 600, 4000])),
            gpus=draw.choice([1, 1, 1, 2, 4, 8, 16]),
            pool=draw.choice("ab"),
            savable=draw.random() < 0.8,
            estimate_s=estimates and draw.choice(estimates),
        )
        for n in range(80)
    ]


def ends(seed, estimates=None):
    result = simulate(load(seed, estimates), [NodeKind(count=4, gpu=8)], LAS)
    return [(run.first_start, run.ended_at, run.preemptions) for run in result.runs]


@pytest.mark.parametrize(
    ("kind", "seed"), [(SmallerTasks, 1), (SmallerTasks, 2), (SecondLevel, 0), (SecondLevel, 1)]
)
def test_no_victim_is_lost_by_the_test_for_room(monkeypatch, seed, kind):
    found = ends(seed)
    answers = []
    ask = kind.no_room_until

    def never(self, bundles):
        answers.append(ask(self, bundles) is None)

    monkeypatch.setattr(kind, "no_room_until", never)
    assert ends(seed) == found
    assert {True, False} == set(answers)


@pytest.mark.parametrize("seed", range(2))
def test_what_was_counted_on_a_node_is_what_would_be_counted_now(monkeypatch, seed):
    found = ends(seed)
    count = GpuBound.no_room_until

    def anew(self, bundles):
        for node in self._state.cluster.nodes.values():
            node.gpu_tasks = None
        return count(self, bundles)

    monkeypatch.setattr(GpuBound, "no_room_until", anew)
    assert ends(seed) == found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("asked", ["is_in_vain", "is_start_of"])
def test_what_is_not_searched_again_would_not_be_found(monkeypatch, seed, asked):
    found = ends(seed)
    answers = []
    ask = getattr(SparedWork, asked)

    def never(self, task_id, what):
        answers.append(ask(self, task_id, what))
        return False

    monkeypatch.setattr(SparedWork, asked, never)
    assert ends(seed) == found
    assert {True, False} == set(answers)


@pytest.mark.parametrize("seed", range(2))
def test_bundles_that_have_too_few_gpus_have_no_room(monkeypatch, seed):
    found = ends(seed)
    monkeypatch.setattr(Room, "_may_hold", lambda *_: True)
    assert ends(seed) == found


@pytest.mark.parametrize("seed", range(2))
def test_the_closest_node_is_among_those_that_are_looked_at(monkeypatch, seed):
    found = ends(seed)
    monkeypatch.setattr(Projection, "_lacks_more", lambda *_: False)
    assert ends(seed) == found


@pytest.mark.parametrize("seed", range(2))
def test_no_single_victim_is_lost_by_the_test_for_what_nodes_lack(monkeypatch, seed):
    monkeypatch.setattr(search, "_FIRST_FEW", 1_000_000)
    every = ends(seed)
    monkeypatch.setattr(search, "_FIRST_FEW", 0)
    assert ends(seed) == every


@pytest.mark.parametrize("seed", range(2))
def test_what_the_searches_for_one_task_share_is_what_each_would_find(monkeypatch, seed):
    shared = ends(seed)
    monkeypatch.setattr(Sites, "_all_nodes", property(_searched_anew))
    assert ends(seed) == shared


def _searched_anew(sites):
    return [] if sites.shape is None else list(sites._nodes(sites.shape))


@pytest.mark.parametrize("seed", range(2))
def test_a_payment_that_is_kept_is_the_one_that_would_be_computed(monkeypatch, seed):
    kept = ends(seed)
    monkeypatch.setattr(needs, "pay_with_loans", _paid_anew)
    assert ends(seed) == kept


def _paid_anew(ledger, pool_name, need, client=None, *, protected=()):
    return payment_for(ledger, (pool_name, need, client, pool_name not in protected))


@pytest.mark.parametrize("estimates", [None, (None, None, None, 60.0, 4000.0)])
def test_no_end_is_lost_by_the_test_whether_any_is_known(monkeypatch, estimates):
    found = ends(0, estimates)
    monkeypatch.setattr(Ends, "none_known", False)
    assert ends(0, estimates) == found


def went(seed):
    draw = random.Random(seed)
    jobs = random_load(draw, 80, 120.0, 1.0)
    changes = random_changes(draw, node_names(4), jobs[-1].submit_s, 7200.0)
    policy = random_policy(draw, 16)
    result = simulate(jobs, [NodeKind(count=4, gpu=8)], policy, node_changes=changes)
    return [(run.first_start, run.ended_at, run.preemptions) for run in result.runs]


@pytest.mark.parametrize("seed", range(4))
def test_a_random_load_with_failures_goes_the_same_if_everything_is_searched(monkeypatch, seed):
    found = went(seed)
    for kind, name, answer in (
        (SavableTasks, "no_room_until", None),
        (SparedWork, "is_in_vain", False),
        (SparedWork, "is_start_of", False),
        (Room, "_may_hold", True),
        (Projection, "_lacks_more", False),
    ):
        monkeypatch.setattr(kind, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(Ends, "none_known", False)
    assert went(seed) == found
