"""Kills of the supervisor. Each answers after how many seconds everything served again; or None: the moment
had gone, nobody was killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from schedulemesh.domain.agent import AgentPhase
from tests.drills.agents import began_at
from tests.drills.clients import Doing
from tests.drills.judge import GIVES_UP_S, served_again
from tests.drills.processes import (
    kill,
    named,
    stopped,
    supervisors,
    thread,
    until,
)
from tests.drills.stage import ARRIVES_S, Stage

#: The operation, and the longest that the killer lets it run before it looks, in seconds.
OPERATIONS = {
    "in mid-submit, no actor yet": ("submit", 0.03),
    "in mid-submit, actor made": ("submit", 0.6),
    "in mid-eviction": ("preempt", 0.25),
    "in mid-completion": ("complete", 0.02),
    "in mid-policy change": ("policy", 0.008),
    "in mid-restore": ("restore", 0.5),
    "in mid-save": ("save", 0.2),
}


class OfSupervisor(Stage):
    """The supervisor dies."""

    def supervisor_idle(self) -> float | None:
        """Nothing is under way."""
        self.judge.rest()
        pid = self.supervisor_pid()
        self.workload.go()
        return self.served_after(kill(pid), pid)

    def supervisor_stopped(self) -> float | None:
        """It is held still for some seconds, and goes on."""
        with stopped(self.supervisor_pid()):
            time.sleep(self.rng.uniform(0.5, 3.0))  # how long it is held still
        return served_again(self.mesh, time.monotonic())

    def supervisor_in(self, kind: str) -> Callable[[], float | None]:
        operation, longest_s = OPERATIONS[kind]

        def run() -> float | None:
            pid = self.supervisor_pid()
            doing = self.awaited(operation)
            time.sleep(self.rng.uniform(0.0, longest_s))  # the kill comes at a random moment
            with stopped(pid):
                if not self._is_at(kind, doing):
                    return None
                at = kill(pid)
            return self.served_after(at, pid)

        return run

    def supervisor_twice(self) -> float | None:
        """It dies in mid-submit, and its successor before it has settled."""
        first = self.supervisor_pid()
        doing = self.awaited("submit")
        with stopped(first):
            if doing.answered.wait(ARRIVES_S):
                return None
            kill(first)
        answered = threading.Event()
        probe = thread(lambda: (self.mesh.list_pools(), answered.set()))
        (second,) = until(lambda: supervisors() - {first}, "no successor", GIVES_UP_S)
        time.sleep(self.rng.uniform(0.0, 0.05))  # the kill comes at a random moment
        with stopped(second):
            at = None if answered.wait(ARRIVES_S) else kill(second)
        probe.join(GIVES_UP_S)
        if at is None:
            served_again(self.mesh, time.monotonic())
            return None
        return self.served_after(at, second)

    def supervisor_and_agent(self) -> float | None:
        """In mid-submit, and an agent that runs dies while nobody looks."""
        pid = self.supervisor_pid()
        doing = self.awaited("submit")
        agent = self.any_running()
        if agent is None:
            return None
        with stopped(pid):
            if doing.answered.wait(ARRIVES_S) or not began_at(agent["pid"]):
                return None
            kill(agent["pid"])
            at = kill(pid)
        took = self.served_after(at, pid)
        self.is_off_the_book(agent)
        self.settle_lost(agent)
        return took

    def _is_at(self, kind: str, doing: Doing) -> bool:
        """Whether the stopped supervisor is where this kind wants it."""
        if doing.answered.wait(ARRIVES_S):
            return False
        state = self.durable()
        agent = state.agents.get(f"on-{doing.task_id}")
        phase = None if agent is None else agent.phase
        if kind == "in mid-submit, no actor yet":
            return phase is not AgentPhase.RUNNING and not self._has_actor(doing.task_id)
        if kind == "in mid-submit, actor made":
            return phase is AgentPhase.STARTING and self._has_actor(doing.task_id)
        if kind == "in mid-eviction":
            return phase is AgentPhase.ENDING
        return True

    def _has_actor(self, task_id: str) -> bool:
        mark = f"schedulemesh:{self.mesh.name}:on-{task_id}#"
        return any(name.startswith(mark) for name in named(self.namespace))
