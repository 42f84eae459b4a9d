"""Kills of agents and of workers that run state handlers. See ``kill_supervisor`` for the results."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

from tests.drills.agents import began_at
from tests.drills.checker import FAILS_AFTER_S, time_until_served
from tests.drills.drill_context import DrillContext
from tests.drills.processes import (
    DrillFailed,
    agent_processes,
    daemons,
    first_new_mark,
    kill,
    marked,
    marks,
    stopped,
    thread,
    until,
)


class AgentKills(DrillContext):
    """An agent or a worker is killed."""

    def agent_at_work(self) -> float | None:
        """An agent is killed while one of its methods runs."""
        agent = self.random_running_agent()
        if agent is None or agent["handle"] is None:
            return None
        pid = agent["pid"]
        (self.folder / "working" / str(pid)).unlink(missing_ok=True)
        ref = agent["handle"].work.remote(60.0)
        until(
            lambda: marked(self.folder, "working", pid) or not began_at(pid),
            "the agent's method does not begin",
            FAILS_AFTER_S,
        )
        with contextlib.suppress(ProcessLookupError), stopped(pid):
            if ray.wait([ref], timeout=0)[0]:
                return None
            at = kill(pid)
            try:
                ray.get(ref, timeout=FAILS_AFTER_S)
            except RayActorError:
                known = time.monotonic()
            self.wait_until_removed(agent)
            took = time.monotonic() - known
            time_until_served(self.mesh, at)
            self.record_lost(agent)
            return took
        return None

    def agent_in_constructor(self) -> float | None:
        """An agent is killed in its constructor: the submission is refused, its victims are restarted."""
        before = marks(self.folder, "processes")
        answers: list[Any] = []
        prefix = f"{self.own.name}-"
        call = thread(lambda: answers.append(self.own.submit("own", 9.0, slow_start_s=60.0)))
        mark = until(
            lambda: next(
                (m for m in marks(self.folder, "processes") - before if m.startswith(prefix)), None
            ),
            "the constructor does not begin",
            FAILS_AFTER_S,
        )
        if answers:
            raise DrillFailed(f"answered before the agent was constructed: {answers}")
        at = kill(int(mark.split("@")[1]))
        call.join(FAILS_AFTER_S)
        if not answers or answers[0].get("reason") != "agent_start_failed":
            raise DrillFailed(f"the submission is answered {answers}")
        return time_until_served(self.mesh, at)

    def agent_in_eviction(self) -> float | None:
        """An agent is killed while its state is saved; the eviction continues without the state."""
        answer = self.own.submit("own", 9.0, slow_start_s=0.0, slow_save_s=60.0)
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        task_id = answer["task_id"]
        (pid,) = agent_processes(self.folder)[task_id]
        answers: list[Any] = []
        call = thread(lambda: answers.append(self.own.evict(task_id)))
        until(lambda: marked(self.folder, "saving", pid), "no save begins", FAILS_AFTER_S)
        if answers:
            raise DrillFailed(f"answered before the state was saved: {answers}")
        at = kill(pid)
        call.join(FAILS_AFTER_S)
        if not answers or not answers[0]["success"]:
            raise DrillFailed(f"the eviction is answered {answers}")
        return time_until_served(self.mesh, at)

    def agent_stopped(self) -> float | None:
        """An agent is stopped (SIGSTOP); its completion is answered when it and its children have exited."""
        answer = self.own.submit("own", 9.0, slow_start_s=0.0, slow_save_s=0.0)
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        task_id = answer["task_id"]
        (pid,) = agent_processes(self.folder)[task_id]
        os.kill(pid, signal.SIGSTOP)
        at = time.monotonic()
        ended = self.own.finish(task_id)
        left = [daemon for _, parent, daemon in daemons(self.folder) if parent == pid]
        if not ended["success"] or began_at(pid) or left:
            raise DrillFailed(f"{ended} while process {pid} or its children {left} run")
        return time_until_served(self.mesh, at)

    def preserver(self) -> float | None:
        """A preserver's worker is killed: the eviction uses the agent's ``save_state``, with a warning."""
        answer = self.own.submit("preserved", 9.0, slow_start_s=0.0, payload=str(self.folder))
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        before = marks(self.folder, "preserving")
        answers: list[Any] = []
        call = thread(lambda: answers.append(self.own.evict(answer["task_id"])))
        mark = until(
            lambda: first_new_mark(self.folder, "preserving", before),
            "it does not begin",
            FAILS_AFTER_S,
        )
        if answers:
            raise DrillFailed(f"answered before the preserver returned: {answers}")
        at = kill(int(mark))
        call.join(FAILS_AFTER_S)
        saved = answers[0]["preempted"][0]["saved_state"] if answers else {}
        if saved.get("source") != "save_state" or "preserver" not in saved.get("warning", ""):
            raise DrillFailed(f"its eviction is answered {answers}")
        return time_until_served(self.mesh, at)
