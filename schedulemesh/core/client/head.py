"""A standing scheduler on the head node, for jobs that come and go."""

from __future__ import annotations

import os
from typing import Any

import ray

from schedulemesh.config.settings import (
    DEFAULT_NAMESPACE,
    JournalSettings,
    SchedulerSettings,
    parse_journal_settings,
    parse_state_path,
)
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.asking import ask
from schedulemesh.core.client.connection import (
    Connection,
    connect,
    end,
    find,
    registered,
    require_ray,
)
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_timeout
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import SchedulerNotFoundError, SchedulerUnavailableError
from schedulemesh.protocol.answers import Details
from schedulemesh.protocol.requests import GetAbout

#: The name of a head's scheduler where none is given.
HEAD_NAME = "head"


@public_calls
class ScheduleMeshHead:
    """Starts and stops a detached scheduler that lives on the cluster's head node.

    Jobs attach with ``RayScheduler.attach(name, namespace=...)``. ``state_path`` is the folder of its
    journal on the head node (None: Ray's session folder).
    """

    def __init__(
        self,
        name: str = HEAD_NAME,
        *,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        health_interval_s: float | None = None,
        journal: JournalSettings | None = None,
    ) -> None:
        self._settings = SchedulerSettings(
            name=parse_name(name, "the head's name"),
            namespace=(
                DEFAULT_NAMESPACE if namespace is None else parse_name(namespace, "namespace")
            ),
            detached=True,
            state_path=parse_state_path(state_path),
            health_interval_s=(
                None
                if health_interval_s is None
                else parse_timeout(health_interval_s, "health_interval_s")
            ),
            journal=parse_journal_settings(journal),
        )

    def start(self) -> dict[str, Any]:
        """Start the scheduler, or find it alive; returns ``health()``."""
        require_ray()
        return self._health(connect(self._settings, node_id=head_node_id()))

    def health(self) -> dict[str, Any]:
        """Whether it lives, and if so: name, namespace, node, process, journal, epoch, and its counts.

        If not: the ``error``, and whether its name is ``registered``, so that it can be stopped.
        """
        try:
            return self._health(find(self._settings))
        except SchedulerUnavailableError as error:
            return {"success": False, "alive": False, "registered": True, "error": str(error)}
        except SchedulerNotFoundError as error:
            return {"success": False, "alive": False, "registered": False, "error": str(error)}

    def stop(self) -> dict[str, Any]:
        """End every agent of it, forget everything, and end it; one that is gone is no error.

        One that cannot begin is ended, too; its journal stays as it is.
        """
        try:
            ended = end(registered(self._settings), self._settings)
        except SchedulerNotFoundError:
            ended = False
        return {"success": True} if ended else {"success": True, "already_gone": True}

    def _health(self, connection: Connection) -> dict[str, Any]:
        found = ask(connection, GetAbout(), Details)
        if isinstance(found, Refused):
            return {"success": False, "alive": True, "registered": True, "error": found.error}
        return {"success": True, "alive": True, **found.facts}


def head_node_id() -> str:
    """The id of the cluster's head node."""
    for node in ray.nodes():
        if node["Alive"] and "node:__internal_head__" in node["Resources"]:
            return str(node["NodeID"])
    return str(ray.get_runtime_context().get_node_id())
