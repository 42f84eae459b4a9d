"""SimpleScheduler: the calls of RayScheduler under shorter names; starts a Ray where none runs."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

import ray
from ray.actor import ActorHandle
from typing_extensions import Self, Unpack

from schedulemesh.config.alerts import AlertSettings
from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.core.client import explanations, listings, results
from schedulemesh.core.client.alert_calls import AlertCalls
from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.cluster_calls import ClusterCalls
from schedulemesh.core.client.gangs import GangMember
from schedulemesh.core.client.history_calls import HistoryCalls
from schedulemesh.core.client.job_calls import JobCalls
from schedulemesh.core.client.lease_calls import LeaseCalls
from schedulemesh.core.client.metric_calls import MetricCalls
from schedulemesh.core.client.origin import named_scheduler
from schedulemesh.core.client.ray_cluster import join_or_start, join_running
from schedulemesh.core.client.results import SubmitResult
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.simple_calls import SimpleQueueCalls
from schedulemesh.core.client.simple_drain import SimpleDrainCalls
from schedulemesh.core.client.simple_follower import SimpleTaskFollower
from schedulemesh.core.client.simple_pools import SimplePoolCalls
from schedulemesh.core.client.states import Preserver, Restorer
from schedulemesh.core.client.task_fields import (
    AgentFields,
    PreemptionFilter,
    SubmitFields,
    TaskFields,
)
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.domain.user_data import UserClass, UserValue
from schedulemesh.errors import InvalidRequestError, SchedulerNotFoundError, shown
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin

logger = logging.getLogger(__name__)

__all__ = ["SimpleScheduler", "SimpleTaskSpec"]


@public_calls
@dataclasses.dataclass(kw_only=True)
class SimpleTaskSpec:
    """A task to submit; the fields are the arguments of ``SimpleScheduler.submit``."""

    task_id: str
    actor_class: UserClass
    pool: str | None = None
    resources: Mapping[str, object] | None = None
    priority: float = 5.0
    labels: Mapping[str, str] | None = None
    actor_args: Sequence[UserValue] | None = None
    actor_kwargs: Mapping[str, UserValue] | None = None
    agent_name: str | None = None
    estimated_duration: float | None = None
    #: None: the user that this process runs as.
    owner: str | None = None
    #: "requeue" or "drop" when it is evicted; None: what its pool says.
    on_preempted: str | None = None
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None = None
    #: Whether it outlives the task from inside which it is submitted; else it ends with that one.
    detached: bool = False
    payload: UserValue = None
    #: The method that it runs by itself; None: its caller calls methods, or ``actor_class`` is a function.
    run: str | None = None
    run_args: Sequence[UserValue] | None = None
    run_kwargs: Mapping[str, UserValue] | None = None
    #: How often it is started again after its run raised, it could not be started, or its agent was lost.
    max_retries: int = 0
    #: "fail", "previous" or "restart" when its saved state cannot be restored after that; None: "fail".
    on_restore_failure: str | None = None
    #: "retry", "grow" (with twice the memory) or "fail" when its process is killed because its node is short
    #: of memory; None: "retry". ``oom_max_memory``: the most that "grow" gives it, in MB; None: the pool's.
    on_oom: str | None = None
    oom_max_memory: float | None = None
    ray_options: Mapping[str, object] | None = None
    pool_selector: Mapping[str, object] | None = None
    #: Of its placement group; its resources are their sum.
    bundles: Sequence[Mapping[str, object]] | None = None
    #: Whether the agent itself takes the first of them; False: all are for what it starts.
    driver_bundle: bool = True
    #: Seconds that each phase of its start may take: "environment", "load" and "constructor".
    start_limits: Mapping[str, float] | None = None
    #: Whether it waits in the queue; with ``wait`` the call returns when it runs, or is cancelled in time.
    queue: bool = False
    wait: bool | float = False


@public_calls
class SimpleScheduler(
    ClusterCalls,
    SimplePoolCalls,
    SimpleQueueCalls,
    SimpleTaskFollower,
    SimpleDrainCalls,
    JobCalls,
    LeaseCalls,
    HistoryCalls,
    MetricCalls,
    AlertCalls,
):
    """A scheduler for one job: pools, policy, submit, complete. Starts a local Ray where none runs.

    Ray is looked for at ``RAY_ADDRESS``, then on this machine; else a local one is started, with
    ``local_ray`` as options of ``ray.init``, and ended by ``shutdown``. An address that does not answer is
    given up after 10 s, and the log says which Ray was joined. The other arguments are those of RayScheduler:
    without a ``name`` it is the scheduler that lives in the cluster, as there.

    The attribute ``scheduler`` is the RayScheduler that carries out the calls; what a call does and returns
    in full is documented there.

    As a context manager it is shut down at the end of the block, with the Ray that it started, if it ends
    with this job anyway. A detached scheduler and one that was attached to are left running.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        detached: bool = False,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        node_strategy: str = "bin_pack",
        pool_strategy: str = "dominant_share",
        strategies: Sequence[str | SchedulingStrategyPlugin] = (),
        local_ray: Mapping[str, object] | None = None,
        http: bool | int | str | None = None,
        alerts: AlertSettings | Mapping[str, object] | bool | None = None,
        auth: str | None = None,
        token: str | None = None,
    ) -> None:
        self._started_ray = not ray.is_initialized() and join_or_start(local_ray or {})
        self._detached = detached
        self.scheduler = RayScheduler(
            name,
            detached=detached,
            namespace=namespace,
            state_path=state_path,
            node_strategy=node_strategy,
            pool_strategy=pool_strategy,
            strategies=strategies,
            http=http,
            alerts=alerts,
            auth=auth,
            token=token,
        )
        self._connection = self.scheduler._connection  # noqa: SLF001  # the calls of both share it

    @classmethod
    def attach(
        cls,
        name: str | None = None,
        *,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        token: str | None = None,
    ) -> Self:
        """The living scheduler of this name (None: as for the class), on the Ray at ``RAY_ADDRESS`` or on
        this machine.

        Raises SchedulerNotFoundError where there is no such scheduler, or no Ray; none is started.
        """
        if not ray.is_initialized() and not join_running():
            wanted, _ = named_scheduler(name, namespace)
            which = "a scheduler" if wanted is None else f"scheduler {wanted!r}"
            raise SchedulerNotFoundError(
                f"there is no Ray to find {which} on: set RAY_ADDRESS, or run this on a node of the cluster"
            )
        simple = cls.__new__(cls)
        simple._started_ray, simple._detached = False, True  # noqa: SLF001  # its own class
        simple.scheduler = RayScheduler.attach(
            name, namespace=namespace, state_path=state_path, token=token
        )
        simple._connection = simple.scheduler._connection  # noqa: SLF001  # as above
        return simple

    def __repr__(self) -> str:
        return repr(self.scheduler).replace("RayScheduler", type(self).__name__, 1)

    def _repr_html_(self) -> str:
        return self.scheduler._repr_html_()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.scheduler.__exit__(kind, error, trace)
        finally:
            if not self._detached:
                self._end_ray()

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self.scheduler.name

    def supervisor_handle(self) -> ActorHandle:
        """The Ray handle of the supervisor, for agents that report metrics by themselves."""
        return self.scheduler.supervisor_handle()

    def configure_preemption(
        self,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        **changes: object,
    ) -> listings.PolicyUpdate:
        """Change the given fields of the preemption policy; see RayScheduler.update_preemption_policy."""
        return self.scheduler.update_preemption_policy(
            preemption_aggressiveness=preemption_aggressiveness, **changes
        )

    update_preemption_policy = configure_preemption

    def get_preemption_policy(self) -> listings.PolicyResult:
        """Return the ``policy`` in force and its last ``changes``."""
        return self.scheduler.get_preemption_policy()

    @public(SubmitFields)
    def submit(
        self,
        task_id: str,
        pool: str | None = None,
        actor_class: UserClass = None,
        **fields: Unpack[SubmitFields],
    ) -> SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        Takes the fields of SimpleTaskSpec, ``dry_run`` and ``request_id``. With ``run``, or a function in
        place of the class, the task runs by itself; ``wait`` and ``result`` follow it.
        """
        return self.scheduler.submit_task_with_preemption(
            task_id=task_id, pool_name=pool, actor_class=actor_class, **fields
        )

    @public(SubmitFields)
    def submit_gang(
        self,
        task_id: str,
        pool: str | None = None,
        members: Sequence[GangMember] = (),
        actor_class: UserClass = None,
        **fields: Unpack[SubmitFields],
    ) -> SubmitResult:
        """Start a gang whose members may differ, all of them or none; see RayScheduler.submit_gang."""
        return self.scheduler.submit_gang(task_id, pool, members, actor_class, **fields)

    @public(SubmitFields)
    def submit_with_pg_preemption(
        self,
        task_id: str,
        pool: str | None = None,
        actor_class: UserClass = None,
        *,
        fallback: bool = False,
        **fields: Unpack[SubmitFields],
    ) -> SubmitResult:
        """Start an agent in a placement group of its pool; others are evicted for a group, never for quota.

        Takes the fields of ``submit``. With ``fallback`` a refusal for lack of quota or group is followed
        by an ordinary submission; ``path`` says which way it went.
        """
        return self.scheduler.submit_with_pg_preemption(
            task_id=task_id, pool_name=pool, actor_class=actor_class, fallback=fallback, **fields
        )

    def submit_spec(self, spec: SimpleTaskSpec) -> SubmitResult:
        """Submit a task from its spec; see ``submit``."""
        if not isinstance(spec, SimpleTaskSpec):
            raise InvalidRequestError(f"submit_spec takes a SimpleTaskSpec, not {shown(spec)}")
        fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
        return self.submit(**fields)

    def submit_many(
        self, specs: Iterable[SimpleTaskSpec | Mapping[str, object]]
    ) -> listings.SubmitManyResult:
        """Submit many tasks: specs, or dicts of their fields; see RayScheduler.submit_many."""
        if not isinstance(specs, Iterable):
            raise InvalidRequestError(f"specs must be a list of submissions, not {shown(specs)}")
        return self.scheduler.submit_many([_as_submission(spec) for spec in specs])

    def complete(self, task_id: str) -> results.Result:
        """Report that a task is done: its agent is ended and its quota is freed.

        An agent that runs other tasks stays: ``detail`` "agent_kept".
        """
        return self.scheduler.complete_task(task_id, end_agent=True)

    def list_tasks(self) -> listings.TasksResult:
        """Return ``tasks``: every task with its agent, phase, remaining time (seconds) and last metrics."""
        return self.scheduler.list_tasks()

    def explain(self, task_id: str) -> explanations.ExplainResult:
        """Say why a task waits, where it runs, by whom it was evicted or how it ended; see
        ``RayScheduler.explain``.
        """
        return self.scheduler.explain(task_id)

    @public(TaskFields)
    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool: str,
        priority: float = DEFAULT_PRIORITY,
        **fields: Unpack[TaskFields],
    ) -> results.Result:
        """Register a task that runs on an agent; see RayScheduler.register_running_task."""
        return self.scheduler.register_running_task(task_id, agent_name, pool, priority, **fields)

    @public(AgentFields)
    def create_agent(
        self,
        name: str,
        pool: str,
        actor_class: UserClass,
        resources: Mapping[str, object] | None = None,
        ray_options: Mapping[str, object] | None = None,
        **fields: Unpack[AgentFields],
    ) -> SubmitResult:
        """Start an agent without a task, from free resources only; see RayScheduler.create_agent."""
        return self.scheduler.create_agent(
            name, pool, actor_class, resources, ray_options, **fields
        )

    def list_agents(self, pool: str | None = None) -> listings.AgentsResult:
        """Return ``agents``: every agent, or those of one pool, with their Ray handles."""
        return self.scheduler.list_agents(pool)

    def delete_agent(
        self, name: str, force: bool = False, destroy_pg: bool | None = None
    ) -> results.DeletionResult:
        """End an agent; one that has ended before is a success with ``already_gone``.

        ``destroy_pg``: whether its placement group is removed (None: a dynamic one that is not reused).
        """
        return self.scheduler.delete_agent(name, force=force, destroy_pg=destroy_pg)

    def ensure_agent_health(self, timeout: float = 120.0) -> listings.HealthResult:
        """Check every agent, and rebuild those that are dead, or silent for ``timeout`` seconds."""
        return self.scheduler.ensure_agent_health(timeout)

    def evaluate_preemption(
        self,
        incoming_task_priority: float,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        resources: Mapping[str, object] | None = None,
        limit: int = 100,
    ) -> results.EvaluationResult:
        """Return the tasks that an incoming task may evict; see RayScheduler.evaluate_preemption."""
        return self.scheduler.evaluate_preemption(
            incoming_task_priority, incoming_task_pool, incoming_task_labels, resources, limit
        )

    def preempt_task(
        self,
        task_id: str | None = None,
        agent_name: str | None = None,
        for_pool: str | None = None,
    ) -> results.PreemptionResult:
        """Save and cancel the tasks of an agent, and end it; see RayScheduler.preempt_task."""
        return self.scheduler.preempt_task(task_id, agent_name, for_pool)

    def execute_preemption(self, task_id: str, agent_name: str) -> results.PreemptionResult:
        """Save and cancel a task; its agent stays. See RayScheduler.execute_preemption."""
        return self.scheduler.execute_preemption(task_id, agent_name)

    def register_state_handlers(
        self,
        pool: str,
        preserver: Preserver | None = None,
        restorer: Restorer | None = None,
    ) -> results.Result:
        """Set the functions that save and restore the states of a pool's tasks."""
        return self.scheduler.register_state_handlers(pool, preserver, restorer)

    def save_task_state(self, task_id: str) -> results.SavedStateResult:
        """Save a running task's state now, and let the task continue; returns ``saved_state``."""
        return self.scheduler.save_task_state(task_id)

    def list_saved_states(self) -> listings.SavedStatesResult:
        """Return ``saved_states``: every task with a stored state, and every task that was lost."""
        return self.scheduler.list_saved_states()

    def get_saved_state(self, task_id: str) -> results.SavedStateResult:
        """Return the state last saved of a task as ``saved_state``, for ``restore_task``."""
        return self.scheduler.get_saved_state(task_id)

    def restore_task(self, saved_state: Mapping[str, UserValue]) -> results.RestoreResult:
        """Start a preempted task again from its saved state; see RayScheduler.restore_task."""
        return self.scheduler.restore_task(saved_state)

    def pg_pool_stats(self, pool: str | None = None) -> listings.GroupsResult:
        """Count the placement groups of all pools, or of one; see RayScheduler.pg_pool_stats."""
        return self.scheduler.pg_pool_stats(pool)

    @public(PreemptionFilter)
    def list_preemptions(self, **which: Unpack[PreemptionFilter]) -> listings.PreemptionsResult:
        """Return the last ``preemptions`` in which a task, pool or owner took part, the newest last: who was
        evicted for whom, by which rule, what was lost, and how long it took.
        """
        return self.scheduler.list_preemptions(**which)

    def get_preemption_stats(self) -> listings.PreemptionStats:
        """Return how many preemptions there were, by kind, and the last ones."""
        return self.scheduler.get_preemption_stats()

    def list_orphans(self) -> listings.OrphansResult:
        """Return ``orphans``: actors and placement groups that a restored journal does not know."""
        return self.scheduler.list_orphans()

    def end_orphans(self, names: Iterable[str] | None = None) -> listings.EndedOrphans:
        """End the orphaned actors with these names in Ray, or all of them; returns ``ended``."""
        return self.scheduler.end_orphans(names)

    def detach(self) -> None:
        """Use this object no more; the scheduler keeps running. A Ray that was started here stays, too."""
        self.scheduler.detach()

    def shutdown(self, force: bool = False) -> results.Result:
        """End every agent and the scheduler, and the Ray that was started here; see RayScheduler.shutdown."""
        answer = self.scheduler.shutdown(force)
        if not answer["success"]:
            logger.warning("%s; %s", answer["error"], answer["hint"])
        self._end_ray()
        return answer

    def _end_ray(self) -> None:
        """End the Ray that was started here, if one was."""
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False


def _as_submission(spec: SimpleTaskSpec | Mapping[str, object]) -> Mapping[str, object]:
    """The arguments of RayScheduler's call for a task; anything else as it is."""
    if isinstance(spec, SimpleTaskSpec):
        spec = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    if not isinstance(spec, Mapping) or "pool" not in spec:
        return spec
    return {("pool_name" if name == "pool" else name): value for name, value in spec.items()}
