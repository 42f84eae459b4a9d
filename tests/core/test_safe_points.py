"""Saves at safe points: exactly one thread saves, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import Future

import pytest
from ray import cloudpickle

from schedulemesh.core.agent import control_channel as channels
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.control_channel import ControlChannel
from schedulemesh.core.agent.safe_points import SafePoint, SaveRequest
from schedulemesh.protocol.agents import Command
from tests.core.agent_inits import agent_init

#: Seconds after which a test has failed.
LONG = 30.0


@pytest.fixture
def channel(monkeypatch):
    made = ControlChannel(agent_init(), None)
    monkeypatch.setattr(channels, "_current", made)
    return made


def save(channel, *, wait_s=LONG, within_s=2 * LONG):
    command = Command(
        command_id=1, epoch=1, kind="save", seconds=wait_s, within_s=within_s, limit_bytes=10**6
    )
    return channel._carry_out(command)


def carry_out(channel, kind):
    return channel._carry_out(Command(command_id=2, epoch=1, kind=kind, task_id="t"))


class Looping(AgentActor):
    """Works in steps, on a thread of its own, each of which begins when it is told."""

    def __init__(self, save=lambda step: step):
        super().__init__("a")
        self.step = 0
        self.saved_on = []
        self._save = save
        self._steps = threading.Semaphore(0)
        self._reached = threading.Semaphore(0)

    def work(self, channel, steps):
        with channel.running:
            for _ in range(steps):
                self._steps.acquire(timeout=LONG)
                self.step += 1
                self._reached.release()
                self.safe_point()
        return self.step

    def go(self, steps=1):
        for _ in range(steps):
            self._steps.release()
            assert self._reached.acquire(timeout=LONG)

    def save_state(self):
        self.saved_on.append(threading.current_thread().name)
        return self._save(self.step)


class Worker:
    """Runs ``work`` on a thread, and asks for commands on others."""

    def __init__(self, channel, built, steps):
        channel.attach(built)
        self.channel, self.built = channel, built
        self.result = on_thread("worker", lambda: built.work(channel, steps))
        built.go()

    def saves(self, **how):
        """A save that is requested now; it is waited for until a request is there."""
        before = self.channel._points._request
        answer = on_thread("channel", lambda: save(self.channel, **how))
        while self.channel._points._request is before and not answer.done():
            threading.Event().wait(0.001)
        return answer


def on_thread(name, call):
    """The result of a call on a thread of this name."""
    result = Future()

    def run():
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the test gets it
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result


def test_the_method_saves_at_its_next_safe_point_and_waits_there(channel):
    built = Looping()
    worker = Worker(channel, built, steps=3)
    saving = worker.saves()
    built.go()
    result = saving.result(LONG)
    assert (result.consistent, cloudpickle.loads(result.data)) == (True, 2)
    assert built.saved_on == ["worker"]
    assert not worker.result.done()
    carry_out(channel, "resume")
    built.go()
    assert worker.result.result(LONG) == 3


def test_a_save_that_takes_longer_than_the_wait_is_not_begun_again_by_another_thread(channel):
    begun, ends = threading.Event(), threading.Event()

    def slow(step):
        begun.set()
        assert ends.wait(LONG)
        return step

    built = Looping(slow)
    worker = Worker(channel, built, steps=2)
    saving = worker.saves(wait_s=0.3)
    built.go()
    assert begun.wait(LONG)
    threading.Event().wait(0.5)  # past the wait for a safe point
    ends.set()
    assert saving.result(LONG).consistent
    assert built.saved_on == ["worker"]
    carry_out(channel, "cancel")
    worker.result.result(LONG)


def test_a_save_that_never_returns_is_given_up_in_time(channel):
    ends = threading.Event()
    built = Looping(lambda step: ends.wait(LONG))
    worker = Worker(channel, built, steps=2)
    saving = worker.saves(wait_s=0.1, within_s=0.3)
    built.go()
    result = saving.result(LONG)
    assert (result.success, result.error) == (
        False,
        "save_state() did not return within 0.3 s",
    )
    ends.set()
    carry_out(channel, "resume")
    worker.result.result(LONG)


def test_a_save_that_is_requested_at_a_safe_point_is_made_there_and_is_consistent(channel):
    built = Looping()
    worker = Worker(channel, built, steps=2)
    first = worker.saves()
    built.go()
    assert first.result(LONG).consistent
    second = save(channel)
    assert (second.consistent, cloudpickle.loads(second.data)) == (True, 2)
    assert built.saved_on == ["worker", "worker"]
    carry_out(channel, "cancel")
    assert worker.result.result(LONG) == 2


def test_of_two_threads_one_saves_and_the_other_goes_on(channel):
    built = Looping()
    worker = Worker(channel, built, steps=3)
    other = on_thread("other", lambda: built.work(channel, 3))
    saves = [worker.saves()]
    built.go()
    assert saves[0].result(LONG).consistent
    built.go()  # the other's, as who saved stands at its safe point
    saves.append(on_thread("channel", lambda: save(channel)))
    assert saves[1].result(LONG).consistent
    assert len(built.saved_on) == 2
    assert not worker.result.done()
    carry_out(channel, "resume")
    built.go(3)
    assert max(worker.result.result(LONG), other.result(LONG)) == built.step == 6
    assert len(built.saved_on) == 2


def test_a_save_beside_the_method_is_not_made_again_at_the_next_safe_point(channel):
    built = Looping()
    worker = Worker(channel, built, steps=2)
    late = worker.saves(wait_s=0.05).result(LONG)
    assert late.consistent is False
    built.go()
    assert worker.result.result(LONG) == 2, "it waits for nobody"
    assert built.saved_on == ["channel"]


def test_whoever_cancels_while_the_method_saves_does_not_leave_it_waiting(channel):
    begun, ends = threading.Event(), threading.Event()

    def slow(step):
        begun.set()
        return ends.wait(LONG)

    built = Looping(slow)
    worker = Worker(channel, built, steps=2)
    saving = worker.saves(wait_s=0.1, within_s=0.2)
    built.go()
    assert begun.wait(LONG)
    assert saving.result(LONG).error
    carry_out(channel, "cancel")
    ends.set()
    assert worker.result.result(LONG) == 2


class OnLoop(AgentActor):
    """Works in steps in a coroutine. ``awaits``: whether it awaits its safe points."""

    def __init__(self, *, awaits):
        super().__init__("a")
        self.step, self.stop = 0, False
        self.awaits = awaits
        self.stepped = asyncio.Event()

    async def work(self, channel):
        channel.loop = asyncio.get_running_loop()
        with channel.running:
            while not self.stop:
                self.step += 1
                self.stepped.set()
                point = self.safe_point()
                if self.awaits:
                    await point
                await asyncio.sleep(0.001)  # the step itself
        return self.step


class SavesAtOnce(OnLoop):
    def save_state(self):
        return self.step

    def cancel(self, task_id):
        self.stop = True
        return {"success": True}


class SavesAsCoroutine(OnLoop):
    async def save_state(self):
        before = self.step
        await asyncio.sleep(0.02)  # it would work on meanwhile, if it were not at its safe point
        return (before, self.step)

    async def cancel(self, task_id):
        self.stop = True
        return {"success": True}


async def saved_and_cancelled(channel, built):
    """The results of two saves, by how much it worked between them, and of its cancellation."""
    channel.attach(built)
    working = asyncio.ensure_future(built.work(channel))
    await built.stepped.wait()
    first = await asyncio.to_thread(save, channel)
    at_first = built.step
    await asyncio.sleep(0.05)  # that it takes no step has no event
    passed = built.step - at_first
    second = await asyncio.to_thread(save, channel)
    cancelled = await asyncio.to_thread(carry_out, channel, "cancel")
    assert cancelled.success
    await asyncio.wait_for(working, LONG)
    return first, second, passed


def test_a_coroutine_that_awaits_its_safe_points_is_saved_there_and_waits(channel):
    first, second, passed = asyncio.run(saved_and_cancelled(channel, SavesAtOnce(awaits=True)))
    assert passed == 0
    assert first.consistent
    assert second.consistent
    assert first.data == second.data


def test_a_coroutine_that_does_not_await_is_saved_and_goes_on(channel):
    first, second, passed = asyncio.run(saved_and_cancelled(channel, SavesAtOnce(awaits=False)))
    assert passed > 0
    assert first.consistent
    assert second.consistent


def test_a_save_that_is_a_coroutine_runs_while_its_method_awaits_the_safe_point(channel):
    first, second, passed = asyncio.run(saved_and_cancelled(channel, SavesAsCoroutine(awaits=True)))
    assert passed == 0
    assert first.consistent
    assert second.consistent
    before, after = cloudpickle.loads(first.data)
    assert before == after


def test_a_save_that_is_a_coroutine_beside_its_method_says_that_it_is_torn(channel):
    first, second, passed = asyncio.run(
        saved_and_cancelled(channel, SavesAsCoroutine(awaits=False))
    )
    assert passed > 0
    assert not first.error
    assert not second.error
    assert first.consistent is False
    assert second.consistent is False


class Blocking(SavesAsCoroutine):
    """Its method blocks the loop on which its save would run."""

    def __init__(self):
        super().__init__(awaits=False)
        self.begun, self.ends = threading.Event(), threading.Event()

    async def block(self, channel):
        channel.loop = asyncio.get_running_loop()
        with channel.running:
            self.begun.set()
            while not self.ends.wait(0.01):
                self.safe_point()
        await asyncio.gather(*channel._saves)


@pytest.mark.parametrize("kind", ["save", "cancel"])
def test_a_loop_that_is_blocked_costs_a_command_its_time_and_no_more(channel, kind):
    built = Blocking()
    channel.attach(built)
    working = on_thread("loop", lambda: asyncio.run(built.block(channel)))
    assert built.begun.wait(LONG)
    command = Command(command_id=1, epoch=1, kind=kind, seconds=0.1, within_s=0.3, limit_bytes=99)
    result = on_thread("channel", lambda: channel._carry_out(command)).result(LONG)
    assert result.success is False
    assert "did not return within 0.3 s" in result.error
    built.ends.set()
    working.result(LONG)


def test_a_safe_point_can_be_awaited_where_there_is_no_scheduler(monkeypatch):
    monkeypatch.setattr(channels, "_current", None)

    async def awaited():
        await AgentActor("a").safe_point()

    asyncio.run(awaited())


def test_a_safe_point_is_a_plain_value_for_callers_in_other_processes(channel):
    point = SafePoint(channel._points, SaveRequest(limit_bytes=1, until=0.0))

    async def awaited():
        await pickle.loads(pickle.dumps(point))

    asyncio.run(awaited())
