"""The part of every scheduler object that sends: its connection, and what it sent before."""

from __future__ import annotations

from typing import Any

import ray

from schedulemesh.core.client import results as replies
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.console import show_log
from schedulemesh.core.client.task_request import (
    Caller,
    Submission,
)
from schedulemesh.engine.messages.outcomes import ProbeNeeded, Refused


class Client:
    """Sends requests of one job to one supervisor."""

    def _take(self, connection: Connection) -> None:
        show_log()
        self._connection = connection
        self._caller = _caller()
        self._sent: set[str] = set()

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self._connection.settings.name

    def supervisor_handle(self) -> Any:
        """The Ray handle of the supervisor, which agents report metrics to."""
        return self._connection.handle

    def _submit(self, found: Submission) -> replies.SubmitResult:
        """Send it; the class's bytes go along only where the supervisor may not have them."""
        class_key = found.stimulus.agent.class_key
        blobs = dict(found.blobs)
        if class_key in self._sent:
            del blobs[class_key]
        reply = self._connection.call("submit", found.stimulus, blobs, found.refs)
        if isinstance(reply.outcome, ProbeNeeded):
            reply = self._connection.call("submit", found.stimulus, found.blobs, found.refs)
        dry_run = found.stimulus.dry_run
        if not dry_run and not isinstance(reply.outcome, Refused):
            self._sent.add(class_key)
        return replies.submitted(
            reply.outcome,
            reply.handle,
            dry_run=dry_run,
            group=reply.group,
            named_resources=not found.stimulus.default_resources,
        )


def _caller() -> Caller:
    context = ray.get_runtime_context()
    return Caller(namespace=context.namespace, runtime_env=dict(context.runtime_env))
