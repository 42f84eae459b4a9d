"""The calls about leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import Unpack

from schedulemesh.api.leases import WatchLease
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import ask
from schedulemesh.client.leases import Lease
from schedulemesh.client.results import submitted
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.task_fields import (
    DescriptionFields,
    PlacementFields,
    QueueFields,
)
from schedulemesh.client.tasks import cancel_task
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.errors import InvalidRequestError, LeaseRefusedError, shown
from schedulemesh.protocol.answers import LeaseView, Response


class LeaseFields(DescriptionFields, PlacementFields, QueueFields, total=False):
    """What ``lease`` takes by keyword only, beside what it names itself."""

    #: A node label: all groups are on nodes with the same value of it.
    same_label: str | None
    #: Seconds after which it ends unless it is renewed; None: it need not be, over HTTP it is renewed by
    #: itself while this process lives.
    ttl_s: float | None
    #: Whether it outlives the Ray job of this process; over HTTP needs ``ttl_s``.
    detached: bool
    request_id: str | None


@public_calls
class LeaseCalls(SchedulerObject):
    """A scheduler object that leases placement groups."""

    #: Of what it returns; connections differ in this and in the next.
    _lease_type: type[Lease] = Lease

    def _request_lease(self, arguments: Mapping[str, object]) -> Response:
        """The response to a lease with the arguments of ``lease``, by name."""
        raise NotImplementedError

    @public(LeaseFields)
    def lease(
        self,
        task_id: str,
        pool: str,
        groups: Sequence[Sequence[Mapping[str, object]]],
        *,
        strategy: str | None = None,
        priority: float | str = DEFAULT_PRIORITY,
        queue: bool = False,
        wait: bool | float = False,
        on_preempt: Callable[[Lease], object] | None = None,
        grace_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Lease:
        """Lease placement groups, all of them or none, for actors and tasks of your own.

        ``groups`` is a list of placement groups, each a list of bundles; all have as many. ``strategy`` is
        one of Ray's and applies to each group (None: that of the pool). Others are evicted for it as for any
        task, and it is evicted as any task: ``on_preempt`` is then called with the lease, in a thread of
        this process, and after ``grace_s`` seconds (None: the policy's ``preemption_grace_s``, at least 30),
        or when it is released, everything that runs in the groups is ended.

        It ends with the Ray job of this process unless it is ``detached``, and where ``ttl_s`` is given when
        it was not renewed for so many seconds. Over HTTP there is no such job: without ``ttl_s`` it is
        renewed while this process lives, and ends 90 s after that. With ``queue`` it waits where it does not
        fit, and the call returns at once; with ``wait`` it returns when the lease is granted. Raises
        LeaseRefusedError where it is refused; ``answer`` is what a submission returns then.
        """
        if on_preempt is not None and not callable(on_preempt):
            raise InvalidRequestError(
                f"on_preempt must be a function that takes the lease, not {shown(on_preempt)}"
            )
        claim = {"pool": pool, "groups": groups, "strategy": strategy, "priority": priority}
        how = {"queue": queue, "wait": wait, "grace_s": grace_s}
        name = parse_name(task_id, "task_id")
        try:
            response = self._request_lease({"task_id": name, **claim, **how, **fields})
        except KeyboardInterrupt:
            # Nobody would release it.
            cancel_task(self._connection, name)
            raise
        if isinstance(response.outcome, Refused):
            answer = submitted(response, (), dry_run=False)
            raise LeaseRefusedError(response.outcome.error, dict(answer))
        renewed = self._renews(fields)
        return self._lease_type(
            self._connection, name, pool, _first_view(response), on_preempt, renewed=renewed
        )

    def _renews(self, _fields: LeaseFields) -> bool:
        """Whether a lease with these fields is renewed by itself."""
        return False

    def get_lease(self, task_id: str) -> Lease:
        """A lease that was made elsewhere, for another process that uses or releases it.

        Raises LeaseRefusedError where there is no such lease.
        """
        name = parse_name(task_id, "task_id")
        answer = ask(self._connection, WatchLease(task_id=name), LeaseView)
        if isinstance(answer, Refused):
            raise LeaseRefusedError(answer.error, {"success": False, "reason": answer.reason.value})
        return self._lease_type(self._connection, name, answer.pool_name, answer)


def _first_view(response: Response) -> LeaseView:
    """How a lease stands that was just admitted, or has joined the queue."""
    if not isinstance(response.outcome, Accepted) or response.group is None:
        return LeaseView(state="queued")
    return LeaseView(
        state="running",
        agent_name=response.outcome.agent_name,
        ray_id=response.group.ray_id,
        shape=response.group.shape,
    )
