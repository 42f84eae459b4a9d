"""RayScheduler: the public calls of one scheduler, each a function of a module of this package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import Self, Unpack

from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.core.client import (
    agents,
    explanations,
    listings,
    preemption,
    results,
    states,
    submissions,
    tasks,
)
from schedulemesh.core.client.alert_calls import AlertCalls
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.cluster_calls import ClusterCalls
from schedulemesh.core.client.connection import connect, find
from schedulemesh.core.client.console import show_log
from schedulemesh.core.client.drain_calls import DrainCalls
from schedulemesh.core.client.gang_calls import GangCalls
from schedulemesh.core.client.history_calls import HistoryCalls
from schedulemesh.core.client.job_calls import JobCalls
from schedulemesh.core.client.lease_calls import LeaseCalls
from schedulemesh.core.client.metric_calls import MetricCalls
from schedulemesh.core.client.new_settings import SchedulerOptions, parse_settings
from schedulemesh.core.client.origin import own_scheduler
from schedulemesh.core.client.pool_calls import PoolCalls
from schedulemesh.core.client.queue_calls import QueueCalls
from schedulemesh.core.client.scheduler_list import chosen_scheduler
from schedulemesh.core.client.task_fields import (
    AgentFields,
    OptionalFields,
    PreemptionFilter,
    SubmitFields,
    TaskFields,
)
from schedulemesh.core.client.task_follower import TaskFollower
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.domain.user_data import UserClass, UserValue


@public_calls
class RayScheduler(
    ClusterCalls,
    PoolCalls,
    GangCalls,
    LeaseCalls,
    QueueCalls,
    DrainCalls,
    JobCalls,
    HistoryCalls,
    MetricCalls,
    AlertCalls,
    TaskFollower,
):
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
        own = {"agent_name": name, "pool_name": pool, "actor_class": actor_class}
        given = {**own, "resources": resources, "ray_options": ray_options, **fields}
        return submissions.create_agent(self._connection, given)

    @public(OptionalFields)
    def submit_task_with_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: UserClass = None,
        resources: Mapping[str, object] | None = None,
        priority: float = DEFAULT_PRIORITY,
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
        own = {"task_id": task_id, "pool_name": pool_name, "actor_class": actor_class}
        given = {**own, "resources": resources, "priority": priority, **fields}
        return submissions.submit_task_with_preemption(self._connection, given)

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
        given = {"task_id": task_id, "pool_name": pool, "actor_class": actor_class, **fields}
        return submissions.submit_with_pg_preemption(self._connection, given, fallback)

    def list_agents(self, pool_name: str | None = None) -> listings.AgentsResult:
        """Return ``agents``: every agent, or those of one pool, with name, pool, Ray handle, resources,
        labels, Ray options, state, node, process, tasks and last metrics.
        """
        return agents.list_agents(self._connection, pool_name)

    def delete_agent(
        self, name: str, force: bool = False, destroy_pg: bool | None = None
    ) -> results.DeletionResult:
        """End an agent with its tasks and free its quota; returns when its process has ended.

        An agent that has ended before is a success with ``already_gone``; a name that no agent had is refused
        with ``agent_not_found``. ``force`` is accepted for callers of Ray's kill and changes nothing: ending
        an agent never fails. ``destroy_pg`` True also removes its placement group and waits for that (a
        reserved one stays removed until the pool is ensured or resized); False keeps it; None keeps reserved
        groups, and dynamic ones where the pool reuses them.
        """
        return agents.delete_agent(self._connection, name, force, destroy_pg)

    def ensure_agent_health(self, timeout: float = 120.0) -> listings.HealthResult:
        """Check every agent. Those that are dead, or that were silent for ``timeout`` seconds and do not
        answer a ping, are removed and, where possible, rebuilt from their last saved state.

        Returns ``checked`` and ``healthy`` (counts), ``rebuilt`` and ``removed`` (names), and ``details``:
        for each agent that was not healthy the problem, what was done, and why not more. A removed agent is
        reported once.
        """
        return agents.ensure_agent_health(self._connection, timeout)

    def list_orphans(self) -> listings.OrphansResult:
        """Return ``orphans``: actors and placement groups of this scheduler that its journal does not know,
        because a backup was restored while they ran; each with ``name`` (in Ray) and ``kind``.
        """
        return agents.list_orphans(self._connection)

    def end_orphans(self, names: Iterable[str] | None = None) -> listings.EndedOrphans:
        """End the orphaned actors with these names in Ray, or all of them (None).

        Orphaned placement groups are removed with the last orphaned actor. Returns ``ended`` (names).
        """
        return agents.end_orphans(self._connection, names)

    @public(TaskFields)
    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str,
        priority: float = DEFAULT_PRIORITY,
        **fields: Unpack[TaskFields],
    ) -> results.Result:
        """Register a task that runs on an agent, so that it can be evaluated and preempted.

        Agent and pool may be unknown; then the task holds no quota. ``estimated_duration`` is in seconds.
        The same task again is a success with ``detail`` "already_registered"; another task with the same id
        is refused with ``duplicate_task``.
        """
        given = {"task_id": task_id, "pool_name": pool_name, "priority": priority, **fields}
        return tasks.register_running_task(self._connection, agent_name, given)

    def complete_task(self, task_id: str, end_agent: bool = False) -> results.Result:
        """Report that a task is done. ``end_agent`` also ends its agent and frees the quota.

        An agent that runs other tasks stays (``detail`` "agent_kept"). Returns when the process has ended.
        """
        return tasks.complete_task(self._connection, task_id, end_agent)

    def list_tasks(self) -> listings.TasksResult:
        """Return ``tasks``: every task with its agent, pool, priority, labels, phase, start time,
        estimated and remaining duration (seconds), and last metrics.
        """
        return tasks.list_tasks(self._connection)

    def explain(self, task_id: str) -> explanations.ExplainResult:
        """Say why a task waits, where it runs, by whom it was evicted or how it ended.

        The answer has ``state`` and, where the task does not run, one dominant ``reason`` with ``error`` (a
        sentence) and ``hint`` (the next step); all ``others`` behind it; of a queued task its ``position``,
        what is ``short`` and the ``holders`` of it, which victims were ``considered``, and the
        ``earliest_start`` if estimates hold (None: see ``no_estimate``); and the last ``eviction``.
        An unknown id is refused with ``task_not_found``, naming the nearest ones.
        """
        return explanations.explain(self._connection, task_id)

    def evaluate_preemption(
        self,
        incoming_task_priority: float,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        resources: Mapping[str, object] | None = None,
        limit: int = 100,
    ) -> results.EvaluationResult:
        """Return the tasks that an incoming task may evict; nothing changes.

        Returns ``should_preempt``, ``candidates`` (at most ``limit``, best first), and where none may be
        evicted ``reason`` and ``turned_away`` (tasks by the rule that protects them). With ``resources`` it
        also decides whether an eviction is needed and makes room; ``victims`` are the tasks that a submission
        would evict.
        """
        return preemption.evaluate_preemption(
            self._connection,
            incoming_task_priority,
            incoming_task_pool,
            incoming_task_labels,
            resources,
            limit,
        )

    def execute_preemption(self, task_id: str, agent_name: str) -> results.PreemptionResult:
        """Save a task's state and cancel the task; its agent stays, for another task.

        Returns ``saved_state``, ``state_saved``, ``cancel_success`` and ``reason``: that of the last
        evaluation with this candidate, else "manual". A task that is not cancelled runs on, and the answer is
        a refusal with ``not_cancelled`` that has the saved state all the same.
        """
        return preemption.execute_preemption(self._connection, task_id, agent_name)

    def preempt_task(
        self, task_id: str | None = None, agent_name: str | None = None, for_pool: str | None = None
    ) -> results.PreemptionResult:
        """Evict manually: save and cancel the tasks of an agent, and terminate the agent.

        Name the task or the agent; a single name may be either's. The freed quota is held for ``for_pool``
        for 60 s; without it, for this process for 10 s, whatever pool it submits to. Returns ``preempted``:
        the tasks with their saved states.
        """
        return preemption.preempt_task(self._connection, task_id, agent_name, for_pool)

    def update_preemption_policy(
        self,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        **changes: object,
    ) -> listings.PolicyUpdate:
        """Change the given fields of the policy.

        Takes every field of PreemptionPolicy, and ``preemption_aggressiveness``: a member of
        PreemptionAggressiveness, its name or alias, or "env:NAME" for a variable of this process. Returns the
        whole policy in force, under ``policy`` and beside it.
        """
        given = {"preemption_aggressiveness": preemption_aggressiveness, **changes}
        return preemption.update_preemption_policy(self._connection, given)

    def get_preemption_policy(self) -> listings.PolicyResult:
        """Return the ``policy`` in force, and its last ``changes``: when, by which client, what."""
        return preemption.get_preemption_policy(self._connection)

    @public(PreemptionFilter)
    def list_preemptions(self, **which: Unpack[PreemptionFilter]) -> listings.PreemptionsResult:
        """Return the last ``preemptions`` in which a task, pool or owner took part, the newest last: who was
        evicted for whom, by which rule, what was lost, and how long it took.
        """
        return preemption.list_preemptions(self._connection, which)

    def get_preemption_stats(self) -> listings.PreemptionStats:
        """Return how many preemptions there were, by kind, how many tasks run, and
        ``recent_preemptions``, the newest last.
        """
        return preemption.get_preemption_stats(self._connection)

    def save_task_state(self, task_id: str) -> results.SavedStateResult:
        """Save a running task's state now and let the task continue; a rebuilt agent starts from it.

        Returns ``saved_state``, or a refusal: ``task_not_found``, ``save_failed`` or ``state_too_large``.
        """
        return states.save_task_state(self._connection, task_id)

    def list_saved_states(self) -> listings.SavedStatesResult:
        """Return ``saved_states``: every task with a stored state, and every task that was lost, with
        ``status`` ("running", "preempted" or "lost") and ``state_saved``.
        """
        return states.list_saved_states(self._connection)

    def get_saved_state(self, task_id: str) -> results.SavedStateResult:
        """Return the state last saved of a task as ``saved_state``, for ``restore_task``.

        Refused with ``state_not_found`` where none is stored.
        """
        return states.get_saved_state(self._connection, task_id)

    def restore_task(self, saved_state: Mapping[str, UserValue]) -> results.RestoreResult:
        """Start a preempted task again from its saved state.

        The state is passed to the pool's restorer, if one is registered, and to the new object's
        ``restore_state``. Returns what a submission returns, and ``resubmitted``: whether an agent was
        started.
        """
        return states.restore_task(self._connection, saved_state)

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: states.Preserver | None = None,
        restorer: states.Restorer | None = None,
    ) -> results.Result:
        """Set the functions that save and restore the states of a pool's tasks; both are replaced.

        ``preserver`` takes a TaskState and returns a dict; ``restorer`` takes that dict. They run in worker
        processes of their own, for at most ``save_timeout`` seconds. Those of a pool that does not exist yet
        take effect when it is created; the result then has ``warnings``.
        """
        return states.register_state_handlers(self._connection, pool_name, preserver, restorer)
