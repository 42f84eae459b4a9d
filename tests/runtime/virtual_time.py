"""Runs a supervisor in virtual time: nothing sleeps, no thread takes part, and every run is the same."""

from __future__ import annotations

import asyncio
import math
import selectors
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from schedulemesh.runtime import reactor, request_socket, supervisor
from schedulemesh.runtime.agents import command_queue, eviction, job_cleanup
from schedulemesh.runtime.clock import SteadyClock
from schedulemesh.runtime.groups import manager, warm_pool
from schedulemesh.runtime.journal import compaction, snapshots
from schedulemesh.runtime.services import agents, pools, restarts
from schedulemesh.store import writer
from tests.runtime.sliced_thread import encode_chunk

#: The modules that read the monotonic clock.
_TIMED = (
    agents,
    command_queue,
    eviction,
    job_cleanup,
    manager,
    pools,
    reactor,
    restarts,
    snapshots,
    supervisor,
    warm_pool,
)


#: Where so many rounds of the loop take no time, somebody waits for less than its resolution: every
#: further round takes so many seconds.
_MOST_ROUNDS, _STEP_S = 10_000, 1e-9


class _Selector(selectors.DefaultSelector):
    """Where the loop would wait, its time advances instead; it has no files that anything could come from."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        #: How many rounds have taken no time.
        self._rounds = 0

    def select(self, timeout=None):
        assert timeout is not None, "everything waits for something that cannot happen"
        self._rounds = 0 if timeout > 0.0 else self._rounds + 1
        self.now += max(timeout, 0.0) if self._rounds < _MOST_ROUNDS else _STEP_S
        return []


async def _at_once(call):
    return call()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time advances only when nothing is left to do; threads' work runs inline."""

    def __init__(self):
        self._virtual = _Selector()
        #: Does what snapshots have a thread do.
        self.snapshot_work = _at_once
        super().__init__(self._virtual)

    def time(self):
        return self._virtual.now

    async def in_thread_of_snapshots(self, call):
        return await self.snapshot_work(call)

    def _write_to_self(self):
        """Nothing waits that would have to be woken."""

    def run_in_executor(self, executor, func, *args):
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # whoever waits gets it, as from a thread
            done.set_exception(error)
        return done


class _NoThread:
    """The thread of a writer that needs none."""

    def __init__(self, **_how):
        pass

    def start(self):
        pass

    def join(self):
        pass


class _NoSocket:
    """In place of a socket: nothing could come from one."""

    def __init__(self, folder, name):
        raise OSError("in virtual time nobody listens")


class InlineWriter(writer.GroupWriter):
    """Writes on the loop instead of in its thread, one entry at a time."""

    def _put(self, kind, *content):
        done = self._loop.create_future()
        self._loop.call_soon(self._work, kind(*content, done))
        return done

    def _work(self, item):
        if isinstance(item, writer._Entry):
            self._write_and_tell([item])
        else:
            self._tell([item.done], *self._attempt(item.call))

    def _tell(self, futures, value, error):
        writer._resolve(futures, value, error)


@contextmanager
def running():
    """Within, a loop of virtual time, and supervisors that run on it."""
    loop = VirtualLoop()
    with pytest.MonkeyPatch.context() as patch:
        for module in _TIMED:
            patch.setattr(
                module, "time", SimpleNamespace(monotonic=loop.time, perf_counter=loop.time)
            )
        patch.setattr(compaction, "encode_chunk", encode_chunk)
        patch.setattr(compaction, "PROCESS_BYTES", math.inf)
        patch.setattr(snapshots, "in_thread", loop.in_thread_of_snapshots)
        patch.setattr(reactor, "GroupWriter", InlineWriter)
        patch.setattr(request_socket, "ListeningSocket", _NoSocket)
        patch.setattr(writer, "threading", SimpleNamespace(Thread=_NoThread))
        try:
            yield loop
        finally:
            loop.run_until_complete(_cancelled())
            loop.close()


def run(story, within_s=10_000.0):
    """The result of a coroutine; it has so many seconds of virtual time."""
    with running() as loop:
        return loop.run_until_complete(asyncio.wait_for(story, within_s))


async def _cancelled():
    """End what the story left, so that nothing is destroyed while it is pending."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def clock(began=lambda: 0.0, *, distinct=False):
    """A supervisor's clock that shows the loop's time, and when that began in seconds since 1970.
    ``distinct``: no two readings are the same, as on a real machine.
    """
    loop = asyncio.get_running_loop()
    latest = 0.0

    def now():
        return began() + loop.time()

    def ticks():
        nonlocal latest
        latest = max(now(), math.nextafter(latest, math.inf) if distinct else 0.0)
        return latest

    return SteadyClock(system=now, ticks=ticks, boot_id=lambda: "boot")
