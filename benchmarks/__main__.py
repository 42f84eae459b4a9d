"""``python -m benchmarks [group ...] [--json FILE]``: measure and print a table.

Several groups run one after the other, each in a new process, so that they do not share memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import Row, print_table


def _groups() -> dict[str, Callable[[], list[Row]]]:
    from benchmarks.budgets import budgets
    from benchmarks.calibration import calibration
    from benchmarks.cohorts import cohorts
    from benchmarks.decision import decision
    from benchmarks.dispatch import dispatch
    from benchmarks.estimates import estimates
    from benchmarks.explain import explain
    from benchmarks.groups import groups
    from benchmarks.growth import growth
    from benchmarks.history import history
    from benchmarks.journal import recovery
    from benchmarks.lending import lending
    from benchmarks.many_tensors import many_tensors
    from benchmarks.metrics import metrics
    from benchmarks.models import models
    from benchmarks.observing import observing
    from benchmarks.openb import openb
    from benchmarks.openb_models import openb_models
    from benchmarks.owners import owners
    from benchmarks.queue_snapshots import queue_snapshots
    from benchmarks.queueing import queueing
    from benchmarks.rules import rules
    from benchmarks.scaling import scaling
    from benchmarks.simulating import simulating
    from benchmarks.streams import streams
    from benchmarks.task_arrays import task_arrays
    from benchmarks.throughput import engine_alone, through_journal
    from benchmarks.topology import topology
    from benchmarks.victims import victims
    from benchmarks.waiting_gangs import waiting_gangs

    return {
        "decision": decision,
        "victims": victims,
        "lending": lending,
        "rules": rules,
        "explain": explain,
        "estimates": estimates,
        "groups": groups,
        "growth": growth,
        "scaling": scaling,
        "engine": engine_alone,
        "journal": through_journal,
        "recovery": recovery,
        "queue": queueing,
        "queue-snapshots": queue_snapshots,
        "gangs": waiting_gangs,
        "models": models,
        "topology": topology,
        "arrays": task_arrays,
        "owners": owners,
        "budgets": budgets,
        "metrics": metrics,
        "history": history,
        "streams": streams,
        "observing": observing,
        "dispatch": dispatch,
        "many-tensors": many_tensors,
        "openb": openb,
        "openb-models": openb_models,
        "calibration": calibration,
        "cohorts": cohorts,
        "simulating": simulating,
        "floor": _floor,
        "ray": _on_ray,
        "ray-groups": _on_ray_groups,
        "lease": _on_ray_leases,
        "ray-dispatch": _on_ray_dispatch,
        "ray-gloo": _on_ray_gloo,
        "ray-recovery": _on_ray_recovery,
        "ray-queue": _on_ray_queue,
        "ray-commands": _on_ray_commands,
        "ray-requests": _on_ray_requests,
        "ray-attribution": _on_ray_attribution,
        "ray-contention": _on_ray_contention,
        "ray-busy": _on_ray_busy,
    }


def _floor() -> list[Row]:
    from benchmarks.floor import floor

    return floor()


def _on_ray() -> list[Row]:
    from benchmarks.on_ray import on_ray

    return on_ray()


def _on_ray_groups() -> list[Row]:
    from benchmarks.on_ray_groups import on_ray_groups

    return on_ray_groups()


def _on_ray_leases() -> list[Row]:
    from benchmarks.on_ray_leases import on_ray_leases

    return on_ray_leases()


def _on_ray_attribution() -> list[Row]:
    from benchmarks.on_ray_attribution import on_ray_attribution

    return on_ray_attribution()


def _on_ray_contention() -> list[Row]:
    from benchmarks.on_ray_contention import on_ray_contention

    return on_ray_contention()


def _on_ray_busy() -> list[Row]:
    from benchmarks.on_ray_busy import on_ray_busy

    return on_ray_busy()


def _on_ray_dispatch() -> list[Row]:
    from benchmarks.on_ray_dispatch import on_ray_dispatch

    return on_ray_dispatch()


def _on_ray_gloo() -> list[Row]:
    from benchmarks.on_ray_gloo import on_ray_gloo

    return on_ray_gloo()


def _on_ray_recovery() -> list[Row]:
    from benchmarks.recovery import on_ray_recovery

    return on_ray_recovery()


def _on_ray_queue() -> list[Row]:
    from benchmarks.on_ray_queue import on_ray_queue

    return on_ray_queue()


def _on_ray_commands() -> list[Row]:
    from benchmarks.on_ray_commands import on_ray_commands

    return on_ray_commands()


def _on_ray_requests() -> list[Row]:
    from benchmarks.on_ray_requests import on_ray_requests

    return on_ray_requests()


def main() -> int:
    """Run the requested groups; the exit status is 1 if a target was missed."""
    groups = _groups()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("group", nargs="*", help=f"of {', '.join(groups)}; none: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    arguments = parser.parse_args()
    names = arguments.group or list(groups)
    unknown = [name for name in names if name not in groups]
    if unknown:
        parser.error(f"there is no group {unknown[0]!r}; groups are {', '.join(groups)}")
    rows = groups[names[0]]() if len(names) == 1 else [r for n in names for r in _apart(n)]
    print_table(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    return 0 if all(row["met"] is not False for row in rows) else 1


def _apart(name: str) -> list[Row]:
    """The rows of one group, measured in a separate process."""
    print(f"{name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks", name, "--json", str(file)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if not file.exists():
            raise SystemExit(f"the group {name} failed with status {done.returncode}")
        rows: list[Row] = json.loads(file.read_text())
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
