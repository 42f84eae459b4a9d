"""The choice of a domain of the topology: 10,000 nodes in 500 racks of 20 blocks, half of all GPUs taken."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from benchmarks.mesh import amounts
from benchmarks.rows import Row, at_most, spread
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import UNIT
from schedulemesh.domain.topology import with_levels
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.state.cluster import Cluster

NODES, RACKS, BLOCKS, GPUS, MARK_MS = 10_000, 500, 20, 8, 5.0
LEVELS = ("block", "rack")
#: What is asked for: the topology, how many members, and GPUs of each.
ASKED = (
    ("rack", 16, 1),
    ("rack", 8, 4),
    ("preferred:rack", 64, 8),
    ("block,preferred:rack", 128, 1),
    ("slice:8:rack", 64, 1),
    ("rack", 16, 8),
)


def topology(rounds: int = 9) -> list[Row]:
    """Milliseconds of processor time for one choice, after one node has changed."""
    rows = list(_rows(_cluster(fragmented=False), rounds, "half of all GPUs taken"))
    cluster = _cluster(fragmented=True)
    times = _times(cluster, "rack", 8, 4, rounds)
    what = f"{NODES:,} nodes in {RACKS} racks: rack, 8 members of gpu 4, 3 GPUs free on every node"
    return [*rows, at_most(what, sorted(times)[rounds // 2], MARK_MS, " ms", spread(times))]


def _rows(cluster: Cluster, rounds: int, how: str) -> Iterator[Row]:
    for asked, members, gpus in ASKED:
        times = _times(cluster, asked, members, gpus, rounds)
        what = f"{NODES:,} nodes in {RACKS} racks, {how}: {asked}, {members} members of gpu {gpus}"
        yield at_most(what, sorted(times)[rounds // 2], MARK_MS, " ms", spread(times))


def _times(cluster: Cluster, asked: str, members: int, gpus: int, rounds: int) -> list[float]:
    bundles = (amounts(cpu=1, gpu=gpus),) * members
    shape = GroupShape(bundles=bundles, strategy="PACK", topology=with_levels(asked, LEVELS))
    Room(cluster).placement(shape)
    times = []
    for _ in range(rounds):
        cluster.take("n00007", "other", amounts(cpu=1), Devices())
        cluster.leave("n00007", "other")
        start = time.process_time()
        Room(cluster).placement(shape)
        times.append((time.process_time() - start) * 1e3)
    return times


def _cluster(*, fragmented: bool) -> Cluster:
    rng, cluster = random.Random(7), Cluster()
    for number in range(NODES):
        rack = number * RACKS // NODES
        node_id = f"n{number:05}"
        cluster.see(
            NodeReport(
                node_id=node_id,
                total=amounts(cpu=64, gpu=GPUS),
                labels={"block": f"b{rack * BLOCKS // RACKS}", "rack": f"r{rack}"},
            )
        )
        taken = 5 if fragmented else rng.choice((0, 0, 2, 4, 8, 8))
        devices = Devices(units=tuple((device, UNIT) for device in range(taken)))
        if taken:
            cluster.take(node_id, f"t{number}", amounts(cpu=taken), devices)
    return cluster
