"""Ray as the backend of the runtime: agents are detached actors, user code runs in tasks of its own.

RayError is translated here and in this package alone; see ``ray_errors``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.core.agent.control_channel import restarted_by_ray
from schedulemesh.core.agent.process_marks import mark_of
from schedulemesh.core.agent.user_workers import accelerators, preserve, probe_class, restore
from schedulemesh.core.backend import ray_internals
from schedulemesh.core.backend.actor_classes import OF_THE_CLASS, HostClasses, actor_class
from schedulemesh.core.backend.http_actor import http_actor_name, start_http_actor
from schedulemesh.core.backend.node_cleaner import OwnNodeCleaner, RemoteNodeCleaner
from schedulemesh.core.backend.ray_deaths import death_of, deaths_of, has_lost_room
from schedulemesh.core.backend.ray_errors import refused, translated
from schedulemesh.core.backend.ray_groups import RayGroups, scheduling_strategy_of
from schedulemesh.core.backend.ray_jobs import end_jobs, publish_folder, publish_package
from schedulemesh.core.backend.ray_metrics import RayMetrics
from schedulemesh.core.backend.ray_options import SELECTORS
from schedulemesh.core.backend.ray_resources import labels_of, ray_amounts, resources_of
from schedulemesh.core.backend.ray_usage import DemandReader, UsageReader
from schedulemesh.core.transport.handles import as_future, packed_handle
from schedulemesh.domain.agent import Death
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.metrics.catalogue import Metric
from schedulemesh.runtime.backend import (
    ActorView,
    AgentRequest,
    BackendError,
    BackendTimeoutError,
    BundleSlot,
    Handle,
    JobRemains,
    NodeCleaner,
    NodeView,
    Refs,
    WarmHostRequest,
)
from schedulemesh.runtime.cluster_usage import ClusterUsage

Value = TypeVar("Value")

#: Seconds that the process of the HTTP API may take to remove its file.
_HTTP_END_S = 5.0


class RayBackend(RayGroups):
    """Ray, from within the supervisor's actor."""

    def __init__(self) -> None:
        super().__init__()
        self._supervisor: Any = ray.get_runtime_context().current_actor
        self._hosts = HostClasses()
        self._metrics = RayMetrics()
        self._usage = UsageReader()
        self._reading_usage = asyncio.Lock()
        self._demand = DemandReader()
        self._reading_demand = asyncio.Lock()

    # the supervisor's own process

    def version(self) -> str:
        """See Backend."""
        return str(ray.__version__)

    def own_node_id(self) -> str:
        """See Backend."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    def session_folder(self) -> Path:
        """See Backend."""
        return ray_internals.session_folder()

    def was_restarted(self) -> bool:
        """See Backend."""
        return restarted_by_ray()

    def export_metric(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """See Backend."""
        with refused():
            self._metrics.record(metric, labels, value)

    def end_supervisor(self) -> None:
        """See Backend."""
        self.kill_actor(self._supervisor)

    def start_http(self, settings: bytes, name: str, namespace: str) -> None:
        """See Backend."""
        with refused():
            start_http_actor(settings, name, namespace, self._supervisor)

    async def end_http(self, name: str, namespace: str) -> None:
        """See Backend."""
        handle = await self.find_actor(http_actor_name(name), namespace)
        if handle is None:
            return
        with contextlib.suppress(BackendError, asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(_call(handle, "end"), _HTTP_END_S)
        self.kill_actor(handle)

    # the cluster

    async def nodes(self) -> list[NodeView]:
        """See Backend."""
        return await _in_thread(_nodes)

    async def usage(self) -> ClusterUsage:
        """See Backend."""
        async with self._reading_usage:
            return await _in_thread(self._usage.read)

    async def demand(self) -> ClusterUsage:
        """See Backend."""
        async with self._reading_demand:
            return await _in_thread(self._demand.read)

    async def job_runs(self, job_id: str) -> bool:
        """See Backend."""
        return await _in_thread(ray_internals.job_runs, job_id)

    async def recall(self, key: str) -> bytes | None:
        """See Backend."""
        return await _in_thread(ray_internals.recall, key)

    async def keep(self, key: str, value: bytes | None) -> None:
        """See Backend."""
        await _in_thread(ray_internals.keep, key, value)

    # actors

    def start_agent(self, request: AgentRequest) -> Handle:
        """See Backend."""
        with refused():
            cls = self._hosts.host_class_for(request.class_key, request.shipped, warm=False)
            placing = _placing(request.slot, request.node_id)
            options = {**_options(request, request.resources, placed=bool(placing)), **placing}
            return _create_actor(cls, options, request.init, self._supervisor, *request.refs)

    def start_warm_host(self, request: WarmHostRequest) -> Handle:
        """See Backend."""
        with refused():
            cls = self._hosts.host_class_for(request.class_key, request.shipped, warm=True)
            options = {
                **_options(request, NOTHING, placed=True),
                **_placing(request.slot, None),
            }
            return _create_actor(
                cls,
                options,
                request.shipped,
                request.accelerators,
                self._supervisor,
                request.mark,
            )

    async def agent_report(self, handle: Handle) -> object:
        """See Backend."""
        return await _call(handle, "schedulemesh_report")

    async def warm_host_report(self, handle: Handle) -> object:
        """See Backend."""
        return await _call(handle, "schedulemesh_ready")

    async def build_agent(self, handle: Handle, init: bytes, refs: Refs) -> object:
        """See Backend."""
        return await _call(handle, "schedulemesh_build", init, *refs)

    async def run_task(self, handle: Handle, order: bytes) -> object:
        """See Backend."""
        return await _call(handle, "schedulemesh_run", order)

    def packed_handle(self, handle: Handle) -> bytes:
        """See Backend."""
        with translated():
            return packed_handle(handle)

    async def find_actor(self, name: str, namespace: str) -> Handle | None:
        """See Backend."""
        return await _in_thread(_found, name, namespace)

    async def living_actors(self) -> set[tuple[str, str]]:
        """See Backend."""
        return await _in_thread(_living_actors)

    async def actor(self, handle: Handle) -> ActorView | None:
        """See Backend."""
        return await _in_thread(ray_internals.actor_view, handle)

    async def death_of(self, handle: Handle) -> Death | None:
        """See Backend."""
        return await _in_thread(death_of, handle)

    async def has_lost_room(self, handle: Handle) -> bool:
        """See Backend."""
        return await _in_thread(has_lost_room, handle)

    async def deaths_of(
        self, addresses: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], Death]:
        """See Backend."""
        return await _in_thread(deaths_of, addresses)

    async def waits_for_room(self, handle: Handle) -> bool:
        """See Backend."""
        return await _in_thread(ray_internals.waits_for_room, handle)

    def kill_actor(self, handle: Handle) -> None:
        """See Backend."""
        with translated():
            ray.kill(handle, no_restart=True)

    async def actor_ended(self, handle: Handle) -> None:
        """See Backend. Every actor of Ray has the method that is called, also one that is no host of ours."""
        with contextlib.suppress(BackendError):
            await _call(handle, "__ray_ready__")

    async def publish_folder(self, key: str, suffix: str, archive: bytes) -> str:
        """See Backend."""
        try:
            return await _in_thread(publish_folder, key, suffix, archive)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"its working directory cannot be handed to Ray: {error}") from error

    async def publish_package(self, uri: str, archive: bytes) -> None:
        """See Backend."""
        await _in_thread(publish_package, uri, archive)

    async def end_jobs(self, owner: str) -> JobRemains:
        """See Backend."""
        return await _in_thread(end_jobs, owner)

    # user code in a worker process of its own

    async def probe_class(
        self, shipped: bytes, timeout_s: float, runtime_env: Mapping[str, object] | None
    ) -> object:
        """See Backend."""
        options = {"runtime_env": dict(runtime_env)} if runtime_env else {}
        return await _run(probe_class, (shipped,), timeout_s, options)

    async def preserve_state(
        self,
        handler: bytes,
        task: bytes,
        started_at: float,
        limit_bytes: int,
        timeout_s: float,
    ) -> object:
        """See Backend."""
        args = (handler, task, started_at, limit_bytes)
        return await _run(preserve, args, timeout_s, {})

    async def restore_state(self, handler: bytes, saved: bytes, timeout_s: float) -> object:
        """See Backend."""
        return await _run(restore, (handler, saved), timeout_s, {})

    async def accelerators(self, slot: BundleSlot, timeout_s: float) -> object:
        """See Backend. A task that takes all GPUs of the bundle for a moment is told which they are."""
        gpus = slot.shape.bundles[0].gpu / UNIT
        options = {"num_gpus": gpus, **_placing(slot, None)}
        return await _run(accelerators, (), timeout_s, options)

    async def start_exec(
        self, slot: BundleSlot, order: bytes, mark: int, variables: Mapping[str, str]
    ) -> Handle:
        """See Backend."""
        with refused():
            options = {"num_cpus": 0, **_placing(slot, None)}
            # It needs the runner of jobs, which would be a tenth of what each supervisor imports.
            from schedulemesh.core.agent.exec_host import ExecHost

            handle = Handle(ray.remote(ExecHost).options(**options).remote(mark))
        await _call(handle, "begin", order, dict(variables))
        return handle

    # processes that agents start

    def process_mark(self, namespace: str, actor_name: str) -> int:
        """See Backend."""
        return mark_of(self.session_folder().name, namespace, actor_name)

    def node_cleaner(self, node_id: str) -> NodeCleaner:
        """See Backend."""
        is_own_node = node_id == self.own_node_id()
        return OwnNodeCleaner() if is_own_node else RemoteNodeCleaner(node_id)


def _options(
    request: AgentRequest | WarmHostRequest, resources: Resources, *, placed: bool
) -> dict[str, Any]:
    """The options of a detached actor: the user's, overridden by what the scheduler decides. ``placed``: its
    node is chosen, which has the labels that the user asked for.
    """
    return {
        **{k: v for k, v in request.options.items() if not (placed and k in SELECTORS)},
        **ray_amounts(resources),
        "name": request.name,
        "namespace": request.namespace,
        "lifetime": "detached",
    }


def _placing(slot: BundleSlot | None, node_id: str | None) -> dict[str, Any]:
    """The option that places an actor or task; none: wherever its other options say."""
    if slot is not None:
        return {"scheduling_strategy": scheduling_strategy_of(slot)}
    if node_id is not None:
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}
    return {}


def _create_actor(cls: type, options: dict[str, Any], *args: Any) -> Handle:
    class_options = {name: options.pop(name) for name in OF_THE_CLASS if name in options}
    return Handle(actor_class(cls, class_options).options(**options).remote(*args))


async def _call(handle: Any, method: str, *args: Any) -> object:
    with translated():
        answer: object = await getattr(handle, method).remote(*args)
        return answer


async def _run(
    function: Callable[..., bytes],
    args: tuple[Any, ...],
    timeout_s: float,
    options: Mapping[str, Any],
) -> object:
    """Run a function in a worker; it is ended when the time is over."""
    task = ray.remote(**{"num_cpus": 0, "max_retries": 0, **options})(function)
    with translated():
        ref = task.remote(*args)
        try:
            answer: object = await asyncio.wait_for(asyncio.shield(as_future(ref)), timeout_s)
        except (asyncio.TimeoutError, TimeoutError) as error:
            ray.cancel(ref, force=True)
            raise BackendTimeoutError(f"not done after {timeout_s:g} s") from error
        return answer


async def _in_thread(function: Callable[..., Value], *args: Any) -> Value:
    """Call a function of Ray that blocks."""
    with translated():
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def _nodes() -> list[NodeView]:
    free, draining = ray_internals.free_by_node(), ray_internals.draining_nodes()
    return [
        NodeView(
            node_id=node["NodeID"],
            total=resources_of(node["Resources"]),
            free=free.get(node["NodeID"], NOTHING),
            labels=labels_of(node.get("Labels") or {}, node["Resources"]),
            draining=node["NodeID"] in draining,
            drain_deadline=draining.get(node["NodeID"]),
            host=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _found(name: str, namespace: str) -> Handle | None:
    try:
        return Handle(ray.get_actor(name, namespace=namespace))
    except ValueError:
        return None


def _living_actors() -> set[tuple[str, str]]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return {(entry["namespace"], entry["name"]) for entry in listed}
