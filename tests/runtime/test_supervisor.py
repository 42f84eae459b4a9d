"""The supervisor as it is put together: recovery, later processes, and failures to recover."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.history import QueryEvents
from schedulemesh.api.nodes import ListExternalUsage
from schedulemesh.api.pools import CreatePool, ListPools
from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import JournalError, SchedulerUnavailableError
from schedulemesh.protocol.agents import unpack
from schedulemesh.protocol.answers import (
    Details,
    Hello,
    Listed,
    PoolResponse,
    decode_answer,
    search_seconds,
)
from schedulemesh.protocol.frames import Ask
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime import supervisor as module
from schedulemesh.runtime.backend import BackendError
from schedulemesh.store.sql import SqlJournal
from tests.counted_calls import calls_of
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend, HeldCalls, Verdict
from tests.runtime.test_leases import HeldLooks

#: Calls of Python functions from the message of a read to its answer. The limit only ever falls.
A_READ = 50
OURS = ("space", "schedulemesh:mesh:a#0")


def run(story):
    return asyncio.run(asyncio.wait_for(story, 30.0))


async def asked(service, request, kind):
    return decode_answer(await service.ask(encode_request(request)), kind)


async def pools(service):
    return [pool["name"] for pool in (await asked(service, ListPools(), Listed)).rows]


async def create_pool(service, name="p"):
    spec = PoolSpec(name=name, resources=parse_resources({"cpu": 1}))
    return await asked(service, CreatePool(spec=spec), PoolResponse)


async def killed(service):
    """End a supervisor's process, as far as a process can be ended within this one."""
    running = (await service.ready()).running
    running.executor.stop_all()
    await running.reactor.close(destroy=False)


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def journal_file(tmp_path):
    return tmp_path / "mesh.sqlite"


def test_all_callers_wait_for_the_same_recovery(backend, journal_file):
    async def story():
        service = supervisor(backend, journal_file)
        assert (await service.alive())[0] is False
        first, second = await asyncio.gather(service.ready(), service.ready())
        assert first is second
        assert unpack(await service.hello(), Hello).job_id == "the job"
        assert (await service.alive())[0] is True
        await killed(service)

    run(story())


def test_only_searches_say_what_was_computed_for_them(backend, journal_file):
    async def story():
        service = supervisor(backend, journal_file)
        await create_pool(service)
        evaluate = EvaluatePreemption(priority=1.0, pool_name="p")
        assert search_seconds(await service.ask(encode_request(evaluate))) > 0
        assert search_seconds(await service.ask(encode_request(ListPools()))) == 0
        await killed(service)

    run(story())


def test_the_next_process_knows_what_the_first_decided_and_ends_what_nobody_claims(
    backend, journal_file
):
    async def story():
        first = supervisor(backend, journal_file)
        await create_pool(first)
        await killed(first)
        backend.restarted = True
        backend.others = {OURS, ("space", "a user's")}
        second = supervisor(backend, journal_file)
        assert await pools(second) == ["p"]
        assert (await second.ready()).running.reactor.epoch == 2
        assert backend.others == {("space", "a user's")}
        await killed(second)

    run(story())


def test_one_whose_journal_cannot_be_opened_says_so_and_tries_again_at_the_next_call(
    backend, journal_file
):
    failures = iter([True, False])

    def opened(path, *, must_exist):
        if next(failures):
            raise JournalError("the folder cannot be written")
        return SqlJournal(path, must_exist=must_exist)

    async def story():
        service = supervisor(backend, journal_file, opened=opened)
        with pytest.raises(SchedulerUnavailableError, match="the folder cannot be written"):
            await service.ready()
        assert await pools(service) == []
        await service.withdraw()
        assert not backend.ended, "it has recovered, and is wanted"
        await killed(service)

    run(story())


def test_a_new_one_that_cannot_recover_gives_its_name_up(backend, journal_file):
    def opened(path, *, must_exist):
        raise JournalError("the folder cannot be written")

    async def story():
        service = supervisor(backend, journal_file, opened=opened)
        with pytest.raises(SchedulerUnavailableError):
            await service.ready()
        await service.withdraw()
        assert backend.ended

    run(story())


@pytest.mark.parametrize("call", ["recall", "living_actors", "keep", "nodes"])
def test_a_recovery_that_the_backend_fails_leaves_the_journal_to_the_next(
    backend, journal_file, call
):
    async def story():
        calls = {"recall", "living_actors", "keep", "nodes", "groups"}
        backend.control = held = HeldCalls(*(calls - {call}))
        service = supervisor(backend, journal_file)
        ready = asyncio.ensure_future(service.ready())
        (await held.next(call)).let(Verdict.REFUSED)
        with pytest.raises(BackendError):
            await ready
        held.through.add(call)
        assert (await create_pool(service)).spec.name == "p"
        assert await pools(service) == ["p"]
        await killed(service)

    run(story())


def test_a_restarted_one_is_patient_with_its_journal(backend, journal_file, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    failures = iter([True] * 3)

    def opened(path, *, must_exist):
        if next(failures, False):
            raise JournalError("the folder is not mounted yet")
        return SqlJournal(path, must_exist=must_exist)

    async def story():
        backend.restarted = True
        service = supervisor(backend, journal_file, opened=opened)
        assert await pools(service) == []
        assert next(failures, None) is None
        await killed(service)

    run(story())


def test_a_shutdown_that_is_asked_for_twice_succeeds_for_both(backend, journal_file):
    async def story():
        service = supervisor(backend, journal_file)
        await service.ready()
        await asyncio.gather(service.shutdown(), service.shutdown())
        assert not journal_file.exists()

    run(story())


@pytest.mark.parametrize("is_held", [False, True])
def test_a_shutdown_refuses_requests_that_wait_for_something(backend, journal_file, is_held):
    async def story():
        service = supervisor(backend, journal_file)
        await service.ready()
        request = QueryEvents(wait_s=20.0)
        if is_held:
            backend.control, request = HeldLooks("usage"), ListExternalUsage()
        waiting = asyncio.ensure_future(asked(service, request, Details))
        for _ in range(20):
            await asyncio.sleep(0)  # the request arrives
        await service.shutdown()
        with pytest.raises(SchedulerUnavailableError, match="'mesh' was shut down"):
            await waiting

    run(story())


def test_what_is_read_for_a_caller_that_goes_away_is_given_up(backend, journal_file):
    async def story():
        service = supervisor(backend, journal_file)
        await service.ready()
        backend.control = HeldLooks("usage")
        reading = asyncio.ensure_future(asked(service, ListExternalUsage(), Listed))
        await backend.control.next("usage")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert backend.control.pending == []
        assert await pools(service) == []
        await killed(service)

    run(story())


def test_what_a_read_costs_in_calls(backend, journal_file):
    async def story():
        service = supervisor(backend, journal_file)
        running = (await service.ready()).running
        await running.reactor.flushed()
        ask = Ask(1, encode_request(GetAbout()), service._authentication.http_key)

        def read():
            try:
                service._ask_here(ask).send(None)
            except StopIteration as answered:
                return answered.value
            raise AssertionError("a read waits for something")

        _, calls = min((calls_of(read) for _ in range(3)), key=lambda counted: counted[1])
        await killed(service)
        assert calls <= A_READ

    run(story())


def test_a_shutdown_leaves_nothing(backend, journal_file, monkeypatch):
    monkeypatch.setattr(module, "_LINGER_S", 0.0)

    async def story():
        service = supervisor(backend, journal_file)
        await create_pool(service)
        backend.others = {("space", "a user's")}
        await service.shutdown()
        await asyncio.sleep(0.01)  # it ends itself shortly after its answer
        assert backend.ended
        assert backend.kept == {}
        assert not journal_file.exists()
        assert backend.others == {("space", "a user's")}

    run(story())


def test_a_shutdown_ends_though_ray_cannot_be_told_to_forget_the_scheduler(
    backend, journal_file, monkeypatch
):
    monkeypatch.setattr(module, "_LINGER_S", 0.0)

    async def story():
        service = supervisor(backend, journal_file)
        await create_pool(service)
        kept = backend.keep
        monkeypatch.setattr(backend, "keep", refused)
        await service.shutdown()
        await service.shutdown()
        await asyncio.sleep(0.01)  # it ends itself shortly after its answer
        assert backend.ended
        monkeypatch.setattr(backend, "keep", kept)
        backend.ended = False
        assert await pools(supervisor(backend, journal_file)) == [], "a new one begins"

    async def refused(key, value):
        raise BackendError("the store does not answer")

    run(story())


def test_one_that_cannot_recover_can_be_given_up(backend, journal_file, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    backend.restarted, backend.others = True, {OURS}

    async def story():
        service = supervisor(backend, journal_file)
        with pytest.raises(SchedulerUnavailableError, match="actors that it left live"):
            await service.ready()
        assert backend.others == {OURS}
        await service.shutdown()
        assert backend.others == set()

    run(story())


def test_it_ends_with_its_job(backend, journal_file):
    async def story():
        service = supervisor(backend, journal_file, detached=False, monitor_interval_s=0.01)
        backend.jobs = {"the job"}
        await create_pool(service)
        assert not backend.ended
        backend.jobs = set()
        while not backend.ended:  # noqa: ASYNC110  # the backend has no event for it
            await asyncio.sleep(0.01)  # between two looks
        assert not journal_file.exists()

    run(story())
