"""The kinds of kills. Each picks its moment, sees that its victim is in mid-operation, kills, and answers
after how many seconds everything served again; or None: the moment had gone, nobody was killed.
"""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from schedulemesh.core import RayScheduler
from schedulemesh.domain.agent import AgentPhase
from schedulemesh.engine.state import MeshState
from schedulemesh.store.sql import SqlJournal
from tests.drills.acknowledged import Expected, Log, read_log
from tests.drills.agents import began_at, slow_preserver
from tests.drills.clients import Client, Doing, Workload
from tests.drills.judge import GIVES_UP_S, REST_S, Judge, served_again
from tests.drills.processes import (
    DrillFailed,
    kill,
    lives,
    marked,
    marks,
    newly_marked,
    stopped,
    supervisors,
    until,
)

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
#: Tries to find the moment of one kill.
TRIES = 400
#: A reply that is on its way arrives within this.
_ARRIVES_S = 0.03


class Kills:
    """All that a kill needs."""

    def __init__(
        self,
        *,
        mesh: RayScheduler,
        namespace: str,
        log: Log,
        folder: Path,
        workload: Workload,
        judge: Judge,
        own: Client,
        rng: random.Random,
    ) -> None:
        self.mesh, self.namespace, self.log, self.folder = mesh, namespace, log, folder
        self.workload, self.judge, self.own, self.rng = workload, judge, own, rng
        self.journal = Path(self._about()["journal"])
        self._drivers = 0

    def kinds(self) -> dict[str, Callable[[], float | None]]:
        """Every kind by its name."""
        own = {
            "supervisor, idle": self.supervisor_idle,
            "supervisor, in mid-recovery": self.supervisor_twice,
            "supervisor and an agent at once": self.supervisor_and_agent,
            "agent, at work": self.agent_at_work,
            "agent, in its constructor": self.agent_in_constructor,
            "agent, in mid-eviction": self.agent_in_eviction,
            "worker of a preserver": self.preserver,
            "driver, detached": self.driver_detached,
            "driver, not detached": self.driver_tied,
            "journal's disk full": self.disk_full,
            "journal's disk full, and the supervisor": self.disk_full_and_killed,
            "garbage at the journal's end": self.garbage,
        }
        of_supervisor: dict[str, Callable[[], float | None]] = {
            f"supervisor, {kind}": self._supervisor(kind) for kind in OPERATIONS
        }
        return {**of_supervisor, **own}

    # --- the supervisor

    def supervisor_idle(self) -> float | None:
        """Nothing is under way."""
        self.judge.rest()
        pid = self._supervisor_pid()
        self.workload.go()
        return self._served_after(kill(pid), pid)

    def _supervisor(self, kind: str) -> Callable[[], float | None]:
        operation, longest_s = OPERATIONS[kind]

        def run() -> float | None:
            pid = self._supervisor_pid()
            doing = self._awaited(operation)
            time.sleep(self.rng.uniform(0.0, longest_s))
            with stopped(pid):
                if not self._is_at(kind, doing):
                    return None
                at = kill(pid)
            return self._served_after(at, pid)

        return run

    def supervisor_twice(self) -> float | None:
        """It dies in mid-submit, and its successor before it has settled."""
        first = self._supervisor_pid()
        doing = self._awaited("submit")
        with stopped(first):
            if doing.answered.wait(_ARRIVES_S):
                return None
            kill(first)
        answered = threading.Event()
        probe = _thread(lambda: (self.mesh.list_pools(), answered.set()))
        (second,) = until(lambda: supervisors() - {first}, "no successor", GIVES_UP_S)
        time.sleep(self.rng.uniform(0.0, 0.05))
        with stopped(second):
            at = None if answered.wait(_ARRIVES_S) else kill(second)
        probe.join(GIVES_UP_S)
        if at is None:
            served_again(self.mesh, time.monotonic())
            return None
        return self._served_after(at, second)

    def supervisor_and_agent(self) -> float | None:
        """In mid-submit, and an agent that runs dies while nobody looks."""
        pid = self._supervisor_pid()
        doing = self._awaited("submit")
        agent = self._any_running()
        if agent is None:
            return None
        with stopped(pid):
            if doing.answered.wait(_ARRIVES_S) or not began_at(agent["pid"]):
                return None
            kill(agent["pid"])
            at = kill(pid)
        took = self._served_after(at, pid)
        self._is_off_the_book(agent)
        self._settle_lost(agent)
        return took

    def garbage(self) -> float | None:
        """In mid-submit, and what it wrote last has rubbish behind it when it comes back."""
        pid = self._supervisor_pid()
        doing = self._awaited("submit")
        time.sleep(self.rng.uniform(0.0, 0.1))
        with stopped(pid):
            if doing.answered.wait(_ARRIVES_S):
                return None
            for path in (self.journal, self.journal.with_name(self.journal.name + "-wal")):
                with path.open("ab") as file:
                    file.write(self.rng.randbytes(self.rng.randrange(1, 9000)))
            at = kill(pid)
        return self._served_after(at, pid)

    def disk_full(self) -> float | None:
        """No file of the supervisor may grow for a while: changes are refused, reads go on."""
        pid = self._supervisor_pid()
        with self._full(pid):
            self._refuses()
        return served_again(self.mesh, time.monotonic())

    def disk_full_and_killed(self) -> float | None:
        """As disk_full, and it dies of it while a change is under way or just refused."""
        pid = self._supervisor_pid()
        with self._full(pid):
            self._refuses()
            self._awaited("submit")
            at = kill(pid)
        return self._served_after(at, pid)

    # --- others

    def agent_at_work(self) -> float | None:
        """One of its methods is running."""
        agent = self._any_running()
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
            self._is_off_the_book(agent)
            took = time.monotonic() - known
            served_again(self.mesh, at)
            self._settle_lost(agent)
            return took
        return None

    def agent_in_constructor(self) -> float | None:
        """The submission is refused, and whoever was evicted for it runs again."""
        before = marks(self.folder, "lives")
        answers: list[Any] = []
        prefix = f"{self.own.name}-"
        thread = _thread(lambda: answers.append(self.own.submit("own", 9.0, slow_start_s=60.0)))
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
        thread.join(GIVES_UP_S)
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
        thread = _thread(lambda: answers.append(self.own.evict(task_id)))
        until(lambda: marked(self.folder, "saves", pid), "no save begins", REST_S)
        if answers:
            raise DrillFailed(f"answered before it was saved: {answers}")
        at = kill(pid)
        thread.join(REST_S)
        if not answers or not answers[0]["success"]:
            raise DrillFailed(f"its eviction is answered {answers}")
        return served_again(self.mesh, at)

    def preserver(self) -> float | None:
        """The eviction goes on with what the agent itself saves, and a warning."""
        answer = self.own.submit("preserved", 9.0, slow_start_s=0.0, payload=str(self.folder))
        if not answer["success"]:
            raise DrillFailed(f"cannot submit: {answer}")
        before = marks(self.folder, "preserves")
        answers: list[Any] = []
        thread = _thread(lambda: answers.append(self.own.evict(answer["task_id"])))
        mark = until(
            lambda: newly_marked(self.folder, "preserves", before), "it does not begin", REST_S
        )
        if answers:
            raise DrillFailed(f"answered before it was preserved: {answers}")
        at = kill(int(mark))
        thread.join(REST_S)
        saved = answers[0]["preempted"][0]["saved_state"] if answers else {}
        if saved.get("source") != "save_state" or "preserver" not in saved.get("warning", ""):
            raise DrillFailed(f"its eviction is answered {answers}")
        return served_again(self.mesh, at)

    def driver_detached(self) -> float | None:
        """A driver of a scheduler that outlives it, with a call under way."""
        log = self._new_log()
        with _driver(
            "shares", self.namespace, self.mesh.name, log, self.folder, self.rng
        ) as driver:
            until(lambda: len(_lines(log)) > 6 + self.rng.randrange(10), "it does nothing", REST_S)
            for _ in range(TRIES):
                until(lambda: _lines(log)[-1]["what"] == "asked", "it asks nothing", REST_S)
                time.sleep(self.rng.uniform(0.0, 0.1))
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
        namespace = f"{self.namespace}-tied-{self._drivers}"
        folder = self.folder / namespace
        with _driver("owns", namespace, "tied", log, folder, self.rng) as driver:
            until(lambda: _submits(log), "it does not submit", REST_S)
            time.sleep(self.rng.uniform(0.0, 0.5))
            with stopped(driver.pid):
                if not _submits(log):
                    driver.kill()
                    return None
                at = kill(driver.pid)
            driver.wait(10)
        until(
            lambda: not _named(namespace) and not lives(folder),
            lambda: f"left in Ray: {_named(namespace)}, processes {lives(folder)}",
            REST_S,
        )
        return time.monotonic() - at

    # --- what they share

    def _supervisor_pid(self) -> int:
        pid: int = self._about()["pid"]
        return pid

    def _about(self) -> dict[str, Any]:
        found: dict[str, Any] = ray.get(self.mesh.supervisor_handle().about.remote())
        return found

    def _awaited(self, operation: str) -> Doing:
        self.workload.wanted = operation
        self.workload.go()
        try:
            doing: Doing = until(
                lambda: self.workload.under_way(operation), f"no client does {operation}", REST_S
            )
        finally:
            self.workload.wanted = None
        return doing

    def _is_at(self, kind: str, doing: Doing) -> bool:
        """Whether the stopped supervisor is where this kind wants it."""
        if doing.answered.wait(_ARRIVES_S):
            return False
        state = self._durable()
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
        return any(name.startswith(mark) for name in _named(self.namespace))

    def _durable(self) -> MeshState:
        """The state that the journal's files tell: a copy of them, while their writer is stopped."""
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal"):
                name = self.journal.name + suffix
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self.journal.with_name(name), Path(folder) / name)
            copy = SqlJournal(Path(folder) / self.journal.name, must_exist=True)
            try:
                return copy.load().fold()
            finally:
                copy.close()

    def _served_after(self, at: float, pid: int) -> float:
        took = served_again(self.mesh, at)
        if self._supervisor_pid() == pid:
            raise DrillFailed(f"supervisor {pid} was killed and answers")
        return took

    @contextlib.contextmanager
    def _full(self, pid: int) -> Any:
        """No file that this process writes may grow beyond a few bytes."""
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        self._awaited("submit")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def _refuses(self) -> None:
        def refused() -> bool:
            self._numbers = getattr(self, "_numbers", 0) + 1
            answer = self.mesh.ensure_pool("full", resources={"memory": self._numbers})
            return answer.get("reason") == "journal_unavailable"

        until(refused, "changes are not refused", GIVES_UP_S)
        if not self.mesh.list_pools()["success"]:
            raise DrillFailed("reads are refused while the disk is full")

    def _any_running(self) -> dict[str, Any] | None:
        agents = [a for a in self.mesh.list_agents()["agents"] if a["state"] == "running"]
        return self.rng.choice(agents) if agents else None

    def _is_off_the_book(self, agent: dict[str, Any]) -> None:
        until(
            lambda: agent["pid"] not in {a["pid"] for a in self.mesh.list_agents()["agents"]},
            f"{agent['name']} is dead and stays on the book",
            GIVES_UP_S,
        )

    def _settle_lost(self, agent: dict[str, Any]) -> None:
        """What died and was not ended otherwise is lost, and may be made again where there is room."""
        self.judge.rest()
        on_book = {task["task_id"] for task in self.mesh.list_tasks()["tasks"]}
        expected = Expected(self.log.read())
        for task_id in agent["tasks"]:
            if task_id in expected.tasks and task_id not in on_book:
                self.log.write("lost", task=task_id)
        done = self.mesh.ensure_agent_health(timeout=60.0)
        for detail in done["details"]:
            if detail["action"] == "rebuilt":
                for task_id in detail["tasks"]:
                    self.log.write("rebuilt", task=task_id)
            elif not detail.get("error"):
                raise DrillFailed(f"removed without a word: {detail}")

    def _new_log(self) -> Path:
        self._drivers += 1
        return self.folder / f"driver-{self._drivers}.jsonl"

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


def _named(namespace: str) -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in listed if entry["namespace"] == namespace]


def _thread(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def _driver(
    how: str, namespace: str, name: str, log: Path, folder: Path, rng: random.Random
) -> Any:
    """Another job that works until it is killed; see driver.py."""
    import os

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


__all__ = ["Kills", "slow_preserver"]
