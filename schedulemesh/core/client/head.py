"""Starts, checks and stops a detached scheduler on the cluster's head node."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
import ray

from schedulemesh.api.cluster import GetAbout
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import details
from schedulemesh.client.listings import AboutResult, HeadHealth, HeadStopped
from schedulemesh.client.results import combined
from schedulemesh.config.alerts import AlertSettings
from schedulemesh.config.settings import (
    DEFAULT_NAME,
    HistorySettings,
    JournalSettings,
    SchedulerSettings,
)
from schedulemesh.core.client.connection import (
    Connection,
    connect,
    end,
    find,
    require_ray,
    supervisor_handle,
)
from schedulemesh.core.client.credentials import credential_of, token_of
from schedulemesh.core.client.new_settings import parse_settings
from schedulemesh.core.client.scheduler_list import chosen_scheduler
from schedulemesh.errors import SchedulerNotFoundError, SchedulerUnavailableError


@public_calls
class ScheduleMeshHead:
    """Starts, checks and stops a detached scheduler on the cluster's head node.

    Without a ``name`` it is the scheduler that lives in the cluster, or a new one named "head". Jobs attach
    to it with ``RayScheduler.attach()``. ``state_path`` is the folder of its journal on the head node, or the
    URL of a PostgreSQL database (None: a folder of Ray's session). ``health_interval_s``: seconds between two
    health checks that it makes by itself (None: it makes none). ``http`` is where its HTTP API listens,
    ``alerts`` who receives alerts, ``auth`` whether every call needs a token, and ``token`` that of this
    object, as for RayScheduler.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        health_interval_s: float | None = None,
        journal: JournalSettings | None = None,
        http: bool | int | str | Mapping[str, object] | None = None,
        alerts: AlertSettings | Mapping[str, object] | bool | None = None,
        history: HistorySettings | None = None,
        auth: str | None = None,
        token: str | None = None,
    ) -> None:
        self._settings = parse_settings(
            DEFAULT_NAME if name is None else name,
            namespace,
            state_path,
            detached=True,
            health_interval_s=health_interval_s,
            journal=journal,
            http=http,
            alerts=alerts,
            history=history,
            auth=auth,
            what="the head's name",
        )
        self._token = token
        self._is_named, self._namespace = name is not None, namespace

    @property
    def name(self) -> str:
        """The scheduler's name. Raises InvalidRequestError where none was given and several live."""
        return self._chosen().name

    def _chosen(self) -> SchedulerSettings:
        """The settings with the name of the scheduler, which is looked for once where none was given."""
        if not self._is_named:
            self._settings = msgspec.structs.replace(
                self._settings, **chosen_scheduler(None, self._namespace)._asdict()
            )
            self._is_named = True
        return self._settings

    def start(self) -> HeadHealth:
        """Start the scheduler, or find it alive; returns what ``health`` returns.

        Raises SchedulerExistsError where one of that name is alive with other settings, and
        SchedulerUnavailableError where it cannot start.
        """
        require_ray()
        return _health(connect(self._chosen(), self._token, head_node_id()))

    def health(self) -> HeadHealth:
        """Return ``alive``, and with it what ``RayScheduler.about`` returns.

        Where it is not alive: ``error``, and ``registered``: whether its name is taken, so that ``stop`` is
        needed to free it.
        """
        try:
            return _health(find(self._chosen(), self._token))
        except SchedulerUnavailableError as error:
            return {"success": False, "alive": False, "registered": True, "error": str(error)}
        except SchedulerNotFoundError as error:
            return {"success": False, "alive": False, "registered": False, "error": str(error)}

    def stop(self) -> HeadStopped:
        """End every agent and the scheduler, and remove its journal.

        One that had ended before is a success with ``already_gone``. One that cannot start is ended with its
        agents, and its journal stays.
        """
        try:
            settings = self._chosen()
            handle = supervisor_handle(settings)
            credential = credential_of(token_of(settings, self._token))
            ended = end(handle, settings, credential)
        except SchedulerNotFoundError:
            ended = False
        return {"success": True} if ended else {"success": True, "already_gone": True}


def _health(connection: Connection) -> HeadHealth:
    about = details(connection, GetAbout(), AboutResult)
    if not about["success"]:
        return combined(HeadHealth, about, {"alive": True, "registered": True})
    return combined(HeadHealth, about, {"alive": True})


def head_node_id() -> str:
    """The id of the cluster's head node."""
    for node in ray.nodes():
        if node["Alive"] and "node:__internal_head__" in node["Resources"]:
            return str(node["NodeID"])
    return str(ray.get_runtime_context().get_node_id())
