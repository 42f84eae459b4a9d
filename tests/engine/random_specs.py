"""Random definitions for histories: pools, cohorts, policies, shapes of groups, gangs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.queueing import ORDERS, QueuePolicy
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import PLACEMENT_STRATEGIES, GroupShape, GroupsSpec
from schedulemesh.domain.pool import QUEUEING, PoolSpec
from tests.engine.builders import pool, shape

POOLS = ("p", "q", "r", "unknown")
NODES: dict[str, tuple[dict[str, Any], ...]] = {
    "n1": ({"cpu": 4, "memory": 400}, {"cpu": 2, "memory": 400}),
    "n2": ({"cpu": 4, "memory": 400, "gpu": 2}, {"cpu": 4, "memory": 400, "gpu": 1}),
    "n3": ({"cpu": 8, "memory": 200, "gpu": 1, "custom": {"x": 2}}, {"cpu": 8, "gpu": 4}),
    "n4": ({"cpu": 6, "gpu": 0.5},),
}
BUNDLES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"cpu": 1},),
    ({"cpu": 2},),
    ({"cpu": 4},),
    ({"cpu": 0.5, "gpu": 0.5},),
    ({"gpu": 0.4},),
    ({"gpu": 0.6, "cpu": 1},),
    ({"gpu": 1},),
    ({"cpu": 1, "gpu": 2},),
    ({"cpu": 1, "memory": 200},),
    ({"cpu": 1, "custom": {"x": 1}},),
    ({"cpu": 1}, {"cpu": 1}),
    ({"cpu": 1, "gpu": 1}, {"cpu": 1, "gpu": 1}),
    ({"cpu": 2}, {"cpu": 2}, {"cpu": 2}),
    ({"cpu": 30},),
    ({},),
)
GPU_IDS = (
    (),
    ("0",),
    ("1",),
    ("4",),
    ("5",),
    ("0", "1"),
    ("4", "5"),
    ("0", "0"),
    ("GPU-a",),
    ("7",),
)
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"tier": "premium"},
    {"tier": "standard", "team": "a"},
    {"tier": "batch", "team": "b"},
)
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"tier": {"premium": ("standard", "batch"), "standard": ("batch",)}},
    {"tier": {"premium": ("batch",)}, "team": {"a": ("b",)}},
)
PRIORITIES = (-1e9, 0.0, 1.0, 1.5, 4.0, 5.0, 9.0, 20.0, 1e9)
DURATIONS = (None, None, 0.0, 8.0, 40.0, 1e10)
AGENTS = tuple(f"a{number}" for number in range(10))
TASKS = (*AGENTS, "x0", "x1", "x2")
KEYS = ("", "c1", "c2")
#: How close together members are to be; nodes of histories may have a rack, and come into another.
TOPOLOGIES = ("", "rack", "preferred:rack", "slice:1:rack", "block,slice:2:rack")
#: Cohorts that pools are in, and that cohorts may have as parents.
COHORTS = ("left", "right", "root")
LIMITS: tuple[object, ...] = (None, None, 0, {"cpu": 1}, {"cpu": 4, "gpu": 1})


class Dice(random.Random):
    """A source of random definitions that somebody may give."""

    def any(self, options: Sequence[Any]) -> Any:
        """One of them."""
        return self.choice(options)

    def chance(self, part: float) -> bool:
        """Whether it happens this time."""
        return self.random() < part

    def pool(self, name: str) -> PoolSpec:
        """Some definition of a pool."""
        quota = {"cpu": self.any((0.5, 2, 6, 12)), "memory": 600, "gpu": self.any((0.5, 2, 4))}
        found = pool(
            name,
            labels={"name": name},
            agents=self.any((0, 2, 3)),
            groups=self.groups() if self.chance(0.4) else None,
            lending=self.lending(),
            custom={"x": 2},
            **quota,
        )
        return msgspec.structs.replace(
            found,
            on_preempted=self.any(("drop", "requeue")),
            queueing=self.any(("best_effort", *QUEUEING)),
        )

    def lending(self) -> dict[str, Any]:
        """Some way in which a pool lends and borrows."""
        if self.chance(0.3):
            return {}
        return {
            "cohort": self.any(COHORTS),
            "lending_limit": self.any(LIMITS),
            "borrowing_limit": self.any(LIMITS),
            "weight": self.any((1.0, 1.0, 4.0)),
        }

    def cohort(self) -> CohortSpec:
        """Some cohort, with a parent that may not exist, or be below it."""
        parent = self.any((None, *COHORTS, "unknown"))
        return CohortSpec(name=self.any(COHORTS), parent=parent, weight=self.any((1.0, 2.0)))

    def groups(self) -> GroupsSpec:
        """Some way to keep placement groups."""
        return GroupsSpec(
            reserved=tuple(self.shape() for _ in range(self.any((0, 0, 1, 2)))),
            dynamic=self.chance(0.8),
            max_dynamic=self.any((0, 1, 2, 4)),
            reuse=self.chance(0.6),
            strategy=self.any(PLACEMENT_STRATEGIES),
            idle_s=self.any((5.0, 300.0)),
            entitled_labels=parse_selector(self.any(({}, {"tier": "premium"}))),
            fill_target=self.chance(0.3),
        )

    def shape(self) -> GroupShape:
        """Some reserved group."""
        return shape(*self.any(BUNDLES[:13]), strategy=self.any(PLACEMENT_STRATEGIES))

    def gang(self) -> GangPayload:
        """Some gang, elastic or not."""
        return GangPayload(
            strategy=self.any(("", *PLACEMENT_STRATEGIES)), replicas=self.any((0, 0, 2, 4))
        )

    def policy(self) -> PreemptionPolicy:
        """Some policy of preemption."""
        return PreemptionPolicy(
            same_pool_priority_threshold=self.any((0.5, 1.0, 3.0)),
            cross_pool_priority_threshold=self.any((0.5, 1.0, 5.0)),
            label_priority_threshold=self.any((0.1, 0.5, 1.5)),
            remaining_time_weight=self.any((0.0, 0.1, 1.0)),
            min_preempt_score=self.any((-20.0, 0.5)),
            enable_cross_pool_preemption=self.chance(0.8),
            enable_label_preemption=self.chance(0.8),
            label_dominance_protects=self.chance(0.5),
            protected_pools=self.any(((), (), ("q",))),
            label_preemption_rules=self.any(RULES),
            victim_order=self.any(("score", "score", "least_lost_work")),
            min_runtime=self.any((0.0, 0.0, 5.0)),
            max_preemptions=self.any((1, 2, 5)),
            preemption_cooldown=self.any((0.0, 0.0, 20.0)),
            lost_work_budget=self.any((0.0, 0.0, 10.0, 1e4)),
            defragment_after_s=self.any((0.0, 0.0, 5.0)),
            usage_half_life_s=self.any((0.0, 60.0, 86400.0)),
            topology_levels=self.any((("rack",), ("rack",), ("block", "rack"), ())),
            reclaim_unsavable=self.any((True, True, False)),
        )

    def queue_policy(self) -> QueuePolicy:
        """Some policy of the queue."""
        return QueuePolicy(
            order=self.any(("priority", *ORDERS)),
            ageing_per_hour=self.any((0.0, 2.0, 3600.0)),
            las_threshold_gpu_hours=self.any((0.001, 8.0)),
            las_preempts=self.any((False, True)),
            shortest_preempts=self.any((False, True)),
            backfill_limit_s=self.any((0.0, 15.0, 3600.0)),
            promote_after_s=self.any((0.0, 0.0, 20.0)),
            waiting_weight=self.any((0.0, 0.0, 2.0)),
            waiting_weight_s=self.any((0.0, 60.0, 3600.0)),
            estimates=self.chance(0.5),
            on_impossible=self.any(("skip", "cancel")),
            impossible_after_s=self.any((0.0, 30.0)),
        )
