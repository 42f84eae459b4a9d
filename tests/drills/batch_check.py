"""Checks that the tasks of ``batch`` have ended as they had to, and that their records are true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from schedulemesh.core import RayScheduler
from tests.drills.batch import GANG, MEMBERS, named
from tests.drills.batch_job import EXIT_CODES
from tests.drills.processes import DrillFailed, marks

#: The states of attempts that have not ended, or of which nobody knows how they ended.
_OPEN = ("queued", "starting", "running", "preempting", "unknown")
#: Seconds of work from which on an attempt counts as one that has worked.
_WORKED_S = 0.2
#: Seconds by which times differ that were taken at different moments of a step.
_EXACT_S = 0.5
#: Seconds in which a process that has saved something has marked that, also on a busy machine.
_MARKED_S = 3.0
#: Seconds by which the same time differs where it is told twice.
_SAME_S = 0.01


class BatchCheck:
    """Checks tasks once they have ended; their markers are in a folder."""

    def __init__(self, mesh: RayScheduler, folder: Path) -> None:
        self.mesh, self.folder = mesh, folder

    def wait(self, task_ids: Iterable[str], timeout_s: float) -> list[dict[str, Any]]:
        """How these tasks have ended, and each member of an array; raises DrillFailed if one has not."""
        waited = self.mesh.wait(list(task_ids), timeout=timeout_s)
        if waited["pending"]:
            told = [self.mesh.explain(task_id) for task_id in waited["pending"][:3]]
            raise DrillFailed(f"never ended: {waited['pending']}: {told}")
        return self.with_members(waited["tasks"])

    def with_members(self, tasks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The tasks with the members of the arrays among them in place of these."""
        statuses: list[dict[str, Any]] = []
        for status in tasks:
            if not named(status["task_id"]).is_array:
                statuses.append(status)
                continue
            members = self.mesh.array(status["task_id"])["members"]
            if len(members) != MEMBERS:
                raise DrillFailed(f"an array of {MEMBERS} has the members {members}")
            statuses += members
        return statuses

    def inconsistencies(
        self,
        statuses: list[dict[str, Any]],
        cancelled: Collection[str] = (),
        killed: Counter[str] | None = None,
    ) -> list[str]:
        """What is wrong with tasks that have ended. ``cancelled``: those that were told to end; ``killed``:
        how many attempts of each task have ended because a process was killed.
        """
        attempts, evictions = self._attempts(), self._evictions()
        wrong = []
        for status in statuses:
            task_id = status["task_id"]
            one = _Ended(self, status, attempts[task_id], evictions[task_id])
            wrong += one.inconsistencies(is_cancelled=task_id in cancelled)
            if killed is not None and killed[task_id] >= max(1, len(attempts[task_id])):
                wrong.append(f"{task_id}: {killed[task_id]} were killed of {attempts[task_id]}")
        return wrong

    def _attempts(self) -> dict[str, list[dict[str, Any]]]:
        """The attempts of each task, the first first."""
        by_task = defaultdict(list)
        for attempt in self.mesh.history(limit=10_000, with_events=True)["attempts"]:
            by_task[attempt["task_id"]].append(attempt)
        for attempts in by_task.values():
            attempts.sort(key=lambda attempt: attempt["cursor"])
        return by_task

    def _evictions(self) -> dict[str, list[dict[str, Any]]]:
        """The records of the evictions of each task."""
        by_task = defaultdict(list)
        for row in self.mesh.list_preemptions(limit=1000)["preemptions"]:
            by_task[row["task_id"]].append(row)
        return by_task


class _Ended:
    """A task that has ended, its attempts, and the markers of its processes."""

    def __init__(
        self,
        check: BatchCheck,
        status: dict[str, Any],
        attempts: list[dict[str, Any]],
        evictions: list[dict[str, Any]],
    ) -> None:
        self.mesh, self.folder = check.mesh, check.folder
        self.status, self.attempts, self.evictions = status, attempts, evictions
        self.task_id: str = status["task_id"]
        self.what = named(self.task_id)

    @property
    def processes(self) -> list[str]:
        """The names of its processes: of a gang those of its members."""
        if self.what.shape != "gang":
            return [self.task_id]
        return [f"{self.task_id}#{rank}" for rank in range(GANG)]

    def marks(self, kind: str, process: str = "") -> list[list[str]]:
        """The parts of its markers of a kind after the name of the process: of one, or of all."""
        names = [process] if process else self.processes
        parts = (name.split("@") for name in marks(self.folder, kind))
        return [rest for name, *rest in parts if name in names]

    def inconsistencies(self, *, is_cancelled: bool) -> list[str]:
        wrong = self._state(is_cancelled=is_cancelled)
        if is_cancelled and not self.attempts:
            # A member of an array that never was a task.
            return wrong
        if not self.attempts or self.attempts[-1]["state"] != self.status["state"]:
            return [*wrong, f"is {self.status}, its history {self.attempts[-1:]}"]
        if self.status["state"] == "completed":
            wrong += self._job_result() if self.what.is_job else self._result()
        if self.what.is_job:
            wrong += self._exit_code()
        wrong += self._counts() + self._processes()
        for attempt in self.attempts:
            wrong += [f"attempt {attempt['attempt']}: {text}" for text in self._attempt(attempt)]
        for row in self.evictions:
            wrong += self._eviction(row)
        return [f"{self.task_id}: {text}" for text in wrong]

    # -- how it has ended ---------------------------------------------------------------------------

    def _state(self, *, is_cancelled: bool) -> list[str]:
        """It has ended as it was asked to, or failed by its own fault alone."""
        state = self.status["state"]
        if is_cancelled:
            return [] if state == "cancelled" else [f"was cancelled and is {self.status}"]
        failures = self.status.get("failures", 0)
        if self.what.kind == "run raises":
            own = state == "failed" and self._failed_by_itself()
            # Its node was lost in its last attempt, after it had failed by itself.
            lost = failures >= 1 and self.status.get("reason") != "run_failed"
            return [] if own or lost else [f"did not fail by itself: {self.status}"]
        if self.what.kind == "restore raises" and state in ("failed", "lost") and failures >= 2:
            return []
        return [] if state == "completed" else [f"not completed: {self.status}"]

    def _failed_by_itself(self) -> bool:
        """Whether its error is that of its run; that of a driver whose disk has failed is another one."""
        error = self.status.get("error", "")
        if not self.what.is_job:
            return "its own fault" in error
        return f"exit code {EXIT_CODES[self.what.kind]}" in error or not self._exit_codes()

    def _result(self) -> list[str]:
        """Its result is that of a run, and each member began where one of its states was saved."""
        returned = self.mesh.result(self.task_id)["result"]
        wrong, is_restored = [], self.attempts[-1]["restored"]
        for process, result in zip(
            self.processes, returned if self.what.shape == "gang" else [returned], strict=True
        ):
            if [result["token"]] not in self.marks("produced", process):
                wrong.append(f"a result of no run: {result}")
            began = result["began"]
            if began and str(began) not in {step for _, step, _ in self.marks("saved", process)}:
                wrong.append(f"began at {began}, which was never saved")
            # One that is evicted as soon as it works is restored at step 0.
            steps = {int(step) for _, step in self.marks("restored", process)}
            if began not in (steps if is_restored and self.what.restores(process) else {0}):
                wrong.append(f"began at step {began}, restored: {is_restored}")
        return wrong

    def _job_result(self) -> list[str]:
        """Its result names the attempt whose driver has completed it, and that began where it says."""
        result, last = self.mesh.result(self.task_id)["result"], self.attempts[-1]
        began = [
            int(step)
            for attempt, step in self.marks("produced")
            if int(attempt) == result["attempt"]
        ]
        wrong = []
        if result["attempt"] != last["attempt"] or len(began) != 1:
            wrong.append(f"is completed by {result}, its last attempt is {last['attempt']}")
        if began and bool(began[0]) != bool(last["restored"]):
            wrong.append(f"began at step {began[0]}, restored: {last['restored']}")
        return wrong

    def _exit_codes(self) -> list[str]:
        """Those with which a driver of the last attempt has ended by itself."""
        number = self.attempts[-1]["attempt"] if self.attempts else 0
        return [code for attempt, code in self.marks("exits") if int(attempt) == number]

    def _exit_code(self) -> list[str]:
        """The exit code is the one with which the driver of the last attempt has ended."""
        last, codes = self.attempts[-1], self._exit_codes()
        if last["state"] == "completed":
            code = str(self.mesh.result(self.task_id)["result"]["exit_code"])
            return [] if codes == [code] == ["0"] else [f"exit code {code}, drivers: {codes}"]
        if last["state"] == "failed" and codes and f"exit code {codes[0]}" not in last["error"]:
            return [f"exit code {codes[0]}, its record says {last['error']!r}"]
        return []

    # -- its record ---------------------------------------------------------------------------------

    def _counts(self) -> list[str]:
        """Attempts are numbered, and evictions are counted."""
        wrong = []
        # A start for which too little became free gives its claim back, and counts as no attempt.
        numbers = [each["attempt"] for each in self.attempts if each["state"] != "returned"]
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"has the attempts {numbers}: {self.attempts}")
        evicted = sum(attempt["state"] == "preempted" for attempt in self.attempts)
        if evicted != self.status.get("preemptions", 0):
            wrong.append(f"{evicted} evictions in the history, counted {self.status}")
        return wrong

    def _processes(self) -> list[str]:
        """It ran as often as its record says, and each attempt of a job once."""
        admitted = sum(attempt["admitted_at"] is not None for attempt in self.attempts)
        started = [each["attempt"] for each in self.attempts if each["started_at"] is not None]
        if self.what.is_job:
            ran = Counter(int(attempt) for _, _, attempt in self.marks("starting"))
            return [
                f"attempt {attempt} ran {times} times, started were {started}"
                for attempt, times in ran.items()
                if times > 1 or attempt not in started
            ]
        counts = {process: len(self.marks("starting", process)) for process in self.processes}
        return [
            f"{process} was started {count} times, by its record {len(started)} to {admitted}"
            for process, count in counts.items()
            if not len(started) <= count <= admitted
        ]

    def _attempt(self, attempt: dict[str, Any]) -> list[str]:
        """What in the record of an attempt is not true."""
        events, state = [event["kind"] for event in attempt["events"]], attempt["state"]
        wrong = []
        if {"saved", "not_saved"} <= set(events):
            wrong.append(f"saved and not saved: {events}")
        if "saved" in events and (self.what.never_saves or not self.marks("saved")):
            wrong.append(f"it never saved: {events}")
        if attempt["restored"] and self.what.never_saves:
            wrong.append("restored, but nothing was saved")
        if attempt["restored"] and not self.marks("restored") and not self._is_short(attempt):
            wrong.append("restored, but nothing was restored")
        if state in _OPEN:
            wrong.append(f"{state}, it has not ended: {events}")
        return wrong + self._lost_time(attempt, events) + self._saved_when(attempt)

    def _is_short(self, attempt: dict[str, Any]) -> bool:
        """Whether the driver of a job may have ended before it has read its checkpoint."""
        return self.what.is_job and attempt["state"] != "completed"

    def _lost_time(self, attempt: dict[str, Any], events: list[str]) -> list[str]:
        """What an eviction lost is what the attempt had done and nobody had saved."""
        lost_s, started_at = attempt["lost_s"], attempt["started_at"]
        if attempt["evicted_at"] is None:
            return [] if lost_s is None else [f"lost {lost_s} s without an eviction"]
        done_s = 0.0 if started_at is None else attempt["evicted_at"] - started_at
        wrong = []
        if lost_s is not None and not 0.0 <= lost_s <= max(0.0, done_s) + _EXACT_S:
            wrong.append(f"{lost_s} s are lost of {done_s} s")
        if attempt["state"] != "preempted":
            return wrong
        worked = started_at is not None and attempt["ran_s"] > _WORKED_S
        if worked and attempt["saved_at"] is None and abs((lost_s or 0.0) - done_s) > _EXACT_S:
            wrong.append(f"nothing was saved, and of {done_s} s are lost {lost_s} s: {attempt}")
        if "saved" in events and not self.what.is_job and lost_s:
            wrong.append(f"saved, and {lost_s} s are lost: {attempt}")
        return wrong

    def _saved_when(self, attempt: dict[str, Any]) -> list[str]:
        """What an attempt has saved was saved by a process of its own."""
        if attempt["saved_at"] is None:
            return []
        earliest, latest = attempt["admitted_at"], attempt["saved_at"] + _MARKED_S
        times = [
            path.stat().st_mtime
            for path in (self.folder / "saved").iterdir()
            if path.name.split("@")[0] in self.processes
        ]
        if any(earliest <= at <= latest for at in times):
            return []
        return [f"saved at {attempt['saved_at']}, its processes at {times}: {attempt}"]

    def _eviction(self, row: dict[str, Any]) -> list[str]:
        """What in the record of an eviction is not true, or is told differently in the history."""
        wrong = []
        if row["state_saved"] and self.what.never_saves:
            wrong.append(f"never saved: {row}")
        if row["state_saved"] and row.get("save_error"):
            wrong.append(f"saved with an error: {row}")
        for attempt in self.attempts:
            at = attempt["evicted_at"] if attempt["state"] == "preempted" else None
            if at is None or abs(at - row["decided_at"]) > _SAME_S:
                continue
            if abs(row["lost_work"] - attempt["lost_s"]) > _SAME_S:
                wrong.append(f"{row['lost_work']} s are lost, by the history {attempt['lost_s']}")
            if row["state_saved"] != (attempt["saved_at"] is not None):
                wrong.append(f"{row}, in the history {attempt}")
        return wrong


class Together:
    """Members of a gang live and end together, and of an array only some run at once."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        #: By gang, rank and process, and another rank: the process of that rank that ran beside it.
        self._beside: dict[tuple[str, str, int, str], int] = {}

    def inconsistencies(self, living: Collection[tuple[str, int]]) -> list[str]:
        """What is wrong with processes, as (name, id), that run at the same moment."""
        gangs, arrays = defaultdict(set), Counter()
        for process, pid in living:
            task_id, _, rank = process.rpartition("#")
            if task_id:
                gangs[task_id].add((rank, pid))
            elif process.endswith("]"):
                arrays[process.rpartition("[")[0]] += 1
        wrong = [
            f"{count} members of {array_id} run at once"
            for array_id, count in arrays.items()
            if count > self.at_once
        ]
        for gang, members in gangs.items():
            wrong += self._mismatched(gang, members)
        return wrong

    def _mismatched(self, gang: str, members: set[tuple[str, int]]) -> list[str]:
        """Members that run beside two different processes of another rank."""
        wrong = []
        for rank, pid in members:
            for other_rank, other in members:
                key = (gang, rank, pid, other_rank)
                if rank != other_rank and self._beside.setdefault(key, other) != other:
                    wrong.append(f"{gang}: {pid} ran beside {self._beside[key]} and {other}")
        return wrong
