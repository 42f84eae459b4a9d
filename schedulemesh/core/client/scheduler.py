"""RayScheduler: the calls of one scheduler over Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ray.actor import ActorHandle
from typing_extensions import Self, Unpack

from schedulemesh.api.results import Result
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.calls import SchedulerCalls
from schedulemesh.client.group_config import GroupConfig, parse_group_config
from schedulemesh.core.client import submissions
from schedulemesh.core.client.connection import Connection, connect, find
from schedulemesh.core.client.console import show_log
from schedulemesh.core.client.futures import RayFutureCalls
from schedulemesh.core.client.leases import RayLease
from schedulemesh.core.client.new_settings import SchedulerOptions, parse_settings
from schedulemesh.core.client.origin import own_scheduler
from schedulemesh.core.client.scheduler_list import (
    SchedulersResult,
    chosen_scheduler,
    list_schedulers,
)
from schedulemesh.core.client.state_handlers import CLOUDPICKLE, StateHandlerCalls
from schedulemesh.core.client.submission_calls import SubmissionCalls
from schedulemesh.core.client.task_request import lease_submission
from schedulemesh.core.client.warm import shipped_warm
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import NotAllowedError, ScheduleMeshError
from schedulemesh.protocol.answers import Response
from schedulemesh.protocol.public import refused

logger = logging.getLogger(__name__)


@public_calls
class RayScheduler(SchedulerCalls, SubmissionCalls, StateHandlerCalls, RayFutureCalls):
    """The scheduler of one name in one Ray namespace: finds its supervisor or creates it, and calls it.

    ``detached`` False: the scheduler ends with this job, and nothing of it stays in Ray. True: it outlives
    the job, and creating it again attaches to the living one. Without a ``name`` the driver of a job and an
    agent attach to the scheduler that started them; elsewhere it is the one that SCHEDULEMESH_NAME names, or
    the one that lives in the cluster (several: an error names them); where none lives, a new one is named
    "head". ``state_path`` is the folder of its journal on this node, or the URL of a PostgreSQL database
    (None: a folder of Ray's session). ``node_strategy`` chooses among nodes with room, ``pool_strategy``
    among pools that match a task:
    "bin_pack", "spread", "best_fit", "dominant_share" or "fragmentation_aware". ``strategies`` are asked
    before those: instances of SchedulingStrategyPlugin, import paths "module:Class", or names of installed
    ones (see docs/plugins.md).
    ``health_interval_s``: seconds between two health checks that the scheduler makes by itself, as
    ``ensure_agent_health`` does on request (None: it makes none). ``journal`` limits what the journal keeps,
    ``history`` what is kept of tasks that have ended. ``http`` is where the HTTP API listens: a port,
    "host:port", or True for 127.0.0.1:8090 (None: there is none; see docs/http_api.md). ``alerts`` changes
    alert rules and names who receives alerts (False: there are none; see docs/alerts.md). With ``auth``
    "token" every call needs a token, ``token`` or the one that is found (see docs/security.md).

    Every call returns a dict with ``success``. A refusal has ``success`` False, ``error`` (a sentence) and
    ``reason`` (a code), and changes nothing. A malformed request raises InvalidRequestError (a ValueError)
    before anything happens; SchedulerUnavailableError is raised where the supervisor does not answer. Times
    are in seconds, memory is in MB.

    As a context manager it is shut down at the end of the block if it ends with this job anyway. A detached
    scheduler and one that was attached to are left running. See ``detach`` and ``shutdown``.
    """

    _connection: Connection
    _pickling = CLOUDPICKLE
    _lease_type = RayLease

    @public(SchedulerOptions)
    def __init__(self, name: str | None = None, **options: Unpack[SchedulerOptions]) -> None:
        settings_of: dict[str, Any] = {**options}
        namespace, token = settings_of.pop("namespace", None), settings_of.pop("token", None)
        origin = own_scheduler(name, namespace)
        settings = parse_settings(*chosen_scheduler(name, namespace), **settings_of)
        show_log()
        self._connection = connect(settings, token) if origin is None else find(settings, token)

    @classmethod
    def attach(
        cls,
        name: str | None = None,
        *,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        token: str | None = None,
    ) -> Self:
        """The living scheduler of this name (None: as for the class), which is never ended by a ``with``
        block.

        Raises SchedulerNotFoundError where there is none, SchedulerExistsError for a ``state_path`` that
        is not the living one's, and NotAllowedError where it does not accept the token (None: the one in
        SCHEDULEMESH_TOKEN, or in the scheduler's file on this machine).
        """
        settings = parse_settings(*chosen_scheduler(name, namespace), state_path, detached=True)
        show_log()
        scheduler = cls.__new__(cls)
        scheduler._connection = find(settings, token)  # noqa: SLF001  # its own class
        return scheduler

    @classmethod
    def list(cls, address: str | None = None) -> SchedulersResult:
        """Return ``schedulers``: every scheduler of a Ray cluster, with ``name``, ``namespace``, whether it
        ``answers`` (if not: ``error``), ``detached``, ``started_at``, ``version``, ``node_id``,
        ``running_tasks`` and ``queued_tasks``.

        ``address``: that of the cluster; None: the Ray that this process is connected to, else the one at
        ``RAY_ADDRESS`` or on this machine. A process that is not connected is so only during the call.
        Raises SchedulerNotFoundError where there is no Ray.
        """
        return list_schedulers(address)

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

    def supervisor_handle(self) -> ActorHandle:
        """The Ray handle of the supervisor, for agents that report metrics by themselves."""
        return self._connection.handle

    def shutdown(self, force: bool = False) -> Result:
        """End every agent and the scheduler, and remove its journal.

        Refused with ``standing_scheduler``, unless ``force`` is given, where this object was made without
        ``detached`` and found a detached scheduler of that name: others may be using it. Refused with
        ``not_allowed`` where the scheduler accepts tokens only and this object's is not an operator's.
        """
        if self._connection.standing and not parse_flag(force, "force"):
            return standing_scheduler(self.name)
        try:
            self._connection.end()
        except NotAllowedError as error:
            return refused(Refused(reason=Reason.NOT_ALLOWED, error_text=str(error)))
        return {"success": True}

    def _request_lease(self, arguments: Mapping[str, object]) -> Response:
        """See LeaseCalls."""
        return submissions.responded(
            self._connection, lease_submission(self._connection.caller, arguments)
        )

    def _group_config(self, pg_pool_config: object) -> GroupConfig:
        """See PoolCalls; the class of warm hosts is sent, too."""
        caller = self._connection.caller
        return parse_group_config(pg_pool_config, lambda warm: shipped_warm(warm, caller))


def standing_scheduler(name: str) -> Result:
    """The refusal to end a standing scheduler that was found, not made."""
    return {
        "success": False,
        "error": f"scheduler {name!r} is a standing one (detached=True) that this object found, so it is not "
        "ended with it: others may be using it",
        "reason": Reason.STANDING_SCHEDULER.value,
        "hint": "shutdown(force=True) ends it for everybody; detach() leaves it",
    }
