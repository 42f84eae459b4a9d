"""What alternatives bring on Alibaba's openb trace, where a third of the GPU pods ask for models of GPUs.

Pods that take any of the models that they name are compared with pods that insist on the one of which there
are most, and with pods that take any node.

The pods arrive faster than they did, so that those that ask for a model have to wait for it. See
tests/data/openb/README.md.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

import msgspec

from benchmarks.openb import trace_rows
from benchmarks.rows import Row, at_most, note
from schedulemesh.domain.node_labels import ACCELERATOR_TYPE
from schedulemesh.sim import Job, NodeKind, simulate
from schedulemesh.sim.jobs import JobAlternative
from schedulemesh.sim.policy import parse_policy

#: By how many times the pods arrive faster, so that some wait although nodes of other models are free.
FASTER = 1000.0


def openb_models(pods: int | None = None) -> list[Row]:
    """The mean delays of pods that ask for models; ``pods``: only the first ones."""
    nodes = _nodes()
    jobs = [job for job in _jobs(nodes) if _fits(job, nodes)][:pods]
    ways = {
        "any of the models that they name": jobs,
        "that with the most GPUs alone": [
            msgspec.structs.replace(job, alternatives=()) for job in jobs
        ],
        "any model at all": [
            msgspec.structs.replace(job, node_labels={}, alternatives=()) for job in jobs
        ],
    }
    asking = {job.job_id for job in jobs if job.node_labels}
    flexible = {job.job_id for job in jobs if job.alternatives}
    delays = {way: _delays(of_way, nodes) for way, of_way in ways.items()}
    several, one, _ = (_mean(of_way, flexible) for of_way in delays.values())
    detail = ", ".join(
        f"{_mean(of_way, flexible):,.0f} s on {way} (all that ask {_mean(of_way, asking):,.0f} s)"
        for way, of_way in delays.items()
    )
    what = f"openb {FASTER:,.0f} times as fast, {len(flexible):,} pods that ask for several models"
    return [
        at_most(
            f"{what}: mean delay against one", several / one if one else 0.0, 1.0, " ×", detail
        ),
        note("the same, pods that ask for models, of all", f"{len(asking):,} of {len(jobs):,}"),
    ]


def _delays(jobs: list[Job], nodes: list[NodeKind]) -> dict[str, float]:
    """The delay of each pod in seconds."""
    runs = simulate(jobs, nodes, parse_policy({})).runs
    return {run.job.job_id: run.delay_s for run in runs}


def _mean(delays: dict[str, float], ids: set[str]) -> float:
    return statistics.fmean(delays[one] for one in ids) if ids else 0.0


def _jobs(nodes: list[NodeKind]) -> Iterator[Job]:
    """The pods that have ended, with the models of GPUs that they ask for, the most common one first."""
    gpus = Counter[str]()
    for kind in nodes:
        gpus[kind.labels[ACCELERATOR_TYPE]] += int(kind.count * kind.gpu)
    models = {row["job_id"]: row["gpu_spec"].split("|") for row in trace_rows("openb_gpuspec33")}
    for row in trace_rows("openb_default"):
        if not row["duration_s"]:
            continue
        names = sorted(set(models.get(row["job_id"], ())), key=lambda name: -gpus[name])
        first, *others = [{ACCELERATOR_TYPE: name} for name in names] or [{}]
        yield Job(
            job_id=row["job_id"],
            submit_s=float(row["submit_s"]) / FASTER,
            duration_s=float(row["duration_s"]),
            gpus=int(row["num_gpu"]) * int(row["gpu_milli"] or 0) / 1000,
            cpus=float(row["cpus"]),
            memory_gb=float(row["memory_gb"]),
            node_labels=first,
            alternatives=tuple(JobAlternative(node_labels=labels) for labels in others),
        )


def _fits(job: Job, nodes: list[NodeKind]) -> bool:
    """Whether a node of the model that a pod asks for first is large enough for it."""
    return any(
        job.cpus <= kind.cpu and job.memory_gb <= kind.memory_gb and job.gpus <= kind.gpu
        for kind in nodes
        if job.node_labels.items() <= kind.labels.items()
    )


def _nodes() -> list[NodeKind]:
    """The nodes of the trace, with the model of their GPUs as label."""
    kinds = Counter(
        (row["gpu_model"], float(row["cpus"]), float(row["memory_gb"]), int(row["gpus"]))
        for row in trace_rows("openb_nodes")
    )
    return [
        NodeKind(
            name=f"{model}-{number}",
            count=count,
            cpu=cpus,
            memory_gb=memory_gb,
            gpu=gpus,
            labels={ACCELERATOR_TYPE: model},
        )
        for number, ((model, cpus, memory_gb, gpus), count) in enumerate(kinds.items())
    ]
