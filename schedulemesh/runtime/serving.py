"""What every part of the supervisor's service has: its books and executor, and when it is ready."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import JournalError
from schedulemesh.runtime.agent_registry import Agents
from schedulemesh.runtime.backend import Backend
from schedulemesh.runtime.executor import Executor
from schedulemesh.runtime.pg_manager import Groups
from schedulemesh.runtime.reactor import Reactor

Method = TypeVar("Method", bound=Callable[..., Any])


class Serving:
    """One life of a supervisor, as far as all its calls share it."""

    _settings: SchedulerSettings
    _backend: Backend
    _agents: Agents
    _groups: Groups
    #: Set when it begins.
    _executor: Executor
    #: Whether it has recovered and settled.
    is_ready = False

    @property
    def _reactor(self) -> Reactor:
        return self._executor.reactor

    async def ready(self) -> None:
        """Return once it has recovered and settled."""
        raise NotImplementedError


def when_ready(method: Method) -> Method:
    """Have a method of the supervisor wait until it has recovered and settled."""

    @functools.wraps(method)
    async def waiting(self: Serving, *args: Any, **kwargs: Any) -> Any:
        if not self.is_ready:
            await self.ready()
        return await method(self, *args, **kwargs)

    return cast("Method", waiting)


def unavailable(error: JournalError) -> Refused:
    """The answer while the journal cannot be written."""
    return Refused(reason=Reason.JOURNAL_UNAVAILABLE, error=str(error))
