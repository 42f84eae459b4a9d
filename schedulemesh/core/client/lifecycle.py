"""The lifecycle of a scheduler object: what it is connected to, leaving the scheduler, and ending it."""

from __future__ import annotations

import logging
from types import TracebackType

from ray.actor import ActorHandle
from typing_extensions import Self

from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.notebook import table_of
from schedulemesh.core.client.results import Result, refused, standing_scheduler
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import NotAllowedError, ScheduleMeshError

logger = logging.getLogger(__name__)


@public_calls
class SchedulerObject:
    """An object that is connected to the supervisor of one scheduler."""

    _connection: Connection

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.described()}>"

    def _repr_html_(self) -> str:
        return table_of(self._connection.description())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection.state != "open":
            return
        if not self._connection.owned:
            self.detach()
            return
        try:
            self.shutdown()
        except ScheduleMeshError as failed:
            if error is None:
                raise
            # The error of the block matters more than that of leaving it.
            logger.warning("%r was not shut down: %s", self, failed)

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self._connection.settings.name

    def supervisor_handle(self) -> ActorHandle:
        """The Ray handle of the supervisor, for agents that report metrics by themselves."""
        return self._connection.handle

    def detach(self) -> None:
        """Use this object no more. The scheduler keeps running: a detached one until it is shut down, others
        until their job ends.
        """
        self._connection.leave()

    def shutdown(self, force: bool = False) -> Result:
        """End every agent and the scheduler, and remove its journal.

        Refused with ``standing_scheduler`` where this object was made without ``detached`` and found a
        detached scheduler of that name, which others may be using, unless ``force`` is given, and with
        ``not_allowed`` where the scheduler accepts tokens only and this object's is not an operator's.
        """
        if self._connection.standing and not parse_flag(force, "force"):
            return standing_scheduler(self.name)
        try:
            self._connection.end()
        except NotAllowedError as error:
            return refused(Refused(reason=Reason.NOT_ALLOWED, error=str(error)))
        return {"success": True}
