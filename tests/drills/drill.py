"""The drill: kill -9 at random moments on a real Ray, and judge after each. ``make drill`` runs it.

``DRILL_KILLS`` says how many (200), ``DRILL_SEED`` which moments (at random; it is printed),
``DRILL_SECONDS`` after how long no further kill begins (none), ``DRILL_ONLY`` which kinds (a part of their
names; all), and ``DRILL_KEEP`` where to copy the journal and all logs of a drill that failed (nowhere).
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

import ray

from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import Expected, Log
from tests.drills.agents import slow_preserver
from tests.drills.clients import POOLS, Client, Policy, Workload
from tests.drills.disk import Disk, own_disk
from tests.drills.judge import GIVES_UP_S, SERVES_AGAIN_S, Judge, Watch
from tests.drills.kills import Kills
from tests.drills.processes import DrillFailed
from tests.drills.stage import TRIES

NAMESPACE, NAME, CLIENTS = "drill", "mesh", 3


def main() -> int:
    """Run the drill and print its table; the exit status says whether anything was lost."""
    kills = int(os.environ.get("DRILL_KILLS", "200"))
    seed = os.environ.get("DRILL_SEED") or secrets.token_hex(4)
    limit_s = float(os.environ.get("DRILL_SECONDS", "inf"))
    only = os.environ.get("DRILL_ONLY", "")
    print(f"drill: {kills} kills, DRILL_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, own_disk(Path(name)) as (disk, why_not):
        if disk is None:
            print(f"skipped: a journal's disk that is read-only; {why_not}", flush=True)
        ray.init(
            address="local",
            num_cpus=16,
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
    """So many kills of kinds in turn, in an order of the seed's choosing."""
    (folder / "lives").mkdir()
    mesh = RayScheduler(NAME, namespace=NAMESPACE, detached=True, state_path=folder / "state")
    for pool, cpu in {**POOLS, "own": 2.0, "preserved": 1.0, "driver": 2.0}.items():
        mesh.create_pool(pool, resources={"cpu": cpu})
    mesh.register_state_handlers("preserved", preserver=slow_preserver)
    log, policy = Log(folder / "log.jsonl"), Policy()

    def client(name: str) -> Client:
        attached = RayScheduler.attach(NAME, namespace=NAMESPACE)
        return Client(name, attached, log, folder, f"{seed} {name}", policy)

    workload = Workload([client(f"client{n}") for n in range(CLIENTS)])
    watch = Watch(folder)
    judge = Judge(mesh, NAMESPACE, log, workload, watch)
    rng = random.Random(seed)
    killer = Kills(
        mesh=mesh,
        namespace=NAMESPACE,
        log=log,
        folder=folder,
        workload=workload,
        judge=judge,
        own=client("own"),
        rng=rng,
    )
    killer.disk = disk
    took: dict[str, list[float]] = defaultdict(list)
    done = 0
    began = time.monotonic()
    try:
        for kind in _order(list(killer.kinds()), kills, rng, only):
            took[kind].append(_one(killer, judge, kind))
            done += 1
            passed_s = time.monotonic() - began
            print(f"{passed_s:7.1f} s  {done:4d}  {kind}: {took[kind][-1]:.2f} s", flush=True)
            if passed_s > limit_s:
                break
    except DrillFailed as failed:
        print(f"LOST after {done} kills, DRILL_SEED={seed}, in {kind}: {failed}", flush=True)
        keep = os.environ.get("DRILL_KEEP")
        if keep:
            _keep(folder, Path(keep))
        return 1
    finally:
        watch.close()
        workload.rest()
        mesh.shutdown()
        workload.close()
    lines = log.read()
    print(table(took))
    print(json.dumps(figures(took, lines, seed)))
    return 0


def _one(killer: Kills, judge: Judge, kind: str) -> float:
    """One kill of this kind, judged."""
    for _ in range(TRIES):
        judge.workload.go()
        took = killer.kinds()[kind]()
        if took is not None:
            break
    else:
        raise DrillFailed("the moment was never found")
    judge.rest()
    judge.judge()
    if took > GIVES_UP_S:
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
    """Kills by kind with the times until everything served again."""
    lines = [
        "| killed | kills | lost | serves again after, median | most |",
        "|---|---|---|---|---|",
    ]
    for kind, times in sorted(took.items()):
        middle, most = statistics.median(times), max(times)
        lines.append(f"| {kind} | {len(times)} | 0 | {middle:.2f} s | {most:.2f} s |")
    every = [t for times in took.values() for t in times]
    lines.append(
        f"| **all** | **{len(every)}** | **0** | {statistics.median(every):.2f} s | {max(every):.2f} s |"
    )
    late = sum(t > SERVES_AGAIN_S for t in every)
    lines.append(f"\nLater than {SERVES_AGAIN_S:g} s: {late} of {len(every)}.")
    return "\n".join(lines)


def figures(took: dict[str, list[float]], lines: list[dict], seed: str) -> dict[str, object]:
    """What was acknowledged and checked, in numbers."""
    counts: dict[str, int] = defaultdict(int)
    for line in lines:
        counts[line["what"]] += 1
    return {
        "seed": seed,
        "kills": sum(len(times) for times in took.values()),
        "acknowledged": counts,
        "tasks": len(Expected(lines).balance),
    }


def _keep(folder: Path, where: Path) -> None:
    """Copy logs and journal of a drill that failed."""
    import shutil

    shutil.copytree(folder, where, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
