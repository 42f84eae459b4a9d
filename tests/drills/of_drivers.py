"""Kills of drivers. See of_supervisor."""

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
from tests.drills.judge import REST_S, served_again
from tests.drills.processes import (
    DrillFailed,
    kill,
    lives,
    named,
    stopped,
    until,
)
from tests.drills.stage import TRIES, Stage


class OfDrivers(Stage):
    """Another job dies."""

    def driver_detached(self) -> float | None:
        """A driver of a scheduler that outlives it, with a call under way."""
        log = self._new_log()
        with _driver(
            "shares", self.namespace, self.mesh.name, log, self.folder, self.rng
        ) as driver:
            until(lambda: len(_lines(log)) > 6 + self.rng.randrange(10), "it does nothing", REST_S)
            for _ in range(TRIES):
                until(lambda: _lines(log)[-1]["what"] == "asked", "it asks nothing", REST_S)
                time.sleep(self.rng.uniform(0.0, 0.1))  # the kill comes at a random moment
                with stopped(driver.pid):
                    if _lines(log)[-1]["what"] == "asked":
                        at = kill(driver.pid)
                        break
            else:
                raise DrillFailed("the driver was never found in mid-operation")
            driver.wait(10)
        took = served_again(self.mesh, at)
        self.judge.rest()
        self._take_over(log)
        return took

    def driver_tied(self) -> float | None:
        """A driver whose scheduler is tied to it, in mid-submit: nothing of it may stay in Ray."""
        log = self._new_log()
        namespace = f"{self.namespace}-tied-{self.drivers}"
        folder = self.folder / namespace
        with _driver("owns", namespace, "tied", log, folder, self.rng) as driver:
            until(lambda: _submits(log), "it does not submit", REST_S)
            time.sleep(self.rng.uniform(0.0, 0.5))  # the kill comes at a random moment
            with stopped(driver.pid):
                if not _submits(log):
                    driver.kill()
                    return None
                at = kill(driver.pid)
            driver.wait(10)
        until(
            lambda: not named(namespace) and not lives(folder),
            lambda: f"left in Ray: {named(namespace)}, processes {lives(folder)}",
            REST_S,
        )
        return time.monotonic() - at

    def _new_log(self) -> Path:
        self.drivers += 1
        return self.folder / f"driver-{self.drivers}.jsonl"

    def _take_over(self, log: Path) -> None:
        """What a dead driver was answered, and what came of the call that it died in."""
        lines = read_log(log)
        for line in lines:
            if line["what"] not in ("asked", "answered", "policy"):
                self.log.write(**line)
        asked = lines[-1]
        expected = Expected(self.log.read())
        on_book = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        task_id = asked["task"]
        if asked["kind"] in ("submit", "restore") and task_id in on_book - expected.tasks:
            self.log.write("submitted", task=task_id)
        elif asked["kind"] == "complete" and task_id in expected.tasks - on_book:
            self.log.write("completed", task=task_id)
        elif asked["kind"] == "preempt" and task_id in expected.tasks - on_book:
            self.log.write("evicted", task=task_id)
        expected = Expected(self.log.read())
        for task_id in expected.tasks:
            if task_id.startswith("driver"):
                self.own.finish(task_id)


def _lines(log: Path) -> list[dict[str, Any]]:
    return read_log(log) if log.exists() else []


def _submits(log: Path) -> bool:
    """Whether the last that it says is that it asked for something to be made."""
    lines = _lines(log)
    return len(lines) > 4 and lines[-1]["what"] == "asked" and lines[-1]["kind"] == "submit"


@contextlib.contextmanager
def _driver(
    how: str, namespace: str, name: str, log: Path, folder: Path, rng: random.Random
) -> Any:
    """Another job that works until it is killed; see driver.py."""
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    folder.mkdir(exist_ok=True)
    (folder / "lives").mkdir(exist_ok=True)
    seed = str(rng.random())
    command = [sys.executable, "-m", "tests.drills.driver", how, namespace, name, log, folder, seed]
    driver = subprocess.Popen([str(part) for part in command], env=environment)
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait(10)
