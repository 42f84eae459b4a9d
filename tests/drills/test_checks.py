"""The checks of the drills notice what they are for: each is given answers and markers with one fault."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.drills.acknowledged import Expected, Log
from tests.drills.agents import began_at
from tests.drills.batch import named
from tests.drills.batch_check import BatchCheck, Together
from tests.drills.checker import DuplicateWatch
from tests.drills.processes import DrillFailed
from tests.drills.queue_evictions import QueueEvictions

JOB, GANG, JOBS = "good.job-1", "good.gang-2", "good.jobs-3"


class Records:
    """What a scheduler answers about tasks that have ended, and the markers of their processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.attempts, self.statuses = folder, [], {}
        self.results, self.members, self.evictions = {}, {}, []
        self._numbers = itertools.count(1)
        for kind in ("processes", "saved"):
            (folder / kind).mkdir()

    def ended(self, task_id: str, state: str = "completed", **more: object) -> None:
        self.statuses[task_id] = {"task_id": task_id, "state": state, **more}

    def attempt(self, task_id: str, number: int = 1, state: str = "completed", **more: object):
        times = {"admitted_at": 10.0 * number, "started_at": 10.0 * number + 1.0, "ran_s": 3.0}
        none = dict.fromkeys(("evicted_at", "lost_s", "saved_at", "restored"))
        base = {"task_id": task_id, "attempt": number, "state": state, "error": "", **times, **none}
        self.attempts.append(
            base | {"cursor": next(self._numbers), "events": [{"kind": state}]} | more
        )

    def mark(self, kind: str, *names: str) -> None:
        (self.folder / kind).mkdir(exist_ok=True)
        for name in names:
            (self.folder / kind / name).touch()

    def wait(self, task_ids, timeout):
        tasks = [self.statuses[task_id] for task_id in task_ids]
        return {"tasks": tasks, "pending": []}

    def array(self, task_id):
        return {"members": self.members[task_id]}

    def history(self, **_how):
        return {"attempts": self.attempts}

    def list_preemptions(self, limit):
        return {"preemptions": self.evictions}

    def result(self, task_id):
        return {"result": self.results[task_id]}

    def wrong(self, *, cancelled=(), killed=None) -> str:
        """What the check says, as one text."""
        check = BatchCheck(self, self.folder)
        statuses = check.wait(self.statuses, 0.0)
        return "\n".join(check.inconsistencies(statuses, cancelled, killed))


def job_of(records: Records, task_id: str, last: int = 1) -> None:
    """A job, or member of an array of jobs, whose last attempt has completed it."""
    records.attempt(task_id, last)
    records.results[task_id] = {"attempt": last, "exit_code": 0}
    records.mark("starting", f"{task_id}@{100 + last}@@{last}")
    records.mark("produced", f"{task_id}@{last}@0")
    records.mark("exits", f"{task_id}@{last}@0")


@pytest.fixture
def records(tmp_path) -> Records:
    """A job whose first driver was killed, a gang, and an array of jobs: all completed, nothing wrong."""
    records = Records(tmp_path)
    records.ended(JOB, failures=1)
    records.attempt(JOB, 1, "failed", error="the driver was killed by signal 9")
    records.mark("starting", f"{JOB}@101@@1")
    job_of(records, JOB, 2)
    records.ended(GANG)
    records.attempt(GANG)
    records.results[GANG] = [{"token": f"t{rank}", "began": 0} for rank in range(2)]
    for rank in range(2):
        records.mark("starting", f"{GANG}#{rank}@{200 + rank}@node")
        records.mark("produced", f"{GANG}#{rank}@t{rank}")
    records.ended(JOBS)
    records.members[JOBS] = []
    for index in range(3):
        member_id = f"{JOBS}[{index}]"
        records.members[JOBS].append({"task_id": member_id, "state": "completed"})
        job_of(records, member_id)
    return records


KILLED = Counter({JOB: 1})


@pytest.fixture
def two_processes():
    """The ids of two processes that run."""
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def test_true_records_are_accepted(records):
    assert records.wrong(killed=KILLED) == ""


@pytest.mark.parametrize(
    ("task_id", "never_saves"),
    [
        ("no save.agent-1", True),
        # Its first member saves, and the state of a gang has what its members have.
        ("no save.gang-1", False),
        ("save raises.gang-1", True),
        ("saves too much.job-1", False),
        ("saves too much.gang-1", True),
        ("good.gang-1", False),
    ],
)
def test_what_never_saves_is_known_by_its_kind(task_id, never_saves):
    assert named(task_id).never_saves is never_saves
    assert named(task_id).restores(f"{task_id}#1") is not task_id.startswith("no save")


def test_a_lost_member_of_an_array_is_noticed(records):
    lost = records.members[JOBS].pop(1)
    with pytest.raises(DrillFailed, match="an array of 3 has the members"):
        records.wrong()
    # Also one that is listed, and has ended without having been asked to or having run.
    records.members[JOBS].append({**lost, "state": "cancelled"})
    assert "not completed" in records.wrong()


def test_a_member_that_was_never_started_is_noticed(records):
    records.attempts = [a for a in records.attempts if a["task_id"] != f"{JOBS}[2]"]
    assert "'good.jobs-3[2]', 'state': 'completed'}, its history []" in records.wrong()


def test_a_second_driver_of_an_attempt_is_noticed(records):
    records.mark("starting", f"{JOB}@999@@2")
    assert "attempt 2 ran 2 times" in records.wrong()


def test_a_second_process_of_a_member_of_a_gang_is_noticed(records):
    records.mark("starting", f"{GANG}#1@999@node")
    assert f"{GANG}#1 was started 2 times, by its record 1 to 1" in records.wrong()


def test_a_job_that_was_killed_and_is_called_completed_is_noticed(records):
    # Its first driver was killed; the record says that this attempt has completed it.
    records.attempts = [a for a in records.attempts if a["task_id"] != JOB]
    records.attempt(JOB, 1)
    records.results[JOB] = {"attempt": 1, "exit_code": 0}
    for kind in ("produced", "exits"):
        (records.folder / kind / f"{JOB}@2@0").unlink()
    (records.folder / "starting" / f"{JOB}@102@@2").unlink()
    wrong = records.wrong(killed=KILLED)
    assert "exit code 0, drivers: []" in wrong
    assert "its last attempt is 1" in wrong
    assert f"{JOB}: 1 were killed of" in wrong


def test_an_exit_code_that_no_driver_had_is_noticed(records):
    records.statuses[JOB]["state"] = "failed"
    records.attempts[1] |= {"state": "failed", "error": "exit code 4"}
    (records.folder / "exits" / f"{JOB}@2@0").rename(records.folder / "exits" / f"{JOB}@2@7")
    assert "exit code 7, its record says 'exit code 4'" in records.wrong()


def test_a_result_that_no_member_returned_is_noticed(records):
    records.results[GANG][1]["token"] = "of nobody"
    assert "a result of no run" in records.wrong()


def test_a_restored_step_that_was_never_saved_is_noticed(records):
    records.results[GANG][0]["began"] = 7
    assert "began at 7, which was never saved" in records.wrong()


def test_an_uncounted_eviction_is_noticed(records):
    records.statuses[GANG]["preemptions"] = 1
    assert "0 evictions in the history" in records.wrong()


def test_what_goes_on_after_it_was_cancelled_is_noticed(records):
    assert f"{JOB}: was cancelled and is " in records.wrong(cancelled={JOB})


def test_lost_work_that_nobody_has_done_is_noticed(records):
    records.statuses[JOB]["preemptions"] = 1
    records.attempts[0] |= {"state": "preempted", "evicted_at": 14.0, "lost_s": 9.0}
    assert "9.0 s are lost of 3.0 s" in records.wrong()


def test_two_processes_of_one_task_are_noticed(tmp_path, two_processes):
    (tmp_path / "processes").mkdir()
    watch = DuplicateWatch(tmp_path)
    try:
        for pid in two_processes:
            (tmp_path / "processes" / f"{JOB}@{pid}@{began_at(pid)}").touch()
        while not watch.twice:
            watch._over.wait(0.01)
    finally:
        watch.close()
    assert watch.twice[0].startswith(f"{JOB} runs as ")


def test_members_that_may_not_run_beside_each_other_are_noticed():
    together = Together(at_once=2)
    assert together.inconsistencies({("gang#0", 1), ("gang#1", 2), ("job", 3)}) == []
    assert together.inconsistencies({("gang#0", 4), ("gang#1", 5), ("many[0]", 6)}) == []
    assert together.inconsistencies({("gang#0", 4), ("gang#1", 2)}) != []
    members = {(f"many[{index}]", 10 + index) for index in range(3)}
    assert together.inconsistencies(members) == ["3 members of many run at once"]


# -- what tasks from the queue evict ------------------------------------------------------------------------


class Evicted:
    """A client's task of pool "a" that was evicted for a job, and the log of its client."""

    def __init__(self, folder: Path) -> None:
        self.log = Log(folder / "log.jsonl")
        self.log.write("submitted", task="x")
        self.queue_evictions = QueueEvictions(self.log, "batch")
        self.victim = _attempt(1, "x", "a", 2.0, 5.0, 6.0, "preempted")
        self.victim |= {"evicted_at": 10.0, "by_task": "job", "by_pool": "batch"}
        self.job = _attempt(2, "job", "batch", 7.0, 10.0, 12.0, "completed")
        self.job["events"] = [{"kind": "queued"}]

    def written(self, *more) -> list[str]:
        """What is wrong, and what is in the log then, also when it is looked at a second time."""
        attempts = [*more, self.job, self.victim]
        assert self.queue_evictions.write(attempts) == self.queue_evictions.write(attempts)
        return self.queue_evictions.write(attempts)

    @property
    def logged(self) -> list[str]:
        return [line["what"] for line in self.log.read()]


def _attempt(cursor, task_id, pool_name, priority, admitted_at, started_at, state):
    none = {"evicted_at": None, "by_task": "", "by_pool": "", "events": []}
    return {
        **none,
        "cursor": cursor,
        "task_id": task_id,
        "pool_name": pool_name,
        "priority": priority,
        "admitted_at": admitted_at,
        "started_at": started_at,
        "state": state,
    }


@pytest.fixture
def evicted(tmp_path):
    evicted = Evicted(tmp_path)
    yield evicted
    evicted.log.close()


def test_an_eviction_for_a_job_from_the_queue_is_taken_from_the_history(evicted):
    assert evicted.written() == []
    assert evicted.logged == ["submitted", "evicted"]
    assert Expected(evicted.log.read()).tasks == set()


def test_one_whose_client_was_told_is_not_counted_twice(evicted):
    evicted.job["pool_name"] = evicted.victim["by_pool"] = "b"
    evicted.job["events"] = [{"kind": "admitted"}]
    assert evicted.written() == []
    assert evicted.logged == ["submitted"]


def test_a_victim_that_waits_again_evicts_from_the_queue_too(evicted):
    evicted.job["pool_name"] = evicted.victim["by_pool"] = "a"
    evicted.job["events"] = [{"kind": "requeued"}]
    assert evicted.written() == []
    assert evicted.logged == ["submitted", "evicted"]


def test_a_victim_returns_if_the_job_does_not_start(evicted):
    evicted.job |= {"state": "returned", "started_at": None}
    again = _attempt(3, "x", "a", 2.0, 13.0, 14.0, "running")
    assert evicted.written(again) == []
    assert evicted.logged == ["submitted", "evicted", "restarted"]
    assert Expected(evicted.log.read()).tasks == {"x"}


def test_a_victim_that_runs_again_although_the_job_has_started_is_noticed(evicted):
    again = _attempt(3, "x", "a", 2.0, 13.0, 14.0, "running")
    assert evicted.written(again) == ["x runs again, and job, which evicted it, has started"]
    assert Expected(evicted.log.read()).tasks == set()


def test_an_eviction_for_too_low_a_priority_is_noticed(evicted):
    evicted.job["priority"] = 6.0
    assert evicted.written() == ["x was evicted for job, only 4 above it"]


def test_an_eviction_for_nobody_is_noticed(evicted):
    evicted.job["admitted_at"] = 11.0
    (wrong,) = evicted.written()
    assert wrong.startswith("x was evicted for no attempt on record")


def test_one_that_waited_after_a_failed_submission_had_returned_before(evicted):
    first = _attempt(0, "x", "a", 2.0, 1.0, 2.0, "preempted")
    evicted.log.write("evicted", task="x")
    evicted.log.may_return.add("x")
    assert evicted.written(first | {"by_pool": "b"}) == []
    assert evicted.logged == ["submitted", "evicted", "restarted", "evicted"]
    assert Expected(evicted.log.read()).inconsistencies() == []
