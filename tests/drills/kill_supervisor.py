"""Kills of the supervisor.

Each method returns the seconds until everything was served again, or None if the right moment was missed
and no process was killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from schedulemesh.engine.state.agents import Ending, Running, Starting
from schedulemesh.engine.state.task_phases import Preempting
from tests.drills.agents import began_at
from tests.drills.checker import FAILS_AFTER_S, time_until_served
from tests.drills.clients import PendingCall
from tests.drills.drill_context import REPLY_WITHIN_S, DrillContext
from tests.drills.processes import (
    kill,
    named,
    stopped,
    supervisors,
    thread,
    until,
)

#: The operation, and the longest time for which it runs before the supervisor is stopped, in seconds.
OPERATIONS = {
    "in mid-submit, no actor yet": ("submit", 0.03),
    "in mid-submit, actor made": ("submit", 0.6),
    "in mid-eviction": ("preempt", 0.25),
    "in mid-completion": ("complete", 0.02),
    "in mid-policy change": ("policy", 0.008),
    "in mid-restore": ("restore", 0.5),
    "in mid-save": ("save", 0.2),
    "in mid-submit of a job, gang or array": ("submit_batch", 0.05),
    "in mid-eviction of a job, gang or array": ("evict_batch", 0.5),
}


class SupervisorKills(DrillContext):
    """The supervisor is killed or stopped."""

    def supervisor_idle(self) -> float | None:
        """The supervisor is killed while no operation is pending."""
        self.checker.pause()
        pid = self.supervisor_pid()
        self.workload.resume()
        return self.recovery_time(kill(pid), pid)

    def supervisor_stopped(self) -> float | None:
        """The supervisor is stopped (SIGSTOP) for some seconds and continued."""
        with stopped(self.supervisor_pid()):
            time.sleep(self.rng.uniform(0.5, 3.0))  # how long it is stopped
        return time_until_served(self.mesh, time.monotonic())

    def supervisor_in(self, kind: str) -> Callable[[], float | None]:
        operation, longest_s = OPERATIONS[kind]

        def run() -> float | None:
            pid = self.supervisor_pid()
            pending = self.wait_for_operation(operation)
            time.sleep(self.rng.uniform(0.0, longest_s))  # the kill comes at a random moment
            with stopped(pid):
                if not self._is_at(kind, pending):
                    return None
                at = kill(pid)
            return self.recovery_time(at, pid)

        return run

    def supervisor_twice(self) -> float | None:
        """The supervisor is killed during a submission, and its successor during its recovery."""
        first = self.supervisor_pid()
        pending = self.wait_for_operation("submit")
        with stopped(first):
            if pending.answered.wait(REPLY_WITHIN_S):
                return None
            known = supervisors()  # also those of other schedulers that have not exited yet
            kill(first)
        answered = threading.Event()
        probe = thread(lambda: (self.mesh.list_pools(), answered.set()))
        (second,) = until(lambda: supervisors() - known, "no successor", FAILS_AFTER_S)
        time.sleep(self.rng.uniform(0.0, 0.05))  # the kill comes at a random moment
        with stopped(second):
            at = None if answered.wait(REPLY_WITHIN_S) else kill(second)
        probe.join(FAILS_AFTER_S)
        if at is None:
            time_until_served(self.mesh, time.monotonic())
            return None
        return self.recovery_time(at, second)

    def supervisor_in_history(self) -> float | None:
        """The supervisor is killed while its history lacks commits that are durable."""
        pid = self.supervisor_pid()
        self.wait_for_operation(self.rng.choice(("submit", "preempt", "complete")))
        time.sleep(self.rng.uniform(0.0, 0.3))  # the kill comes at a random moment
        with stopped(pid):
            at = kill(pid) if self.history_lacks() > 0 else None
        return None if at is None else self.recovery_time(at, pid)

    def supervisor_and_agent(self) -> float | None:
        """The supervisor is killed during a submission, and a running agent at the same time."""
        pid = self.supervisor_pid()
        pending = self.wait_for_operation("submit")
        agent = self.random_running_agent()
        if agent is None:
            return None
        with stopped(pid):
            if pending.answered.wait(REPLY_WITHIN_S) or not began_at(agent["pid"]):
                return None
            kill(agent["pid"])
            at = kill(pid)
        took = self.recovery_time(at, pid)
        self.wait_until_removed(agent)
        self.record_lost(agent)
        return took

    def _is_at(self, kind: str, pending: PendingCall) -> bool:
        """Whether the stopped supervisor is at the step at which this kind kills it."""
        if pending.answered.wait(REPLY_WITHIN_S):
            return False
        state = self.durable()
        if kind == "in mid-eviction of a job, gang or array":
            task = state.running.by_id.get(pending.task_id)
            return task is not None and isinstance(task.phase, Preempting)
        agent = state.agents.get(f"on-{pending.task_id}")
        phase = None if agent is None else agent.phase
        if kind == "in mid-submit, no actor yet":
            return not isinstance(phase, Running) and not self._has_actor(pending.task_id)
        if kind == "in mid-submit, actor made":
            return isinstance(phase, Starting) and self._has_actor(pending.task_id)
        if kind == "in mid-eviction":
            return isinstance(phase, Ending)
        return True

    def _has_actor(self, task_id: str) -> bool:
        mark = f"schedulemesh:{self.mesh.name}:on-{task_id}#"
        return any(name.startswith(mark) for name in named(self.namespace))
