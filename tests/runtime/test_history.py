"""The history as a supervisor writes and answers it, on a fake backend."""

from __future__ import annotations

import asyncio
import functools
import itertools
from concurrent.futures import wait

import pytest

from schedulemesh.api.history import QueryEvents, QueryHistory, QueryUsage
from schedulemesh.config.settings import HistorySettings, JournalSettings
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.runtime.history import recorder as recorder_module
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.history.queries import History
from schedulemesh.store.sql import SqlJournal
from tests.engine.returns import CAUSES
from tests.runtime.composition import InThread
from tests.runtime.driven import Driven
from tests.server.work import filled


@pytest.fixture
def journal_file(tmp_path):
    return tmp_path / "mesh.sqlite"


@pytest.fixture
def begin(journal_file):
    made = []

    def supervisor(**settings):
        made.append(InThread(journal_file, **settings))
        return made[-1]

    yield supervisor
    for one in made:
        if one.loop.is_running():
            one.close()


def ask(mesh, request):
    answer = mesh.do(mesh.requests.answer(request, ((), ())))
    return answer.facts if hasattr(answer, "facts") else answer.refused


def step(mesh, stimulus):
    return mesh.do(mesh.running.reactor.step(stimulus))


def run_task(mesh, name, *, pool="p", owner="ann", labels=(), ends=True):
    resources = parse_resources({"cpu": 1})
    agent = AgentSpec(name=name, pool_name=pool, resources=resources, class_key="class")
    task = TaskSpec(task_id=name, pool_name=pool, owner=owner, labels=dict(labels))
    step(mesh, s.TaskSubmitted(agent=agent, task=task, queue=True, client="host:1"))
    found = mesh.running.reactor.state.agents[name]
    step(
        mesh,
        s.AgentReported(agent_name=name, incarnation=found.incarnation, node_id=None),
    )
    if ends:
        step(mesh, s.TaskFinished(task_id=name, end_agent=True))
        step(mesh, s.AgentGone(agent_name=name, incarnation=found.incarnation))


def make_pool(mesh, name="p", cpu=4):
    spec = PoolSpec(name=name, resources=parse_resources({"cpu": cpu}))
    step(mesh, s.PoolRequested(spec=spec))


def test_a_task_is_found_with_its_events(begin):
    mesh = begin()
    make_pool(mesh)
    run_task(mesh, "t", labels={"team": "a"})
    answer = ask(mesh, QueryHistory(task_id="t", with_events=True))
    (attempt,) = answer["attempts"]
    assert (attempt["state"], attempt["owner"], attempt["pool_name"]) == ("completed", "ann", "p")
    assert attempt["labels"] == {"team": "a"}
    assert attempt["cpu"] == 1.0
    kinds = [event["kind"] for event in attempt["events"]]
    assert kinds[0] in ("queued", "admitted")
    assert kinds[-3:] == ["admitted", "started", "completed"]
    assert answer["behind"] == 0


@pytest.mark.parametrize("query", [QueryHistory, functools.partial(QueryUsage, since=0.0)])
def test_whoever_asks_at_once_does_not_wait_for_what_is_not_written(begin, query):
    mesh = begin()
    make_pool(mesh)
    # Until it is open, everybody waits.
    ask(mesh, query())
    history, patience = mesh.running.history, []

    async def caught_up(patience_s):
        patience.append(patience_s)
        return 3

    history.caught_up = caught_up
    assert ask(mesh, query(at_once=True))["behind"] == 3
    ask(mesh, query())
    assert patience[0] == 0.0 < patience[1]


def test_why_a_task_waits_is_written_also_while_much_happens(begin):
    mesh = begin()
    busy = asyncio.run_coroutine_threadsafe(keep_busy(mesh), mesh.loop)
    filled(mesh)
    query = QueryEvents(task_id="waits-1", kinds=("waiting",), wait_s=20.0)
    (event,) = ask(mesh, query)["events"]
    assert event["detail"] == {"reason": "insufficient_quota"}
    busy.cancel()
    wait([busy])


async def keep_busy(mesh):
    """Change a pool again and again: there is always a commit that the history lacks."""
    for cpu in itertools.cycle((1, 2)):
        spec = PoolSpec(name="other", resources=parse_resources({"cpu": cpu}))
        await mesh.running.reactor.step(s.PoolRequested(spec=spec))


def test_use_is_summed_up_by_pool_owner_and_label(begin):
    mesh = begin()
    make_pool(mesh)
    run_task(mesh, "t", labels={"team": "a"})
    run_task(mesh, "u", owner="bob", labels={"team": "b", "model": "x"})
    now = mesh.running.reactor.now()
    by = {
        kind: ask(mesh, QueryUsage(by=kind, since=now))["usage"]
        for kind in ("pool", "owner", "label")
    }
    assert [(row["pool"], row["completed"]) for row in by["pool"]] == [("p", 2)]
    assert {row["owner"]: row["started"] for row in by["owner"]} == {"ann": 1, "bob": 1}
    assert {row["label"] for row in by["label"]} == {"team=a", "team=b", "model=x"}
    assert all(row["cpu_hours"] > 0.0 for rows in by.values() for row in rows)
    of_team = ask(mesh, QueryUsage(by="label", since=now, label="team"))["usage"]
    assert {row["label"] for row in of_team} == {"team=a", "team=b"}


def test_use_by_label_leaves_nothing_out_that_use_by_pool_counts(begin):
    mesh = begin()
    make_pool(mesh, cpu=3)
    run_task(mesh, "t", labels={"team": "a", "model": "x"}, ends=False)
    run_task(mesh, "u", labels={"model": "x"}, ends=False)
    run_task(mesh, "v", ends=False)
    # Without labels of their own, one that waits counts as one that ran: for its pool.
    for name, labels in (("w", {}), ("x", {"team": "a"})):
        task = TaskSpec(task_id=name, pool_name="p", owner="ann", labels=labels)
        agent = AgentSpec(
            name=name, pool_name="p", resources=parse_resources({"cpu": 1}), class_key="class"
        )
        step(mesh, s.TaskSubmitted(agent=agent, task=task, queue=True, client="host:1"))
    for name in ("w", "x"):
        step(mesh, s.TaskCancellationRequested(task_id=name))
    now = mesh.running.reactor.now()

    def used(**query):
        rows = ask(mesh, QueryUsage(since=now, **query))["usage"]
        return {row[query["by"]]: (row["started"], row["cancelled"]) for row in rows}

    assert used(by="pool") == {"p": (3, 2)}
    # A task with two labels counts for each of them.
    assert used(by="label") == {"team=a": (1, 1), "model=x": (2, 0), "pool=p": (1, 1)}
    assert used(by="label", label="team") == {"team=a": (1, 1), "": (2, 1)}
    assert used(by="label", label="model") == {"model=x": (2, 0), "": (1, 2)}
    assert used(by="label", label="other") == {"": (3, 2)}


def test_events_are_followed_by_their_cursor(begin):
    mesh = begin()
    make_pool(mesh)
    first = ask(mesh, QueryEvents())
    assert "pool_defined" in [event["kind"] for event in first["events"]]
    assert ask(mesh, QueryEvents(after=first["cursor"]))["events"] == []
    waiting = asyncio.run_coroutine_threadsafe(
        mesh.requests.answer(QueryEvents(after=first["cursor"], wait_s=20.0), ((), ())), mesh.loop
    )
    run_task(mesh, "t")
    events = waiting.result(25).facts["events"]
    assert events[0]["task_id"] == "t"
    assert events[0]["cursor"] > first["cursor"]


def test_events_that_are_written_while_others_are_read_come_once(begin, monkeypatch):
    mesh = begin()
    make_pool(mesh)
    first = ask(mesh, QueryEvents())
    run_task(mesh, "t")
    ask(mesh, QueryEvents(after=first["cursor"]))
    # As in a database where the events of the task are written after the newest was looked at.
    monkeypatch.setattr(History, "event_span", lambda _history: (1, first["cursor"]))
    read = ask(mesh, QueryEvents(after=first["cursor"]))
    monkeypatch.undo()
    assert "started" in [event["kind"] for event in read["events"]]
    assert read["cursor"] == read["events"][-1]["cursor"]
    assert ask(mesh, QueryEvents(after=read["cursor"]))["events"] == []


def test_a_later_process_continues_where_the_history_is(begin):
    mesh = begin(journal=JournalSettings(snapshot_facts=5))
    make_pool(mesh)
    run_task(mesh, "t", ends=False)
    before = ask(mesh, QueryHistory())["attempts"]
    mesh.close()
    again = begin(journal=JournalSettings(snapshot_facts=5))
    events = ask(again, QueryEvents())["events"]
    cursors = [event["cursor"] for event in events]
    assert cursors == sorted(set(cursors))
    assert [event["kind"] for event in events].count("supervisor_started") == 2
    assert "gap" not in [event["kind"] for event in events]
    (attempt,) = ask(again, QueryHistory(task_id="t"))["attempts"]
    assert attempt["cursor"] == before[0]["cursor"]


def test_without_a_history_its_requests_are_refused(begin, journal_file):
    mesh = begin(history=HistorySettings(enabled=False))
    assert ask(mesh, QueryHistory()).reason is Reason.HISTORY_UNAVAILABLE
    assert not journal_file.with_name("mesh.sqlite.history").exists()


def test_a_damaged_history_is_set_aside_and_decisions_go_on(begin, journal_file):
    mesh = begin()
    make_pool(mesh)
    mesh.close()
    history = journal_file.with_name("mesh.sqlite.history")
    history.write_bytes(b"this is no database" * 1000)
    later = begin()
    run_task(later, "t")
    while not isinstance(ask(later, QueryHistory()), dict):
        pass  # it is refused until a new one is there
    kept = list(journal_file.parent.glob("mesh.sqlite.history.damaged-*"))
    assert len(kept) == 1


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.happen.__name__)
def test_a_task_that_returned_before_it_ran_is_told_so_and_counts_as_no_failure(cause, begin):
    mesh = begin(monitor_interval_s=600.0)
    cause.happen(functools.partial(Driven, mesh))
    query = QueryHistory(task_id="t", state="returned", with_events=True)
    (attempt,) = ask(mesh, query)["attempts"]
    assert (attempt["attempt"], attempt["reason"]) == (1, cause.reason.value)
    assert attempt["events"][-1]["kind"] == "returned"
    assert [row["task_id"] for row in ask(mesh, QueryHistory(state="failed"))["attempts"]] == []
    returned = ask(mesh, QueryEvents(kinds=("returned",)))["events"]
    assert [event["task_id"] for event in returned] == ["t"]
    for by in ("pool", "owner"):
        used = ask(mesh, QueryUsage(by=by, since=mesh.running.reactor.now()))["usage"]
        assert sum(row["failed"] for row in used) == 0


@pytest.mark.parametrize(
    ("is_reading", "is_asked_for", "pauses"),
    [(False, False, 1), (True, False, 10), (True, True, 1)],
)
def test_the_history_is_opened_after_long_reads_unless_somebody_asks_for_it(
    journal_file, monkeypatch, is_reading, is_asked_for, pauses
):
    waited_s = []

    async def within(work, seconds):
        work.close()
        waited_s.append(seconds)

    monkeypatch.setattr(recorder_module, "within", within)

    async def story():
        journal = SqlJournal(journal_file)
        reactor = await Reactor.recover(journal)
        history = recorder_module.history_of(journal, reactor, HistorySettings())
        if is_asked_for:
            history.begin_at_once()
        if is_reading:
            await reactor.turns._lock.acquire()
        await history._pause()
        assert history.upto == -1
        await reactor.close(destroy=False)

    asyncio.run(story())
    assert waited_s == [1.0] * pauses
