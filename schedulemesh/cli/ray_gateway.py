"""The connection of commands to a scheduler over Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import ray

from schedulemesh.api.call import Call
from schedulemesh.api.history import QueryEvents
from schedulemesh.cli.command import Target, ended_by_sigterm
from schedulemesh.cli.exits import UnreachableError, accepted
from schedulemesh.cli.following import Part, by_requests
from schedulemesh.client import asking
from schedulemesh.core.backend.ray_internals import errors_on_stderr
from schedulemesh.core.client.connection import Connection, find
from schedulemesh.core.client.job_request import job_submission
from schedulemesh.core.client.new_settings import parse_settings
from schedulemesh.core.client.origin import task_of
from schedulemesh.core.client.ray_cluster import join
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.scheduler_list import chosen_scheduler
from schedulemesh.core.client.task_request import Caller
from schedulemesh.protocol.answers import AnswerT, Details, Response


class RayGateway:
    """Asks the supervisor through its Ray handle."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def name(self) -> str:
        """See Gateway."""
        return self._connection.settings.name

    @property
    def namespace(self) -> str:
        """See Gateway."""
        return self._connection.settings.namespace

    def ask(self, request: Call, expected: type[AnswerT]) -> AnswerT:
        """Send a request and wait for its answer; see Gateway."""
        return accepted(asking.ask(self._connection, request, expected))

    def job_submission(self, fields: Mapping[str, object]) -> Callable[[], Response]:
        """Sends the submission of a job; see Gateway."""
        caller = Caller(
            namespace=self.namespace,
            runtime_env={},
            task_id=task_of(self.name, self.namespace),
        )
        request = job_submission(caller, fields).request
        return lambda: self.ask(request, Response)

    def follow(self, query: QueryEvents) -> Iterator[Part]:
        """The events after ``query.after``, as they happen; see Gateway."""
        return by_requests(lambda request: self.ask(request, Details).facts, query)


@contextmanager
def connected(target: Target) -> Iterator[RayGateway]:
    """Within, the scheduler can be asked."""
    with on_ray(target.address):
        chosen = chosen_scheduler(target.name, target.namespace)
        settings = parse_settings(*chosen, None, detached=True)
        yield RayGateway(find(settings))


@contextmanager
def on_ray(address: str) -> Iterator[None]:
    """Within, this process is connected to Ray, which prints nothing on stdout; it stays connected if it was
    before. Raises UnreachableError.
    """
    with errors_on_stderr():
        if ray.is_initialized():
            yield
            return
        with _joined(address):
            yield


@contextmanager
def _joined(address: str) -> Iterator[None]:
    """Within, this process has joined the Ray at an address. Raises UnreachableError."""
    try:
        join(address, log_to_driver=False)
    except ConnectionError as error:
        raise UnreachableError(
            f"no Ray cluster was joined: {error}. `ray start --head` starts one on this machine"
        ) from None
    try:
        # Ray has set a handler of its own, which prints a stack.
        with ended_by_sigterm():
            yield
    finally:
        ray.shutdown()


@contextmanager
def attached(target: Target) -> Iterator[RayScheduler]:
    """Within, the scheduler's public calls, for commands that need more than one request."""
    with on_ray(target.address):
        yield RayScheduler.attach(target.name, namespace=target.namespace)
