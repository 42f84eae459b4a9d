"""SimpleScheduler: RayScheduler with shorter names for some calls; starts a Ray where none runs."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import ray
from typing_extensions import Self, Unpack

from schedulemesh.api.results import Result
from schedulemesh.client import listings, results
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.task_fields import SubmitFields
from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.core.client.new_settings import SchedulerOptions
from schedulemesh.core.client.origin import named_scheduler
from schedulemesh.core.client.ray_cluster import join_or_start, join_running
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.domain.user_data import UserClass, UserValue
from schedulemesh.errors import InvalidRequestError, SchedulerNotFoundError, shown

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
    priority: float | str = 5.0
    labels: Mapping[str, str] | None = None
    actor_args: Sequence[UserValue] | None = None
    actor_kwargs: Mapping[str, UserValue] | None = None
    agent_name: str | None = None
    # begin written spec all ended queued runs agents
    #: Seconds from its start to its end.
    estimated_duration: float | None = None
    #: The user that it belongs to; None: the one that this process runs as.
    owner: str | None = None
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None = None
    #: How often it is started again after its run failed, it could not be started, or it was lost.
    max_retries: int = 0
    #: "requeue" or "drop" when it is evicted; None: what its pool says, of a job "requeue".
    on_preempted: str | None = None
    #: What becomes of it, after its retries, when its saved state cannot be restored: "fail", "previous" (it
    #: is started from the state before) or "restart" (it is started anew); None: "fail".
    on_restore_failure: str | None = None
    #: What becomes of it when its process is killed because its node is short of memory: "retry" (as
    #: ``max_retries`` says), "grow" (the same with twice the memory, each time) or "fail"; None: "retry".
    on_oom: str | None = None
    #: The most memory that "grow" gives it, in MB; None: the quota of its pool.
    oom_max_memory: float | None = None
    #: Seconds that each of its attempts may run, from its start; then it is saved and ended. None: what its
    #: pool says.
    max_run_s: float | None = None
    #: "end" or "requeue" when it has run for as long as it may; None: "end".
    on_time_limit: str | None = None
    #: Seconds for which its GPUs may be idle before its owner is warned, and again before it is ended; None:
    #: what its pool says.
    idle_s: float | None = None
    #: The tasks that it starts after, in the queue: an id alone or ``ok:ID`` when that one has completed,
    #: ``any:ID`` however it ends, ``fail:ID`` when it does not complete.
    after: str | Sequence[str] | None = None
    #: Of an array: its indices, such as "0-99", "0-99:5" or "1,4,7-9", with "%10" behind them where at most
    #: ten run at once; or the number of its members. None: it is none.
    array: str | int | None = None
    #: How close together its members are placed: "rack", "preferred:rack", "slice:8:rack", with commas
    #: between them, or as a dict such as {"required": "rack"}; None: anywhere.
    topology: str | Mapping[str, object] | None = None
    # end written
    #: Conditions on the labels of its nodes, and what will do instead, the first ones before the others.
    label_selector: Mapping[str, str] | None = None
    fallback_strategy: Sequence[Mapping[str, object]] | None = None
    #: Whether it outlives the task from inside which it is submitted; else it ends with that one.
    detached: bool = False
    payload: UserValue = None
    #: The method that it runs by itself; None: its caller calls methods, or ``actor_class`` is a function.
    run: str | None = None
    run_args: Sequence[UserValue] | None = None
    run_kwargs: Mapping[str, UserValue] | None = None
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
class SimpleScheduler(RayScheduler):
    """A scheduler for one job: pools, policy, submit, complete. Starts a local Ray where none runs.

    Ray is looked for at ``RAY_ADDRESS``, then on this machine; else a local one is started, with
    ``local_ray`` as options of ``ray.init``, and ended by ``shutdown``. An address that does not answer is
    given up after 10 s, and the log says which Ray was joined. The other arguments are those of RayScheduler:
    without a ``name`` it is the scheduler that lives in the cluster, as there.

    It has every call of RayScheduler. ``submit``, ``complete`` and ``configure_preemption`` are shorter names
    for three of them, and ``submit_spec`` and ``submit_many`` take a SimpleTaskSpec.

    As a context manager it is shut down at the end of the block, with the Ray that it started, if it ends
    with this job anyway. A detached scheduler and one that was attached to are left running.
    """

    #: Of an object that has attached.
    _started_ray, _detached = False, True

    @public(SchedulerOptions)
    def __init__(
        self,
        name: str | None = None,
        *,
        local_ray: Mapping[str, object] | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        self._started_ray = not ray.is_initialized() and join_or_start(local_ray or {})
        self._detached = options.get("detached", False)
        super().__init__(name, **options)

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
            named, _ = named_scheduler(name, namespace)
            which = "a scheduler" if named is None else f"scheduler {named!r}"
            raise SchedulerNotFoundError(
                f"there is no Ray to find {which} on: set RAY_ADDRESS, or run this on a node of the cluster"
            )
        return super().attach(name, namespace=namespace, state_path=state_path, token=token)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            if not self._detached:
                self._end_ray()

    @functools.cached_property
    def scheduler(self) -> RayScheduler:
        """The same object, for code that takes a RayScheduler."""
        return self

    def configure_preemption(
        self,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        **changes: object,
    ) -> listings.PolicyUpdate:
        """Change the given fields of the preemption policy; see ``update_preemption_policy``."""
        return self.update_preemption_policy(
            preemption_aggressiveness=preemption_aggressiveness, **changes
        )

    @public(SubmitFields)
    def submit(
        self,
        task_id: str,
        pool: str | None = None,
        actor_class: UserClass = None,
        **fields: Unpack[SubmitFields],
    ) -> results.SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        See ``submit_task_with_preemption``, whose other arguments ``fields`` are. With ``run``, or a function
        in place of the class, the task runs by itself; ``wait`` and ``result`` follow it.
        """
        return self.submit_task_with_preemption(
            task_id=task_id, pool_name=pool, actor_class=actor_class, **fields
        )

    def submit_spec(self, spec: SimpleTaskSpec) -> results.SubmitResult:
        """Submit a task from its spec; see ``submit``."""
        if not isinstance(spec, SimpleTaskSpec):
            raise InvalidRequestError(f"submit_spec takes a SimpleTaskSpec, not {shown(spec)}")
        return self.submit(**_fields(spec))

    def submit_many(
        self, specs: Iterable[SimpleTaskSpec | Mapping[str, object]]
    ) -> listings.SubmitManyResult:
        """Submit many tasks: specs, or dicts of their fields; see RayScheduler.submit_many."""
        if not isinstance(specs, Iterable):
            raise InvalidRequestError(f"specs must be a list of submissions, not {shown(specs)}")
        return super().submit_many(
            [_fields(spec) if isinstance(spec, SimpleTaskSpec) else spec for spec in specs]
        )

    def complete(self, task_id: str) -> Result:
        """Report that a task is done: its agent is ended and its quota is freed.

        An agent that runs other tasks stays: ``detail`` "agent_kept".
        """
        return self.complete_task(task_id, end_agent=True)

    def shutdown(self, force: bool = False) -> Result:
        """End every agent and the scheduler, and the Ray that was started here; see RayScheduler.shutdown."""
        answer = super().shutdown(force)
        if not answer["success"]:
            logger.warning("%s; %s", answer["error"], answer["hint"])
        self._end_ray()
        return answer

    def _end_ray(self) -> None:
        """End the Ray that was started here, if one was."""
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False


def _fields(spec: SimpleTaskSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
