"""SimpleScheduler: the same engine with shorter words."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from msgspec import UNSET, UnsetType
from typing_extensions import Unpack

from schedulemesh.core.client.arguments import public, public_calls
from schedulemesh.core.client.ray_cluster import join_or_start
from schedulemesh.core.client.results import Result, SubmitResult
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.task_fields import SubmitFields
from schedulemesh.errors import InvalidRequestError, shown

logger = logging.getLogger(__name__)

__all__ = ["SimpleScheduler", "SimpleTaskSpec"]


@public_calls
@dataclasses.dataclass(kw_only=True)
class SimpleTaskSpec:
    """A task to submit; the fields are the arguments of ``SimpleScheduler.submit``."""

    task_id: str
    actor_class: Any
    pool: str | None = None
    resources: Mapping[str, Any] | None = None
    priority: float = 5.0
    labels: Mapping[str, str] | None = None
    actor_args: Sequence[Any] | None = None
    actor_kwargs: Mapping[str, Any] | None = None
    agent_name: str | None = None
    #: Seconds.
    estimated_duration: float | None = None
    payload: Any = None
    ray_options: Mapping[str, Any] | None = None
    pool_selector: Mapping[str, Any] | None = None
    #: Of its placement group; its resources are their sum.
    bundles: Sequence[Mapping[str, Any]] | None = None


@public_calls
class SimpleScheduler:
    """Pools, policy, submit, complete. Starts Ray where none runs.

    Ray is looked for at ``RAY_ADDRESS``, then at a cluster on this machine, then a local one is started
    (and ended by ``shutdown``); an address that does not answer is given up after 10 s, and the log says
    which Ray it is. ``local_ray`` are options of ``ray.init`` for a local one that is started. The other
    arguments are those of RayScheduler, which ``scheduler`` gives for everything that has no shorter word.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        detached: bool = False,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        node_strategy: str = "bin_pack",
        pool_strategy: str = "dominant_share",
        strategies: Sequence[Any] = (),
        local_ray: Mapping[str, Any] | None = None,
    ) -> None:
        self._started_ray = not ray.is_initialized() and join_or_start(local_ray or {})
        self.scheduler = RayScheduler(
            name,
            detached=detached,
            namespace=namespace,
            state_path=state_path,
            node_strategy=node_strategy,
            pool_strategy=pool_strategy,
            strategies=strategies,
        )

    def ensure_pool(
        self,
        name: str,
        labels: Mapping[str, str] | UnsetType | None = UNSET,
        resources: Mapping[str, Any] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        placement_strategy: str | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> dict[str, Any]:
        """Make a pool, or change what is given of it where usage allows; None or an empty value removes.

        With ``pg_pool_config`` it keeps placement groups, and is answered when the reserved ones are ready.
        """
        return self.scheduler.ensure_pool(
            name, labels, resources, target_agents, placement_strategy, pg_pool_config
        )

    def resize_pool(
        self,
        name: str,
        resources: Mapping[str, Any] | UnsetType | None = UNSET,
        target_agents: int | UnsetType | None = UNSET,
        pg_pool_config: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> dict[str, Any]:
        """Change what is given of a pool, key by key; see RayScheduler.resize_pool."""
        return self.scheduler.resize_pool(name, resources, target_agents, pg_pool_config)

    def configure_preemption(self, **changes: Any) -> dict[str, Any]:
        """Change what is given of the preemption policy; see RayScheduler.update_preemption_policy."""
        return self.scheduler.update_preemption_policy(**changes)

    update_preemption_policy = configure_preemption

    @public(SubmitFields)
    def submit(
        self,
        task_id: str,
        pool: str | None = None,
        actor_class: Any = None,
        **fields: Unpack[SubmitFields],
    ) -> SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        Takes the fields of SimpleTaskSpec, ``dry_run`` and ``request_id``.
        """
        return self.scheduler.submit_task_with_preemption(
            task_id=task_id, pool_name=pool, actor_class=actor_class, **fields
        )

    @public(SubmitFields)
    def submit_with_pg_preemption(
        self,
        task_id: str,
        pool: str | None = None,
        actor_class: Any = None,
        *,
        fallback: bool = False,
        **fields: Unpack[SubmitFields],
    ) -> SubmitResult:
        """Start an agent in a placement group of its pool; others are evicted for a group, never for quota.

        Takes the fields of ``submit``. With ``fallback`` a refusal for want of quota or group is followed
        by an ordinary submission; ``path`` says which way it went.
        """
        return self.scheduler.submit_with_pg_preemption(
            task_id=task_id, pool_name=pool, actor_class=actor_class, fallback=fallback, **fields
        )

    def submit_spec(self, spec: SimpleTaskSpec) -> SubmitResult:
        """Submit a task from its spec."""
        if not isinstance(spec, SimpleTaskSpec):
            raise InvalidRequestError(f"submit_spec takes a SimpleTaskSpec, not {shown(spec)}")
        fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
        return self.submit(**fields)

    def complete(self, task_id: str) -> Result:
        """The task is done: its agent is ended and the quota is back."""
        return self.scheduler.complete_task(task_id, end_agent=True)

    def delete_agent(
        self, name: str, force: bool = False, destroy_pg: bool | None = None
    ) -> dict[str, Any]:
        """End an agent; one that is gone already answers ``already_gone``.

        ``destroy_pg``: whether its placement group goes, too (None: a dynamic one that is not reused).
        """
        return self.scheduler.delete_agent(name, force=force, destroy_pg=destroy_pg)

    def list_agents(self, pool: str | None = None) -> dict[str, Any]:
        """Every agent (of one pool)."""
        return self.scheduler.list_agents(pool)

    def get_saved_state(self, task_id: str) -> dict[str, Any]:
        """The state saved when a task was last preempted."""
        return self.scheduler.get_saved_state(task_id)

    def restore_task(self, saved_state: Mapping[str, Any]) -> dict[str, Any]:
        """Run a preempted task again from its saved state."""
        return self.scheduler.restore_task(saved_state)

    def pg_pool_stats(self, pool: str | None = None) -> dict[str, Any]:
        """The placement groups of all pools (of one), in numbers and one by one."""
        return self.scheduler.pg_pool_stats(pool)

    def stats(self) -> dict[str, Any]:
        """The preemption stats, and the pools' quotas."""
        return self.scheduler.stats()

    def get_preemption_stats(self) -> dict[str, Any]:
        """Preemptions so far, by kind, running tasks, and the last preemptions."""
        return self.scheduler.get_preemption_stats()

    def shutdown(self, force: bool = False) -> dict[str, Any]:
        """End every agent and the scheduler, and a Ray that was started here; see RayScheduler.shutdown."""
        answer = self.scheduler.shutdown(force)
        if not answer["success"]:
            logger.warning("%s; %s", answer["error"], answer["hint"])
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False
        return answer
