"""Kills of drivers of other jobs. See ``kill_supervisor`` for the results."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray

from tests.drills.acknowledged import Expected, read_log
from tests.drills.batch_client import FOLDER
from tests.drills.checker import FAILS_AFTER_S, time_until_served
from tests.drills.drill_context import TRIES, DrillContext
from tests.drills.processes import (
    DrillFailed,
    agent_processes,
    kill,
    named,
    stopped,
    until,
)


class DriverKills(DrillContext):
    """The driver of another job is killed."""

    def driver_detached(self) -> float | None:
        """The driver uses a detached scheduler and is killed during a call."""
        log = self._new_log()
        with _driver(
            "shares", self.namespace, self.mesh.name, log, self.folder, self.rng
        ) as driver:
            until(
                lambda: len(_lines(log)) > 6 + self.rng.randrange(10),
                "it does nothing",
                FAILS_AFTER_S,
            )
            for _ in range(TRIES):
                until(
                    lambda: _lines(log)[-1]["what"] == "asked", "it sends no request", FAILS_AFTER_S
                )
                time.sleep(self.rng.uniform(0.0, 0.1))  # the kill comes at a random moment
                with stopped(driver.pid):
                    if _lines(log)[-1]["what"] == "asked":
                        at = kill(driver.pid)
                        break
            else:
                raise DrillFailed("the driver was never caught during an operation")
            driver.wait(FAILS_AFTER_S)
        took = time_until_served(self.mesh, at)
        self.checker.pause()
        self._take_over(log)
        return took

    def driver_tied(self) -> float | None:
        """The driver owns its scheduler and is killed during a submission: nothing may be left in Ray."""
        log = self._new_log()
        namespace = f"{self.namespace}-tied-{self.drivers}"
        folder = self.folder / namespace
        with _driver("owns", namespace, "tied", log, folder, self.rng) as driver:
            until(lambda: _submits(log), "it does not submit", FAILS_AFTER_S)
            time.sleep(self.rng.uniform(0.0, 0.5))  # the kill comes at a random moment
            with stopped(driver.pid):
                if not _submits(log):
                    driver.kill()
                    return None
                at = kill(driver.pid)
            driver.wait(FAILS_AFTER_S)
        batch = folder / FOLDER
        until(
            lambda: not named(namespace) and not agent_processes(folder) | agent_processes(batch),
            lambda: (
                f"left in Ray: {named(namespace)}, processes {agent_processes(folder)}, "
                f"{agent_processes(batch)}"
            ),
            FAILS_AFTER_S,
        )
        return time.monotonic() - at

    def _new_log(self) -> Path:
        self.drivers += 1
        return self.folder / f"driver-{self.drivers}.jsonl"

    def _take_over(self, log: Path) -> None:
        """Copy the driver's acknowledgements, and find out the result of the call during which it died."""
        lines = read_log(log)
        for line in lines:
            if line["what"] not in ("asked", "answered", "policy"):
                self.log.write(**line)
        asked = lines[-1]
        expected = self.checker.expected()
        listed_tasks = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        task_id = asked["task"]
        if asked["kind"] in ("submit", "restore") and task_id in listed_tasks - expected.tasks:
            self.log.write("submitted", task=task_id)
        elif asked["kind"] == "complete" and task_id in expected.tasks - listed_tasks:
            self.log.write("completed", task=task_id)
        elif asked["kind"] == "preempt" and task_id in expected.tasks - listed_tasks:
            self.log.write("evicted", task=task_id)
        expected = Expected(self.log.read())
        for task_id in expected.tasks:
            if task_id.startswith("driver"):
                self.own.finish(task_id)


def _lines(log: Path) -> list[dict[str, Any]]:
    return read_log(log) if log.exists() else []


def _submits(log: Path) -> bool:
    """Whether the last entry of its log is a submission without an answer."""
    lines = _lines(log)
    return len(lines) > 4 and lines[-1]["what"] == "asked" and lines[-1]["kind"] == "submit"


@contextlib.contextmanager
def _driver(
    how: str, namespace: str, name: str, log: Path, folder: Path, rng: random.Random
) -> Any:
    """The process of another job, which submits until it is killed; see ``driver``."""
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    folder.mkdir(exist_ok=True)
    (folder / "processes").mkdir(exist_ok=True)
    seed = str(rng.random())
    command = [sys.executable, "-m", "tests.drills.driver", how, namespace, name, log, folder, seed]
    driver = subprocess.Popen([str(part) for part in command], env=environment)
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait(FAILS_AFTER_S)
