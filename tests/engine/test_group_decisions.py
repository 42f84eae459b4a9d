"""Decisions on small full clusters with groups and shares of GPUs, held against an exhaustive search.

SCHEDULEMESH_CLUSTERS sets how many clusters are made; SCHEDULEMESH_SEED makes those of a former run again.
"""

from __future__ import annotations

import os
import random
from typing import NamedTuple

import msgspec

from schedulemesh.domain.placement import PLACEMENT_STRATEGIES, GroupsSpec
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import Mesh, leaving_for, node, pool, shape
from tests.engine.group_walk import decision_is_right

#: What those who run need, and what incoming agents do: more, so that several must leave for them.
SMALL = (
    ({"cpu": 1},),
    ({"cpu": 1},),
    ({"cpu": 2},),
    ({"cpu": 3},),
    ({"cpu": 1, "gpu": 0.5},),
    ({"cpu": 0.5, "gpu": 0.3},),
    ({"cpu": 1, "gpu": 1},),
    ({"cpu": 1}, {"cpu": 1}),
    ({"cpu": 1, "gpu": 0.5}, {"cpu": 0.5, "gpu": 0.3}),
)
BIG = (
    ({"cpu": 2},),
    ({"cpu": 3},),
    ({"cpu": 4},),
    ({"cpu": 4},),
    ({"cpu": 1, "gpu": 1},),
    ({"cpu": 1, "gpu": 0.7},),
    ({"cpu": 1, "gpu": 2},),
    ({"cpu": 1, "gpu": 0.5}, {"cpu": 1, "gpu": 0.8}),
    ({"cpu": 2}, {"cpu": 2}),
    ({"cpu": 3}, {"cpu": 1}, {"cpu": 1}),
)
#: Clusters in one run.
CLUSTERS = int(os.environ.get("SCHEDULEMESH_CLUSTERS", "400"))
POOLS = ("p", "p", "p", "q", "plain")
LABELS = ({}, {"role": "train"}, {"role": "rollout"})


class Story(NamedTuple):
    """An agent that comes to run, or an incoming agent."""

    where: str
    need: tuple[dict[str, float], ...]
    priority: float
    labels: dict[str, str]
    duration: float | None = None
    #: Whether it has ended again; for an incoming agent: how it is submitted.
    ended: bool = False
    kind: str = "plain"


def spec_of(chance):
    return GroupsSpec(
        reserved=tuple(
            shape(*chance.choice(SMALL + BIG[:3])) for _ in range(chance.choice((0, 0, 1, 2)))
        ),
        dynamic=chance.random() < 0.9,
        max_dynamic=chance.choice((1, 2, 3, 9, 9)),
        strategy=chance.choice(PLACEMENT_STRATEGIES),
    )


def running(chance):
    return Story(
        where=chance.choice(POOLS),
        need=chance.choice(SMALL),
        priority=chance.choice((0.0, 0.0, 1.0, 3.0, 6.0, 30.0)),
        labels=chance.choice(LABELS),
        duration=chance.choice((None, 5.0, 50.0)),
        ended=chance.random() < 0.2,
    )


def incoming_story(chance):
    return Story(
        where=chance.choice(POOLS),
        need=chance.choice(BIG),
        priority=chance.choice((2.0, 9.0, 20.0, 20.0)),
        labels=chance.choice(LABELS),
        kind=chance.choice(("plain", "plain", "plain", "for group", "no preemption")),
    )


def submission(mesh, name, story, **more):
    many = len(story.need) > 1
    return mesh.submission(
        name,
        story.where,
        story.priority,
        labels=story.labels,
        duration=story.duration,
        bundles=story.need if many else (),
        more=more,
        **({} if many else story.need[0]),
    )


def filled(chance):
    """A cluster on which agents came to run, one after the other, and some ended again."""
    quota, nodes = chance.choice((5, 8, 40, 40)), range(chance.randint(1, 3))
    mesh = Mesh(
        nodes=[
            node(f"n{i}", cpu=chance.choice((2, 4, 4, 5)), gpu=chance.choice((0, 1, 2)))
            for i in nodes
        ],
        label_preemption_rules={"role": {"train": ("rollout",)}},
        cross_pool_priority_threshold=3.0,
    )
    for name, spec in (("p", spec_of(chance)), ("q", spec_of(chance)), ("plain", None)):
        mesh.resize(pool(name, cpu=quota, gpu=2, groups=spec))
        mesh.make_all()
    ran = [running(chance) for _ in range(chance.randint(4, 9))]
    for i, story in enumerate(ran):
        mesh.handle(submission(mesh, f"a{i}", story, may_preempt=False))
        for group_id in sorted(mesh.removes):
            mesh.remove(group_id)
        mesh.make_all()
        if f"a{i}" in mesh.starts:
            mesh.report(f"a{i}")
        mesh.now += 1.0
    for i, story in enumerate(ran):
        if story.ended and f"a{i}" in mesh.state.running.by_id:
            mesh.complete(f"a{i}")
            mesh.now += 1.0
    return mesh


def test_decisions_are_right():
    """So many clusters, each by chance: full ones must be as likely as small ones."""
    seed = int(os.environ.get("SCHEDULEMESH_SEED", "1"))
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(CLUSTERS):
        one = chance.randrange(10**9)
        try:
            decisions_on_one_cluster_are_right(random.Random(one))
        except AssertionError:
            print(f"cluster {number}, made with {one}")
            raise


def decisions_on_one_cluster_are_right(chance):
    mesh = filled(chance)
    if chance.random() < 0.2:
        spec = mesh.state.ledger.accounts["p"].spec
        mesh.resize(msgspec.structs.replace(spec, groups=smaller(spec.groups, 1)))
        mesh.make_all()
    if chance.random() < 0.2:
        mesh.cordon("n0")
    for story in [incoming_story(chance) for _ in range(4)]:
        stimulus = submission(
            mesh,
            "new",
            story,
            dry_run=True,
            may_preempt=story.kind != "no preemption",
            for_group=story.kind == "for group",
        )
        decision_is_right(mesh, stimulus, mesh.handle(stimulus).outcome)
        it_can_be_carried_out(mesh, stimulus)


def smaller(spec, limit):
    return msgspec.structs.replace(spec, max_dynamic=limit)


def it_can_be_carried_out(mesh, stimulus):
    """The incoming agent comes to run when its victims have left, and leaves again."""
    fields = {field: getattr(stimulus, field) for field in stimulus.__struct_fields__}
    mesh.handle(s.TaskSubmitted(**{**fields, "dry_run": False}))
    agent = mesh.state.agents.get("new")
    if agent is None:
        return
    for victim in leaving_for(agent):
        mesh.leave(victim)
    for group_id in sorted(mesh.removes):
        mesh.remove(group_id)
    mesh.make_all()
    mesh.report("new")
    mesh.now += 1.0
    mesh.complete("new")
