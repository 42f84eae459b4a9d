"""Replays Alibaba's openb trace on the engine's node state; compared with the published GPU allocation.

Pods arrive in a given order and never end; a pod that does not fit fails. See tests/data/openb/README.md.
"""

from __future__ import annotations

import csv
import functools
import gzip
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.rows import Row, at_most, note
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.strategies import choose_devices
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.nodes import Node

DATA = Path(__file__).parent.parent / "tests" / "data" / "openb"
SEEDS = (42, 43, 44, 45, 46)
#: The published policies, and the built-in strategy that corresponds to each.
POLICIES = {"05-BestFit": "best_fit", "06-FGD": "fragmentation_aware", "01-Random": ""}
#: Allowed difference from the published allocation in percentage points, and allowed seconds per run.
MAX_DIFFERENCE = 0.3
SECONDS = {"best_fit": 10.0, "fragmentation_aware": 60.0, "": 60.0}
#: GPUs of the trace.
GPUS = 6212


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one replay."""

    #: Allocated GPUs in percent of all.
    allocation: float
    published: float
    seconds: float
    failed: int

    @property
    def difference(self) -> float:
        """The difference from the published allocation, in percentage points."""
        return abs(self.allocation - self.published)


def openb(seeds: tuple[int, ...] = SEEDS, pods: int | None = None) -> list[Row]:
    """Every policy with every seed; ``pods`` limits the arrivals, and the targets are then not checked."""
    rows = []
    for policy, strategy in POLICIES.items():
        runs = [replay(policy, seed, pods) for seed in seeds]
        each = ", ".join(f"{r.allocation:.2f} for {r.published:.2f}" for r in runs)
        name = strategy or "random"
        if strategy:
            rows.append(_judged(f"openb, {name}: farthest from published, per seed", runs, each))
        else:
            rows.append(note(f"openb, {name}, a seed of our own: allocation", each))
        mean = abs(sum(r.allocation - r.published for r in runs)) / len(runs)
        rows.append(
            at_most(
                f"openb, {name}: mean over seeds from published", mean, MAX_DIFFERENCE, " points"
            )
        )
        slowest = max(r.seconds for r in runs)
        rows.append(at_most(f"openb, {name}: slowest run", slowest, SECONDS[strategy], " s"))
    return rows + _by_devices(seeds, pods)


def _by_devices(seeds: tuple[int, ...], pods: int | None) -> list[Row]:
    """FGD chooses the node, and something else the device of a share: what Ray does, and the worst."""
    rows = []
    for devices, who in (("best_fit", "by Ray: the tightest"), ("spread", "the emptiest")):
        runs = [replay("06-FGD", seed, pods, devices=devices) for seed in seeds]
        each = ", ".join(f"{r.allocation:.2f} for {r.published:.2f}" for r in runs)
        name = f"openb, fragmentation_aware, device of a share {who}"
        if devices == "best_fit":
            rows.append(_judged(f"{name}: farthest from published, per seed", runs, each))
        else:
            rows.append(note(f"{name}: allocation", each))
    return rows


def _judged(what: str, runs: list[Run], detail: str) -> Row:
    return at_most(what, max(r.difference for r in runs), MAX_DIFFERENCE, " points", detail)


def replay(policy: str, seed: int, pods: int | None = None, *, devices: str = "") -> Run:
    """Place the arrivals of one seed, all or the first ``pods``, by one policy.

    ``devices``: the strategy that chooses the device of a share, if it is not the policy's own.
    """
    nodes, strategy = cluster(seed), POLICIES[policy]
    rng = random.Random(seed)
    started = time.perf_counter()
    failed = gpu = 0
    for number, need in enumerate(_arrivals(seed)):
        if number == pods:
            break
        found = _place(nodes, need, strategy, devices or strategy, rng)
        if found is None:
            failed += 1
            continue
        node, taken = found
        gpu += need.gpu
        nodes.take(node.node_id, f"pod-{number}", msgspec.structs.replace(need, gpu=0), taken)
    return Run(
        allocation=100 * gpu / (GPUS * UNIT),
        published=published(policy, seed),
        seconds=time.perf_counter() - started,
        failed=failed,
    )


def cluster(seed: int) -> Cluster:
    """The trace's nodes, named by their rank, so that equal scores go to the lowest."""
    nodes = Cluster()
    ranks = {row["node_id"]: int(row["rank"]) for row in _of_seed("openb_fgd_node_rank", seed)}
    for row in sorted(trace_rows("openb_nodes"), key=lambda row: ranks[row["node_id"]]):
        total = _resources(row["cpus"], row["memory_gb"], int(row["gpus"]) * UNIT)
        nodes.see(NodeReport(node_id=f"{ranks[row['node_id']]:04}", total=total))
    kinds = Counter((need.cpu, need.gpu) for need in _arrivals(seed))
    nodes.workload.learn(kinds)
    return nodes


def published(policy: str, seed: int) -> float:
    """The published allocation in percent after all arrivals (130 % of the cluster's capacity)."""
    for row in trace_rows("openb_fgd_expected_default"):
        if (row["metric"], row["sc_policy"], row["seed"]) == ("gpu_alloc_pct", policy, str(seed)):
            return float(row["130"])
    raise KeyError(f"nothing is published for {policy} with seed {seed}")


def _place(
    nodes: Cluster, need: Resources, strategy: str, devices: str, rng: random.Random
) -> tuple[Node, Devices] | None:
    """A node and its devices; None: it fits nowhere. Without a strategy, both are random."""
    if not strategy:
        return _random_node(nodes, need, rng)
    node = nodes.choose(GroupShape(bundles=(need,)), strategy)
    if node is None:
        return None
    return node, choose_devices(devices, node, need, nodes.workload) or Devices()


def _random_node(
    nodes: Cluster, need: Resources, rng: random.Random
) -> tuple[Node, Devices] | None:
    # A cached ranking is the fastest.
    candidates = list(nodes.with_room(GroupShape(bundles=(need,)), "dominant_share"))
    if not candidates:
        return None
    node = rng.choice(candidates)
    if need.gpu == 0 or need.gpu >= UNIT:
        return node, choose_devices("spread", node, need, nodes.workload) or Devices()
    enough = [i for i, units in enumerate(node.devices) if units >= need.gpu]
    return node, Devices(units=((rng.choice(enough), need.gpu),))


def _arrivals(seed: int) -> Iterator[Resources]:
    pods = _pods()
    for row in sorted(_of_seed("openb_fgd_order", seed), key=lambda row: int(row["pos"])):
        yield pods[row["pod"]]


@functools.cache
def _pods() -> dict[str, Resources]:
    found = {}
    for row in trace_rows("openb_default"):
        gpu = int(row["num_gpu"]) * int(row["gpu_milli"] or 0) * UNIT // 1000
        found[row["job_id"]] = _resources(row["cpus"], row["memory_gb"], gpu)
    return found


def _resources(cpus: str, memory_gb: str, gpu: int) -> Resources:
    """Amounts of the trace in units; memory in MB."""
    memory = round(float(memory_gb) * 1024 * UNIT)
    return Resources(cpu=round(float(cpus) * UNIT), memory=memory, gpu=gpu)


def _of_seed(name: str, seed: int) -> Iterator[dict[str, str]]:
    return (row for row in trace_rows(name) if row["seed"] == str(seed))


@functools.cache
def trace_rows(name: str) -> list[dict[str, str]]:
    """The rows of a file of the trace."""
    with gzip.open(DATA / f"{name}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))
