"""A lease as a process of the cluster has it: with its placement groups, and followed over Ray."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from concurrent.futures import Future
from typing import cast

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.placement_group import PlacementGroup

from schedulemesh.api.leases import WatchLease
from schedulemesh.client.leases import LEASE_ENDED, LEASE_RETRY_S, Lease
from schedulemesh.core.backend.ray_groups import placement_groups_of
from schedulemesh.core.client.connection import Connection
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import LeaseView, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.agents.references import NO_REFS

logger = logging.getLogger(__name__)

#: Seconds before a lease that was granted just now is followed: following it at once would delay the first
#: use of its groups.
_FIRST_USE_S = 0.05

_BEFORE = ("queued", "starting")
_SCHEDULER_ENDED = LeaseView(state="unknown", error="the scheduler has ended")


class RayLease(Lease):
    """A lease with its placement groups."""

    _connection: Connection

    @property
    def placement_groups(self) -> list[PlacementGroup]:
        """See Lease."""
        view = self._granted()
        if view.shape is None:
            raise TypeError("a lease that was granted has a shape")
        return placement_groups_of(view.ray_id, view.shape)

    def _start_following(self) -> None:
        asyncio.run_coroutine_threadsafe(self._watch(), _watching())

    async def _watch(self) -> None:
        """Follow the lease to its end, and call the holder back at the notice of its eviction."""
        if self.state not in _BEFORE:
            await asyncio.sleep(_FIRST_USE_S)
        while (
            self.state not in LEASE_ENDED
            and self._connection.state == "open"
            and ray.is_initialized()
        ):
            try:
                answer = await self._asked_once(self._next_look())
            except ActorDiedError:
                self._take(_SCHEDULER_ENDED)
            except RayError as error:
                logger.debug("lease %s: %s", self.task_id, error)
                await asyncio.sleep(LEASE_RETRY_S)
            except InvalidRequestError:
                return  # the scheduler object has detached
            else:
                self._take_answer(answer)
        if self.state not in LEASE_ENDED and self._connection.state == "ended":
            self._take(_SCHEDULER_ENDED)

    async def _asked_once(self, request: WatchLease) -> LeaseView | Refused:
        """The answer to a request. It is not repeated by Ray, which would print that it does so where the
        supervisor is shut down meanwhile; ``_watch`` asks again.
        """
        connection = self._connection
        once = connection.handle.ask.options(max_task_retries=0)
        ref = once.remote(encode_request(request), NO_REFS, connection.credential)
        answer = await asyncio.wrap_future(cast("Future[object]", ref.future()))
        return decode_answer(cast("bytes", answer), LeaseView)


@functools.cache
def _watching() -> asyncio.AbstractEventLoop:
    """The event loop that follows all leases of this process, in a thread of its own. It waits in Python: a
    thread that is within Ray when the process ends would end it with an error.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="leases", daemon=True).start()
    return loop
