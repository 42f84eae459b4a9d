"""The calls that submit: agents, tasks, gangs, jobs, and tasks that run already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Unpack

from schedulemesh.api.results import Result
from schedulemesh.api.tasks import RegisterTask
from schedulemesh.client import results
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import done, logged
from schedulemesh.client.jobs import JobCalls
from schedulemesh.client.listings import SubmitManyResult
from schedulemesh.client.task_fields import (
    AdoptionFields,
    AgentFields,
    OptionalFields,
    SubmitFields,
    TaskFields,
)
from schedulemesh.core.client import many_submissions, submissions
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.gangs import GangMember
from schedulemesh.core.client.task_request import described_task, parent_of
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.domain.user_data import UserClass


@public_calls
class SubmissionCalls(JobCalls):
    """A scheduler object that submits work whose classes and arguments it sends."""

    _connection: Connection

    @public(AgentFields)
    def create_agent(
        self,
        name: str,
        pool: str,
        actor_class: UserClass,
        resources: Mapping[str, object] | None = None,
        ray_options: Mapping[str, object] | None = None,
        **fields: Unpack[AgentFields],
    ) -> results.SubmitResult:
        """Start an agent without a task, from free resources only; nothing is evicted for it.

        ``resources`` None takes the pool's default. ``bundles`` are those of its placement group, in a pool
        that keeps groups: the agent runs in the first, and ``resources`` are their sum. Returns when the
        agent runs, with ``agent``.
        """
        identity = {"agent_name": name, "pool_name": pool, "actor_class": actor_class}
        arguments = {**identity, "resources": resources, "ray_options": ray_options, **fields}
        return submissions.create_agent(self._connection, arguments)

    @public(OptionalFields)
    def submit_task_with_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: UserClass = None,
        resources: Mapping[str, object] | None = None,
        priority: float | str = DEFAULT_PRIORITY,
        **fields: Unpack[OptionalFields],
    ) -> results.SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        With ``run`` the task runs by itself: the agent calls that method with ``run_args`` and
        ``run_kwargs``, and task and agent end with it; ``result`` returns what it returned. ``actor_class``
        may also be a function, which is run in the same way.

        One transaction: it runs, or everything is as before. The class is built with ``name`` and
        ``labels`` first, then ``actor_args`` and ``actor_kwargs``. ``estimated_duration`` is in seconds.
        With ``pool_selector`` instead of ``pool_name`` the best matching pool is chosen. ``dry_run`` answers
        where it would run and what would be evicted. The same ``request_id`` again gets the first answer;
        once the agent has ended, its handle is None, unless the task runs on another of its name.
        ``bundles`` are those of its placement group, in a pool that keeps groups: the agent runs in the
        first, its own tasks and actors in all, and ``resources`` are their sum.

        Returns ``agent`` (with its Ray ``handle``), ``task_id`` and ``preempted``: the tasks that were
        evicted for it. A refusal says what was short, by how much, and who holds it.
        """
        identity = {"task_id": task_id, "pool_name": pool_name, "actor_class": actor_class}
        arguments = {**identity, "resources": resources, "priority": priority, **fields}
        return submissions.submit_task_with_preemption(self._connection, arguments)

    @public(SubmitFields)
    def submit_with_pg_preemption(
        self,
        task_id: str,
        pool: str | None = None,
        actor_class: UserClass = None,
        *,
        fallback: bool = False,
        **fields: Unpack[SubmitFields],
    ) -> results.SubmitResult:
        """Start an agent for a task in a placement group of a pool that keeps them.

        Takes the fields of ``submit_task_with_preemption``. Quota comes first: where it is short, the answer
        is ``insufficient_quota`` and nothing is evicted. For a group others are evicted where the policy
        allows; the group is kept for the incoming task. With ``fallback`` a refusal for lack of quota or
        group is followed by an ordinary submission, which may evict for both; ``path`` says which one
        succeeded: "pg" or "fallback".
        """
        arguments = {"task_id": task_id, "pool_name": pool, "actor_class": actor_class, **fields}
        return submissions.submit_with_pg_preemption(self._connection, arguments, fallback)

    @public(SubmitFields)
    def submit_gang(
        self,
        task_id: str,
        pool: str | None = None,
        members: Sequence[GangMember] = (),
        actor_class: UserClass = None,
        **fields: Unpack[SubmitFields],
    ) -> results.SubmitResult:
        """Start a gang for a task: several agents that start, are evicted, saved and ended as one.

        ``members`` is a list of dicts in the order of ranks: ``resources``, ``actor_class``, ``actor_args``,
        ``actor_kwargs``, and ``replicas`` for several equal ones. What a member does not give is that of the
        call. A gang of equal members is said more simply by ``replicas=N`` in an ordinary submission, whose
        other fields this call takes, too.

        Returns what a submission returns, with ``agents``: every member with its ``handle`` and ``rank``.
        """
        arguments = {"task_id": task_id, "pool_name": pool, "actor_class": actor_class, **fields}
        return submissions.submit_gang(self._connection, arguments, members)

    def submit_many(self, specs: Iterable[Mapping[str, object]]) -> SubmitManyResult:
        """Submit many tasks in messages of up to 100, whose tasks become durable together.

        Each of ``specs`` is a dict of the arguments of ``submit_task_with_preemption``. One that is malformed
        raises InvalidRequestError with its position, and nothing is submitted; one that the scheduler refuses
        does not concern the others. The bytes of a class are sent once, however many tasks use it.

        Returns ``results``, the answer to each submission in their order, and ``refused``, how many were
        refused; ``success`` is False if one was.
        """
        return many_submissions.submit_many(self._connection, specs)

    def _send_job(self, arguments: Mapping[str, object]) -> results.SubmitResult:
        """See JobCalls."""
        return submissions.submit_job(self._connection, arguments)

    @public(AdoptionFields)
    def adopt_job(
        self,
        ray_job_id: str,
        pool: str,
        resources: Mapping[str, object] | None = None,
        priority: float | str = DEFAULT_PRIORITY,
        **fields: Unpack[AdoptionFields],
    ) -> results.SubmitResult:
        """Make a Ray job that somebody else has started, one of ``external_usage``, a task of this scheduler:
        accounted, evicted and cancelled as such.

        Its claim is what it holds now, or ``resources``. Nothing is evicted for it. It is not started again:
        when it is evicted or cancelled, its driver gets SIGTERM, then SIGKILL, and its actors and placement
        groups end, detached ones too. When its driver ends by itself, the task is completed, and what is
        detached stays. The runner needs the node of the driver; the driver must belong to the same user.
        """
        arguments = {"ray_job_id": ray_job_id, "pool_name": pool, "resources": resources}
        return submissions.adopt_job(
            self._connection, {**arguments, "priority": priority, **fields}
        )

    @public(TaskFields)
    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str,
        priority: float | str = DEFAULT_PRIORITY,
        **fields: Unpack[TaskFields],
    ) -> Result:
        """Register a task that runs on an agent, so that it can be evaluated and preempted.

        Agent and pool may be unknown; then the task holds no quota. ``estimated_duration`` is in seconds.
        The same task again is a success with ``detail`` "already_registered"; another task with the same id
        is refused with ``duplicate_task``.
        """
        arguments = {"task_id": task_id, "pool_name": pool_name, "priority": priority, **fields}
        caller = self._connection.caller
        task, blobs = described_task(arguments, caller.owner, parent_of(caller, arguments))
        request = RegisterTask(
            task=task, agent_name=parse_name(agent_name, "agent_name"), blobs=blobs
        )
        return logged("register_running_task", done(self._connection, request))
