"""The reactor: a journal that fails costs changes, never truth; and it heals by itself."""

from __future__ import annotations

import asyncio
import random
import sqlite3

import pytest

from schedulemesh.config.settings import JournalSettings
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import PoolEnsured
from schedulemesh.engine.messages.instructions import AnswerRequest
from schedulemesh.engine.messages.outcomes import Accepted, Pending
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.errors import JournalError, NotStorableError
from schedulemesh.protocol.agents import key_of
from schedulemesh.runtime import reactor as reactor_module
from schedulemesh.runtime.journal.recovery import EarlierLives
from schedulemesh.runtime.journal.witness import Seen
from schedulemesh.runtime.reactor import JournalCondition, Reactor
from schedulemesh.runtime.services.answers import Answers
from schedulemesh.store import writer as writer_module
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.recovery import Stored
from schedulemesh.store.sql import SqlJournal
from tests.engine.builders import Mesh, differences, pool
from tests.runtime.test_clock import Machine
from tests.store.builders import Unsure


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(reactor_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(reactor_module, "_RETRY_MAX_S", 0.05)


def on_loop(test):
    """Run an async test with a reactor over a file; afterwards the file leads to the reactor's state."""

    def run(tmp_path):
        async def with_reactor():
            journal = Unsure(tmp_path / "j.sqlite")
            orders = []
            reactor = await Reactor.recover(journal)
            reactor.subscribe(lambda step: orders.extend(instructed(step)))
            await test(reactor, journal, orders)
            journal.fails = None
            await asyncio.wait_for(reactor.writable(), 10)
            await reactor.step(s.ClockTicked())
            folded = journal.load().fold()
            check(folded)
            assert differences(reactor.state, folded) == []
            await reactor.close(destroy=False)

        asyncio.run(asyncio.wait_for(with_reactor(), 120))

    run.__name__ = test.__name__
    return run


def instructed(step):
    """The instructions that an executor executes."""
    return [i for i in step.instructions if not isinstance(i, AnswerRequest)]


def wanted(name, cpu=4):
    return s.PoolRequested(spec=pool(name, cpu=cpu))


def submission(name, pool_name="p", **more):
    return Mesh().submission(name, pool_name, cpu=1, more={"request_id": f"r-{name}"}, **more)


def reported(order, **more):
    return s.AgentReported(agent_name=order.agent.name, incarnation=order.incarnation, **more)


@on_loop
async def test_a_step_that_could_not_be_written_is_rolled_back(reactor, journal, orders):
    await reactor.step(wanted("p"))
    journal.fails = lambda: "before"
    results = await asyncio.gather(
        reactor.step(wanted("q")),
        reactor.step(submission("a")),
        reactor.flushed(),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [JournalError, JournalError, type(None)]
    assert list(reactor.state.ledger.accounts) == ["p"]
    assert reactor.state.agents == {}
    assert orders == []


@on_loop
async def test_reads_continue_and_changes_are_refused_until_the_journal_recovers(
    reactor, journal, orders
):
    await reactor.step(wanted("p"))
    journal.fails = lambda: "before"
    with pytest.raises(JournalError, match="disk is full"):
        await reactor.step(wanted("q"))
    await asyncio.sleep(0.05)  # time in which a wrong change would show
    await reactor.flushed()
    assert list(reactor.state.ledger.accounts) == ["p"]
    with pytest.raises(JournalError, match="nothing can be changed now: the disk is full"):
        await reactor.step(wanted("q"))
    with pytest.raises(JournalError):
        await reactor.keep({"k": b"v"})
    journal.fails = None
    await asyncio.wait_for(reactor.writable(), 10)
    await reactor.step(wanted("q"))
    assert list(reactor.state.ledger.accounts) == ["p", "q"]


@on_loop
async def test_a_read_returns_only_durable_state(reactor, journal, orders):
    journal.fails = lambda: "before"
    lost = asyncio.ensure_future(reactor.step(wanted("p")))
    await asyncio.sleep(0)
    assert "p" in reactor.state.ledger.accounts  # decided
    assert await reactor.read(lambda: list(reactor.state.ledger.accounts)) == []
    with pytest.raises(JournalError):
        await lost


def fails_half_way(reactor, name):
    """Have the step that makes this pool raise in its midst."""
    handle = reactor.engine._handlers[s.PoolRequested]

    def handler(turn, stimulus):
        if stimulus.spec.name != name:
            return handle(turn, stimulus)
        turn.emit(PoolEnsured(spec=pool("half", cpu=1), at=0.0))
        raise KeyError("a broken promise")

    reactor.engine._handlers[s.PoolRequested] = handler


@on_loop
async def test_a_step_that_fails_half_way_is_rolled_back_and_affects_no_other_caller(
    reactor, journal, orders
):
    await reactor.step(wanted("p"))
    fails_half_way(reactor, "bad")
    names = ["q", "bad", "r", "bad", "s"]
    asked = [asyncio.ensure_future(reactor.step(wanted(name))) for name in names]
    reads = asyncio.ensure_future(reactor.read(lambda: set(reactor.state.ledger.accounts)))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each).__name__ for each in found] == ["Step", "KeyError", "Step", "Step", "Step"]
    # The second of that name met a new engine, which had not been made to fail.
    assert "half" not in await reads
    assert list(reactor.state.ledger.accounts) == ["p", "q", "r", "bad", "s"]


@on_loop
async def test_a_step_that_fails_before_it_changed_anything_costs_nothing(reactor, journal, orders):
    await reactor.step(wanted("p"))
    before = reactor.engine
    unhashable = s.PreemptionRequested(task_id=["x"])
    other = asyncio.ensure_future(reactor.step(wanted("q")))
    with pytest.raises(TypeError, match="unhashable"):
        await reactor.step(unhashable)
    await other
    assert reactor.engine is before
    await reactor.step(wanted("r"))


@pytest.mark.parametrize(
    "bad",
    [
        s.CordonRequested(node_id="n", cordoned=1),
        s.TaskAnnounced(
            task=s.TaskSpec(task_id="t", pool_name="p", priority=float("inf")),
            agent_name="x",
        ),
        s.TaskAnnounced(task=s.TaskSpec(task_id="\udcff", pool_name="p"), agent_name="x"),
        s.TaskAnnounced(
            task=s.TaskSpec(task_id="t", pool_name="p", labels={"k": 1}), agent_name="x"
        ),
        s.TaskAnnounced(
            task=s.TaskSpec(task_id="t", pool_name="p", owner=("o", 1)), agent_name="x"
        ),
    ],
    ids=["number for truth", "infinity", "lone surrogate", "number for text", "tuple for text"],
)
def test_a_value_that_cannot_be_read_back_is_refused_alone(bad, tmp_path):
    @on_loop
    async def story(reactor, journal, orders):
        await reactor.step(wanted("p"))
        nodes = (s.NodeReport(node_id="n", total=pool("x", cpu=4).resources, labels={}),)
        await reactor.step(s.ClusterObserved(nodes=nodes))
        asked = (wanted("q"), bad, wanted("r"))
        found = await asyncio.gather(*map(reactor.step, asked), return_exceptions=True)
        assert [type(each).__name__ for each in found] == ["Step", "NotStorableError", "Step"]
        assert "cannot be stored" in str(found[1])
        assert list(reactor.state.ledger.accounts) == ["p", "q", "r"]
        assert len(reactor.state.running) == 0

    story(tmp_path)


@on_loop
async def test_a_report_that_can_never_be_written_is_not_retried_forever(reactor, journal, orders):
    await reactor.step(wanted("p"))
    await reactor.step(submission("a"))
    strange = reported(orders.pop(), actor_name="\udcff")
    with pytest.raises(NotStorableError, match="actor_name of AgentStarted"):
        await asyncio.wait_for(reactor.report(strange), 10)
    await reactor.step(wanted("q"))


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="needs Python 3.11")
def test_a_value_above_the_limit_of_the_store_is_refused_alone(tmp_path):
    """SQLite's own limit, made small: nobody else notices, and nothing is tried again for ever."""

    async def story():
        journal = SqlJournal(tmp_path / "j.sqlite")
        reactor = await Reactor.recover(journal)
        connection = journal._connection._connection
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        await reactor.step(wanted("p"))
        large = reactor.report(wanted("large"), {"large": b"x" * 200_000})
        refused, accepted = await asyncio.gather(
            large, reactor.report(wanted("q")), return_exceptions=True
        )
        assert isinstance(refused, NotStorableError), refused
        assert "too big" in str(refused)
        assert not isinstance(accepted, BaseException)
        assert list(reactor.state.ledger.accounts) == ["p", "q"]
        with pytest.raises(NotStorableError, match="too big"):
            await reactor.keep({"large": b"x" * 200_000})
        await reactor.report(wanted("r"))
        await reactor.close(destroy=False)
        again = SqlJournal(tmp_path / "j.sqlite")
        assert list(again.load().fold().ledger.accounts) == ["p", "q", "r"]
        again.close()

    asyncio.run(asyncio.wait_for(story(), 60))


@on_loop
async def test_a_refused_submission_leaves_no_bytes(reactor, journal, orders):
    await reactor.step(wanted("p"))
    data = b"a class of a megabyte"
    refused = await reactor.step(submission("a", "no such pool"), {key_of(data): data})
    assert refused.outcome.reason == "pool_not_found"
    assert journal.blob_sizes() == {}


@on_loop
async def test_a_cancelled_waiter_is_forgotten(reactor, journal, orders):
    await reactor.step(wanted("p"))
    await reactor.step(submission("a"))
    answers = Answers(reactor)
    waiting = [asyncio.ensure_future(answers.outcome("r-a")) for _ in range(3)]
    waiting.append(asyncio.ensure_future(answers.end_of("a")))
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(answers) == 0


def restarts_of(machine, tmp_path):
    """A reactor of each life; the machine's clock is read anew."""
    return Reactor.recover(SqlJournal(tmp_path / "j.sqlite"), clock=machine.clock())


@pytest.mark.parametrize("by_s", [-4 * 86_400.0, 86_400.0])
def test_a_clock_changed_between_two_runs_changes_no_duration(by_s, tmp_path):
    """Set back, a task of 100 s must not have days left; set forward, no answer may be forgotten early."""

    async def story():
        machine = Machine()
        first = await restarts_of(machine, tmp_path)
        await first.step(wanted("p"))
        task = s.TaskSpec(task_id="t", pool_name="p", estimated_duration=100.0)
        await first.step(s.TaskAnnounced(task=task, agent_name="x"))
        refused = submission("a", "no such pool")
        told = await first.step(refused)
        await first.close(destroy=False)
        machine.system += by_s
        machine.passes(30.0)
        second = await restarts_of(machine, tmp_path)
        assert second.state.running.by_id["t"].remaining(second.now()) == pytest.approx(70.0)
        await second.step(s.ClockTicked())
        assert (await second.step(refused)).outcome == told.outcome
        assert refused.request_id in second.state.answers
        await second.close(destroy=True)

    asyncio.run(asyncio.wait_for(story(), 60))


@on_loop
async def test_waiting_callers_are_answered_after_recovery(reactor, journal, orders):
    await reactor.step(wanted("p"))
    step = await reactor.step(submission("a"))
    assert isinstance(step.outcome, Pending)
    answers = Answers(reactor)
    waiting = asyncio.ensure_future(answers.outcome("r-a"))
    ending = asyncio.ensure_future(answers.end_of("a"))
    journal.fails = lambda: "before"
    report = asyncio.ensure_future(reactor.report(reported(orders.pop())))
    await asyncio.sleep(0.1)  # time in which a wrong answer would come
    assert not waiting.done()
    assert not report.done()
    journal.fails = None
    await asyncio.wait_for(report, 10)
    assert isinstance(await asyncio.wait_for(waiting, 10), Accepted)
    assert (await reactor.step(submission("a"))).outcome == waiting.result()
    assert await answers.outcome("r-a") == waiting.result()
    incarnation = reactor.state.agents["a"].incarnation
    await reactor.report(s.AgentGone(agent_name="a", incarnation=incarnation))
    await asyncio.wait_for(ending, 10)
    await answers.end_of("a")


@on_loop
async def test_a_result_that_is_not_durable_is_not_returned(reactor, journal, orders):
    await reactor.step(wanted("p"))
    await reactor.step(submission("a"))
    order = orders.pop()
    journal.fails = lambda: "before"
    report = asyncio.ensure_future(reactor.report(reported(order)))
    await asyncio.sleep(0)
    assert "r-a" in reactor.state.answers  # decided
    asked = asyncio.ensure_future(Answers(reactor).outcome("r-a"))
    await asyncio.sleep(0.05)  # time in which a wrong answer would come
    assert not asked.done()
    journal.fails = None
    await asyncio.wait_for(report, 10)
    assert isinstance(await asyncio.wait_for(asked, 10), Accepted)


@pytest.mark.parametrize("seed", range(8))
def test_random_failures_neither_lose_nor_duplicate(seed, tmp_path):
    """Many callers, a journal that fails before or after the write: what was acknowledged is exactly what
    is there.
    """
    rng = random.Random(seed)
    acknowledged, refused = set(), set()

    @on_loop
    async def story(reactor, journal, orders):
        first = iter(["before"])
        journal.fails = lambda: next(first, rng.choice([None, None, None, "before", "after"]))

        async def caller(number):
            kept = 0
            while kept < 5:
                name = f"{number}-{len(acknowledged) + len(refused)}"
                try:
                    await reactor.step(wanted(name))
                    acknowledged.add(name)
                    kept += 1
                except JournalError:
                    refused.add(name)
                await asyncio.sleep(rng.random() * 0.01)  # calls come at random moments
                assert acknowledged <= set(reactor.state.ledger.accounts)

        await asyncio.gather(*(caller(number) for number in range(8)))
        journal.fails = None
        await asyncio.wait_for(reactor.writable(), 10)
        assert set(reactor.state.ledger.accounts) == acknowledged

    story(tmp_path)
    print(f"seed {seed}: {len(acknowledged)} acknowledged, {len(refused)} refused")
    assert len(acknowledged) == 40
    assert refused


def test_a_fenced_reactor_changes_nothing(tmp_path):
    async def story():
        journal = SqlJournal(tmp_path / "j.sqlite")
        reactor = await Reactor.recover(journal)
        await reactor.step(wanted("p"))
        other = SqlJournal(tmp_path / "j.sqlite")
        assert other.begin(take_over=True) == 2
        for _ in range(2):
            with pytest.raises(JournalError):
                await reactor.step(wanted("q"))
            await reactor._until(JournalCondition.SUPERSEDED)
        with pytest.raises(JournalError, match="another process has taken it over"):
            await reactor.step(wanted("q"))
        assert list(reactor.state.ledger.accounts) == ["p"]
        other.close()
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 60))


async def in_one_run(journal, settings, story):
    reactor = await Reactor.recover(journal, settings=settings)
    await story(reactor)
    if reactor._snapshots.taking is not None:
        await reactor._snapshots.taking
    await reactor.flushed()
    stored = journal.load()
    assert differences(reactor.state, stored.fold()) == []
    return reactor, stored


def test_snapshots_keep_the_journal_short(tmp_path):
    async def story():
        journal = SqlJournal(tmp_path / "j.sqlite")

        async def change(reactor):
            for number in range(300):
                await reactor.step(wanted("p", cpu=number + 1))

        settings = JournalSettings(snapshot_facts=20)
        reactor, stored = await in_one_run(journal, settings, change)
        assert stored.base > 200
        assert len(stored.records) < 100
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_snapshot_that_cannot_be_written_costs_nothing(tmp_path, caplog):
    async def story():
        journal = SqlJournal(tmp_path / "j.sqlite")

        async def change(reactor):
            with sqlite3.connect(tmp_path / "j.sqlite") as other:
                other.execute(
                    "CREATE TRIGGER t BEFORE INSERT ON schedulemesh_snapshots "
                    "BEGIN SELECT RAISE(ABORT, 'not now'); END"
                )
            other.close()
            for number in range(100):
                await reactor.step(wanted("p", cpu=number + 1))

        reactor, stored = await in_one_run(journal, JournalSettings(snapshot_facts=20), change)
        assert (stored.base, stored.last) == (0, 101)
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 60))
    assert "no snapshot of the journal could be made" in caplog.text


async def preempt(reactor, task_id, size, key=None):
    """Preempt a registered task whose state has this many bytes."""
    await reactor.step(
        s.TaskAnnounced(task=s.TaskSpec(task_id=task_id, pool_name="p"), agent_name="x")
    )
    await reactor.step(s.PreemptionRequested(task_id=task_id))
    key = key or f"state-{task_id}"
    stored = s.StateStored(task_id=task_id, state_key=key)
    await reactor.report(stored, {key: b"x" * size})
    await reactor.step(s.CancelAnswered(task_id=task_id, cancel_success=True))


def test_saved_states_have_limits(caplog):
    async def story():
        journal = MemoryJournal()

        async def change(reactor):
            await preempt(reactor, "huge", 1001)
            for number in range(5):
                await preempt(reactor, f"t{number}", 1000)
            assert reactor.state.preempted["huge"].state_key is None
            for _ in range(3):
                await reactor._snapshots.take()

        settings = JournalSettings(saved_state_bytes=1000, saved_states_bytes=2500)
        reactor, _ = await in_one_run(journal, settings, change)
        kept = {name for name, past in reactor.state.preempted.items() if past.state_key}
        assert kept == {"t3", "t4"}
        assert set(journal.blob_sizes()) == {"state-t3", "state-t4"}
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 60))
    assert "the saved state of task huge has 1001 bytes" in caplog.text


def test_saved_states_grow_too_old():
    async def story():
        journal = MemoryJournal()

        async def change(reactor):
            await preempt(reactor, "old", 10)
            reactor._clock.resume(None, reactor.now() + 1000)
            await preempt(reactor, "new", 10)
            await reactor._snapshots.take()

        reactor, _ = await in_one_run(journal, JournalSettings(saved_state_s=999), change)
        assert [p.state_key for p in reactor.state.preempted.values()] == [None, "state-new"]
        await reactor.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_bytes_kept_for_a_fact_to_come_outlive_a_snapshot():
    async def story():
        journal = MemoryJournal()

        async def change(reactor):
            await reactor.step(wanted("p"))
            await reactor.keep({"k": b"v"})
            await reactor._snapshots.take()
            assert await reactor.blob("k") == b"v"
            assert await reactor.blob(None) is None
            await reactor.step(wanted("q"))
            await reactor._snapshots.take()
            await reactor.step(wanted("r"))
            await reactor._snapshots.take()
            assert await reactor.blob("k") is None

        reactor, _ = await in_one_run(journal, None, change)
        await reactor.close(destroy=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_it_recovers_when_the_database_is_back(database, server):
    async def story():
        journal = SqlJournal(database("a"))
        reactor = await Reactor.recover(journal)
        await reactor.step(wanted("p"))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, server.stop)
        try:
            with pytest.raises(JournalError):
                await reactor.step(wanted("q"))
            await reactor.flushed()
            assert list(reactor.state.ledger.accounts) == ["p"]  # answered from memory
            with pytest.raises(JournalError, match="nothing can be changed now"):
                await reactor.step(wanted("q"))
        finally:
            await loop.run_in_executor(None, server.start)
        await asyncio.wait_for(reactor.writable(), 20)
        await reactor.step(wanted("r"))
        assert list(journal.load().fold().ledger.accounts) == ["p", "r"]
        assert differences(reactor.state, journal.load().fold()) == []
        await reactor.close(destroy=True)

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("wrong", ["snapshot_facts", "saved_state_s", "saved_states_bytes"])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(
        ValueError, match=rf"{wrong} (is 0; it must be above 0|.* at least 1 .* not 0)"
    ):
        JournalSettings(**{wrong: 0})


@pytest.mark.parametrize("limit", ["saved_state_bytes", "result_bytes"])
def test_a_value_that_no_store_takes_cannot_be_permitted(limit):
    with pytest.raises(ValueError, match=rf"{limit} .*500000000"):
        JournalSettings(**{limit: 10**15})


@on_loop
async def test_the_executor_retries_bytes_that_cannot_be_read(reactor, journal, orders):
    await reactor.keep({key_of(b"stored"): b"stored"})
    read, failures = journal.blob, iter([True, True, False])

    def blob(key):
        if next(failures):
            raise JournalError("the server does not answer")
        return read(key)

    journal.blob = blob
    assert await reactor.fetch(key_of(b"stored")) == b"stored"
    assert await reactor.fetch(None) is None


@on_loop
async def test_the_executor_gives_up_reading_bytes_after_a_while(reactor, journal, orders):
    def blob(key):
        raise JournalError("the stored bytes are damaged")

    journal.blob = blob
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reactor_module, "_FETCH_S", 0.1)
        with pytest.raises(JournalError, match="damaged"):
            await reactor.fetch("k")


@pytest.mark.parametrize(
    ("seen", "newest", "rolled_back"),
    [
        (None, 0, False),
        (Seen(epoch=1, last=2), 0, False),
        (Seen(epoch=7, last=2), 0, True),
        (Seen(epoch=1, last=900), 0, True),
        (Seen(epoch=1, last=2, unresolved=True), 0, True),
        (Seen(epoch=1, last=2), 55, True),
    ],
    ids=["nothing seen", "the same", "epoch", "commit", "unresolved", "agent"],
)
def test_a_restored_journal_starts_above_every_epoch_and_number_seen(
    seen, newest, rolled_back, tmp_path
):
    """Above every epoch that agents have seen, and with numbers that none of them has."""

    async def story():
        first = await Reactor.recover(SqlJournal(tmp_path / "j.sqlite"))
        await first.step(wanted("p"))
        await first.close(destroy=False)
        earlier = EarlierLives(seen=seen or Seen(), newest_incarnation=newest)
        second = await Reactor.recover(SqlJournal(tmp_path / "j.sqlite"), earlier=earlier)
        epoch = second.epoch
        assert epoch == (8 if seen is not None and seen.epoch == 7 else 2)
        assert second.state.epoch == epoch
        assert second.rolled_back is rolled_back
        assert (second.state.next_incarnation > max(newest, 1000)) is rolled_back
        assert (second.state.groups.next_number > 1000) is rolled_back
        await second.close(destroy=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_new_journal_is_never_taken_for_an_old_one():
    async def story():
        earlier = EarlierLives(seen=Seen(epoch=7, last=900))
        reactor = await Reactor.recover(MemoryJournal(), earlier=earlier)
        assert reactor.epoch == 8
        assert not reactor.rolled_back
        await reactor.close(destroy=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def out_of_memory_once(monkeypatch, owner, name):
    """Have the next call of a function fail for lack of memory."""
    function, calls = getattr(owner, name), []

    def once(*args):
        if not calls:
            calls.append(args)
            raise MemoryError
        return function(*args)

    monkeypatch.setattr(owner, name, once)
    return calls


@pytest.mark.parametrize("call", ["fold", "copy"])
def test_a_state_that_cannot_be_read_anew_for_a_moment_is_read_later(tmp_path, monkeypatch, call):
    @on_loop
    async def test_story(reactor, journal, orders):
        await reactor.step(wanted("p"))
        failed = out_of_memory_once(monkeypatch, MeshState, "evolve")
        folding = out_of_memory_once(monkeypatch, Stored, call)
        with pytest.raises(MemoryError):
            await reactor.step(wanted("q"))
        assert failed
        await asyncio.wait_for(reactor.step(wanted("r")), 10)
        assert folding
        assert {*reactor.state.ledger.accounts} == {"p", "r"}

    test_story(tmp_path)


def test_a_state_that_cannot_be_rolled_back_for_a_moment_is_rolled_back_later(
    tmp_path, monkeypatch
):
    @on_loop
    async def test_story(reactor, journal, orders):
        await reactor.step(wanted("p"))
        journal.fails = lambda: "before"
        folding = out_of_memory_once(monkeypatch, Stored, "fold")
        with pytest.raises(JournalError):
            await asyncio.wait_for(reactor.step(wanted("q")), 10)
        assert folding
        journal.fails = None
        await asyncio.wait_for(reactor.writable(), 10)
        await reactor.step(wanted("r"))
        assert {*reactor.state.ledger.accounts} == {"p", "r"}

    test_story(tmp_path)


def test_the_journal_is_written_again_after_a_write_that_lacked_memory(tmp_path, monkeypatch):
    @on_loop
    async def test_story(reactor, journal, orders):
        out_of_memory_once(monkeypatch, writer_module, "joined")
        with pytest.raises(JournalError, match="MemoryError"):
            await asyncio.wait_for(reactor.step(wanted("p")), 10)
        await asyncio.wait_for(reactor.writable(), 10)
        await reactor.step(wanted("q"))
        assert {*reactor.state.ledger.accounts} == {"q"}

    test_story(tmp_path)


def test_a_recovery_that_fails_leaves_the_journal_to_the_next_one(tmp_path, monkeypatch):
    path = tmp_path / "j.sqlite"

    async def story():
        reactor = await Reactor.recover(SqlJournal(path))
        await reactor.step(wanted("p"))
        await reactor.close(destroy=False)
        out_of_memory_once(monkeypatch, Stored, "fold")
        with pytest.raises(MemoryError):
            await Reactor.recover(SqlJournal(path))
        again = await Reactor.recover(SqlJournal(path))
        assert {*again.state.ledger.accounts} == {"p"}
        await again.close(destroy=False)

    asyncio.run(asyncio.wait_for(story(), 30))


def test_an_attempt_to_write_again_that_fails_in_another_way_is_followed_by_the_next(
    tmp_path, monkeypatch
):
    @on_loop
    async def test_story(reactor, journal, orders):
        journal.fails = lambda: "before"
        resume, attempts = reactor._writer.resume, []

        def refused_once():
            attempts.append(None)
            if len(attempts) == 1:
                raise NotStorableError("a limit of the database")
            return resume()

        monkeypatch.setattr(reactor._writer, "resume", refused_once)
        with pytest.raises(JournalError, match="the disk is full"):
            await reactor.step(wanted("p"))
        with pytest.raises(JournalError, match=r"nothing can be changed now: \S"):
            await reactor.step(wanted("q"))
        journal.fails = None
        await asyncio.wait_for(reactor.writable(), 10)
        assert len(attempts) > 1

    test_story(tmp_path)
