"""Kills of agents and of workers that run handlers. See of_supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

from tests.drills.agents import began_at
from tests.drills.judge import GIVES_UP_S, REST_S, served_again
from tests.drills.processes import (
    DrillFailed,
    daemons,
    kill,
    lives,
    marked,
    marks,
    newly_marked,
    stopped,
    thread,
    until,
)
from tests.drills.stage import Stage


class OfAgents(Stage):
    """An agent dies, or a worker."""

    def agent_at_work(self) -> float | None:
        """One of its methods is running."""
        agent = self.any_running()
        if agent is None or agent["handle"] is None:
            return None
        pid = agent["pid"]
        (self.folder / "works" / str(pid)).unlink(missing_ok=True)
        ref = agent["handle"].work.remote(60.0)
        until(
            lambda: marked(self.folder, "works", pid) or not began_at(pid),
            "the agent's method does not begin",
            REST_S,
        )
        with contextlib.suppress(ProcessLookupError), stopped(pid):
            if ray.wait([ref], timeout=0)[0]:
                return None
            at = kill(pid)
            try:
                ray.get(ref, timeout=GIVES_UP_S)
            except RayActorError:
                known = time.monotonic()
            self.is_off_the_book(agent)
            took = time.monotonic() - known
            served_again(self.mesh, at)
            self.settle_lost(agent)
            return took
        return None

    def agent_in_constructor(self) -> float | None:
        """The submission is refused, and whoever was evicted for it runs again."""
        before = marks(self.folder, "lives")
        answers: list[Any] = []
        prefix = f"{self.own.name}-"
        call = thread(lambda: answers.append(self.own.submit("own", 9.0, slow_start_s=60.0)))
        mark = until(
            lambda: next(
                (m for m in marks(self.folder, "lives") - before if m.startswith(prefix)), None
            ),
            "the constructor does not begin",
            REST_S,
        )
        if answers:
            raise DrillFailed(f"answered before it was built: {answers}")
        at = kill(int(mark.split("@")[1]))
        call.join(GIVES_UP_S)
        if not answers or answers[0].get("reason") != "agent_start_failed":
            raise DrillFailed(f"its submission is answered {answers}")
        return served_again(self.mesh, at)

    def agent_in_eviction(self) -> float | None:
        """It dies while its state is saved; the eviction goes on without it."""
        answer = self.own.submit("own", 9.0, slow_start_s=0.0, slow_save_s=60.0)
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        task_id = answer["task_id"]
        (pid,) = lives(self.folder)[task_id]
        answers: list[Any] = []
        call = thread(lambda: answers.append(self.own.evict(task_id)))
        until(lambda: marked(self.folder, "saves", pid), "no save begins", REST_S)
        if answers:
            raise DrillFailed(f"answered before it was saved: {answers}")
        at = kill(pid)
        call.join(REST_S)
        if not answers or not answers[0]["success"]:
            raise DrillFailed(f"its eviction is answered {answers}")
        return served_again(self.mesh, at)

    def agent_stopped(self) -> float | None:
        """It is held still; its end is answered when its process is gone, with what it started."""
        answer = self.own.submit("own", 9.0, slow_start_s=0.0, slow_save_s=0.0)
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        task_id = answer["task_id"]
        (pid,) = lives(self.folder)[task_id]
        os.kill(pid, signal.SIGSTOP)
        at = time.monotonic()
        ended = self.own.finish(task_id)
        left = [daemon for _, parent, daemon in daemons(self.folder) if parent == pid]
        if not ended["success"] or began_at(pid) or left:
            raise DrillFailed(f"{ended} while process {pid}, or of its own {left}, lives")
        return served_again(self.mesh, at)

    def preserver(self) -> float | None:
        """The eviction goes on with what the agent itself saves, and a warning."""
        answer = self.own.submit("preserved", 9.0, slow_start_s=0.0, payload=str(self.folder))
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        before = marks(self.folder, "preserves")
        answers: list[Any] = []
        call = thread(lambda: answers.append(self.own.evict(answer["task_id"])))
        mark = until(
            lambda: newly_marked(self.folder, "preserves", before), "it does not begin", REST_S
        )
        if answers:
            raise DrillFailed(f"answered before it was preserved: {answers}")
        at = kill(int(mark))
        call.join(REST_S)
        saved = answers[0]["preempted"][0]["saved_state"] if answers else {}
        if saved.get("source") != "save_state" or "preserver" not in saved.get("warning", ""):
            raise DrillFailed(f"its eviction is answered {answers}")
        return served_again(self.mesh, at)
