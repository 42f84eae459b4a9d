"""The calls about leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import Unpack

from schedulemesh.api.leases import WatchLease
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import ask
from schedulemesh.client.results import submitted
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.client.tasks import cancel_task
from schedulemesh.core.client import submissions
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.lease_request import LeaseFields, lease_submission
from schedulemesh.core.client.leases import Lease
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from schedulemesh.errors import InvalidRequestError, LeaseRefusedError, shown
from schedulemesh.protocol.answers import LeaseView, Response


@public_calls
class LeaseCalls(SchedulerObject):
    """A scheduler object that leases placement groups."""

    _connection: Connection

    @public(LeaseFields)
    def lease(
        self,
        task_id: str,
        pool: str,
        groups: Sequence[Sequence[Mapping[str, object]]],
        *,
        strategy: str | None = None,
        priority: float = DEFAULT_PRIORITY,
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
        it was not renewed for so many seconds. With ``queue`` it waits where it does not fit, and the call
        returns at once; with ``wait`` it returns when the lease is granted. Raises LeaseRefusedError where it
        is refused; ``answer`` is what a submission returns then.
        """
        if on_preempt is not None and not callable(on_preempt):
            raise InvalidRequestError(
                f"on_preempt must be a function that takes the lease, not {shown(on_preempt)}"
            )
        claim = {"pool": pool, "groups": groups, "strategy": strategy, "priority": priority}
        how = {"queue": queue, "wait": wait, "grace_s": grace_s}
        name = parse_name(task_id, "task_id")
        request = lease_submission(
            self._connection.caller,
            name,
            {**claim, **how, **fields},
        )
        try:
            response = submissions.responded(self._connection, request)
        except KeyboardInterrupt:
            # Nobody would release it.
            cancel_task(self._connection, name)
            raise
        if isinstance(response.outcome, Refused):
            answer = submitted(response, (), dry_run=False)
            raise LeaseRefusedError(response.outcome.error, dict(answer))
        return Lease(self._connection, name, pool, _first_view(response), on_preempt)

    def get_lease(self, task_id: str) -> Lease:
        """A lease that was made elsewhere, for another process that uses or releases it.

        Raises LeaseRefusedError where there is no such lease.
        """
        name = parse_name(task_id, "task_id")
        answer = ask(self._connection, WatchLease(task_id=name), LeaseView)
        if isinstance(answer, Refused):
            raise LeaseRefusedError(answer.error, {"success": False, "reason": answer.reason.value})
        return Lease(self._connection, name, answer.pool_name, answer)


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
