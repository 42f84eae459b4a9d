"""The part of every scheduler object that sends: its connection, and what it sent before."""

from __future__ import annotations

from typing import Any

import msgspec
import ray

from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.asking import ask, ask_with_handles
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.console import show_log
from schedulemesh.core.client.task_request import Caller, Submission
from schedulemesh.engine.messages.outcomes import ProbeNeeded, Refused
from schedulemesh.protocol.answers import AnswerT, Details, Listed, Response
from schedulemesh.protocol.requests import AnyRequest


@public_calls
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

    def _ask(self, request: AnyRequest, expected: type[AnswerT]) -> AnswerT | Refused:
        """The answer of the expected kind, or why the request was turned down."""
        return ask(self._connection, request, expected)

    def _reply(self, request: AnyRequest) -> Response:
        """The reply to a request that ends in an outcome."""
        found = self._ask(request, Response)
        return Response(outcome=found) if isinstance(found, Refused) else found

    def _details(self, request: AnyRequest) -> dict[str, Any]:
        """The answer to a request for plain data."""
        found = self._ask(request, Details)
        if isinstance(found, Refused):
            return dict(results.refused(found))
        return {"success": True, **found.facts}

    def _listed(self, request: AnyRequest, name: str) -> dict[str, Any]:
        """The answer to a request for rows, under this name."""
        found = self._ask(request, Listed)
        if isinstance(found, Refused):
            return dict(results.refused(found))
        return {"success": True, name: found.rows}

    def _submit(self, found: Submission) -> results.SubmitResult:
        """Send it; the class's bytes go along only where the supervisor may not have them."""
        request, class_key = found.request, found.request.agent.class_key
        if class_key in self._sent:
            others = {key: data for key, data in request.blobs.items() if key != class_key}
            request = msgspec.structs.replace(request, blobs=others)
        reply, handle = self._submitted(found, request)
        if isinstance(reply.outcome, ProbeNeeded):
            reply, handle = self._submitted(found, found.request)
        dry_run = request.dry_run
        if not dry_run and not isinstance(reply.outcome, Refused):
            self._sent.add(class_key)
        return results.submitted(
            reply.outcome,
            handle,
            dry_run=dry_run,
            group=reply.group,
            named_resources=not request.default_resources,
        )

    def _submitted(self, found: Submission, request: AnyRequest) -> tuple[Response, Any]:
        answer, handles = ask_with_handles(self._connection, request, Response, found.refs)
        reply = Response(outcome=answer) if isinstance(answer, Refused) else answer
        return reply, handles[0] if handles else None


def _caller() -> Caller:
    context = ray.get_runtime_context()
    return Caller(namespace=context.namespace, runtime_env=dict(context.runtime_env))
