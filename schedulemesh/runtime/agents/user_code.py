"""User code as bytes: classes and arguments kept in memory, and workers that run it. Never unpickled here."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.agents import Handled, MessageError, line_and_traceback, unpack
from schedulemesh.runtime.agents.start import SET_AT_ONCE, environment_limit, environment_of
from schedulemesh.runtime.backend import Backend, BackendError, BackendTimeoutError
from schedulemesh.runtime.reactor import Reactor

logger = logging.getLogger(__name__)

#: Bytes of the classes and of the arguments of recent submissions that are kept in memory.
_CLASS_BYTES, _ARGUMENT_BYTES = 64 * 1024 * 1024, 16 * 1024 * 1024


class BlobCache:
    """Stored bytes that need not be read from the journal: an LRU cache with a limit on its size in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._blobs: dict[str, bytes] = {}

    def get(self, key: str | None) -> bytes | None:
        """The bytes; None: they are not cached."""
        data = self._blobs.pop(key, None) if key is not None else None
        if key is not None and data is not None:
            self._blobs[key] = data
        return data

    def put(self, key: str, data: bytes) -> None:
        """Cache these bytes, unless they exceed the limit alone."""
        self._size -= len(self._blobs.pop(key, b""))
        if len(data) > self._limit:
            return
        self._blobs[key] = data
        self._size += len(data)
        while self._size > self._limit:
            self._size -= len(self._blobs.pop(next(iter(self._blobs))))


class UserCode:
    """Finds the bytes of user code, and has a worker of the backend run it."""

    def __init__(self, backend: Backend, reactor: Reactor) -> None:
        self._backend, self._reactor = backend, reactor
        self._classes = BlobCache(_CLASS_BYTES)
        #: So that starts need not read them from the journal.
        self._arguments = BlobCache(_ARGUMENT_BYTES)

    def expect(self, arguments_key: str | None, blobs: Mapping[str, bytes]) -> None:
        """An agent with these arguments may be started soon."""
        data = blobs.get(arguments_key or "")
        if arguments_key is not None and data is not None:
            self._arguments.put(arguments_key, data)

    async def argument_bytes(self, key: str | None) -> bytes | None:
        """An agent's arguments, from memory or from the journal; None: it has none."""
        return self._arguments.get(key) or await self._reactor.fetch(key)

    async def class_bytes(self, key: str, blobs: Mapping[str, bytes] | None = None) -> bytes | None:
        """A class, from the request's blobs, from memory or from the journal; None: it is not stored."""
        sent_bytes = None if blobs is None else blobs.get(key)
        class_bytes = sent_bytes or self._classes.get(key) or await self._reactor.fetch(key)
        if class_bytes is not None:
            self._classes.put(key, class_bytes)
        return class_bytes

    async def probe(self, class_key: str, shipped: bytes, agent: AgentSpec) -> Refused | None:
        """Load the class in a worker of its own before anything is evicted for it; a refusal: it fails."""
        env = environment_of(agent)
        timeout_s = self._reactor.state.policy.start_timeout
        if agent.start_limits is not None:
            timeout_s = agent.start_limits.load or timeout_s
        if env.keys() - SET_AT_ONCE:
            environment_limit_s = (
                None if agent.start_limits is None else agent.start_limits.environment
            )
            timeout_s += environment_limit_s or environment_limit(env)
        try:
            answer = await self._backend.probe_class(shipped, timeout_s, env)
            error = unpack(answer, Handled).error
        except BackendTimeoutError as late:
            return Refused(
                reason=Reason.AGENT_START_TIMEOUT,
                error_text=say("class_not_loaded_in_time", why=str(late)),
            )
        except (BackendError, MessageError) as died:
            error = str(died)
        if error:
            logger.warning("the class of agent %s cannot be loaded: %s", agent.name, error)
            line, detail = line_and_traceback(error)
            return Refused(
                reason=Reason.AGENT_START_FAILED,
                error_text=say("class_cannot_be_loaded", why=line),
                detail=detail,
            )
        await self._reactor.step(s.ClassProbed(class_key=class_key))
        return None

    async def restore_state(self, restorer: bytes, saved: bytes) -> Handled:
        """Call a pool's restorer in a worker of its own, for at most ``save_timeout``."""
        timeout_s = self._reactor.state.policy.save_timeout
        try:
            return unpack(await self._backend.restore_state(restorer, saved, timeout_s), Handled)
        except (BackendError, MessageError) as error:
            return Handled(error=str(error))
