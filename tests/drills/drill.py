"""The drill: kill processes with SIGKILL at random moments on a real Ray, and check the state after each.

``make drill`` runs it. Environment variables: ``DRILL_KILLS`` (number of kills, default 200),
``DRILL_SEED`` (default random; it is printed), ``DRILL_SECONDS`` (no further kill starts after this time;
default none), ``DRILL_ONLY`` (run only the kinds whose names contain this text; default all) and
``DRILL_KEEP`` (where to copy the journal and all logs of a drill that failed; default nowhere).
"""

from __future__ import annotations

import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TypeVar

import ray

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Expected, Log
from tests.drills.agents import slow_preserver
from tests.drills.batch_client import CPUS, POOL, BatchClient
from tests.drills.checker import FAILS_AFTER_S, TARGET_S, BatchChecker, Checker, DuplicateWatch
from tests.drills.clients import POOLS, Client, Policy, Workload
from tests.drills.disk import Disk, own_disk
from tests.drills.drill_context import TRIES
from tests.drills.kills import AllKills
from tests.drills.processes import DrillFailed

NAMESPACE, NAME, CLIENTS = "drill", "mesh", 3

SomeClient = TypeVar("SomeClient", bound=Client)


def main() -> int:
    """Run the drill and print its table; the exit status is 1 if anything was lost."""
    kills = int(os.environ.get("DRILL_KILLS", "200"))
    seed = os.environ.get("DRILL_SEED") or secrets.token_hex(4)
    limit_s = float(os.environ.get("DRILL_SECONDS", "inf"))
    only = os.environ.get("DRILL_ONLY", "")
    print(f"drill: {kills} kills, DRILL_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, own_disk(Path(name)) as (disk, why_not):
        if disk is None:
            print(f"skipped: read-only disk of the journal; {why_not}", flush=True)
        ray.init(
            address="local",
            num_cpus=20,
            object_store_memory=80_000_000,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            return run(Path(name), disk, kills, seed, only, limit_s)
        finally:
            ray.shutdown()


def run(folder: Path, disk: Disk | None, kills: int, seed: str, only: str, limit_s: float) -> int:
    """Run this number of kills, all kinds in turn, in an order that depends on the seed."""
    (folder / "processes").mkdir()
    mesh = RayScheduler(NAME, namespace=NAMESPACE, detached=True, state_path=folder / "state")
    others = {"own": 2.0, "preserved": 1.0, "driver": 2.0, "work": 1.0, POOL: CPUS}
    for pool, cpu in {**POOLS, **others}.items():
        mesh.create_pool(pool, resources={"cpu": cpu})
    mesh.register_state_handlers("preserved", preserver=slow_preserver)
    # What runs in these pools is not evicted for the clients' tasks.
    mesh.update_preemption_policy(protected_pools=["work", POOL])
    log, policy = Log(folder / "log.jsonl"), Policy()

    def client(name: str, kind: type[SomeClient]) -> SomeClient:
        attached = RayScheduler.attach(NAME, namespace=NAMESPACE)
        return kind(name, attached, log, folder, f"{seed} {name}", policy)

    clients = [client(f"client{n}", Client) for n in range(CLIENTS)]
    batch = BatchChecker(mesh, folder)
    workload = Workload([*clients, client("batch", BatchClient)])
    watch = DuplicateWatch(folder)
    checker = Checker(mesh, NAMESPACE, log, workload, watch, batch)
    rng = random.Random(seed)
    killer = AllKills(
        mesh=mesh,
        namespace=NAMESPACE,
        log=log,
        folder=folder,
        workload=workload,
        checker=checker,
        own=client("own", Client),
        rng=rng,
    )
    killer.batch = client("killed", BatchClient)
    killer.disk = disk
    took: dict[str, list[float]] = defaultdict(list)
    done = 0
    began = time.monotonic()
    try:
        for kind in _order(list(killer.kinds()), kills, rng, only):
            took[kind].append(_one(killer, checker, kind))
            done += 1
            passed_s = time.monotonic() - began
            print(f"{passed_s:7.1f} s  {done:4d}  {kind}: {took[kind][-1]:.2f} s", flush=True)
            if passed_s > limit_s:
                break
        kind = "the end"
        checker.finish()
    except DrillFailed as failed:
        print(f"LOST after {done} kills, DRILL_SEED={seed}, in {kind}: {failed}", flush=True)
        keep = os.environ.get("DRILL_KEEP")
        if keep:
            _keep(folder, Path(keep))
        return 1
    finally:
        watch.close()
        batch.watch.close()
        workload.pause()
        mesh.shutdown()
        workload.close()
    lines = log.read()
    print(table(took))
    print(json.dumps(figures(took, lines, seed)))
    return 0


def _one(killer: AllKills, checker: Checker, kind: str) -> float:
    """Run and check one kill of this kind; the seconds until everything was served again."""
    for _ in range(TRIES):
        checker.workload.resume()
        took = killer.kinds()[kind]()
        if took is not None:
            break
    else:
        raise DrillFailed("the moment to kill was never found")
    checker.pause()
    checker.check()
    if took > FAILS_AFTER_S:
        raise DrillFailed(f"served again only after {took:.1f} s")
    return took


def _order(kinds: list[str], kills: int, rng: random.Random, only: str) -> list[str]:
    """Rounds of all kinds, each in another order."""
    chosen = [kind for kind in kinds if only in kind]
    order: list[str] = []
    while len(order) < kills:
        order += rng.sample(chosen, len(chosen))
    return order[:kills]


def table(took: dict[str, list[float]]) -> str:
    """Kills by kind with the times until everything was served again."""
    lines = [
        "| killed | kills | lost | recovery time, median | maximum |",
        "|---|---|---|---|---|",
    ]
    for kind, times in sorted(took.items()):
        middle, most = statistics.median(times), max(times)
        lines.append(f"| {kind} | {len(times)} | 0 | {middle:.2f} s | {most:.2f} s |")
    every = [t for times in took.values() for t in times]
    lines.append(
        f"| **all** | **{len(every)}** | **0** | {statistics.median(every):.2f} s | {max(every):.2f} s |"
    )
    late = sum(t > TARGET_S for t in every)
    lines.append(f"\nLater than {TARGET_S:g} s: {late} of {len(every)}.")
    return "\n".join(lines)


def figures(took: dict[str, list[float]], lines: list[dict], seed: str) -> dict[str, object]:
    """The number of kills, tasks, and acknowledgements of each kind."""
    counts: dict[str, int] = defaultdict(int)
    for line in lines:
        counts[line["what"]] += 1
    return {
        "seed": seed,
        "kills": sum(len(times) for times in took.values()),
        "acknowledged": counts,
        "evicted by queued tasks": sum("by" in line for line in lines),
        "tasks": len(Expected(lines).balance),
    }


def _keep(folder: Path, where: Path) -> None:
    """Copy logs and journal of a drill that failed."""
    import shutil

    shutil.copytree(folder, where, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
