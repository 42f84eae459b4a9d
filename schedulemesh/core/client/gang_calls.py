"""The calls about gangs, whose members start, are evicted, saved and ended as one."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from schedulemesh.core.client import submissions
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.gangs import GangMember
from schedulemesh.core.client.lifecycle import SchedulerObject
from schedulemesh.core.client.results import SubmitResult
from schedulemesh.core.client.task_fields import SubmitFields
from schedulemesh.domain.user_data import UserClass


@public_calls
class GangCalls(SchedulerObject):
    """A scheduler object that starts gangs whose members differ."""

    @public(SubmitFields)
    def submit_gang(
        self,
        task_id: str,
        pool: str | None = None,
        members: Sequence[GangMember] = (),
        actor_class: UserClass = None,
        **fields: Unpack[SubmitFields],
    ) -> SubmitResult:
        """Start a gang for a task: several agents that start, are evicted, saved and ended as one.

        ``members`` is a list of dicts in the order of ranks: ``resources``, ``actor_class``, ``actor_args``,
        ``actor_kwargs``, and ``replicas`` for several equal ones. What a member does not give is that of the
        call. A gang of equal members is said more simply by ``replicas=N`` in an ordinary submission, whose
        other fields this call takes, too.

        Returns what a submission returns, with ``agents``: every member with its ``handle`` and ``rank``.
        """
        given = {"task_id": task_id, "pool_name": pool, "actor_class": actor_class, **fields}
        return submissions.submit_gang(self._connection, given, members)
