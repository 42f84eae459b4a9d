"""Kills of supervisors during their first start, and backups restored while agents run.

See ``kill_supervisor`` for what the methods return.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

from schedulemesh.core import RayScheduler
from schedulemesh.errors import SchedulerUnavailableError
from tests.drills.agents import Marked, began_at
from tests.drills.checker import FAILS_AFTER_S, time_until_served
from tests.drills.drill_context import DrillContext
from tests.drills.processes import DrillFailed, kill, named, stopped, supervisors, thread, until

#: The longest time between the start of a supervisor and its kill, in seconds.
_KILLED_WITHIN_S = 0.3


class FirstStartKills(DrillContext):
    """Kills in separate schedulers, beside the workload's."""

    def first_start(self) -> float | None:
        """A supervisor is killed during its first start, and its successor starts nevertheless."""
        known = supervisors()
        made: list[RayScheduler] = []
        maker = thread(lambda: made.append(self._another()))
        (pid,) = until(lambda: supervisors() - known, "no supervisor was started", FAILS_AFTER_S)
        time.sleep(self.rng.uniform(0.0, _KILLED_WITHIN_S))  # the kill comes at a random moment
        with stopped(pid):
            at = None if made else kill(pid)
        maker.join(FAILS_AFTER_S)
        if not made:
            raise DrillFailed("a scheduler whose first supervisor was killed was never created")
        try:
            return None if at is None else time_until_served(made[0], at)
        finally:
            self._end(made[0])

    def backup_restored(self) -> float | None:
        """The journal is replaced by an older copy, which is refused. Once the operator confirms it, agents
        that it knows are adopted, and unknown ones are kept as orphans.
        """
        mesh = self._another()
        mesh.create_pool("pool", resources={"cpu": 2.0})
        old = self._agent(mesh, "old")
        about = mesh.about()
        journal, copy = Path(about["journal"]), self.folder / f"{mesh.name}.backup"
        _back_up(journal, copy)
        young = self._agent(mesh, "young")
        time.sleep(self.rng.uniform(0.0, _KILLED_WITHIN_S))  # the kill comes at a random moment
        at = _replace_journal(about["pid"], journal, copy)
        _is_refused(mesh)
        journal.with_name(journal.name + ".newest").unlink()
        took = time_until_served(mesh, at)
        self._judge(mesh, about["epoch"], old, young)
        self._end(mesh)
        return took

    def _judge(self, mesh: RayScheduler, epoch: int, old: int, young: int) -> None:
        listed_tasks = {agent["pid"] for agent in mesh.list_agents()["agents"]}
        if listed_tasks != {old}:
            raise DrillFailed(f"listed are {listed_tasks}, and {old} was in the backup")
        if not (began_at(old) and began_at(young)):
            raise DrillFailed("an agent died because a backup was restored")
        if mesh.about()["epoch"] <= epoch:
            raise DrillFailed("the epoch is not above the one that agents have seen")
        orphans = [orphan["name"] for orphan in mesh.list_orphans()["orphans"]]
        if len(orphans) != 1 or ":young#" not in orphans[0]:
            raise DrillFailed(f"the orphans are {orphans}")
        if mesh.end_orphans()["ended"] != orphans:
            raise DrillFailed("the orphan was not ended")
        until(lambda: not began_at(young), "the orphan still runs", FAILS_AFTER_S)

    def _another(self) -> RayScheduler:
        self.others += 1
        return RayScheduler(
            f"other-{self.others}",
            namespace=f"{self.namespace}-others",
            detached=True,
            state_path=self.folder / "others",
        )

    def _agent(self, mesh: RayScheduler, name: str) -> int:
        answer = mesh.create_agent(
            name,
            "pool",
            Marked,
            actor_args=(f"{mesh.name}-{name}", str(self.folder / "other")),
            resources={"cpu": 0.1},
        )
        if not answer["success"]:
            raise DrillFailed(f"agent {name} was not started: {answer}")
        found = {agent["name"]: agent["pid"] for agent in mesh.list_agents()["agents"]}
        pid: int = found[name]
        return pid

    def _end(self, mesh: RayScheduler) -> None:
        mesh.shutdown()
        mark = f"schedulemesh:{mesh.name}:"
        until(
            lambda: not [n for n in named(f"{self.namespace}-others") if n.startswith(mark)],
            f"agents of {mesh.name} still run",
            FAILS_AFTER_S,
        )


def _is_refused(mesh: RayScheduler) -> None:
    try:
        mesh.list_pools()
    except SchedulerUnavailableError:
        return
    raise DrillFailed("an older copy of the journal was accepted silently")


def _back_up(journal: Path, copy: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(journal)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def _replace_journal(pid: int, journal: Path, copy: Path) -> float:
    """Replace the journal by the copy and kill the supervisor; the time of the kill."""
    os.kill(pid, signal.SIGSTOP)
    for suffix in ("-wal", "-shm"):
        journal.with_name(journal.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, journal.with_name("put-back"))
    journal.with_name("put-back").replace(journal)
    return kill(pid)
