"""Tasks of the drills that end by themselves: single agents, gangs, jobs, and arrays of agents and of jobs.

Their ids say what they are and what they do wrong: "save raises.gang-7" is a gang of which one member cannot
be saved, and "good.jobs-3[2]" is a member of an array of jobs. Markers show what their processes have done; a
process is named after its task, that of a member of a gang also after its rank ("good.gang-7#1"). The class
is pickled by value; the driver of jobs is the module ``batch_job``.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import ray

from schedulemesh.core import RayScheduler
from tests.drills.agents import began_at

ROOT = Path(__file__).parents[2]
#: What a task does wrong, and how often it is chosen.
KINDS = {
    "good": 6,
    "no save": 2,
    "save raises": 2,
    "save hangs": 2,
    "save dies": 1,
    "saves too much": 2,
    "restore raises": 1,
    "run raises": 1,
}
#: Those that never have a state to be restored. The folder of a job's checkpoints may have any size.
NEVER_SAVED = frozenset(("no save", "save raises", "save hangs", "save dies", "saves too much"))
#: How often those are tried again that fail by themselves; the others more often than anything is killed.
RETRIES = {"run raises": 1, "restore raises": 2}
#: What is submitted, and how often it is chosen.
SHAPES = {"agent": 4, "gang": 2, "job": 2, "array": 1, "jobs": 1}
#: Members of a gang, and of an array, of which only some run at once.
GANG, MEMBERS, AT_ONCE = 2, 3, 2
#: Seconds that the driver of a job has between its notice and SIGTERM.
GRACE_S = 1.5


class Named(NamedTuple):
    """What the id of a task says."""

    kind: str
    shape: str

    @property
    def is_job(self) -> bool:
        return self.shape in ("job", "jobs")

    @property
    def is_array(self) -> bool:
        return self.shape in ("array", "jobs")

    @property
    def never_saves(self) -> bool:
        """Whether no attempt has ever saved anything. Of a gang the first member saves; where the other one
        cannot, that is the state of the gang, and where it fails, there is none.
        """
        saves = {"job": "saves too much", "jobs": "saves too much", "gang": "no save"}
        return self.kind in NEVER_SAVED and self.kind != saves.get(self.shape)

    def restores(self, process: str) -> bool:
        """Whether a process is given a state where its task is restored."""
        return self.kind != "no save" or process.endswith("#0")


def named(task_id: str) -> Named:
    kind, _, rest = task_id.partition(".")
    return Named(kind, rest.partition("-")[0])


class Task:
    """Counts steps; each kind fails in its own way, of a gang the member with rank 1."""

    def __init__(
        self, name: str, labels: dict[str, str], task_id: str, folder: str, slow_s: float
    ) -> None:
        index, rank = os.environ.get("SCHEDULEMESH_ARRAY_INDEX"), os.environ.get("RANK")
        self.task_id = f"{task_id}[{index}]" if index else task_id
        self.process = f"{self.task_id}#{rank}" if rank else self.task_id
        self.folder, self.slow_s, self.step = Path(folder), slow_s, 0
        self.kind = "good" if rank == "0" else task_id.partition(".")[0]
        self.here = f"{self.process}@{os.getpid()}@{ray.get_runtime_context().get_node_id()}"
        self.mark("processes", f"{self.process}@{os.getpid()}@{began_at(os.getpid())}")
        self.mark("starting", self.here)
        time.sleep(slow_s)  # a slow constructor, so that it can be killed in it
        if self.kind == "no save":
            self.save_state = None  # type: ignore[method-assign,assignment]

    def mark(self, kind: str, name: str) -> None:
        """Create a marker file."""
        folder = self.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def work(self, steps: int) -> dict[str, Any]:
        """Work from the restored step to the last one."""
        began = self.step
        self.mark("working", self.here)
        while self.step < steps:
            time.sleep(0.05)  # the work itself
            self.step += 1
        if self.kind == "run raises":
            raise RuntimeError("its own fault")
        token = secrets.token_hex(8)
        self.mark("produced", f"{self.process}@{token}")
        return {"token": token, "began": began, "step": self.step}

    def save_state(self) -> dict[str, Any]:
        """The step, unless this kind fails to save it."""
        self.mark("saving", f"{self.here}@{secrets.token_hex(4)}")
        step = self.step
        time.sleep(self.slow_s)  # a slow save, so that it can be killed in it
        match self.kind:
            case "save raises":
                raise OSError("cannot save")
            case "save hangs":
                time.sleep(60)  # longer than a save may take
            case "save dies":
                os._exit(3)
            case "saves too much":
                return {"step": step, "data": b"x" * 200_000}
        self.mark("saved", f"{self.process}@{os.getpid()}@{step}@{secrets.token_hex(4)}")
        return {"step": step}

    def restore_state(self, saved: dict[str, Any]) -> None:
        """Continue from the saved step."""
        self.mark("restored", f"{self.process}@{os.getpid()}@{saved['step']}")
        if self.kind == "restore raises":
            raise ValueError("cannot restore")
        self.step = saved["step"]


class Submitter:
    """Submits such tasks to a pool of a scheduler; their markers are in a folder."""

    #: What may be submitted, and what it may do wrong.
    shapes, kinds = SHAPES, KINDS

    def __init__(self, mesh: RayScheduler, pool: str, folder: Path, rng: random.Random) -> None:
        self.mesh, self.pool, self.folder, self.rng = mesh, pool, folder, rng

    def random_id(self, name: str, shape: str = "", kind: str = "") -> str:
        """The id of a task of this name; where no shape or kind is given, of a random one."""
        (any_shape,) = self.rng.choices(list(self.shapes), list(self.shapes.values()))
        (any_kind,) = self.rng.choices(list(self.kinds), list(self.kinds.values()))
        return f"{kind or any_kind}.{shape or any_shape}-{name}"

    def submit(self, task_id: str, priority: float, steps: int) -> dict[str, Any]:
        """Submit the task of this id, which works for so many steps."""
        what, slow_s = named(task_id), self.rng.choice((0.0, 0.3, 1.0))
        how: dict[str, Any] = {
            "resources": {"cpu": 1.0},
            "priority": priority,
            "queue": True,
            "max_retries": RETRIES.get(what.kind, 30),
            "on_preempted": "requeue",
        }
        if what.is_array:
            how["array"] = f"0-{MEMBERS - 1}%{AT_ONCE}"
        if what.is_job:
            how |= {"env": {"PYTHONPATH": str(ROOT)}, "grace_s": GRACE_S}
            words = [what.kind, str(self.folder), str(steps), str(slow_s)]
            driver = [sys.executable, "-m", "tests.drills.batch_job", *words]
            return self.mesh.submit_job(task_id, driver, self.pool, **how)
        if what.shape == "gang":
            how["replicas"] = GANG
        return self.mesh.submit_task_with_preemption(
            task_id,
            self.pool,
            Task,
            actor_args=[task_id, str(self.folder), slow_s],
            run="work",
            run_args=(steps,),
            on_restore_failure="restart",
            **how,
        )
