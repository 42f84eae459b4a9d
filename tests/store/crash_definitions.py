"""Random definitions for histories that crash: what a pool, the policy and a window may say."""

from __future__ import annotations

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.budgets import parse_budget, parse_owner_budgets
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.priorities import PRIORITY_CLASSES
from schedulemesh.domain.windows import MaintenanceWindow
from tests.engine.builders import amount, node, pool

OWNERS = ("", "ada", "ben")
#: Two racks of one node each, with GPUs of two models.
NODES = (
    node("n", cpu=8, gpu=2, labels={"rack": "r1", "model": "H100"}),
    node("m", cpu=4, gpu=1, labels={"rack": "r2", "model": "A100"}),
)
FLAVORS = {"h100": {"model": "H100"}, "a100": {"model": "A100"}}
#: Conditions on the labels of nodes, and what will do instead.
SELECTORS = ({}, {}, {}, {"model": "H100"}, {"model": "in(H100, A100)"}, {"model": "!H100"})
FALLBACKS = ({"model": "A100"}, {"rack": "r1"})
#: GPU-hours that are used up within seconds, within a minute, or not at all.
BUDGETS = (0.0003, 0.005, 1.0)
PRIORITIES = tuple(sorted(PRIORITY_CLASSES.values()))


def random_pool(rng, name):
    """A pool that may have flavors, budgets, limits and an order of owners, and a range of priorities."""
    flavored = rng.random() < 0.4
    gpus = {"custom": {"gpu@h100": 2, "gpu@a100": 1}} if flavored else {"gpu": 2}
    spec = pool(name, cpu=rng.choice([6, 8, 10]), flavors=FLAVORS if flavored else None, **gpus)
    lowest, highest = rng.choice([(None, None), (None, None), (0.1, 8.0), (2.0, None)])
    return msgspec.structs.replace(
        spec,
        queueing=rng.choice(["strict", "best_effort"]),
        owner_limits=parse_owner_limits(_some(rng, _random_limit)),
        owner_order=rng.choice(["none", "fair"]),
        budget=parse_budget(rng.choice([None, _random_budget(rng)])),
        owner_budgets=parse_owner_budgets(_some(rng, _random_budget)),
        min_priority=lowest,
        max_priority=highest,
    )


def _some(rng, random_entry):
    """Entries for some owners, or for none."""
    return {who: random_entry(rng) for who in ("default", "ada") if rng.random() < 0.3}


def _random_limit(rng):
    kind, most = rng.choice([("cpu", 4), ("gpu", 1), ("running", 2), ("queued", 3)])
    return {kind: most}


def _random_budget(rng):
    return {
        "gpu_hours": rng.choice(BUDGETS),
        "period": "day",
        "then": rng.choice(["hold", "lower_priority", "warn"]),
    }


def random_policy(rng):
    """A policy whose levels and classes of priorities differ."""
    return PreemptionPolicy(
        remaining_time_weight=rng.choice([0.0, 0.1, 1.0]),
        cross_pool_priority_threshold=2.0,
        topology_levels=rng.choice([("rack",), ("rack",), ()]),
        priority_classes=rng.choice([{}, {"urgent": 8.5}, {"urgent": 9.0, "nightly": 0.3}]),
    )


def random_window(rng, name, now):
    """A window that opens soon: of a node, of a rack, or of an amount that is reserved for somebody."""
    which = rng.choice(
        [
            {"node_ids": (rng.choice(NODES).node_id,)},
            {"node_labels": parse_node_labels({"rack": "r1"}, "node_labels")},
            {"resources": amount(cpu=rng.choice([2, 10]))},
        ]
    )
    audience = rng.choice([{"pools": ("p",)}, {"owners": ("ada",)}])
    return MaintenanceWindow(
        name=name,
        start=now + rng.uniform(-20.0, 120.0),
        duration_s=rng.choice([20.0, 60.0]),
        repeat=rng.choice(["", "", "daily"]),
        notice_s=10.0,
        **which,
        **(audience if "resources" in which or rng.random() < 0.4 else {}),
    )
