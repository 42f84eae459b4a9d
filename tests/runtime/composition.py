"""A whole supervisor on a fake backend, put together as the real one is."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.plugins.discovery import SCHEDULING_GROUP, load_class
from schedulemesh.runtime.clock import SteadyClock
from schedulemesh.runtime.supervisor import SupervisorService
from schedulemesh.store.sql import SqlJournal
from tests.runtime.fake_backend import FakeBackend


def load_strategy(ref):
    """A strategy that is given by its path."""
    return load_class(ref.path, SCHEDULING_GROUP)()


def supervisor(backend, journal_file, *, clock=None, opened=SqlJournal, **settings):
    """A supervisor in a namespace ``space``; its journal is this file."""

    def open_journal(address, *, must_exist=False):
        return opened(journal_file, must_exist=must_exist)

    given = {"name": "mesh", "namespace": "space", "detached": True, **settings}
    return SupervisorService(
        backend=backend,
        settings=SchedulerSettings(**given),
        job_id="the job",
        open_journal=open_journal,
        load_strategy=load_strategy,
        clock=clock or SteadyClock(),
    )


def stored_bytes(folder):
    """All that the journal's files in this folder contain now.

    SQLite makes and removes a rollback journal for each commit, also between two steps of a test.
    """
    contents = []
    for path in folder.glob("j.sqlite*"):
        with contextlib.suppress(FileNotFoundError):
            contents.append(path.read_bytes())
    assert any(contents), f"no journal in {folder}"
    return b"".join(contents)


class InThread:
    """A supervisor on a loop of its own, for tests that call it from elsewhere."""

    def __init__(self, journal_file, folder=None, **settings):
        self.backend = FakeBackend()
        #: The folder of the session; None: that of all fakes.
        self.backend.folder = folder or self.backend.folder
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.service = self.do(self._made(journal_file, settings))
        self.requests = self.do(self.service.ready())
        self.running = self.requests.running
        self._await_history()

    async def _made(self, journal_file, settings):
        return supervisor(self.backend, journal_file, **settings)

    def _await_history(self):
        """Queries answer with what is written after some seconds; tests want all that has happened."""
        history = self.running.history
        if history is not None:
            caught_up = history.caught_up
            history.caught_up = lambda patience_s: caught_up(25.0 if patience_s else 0.0)

    def do(self, work):
        """The result of a coroutine on the supervisor's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def reloaded(self):
        """The state to which the journal leads."""

        async def folded():
            await self.running.reactor.flushed()
            return self.running.reactor._journal.load().fold()

        return self.do(folded())

    def close(self):
        self.do(self._ended())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _ended(self):
        self.running.executor.stop_all()
        self.service._socket.close()
        await self.running.reactor.close(destroy=False)
        # A task that is left on a closed loop is reported when it is collected, in whatever test runs then.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
