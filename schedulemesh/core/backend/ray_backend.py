"""Every call of Ray that the supervisor makes, behind one small protocol: the seam that tests fake."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import ray
from ray.core.generated import gcs_pb2
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schedulemesh.core.backend.ray_groups import (
    BundleSlot,
    GroupMember,
    GroupRequest,
    GroupView,
    RayGroups,
    scheduling_strategy_of,
)
from schedulemesh.core.backend.ray_resources import ray_amounts, resources_of
from schedulemesh.domain.resources import NOTHING, UNIT, Resources

#: The part of Ray's own store that is ours.
_KEPT = b"schedulemesh"


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A living node as Ray sees it."""

    node_id: str
    total: Resources
    #: What nobody holds; lags by about 0.1 s.
    free: Resources
    labels: dict[str, str]


class ActorView(msgspec.Struct, frozen=True, kw_only=True):
    """An actor as Ray's own table has it."""

    #: Where Ray has placed it, or tries to; None: nowhere yet.
    node_id: str | None
    #: Whether it has a process; otherwise it waits for room, or for the process to start.
    has_process: bool
    #: Its process, where Ray takes it for living.
    pid: int | None = None


class ActorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An actor to be made."""

    cls: type
    name: str
    namespace: str
    resources: Resources
    #: None: wherever the options lead.
    node_id: str | None
    #: The placement group that it lives in; None: it lives on a node.
    slot: BundleSlot | None = None
    #: The user's Ray options.
    options: Mapping[str, Any]
    args: tuple[Any, ...]


class RayApi(Protocol):
    """What the supervisor's executor needs of Ray."""

    def nodes(self) -> list[NodeView]:
        """The living nodes."""

    def living_actors(self) -> set[tuple[str, str]]:
        """(namespace, name) of every living named actor."""

    def job_lives(self, job_id: str) -> bool:
        """Whether a job still runs."""

    def start_actor(self, request: ActorRequest) -> Any:
        """The handle of a new detached actor; it may still fail."""

    def find_actor(self, name: str, namespace: str) -> Any:
        """The handle of a living actor; None: there is none."""

    def kill_actor(self, handle: Any) -> None:
        """End an actor at once, without restart."""

    def actor(self, handle: Any) -> ActorView | None:
        """What Ray knows of an actor, dead ones included; None: nothing. May block."""

    def waits_for_room(self, handle: Any) -> bool:
        """Whether Ray has an actor wait because it finds no room; False: its process is being started, or
        runs. Lags by about 0.1 s; may block.
        """

    def own_node_id(self) -> str:
        """The node of this process."""

    def start_helper(self, cls: type, node_id: str) -> Any:
        """The handle of an actor on this node that takes nothing and ends with this process."""

    async def call(self, handle: Any, method: str, *args: Any) -> Any:
        """Call a method; raises RayError where the actor died."""

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        timeout_s: float,
        runtime_env: Mapping[str, Any] | None,
        slot: BundleSlot | None = None,
    ) -> Any:
        """Run a function in a worker of its own, in a slot with all GPUs of its bundle if one is given.

        TimeoutError: it was ended; RayError: it died.
        """

    def session_folder(self) -> Path:
        """Ray's own folder for this cluster on this node."""

    def recall(self, key: str) -> bytes | None:
        """What was kept under a key in Ray's own store; None: nothing. May block."""

    def keep(self, key: str, value: bytes | None) -> None:
        """Keep a value there for as long as this Ray lives; None: nothing any more. May block."""

    def create_group(self, request: GroupRequest) -> str:
        """Ray's id of a new detached placement group, which is not placed yet. Raises RayError; may block."""

    def groups(self) -> list[GroupView]:
        """Every placement group that is not removed, others' too; may block."""

    def group(self, ray_id: str) -> GroupView | None:
        """One placement group; None: it is removed. May block."""

    def members(self, ray_id: str) -> list[GroupMember]:
        """The actors in a placement group that are not dead, whosoever they are; may block."""

    def remove_group(self, ray_id: str) -> None:
        """Begin to remove a placement group; Ray ends what lives in it. May block."""

    def ask_autoscaler(self, bundles: list[dict[str, float]]) -> None:
        """Have Ray's autoscaler make room for these bundles; none: for nothing more. May block."""


def leave_unread_errors_closed() -> None:
    """Have Ray not open errors that this process never asked for.

    When the last reference to an object goes that holds an error and was never fetched, Ray unpickles the
    error in order to log it, and so runs code of the user's exception class.
    """
    ray._private.worker.global_worker.raise_errors = lambda *_unread: None


class LiveRay(RayGroups):
    """Ray itself."""

    def nodes(self) -> list[NodeView]:
        """See RayApi."""
        free = ray._private.state.available_resources_per_node()
        return [
            NodeView(
                node_id=node["NodeID"],
                total=resources_of(node["Resources"]),
                free=resources_of(free.get(node["NodeID"], {})),
                labels=dict(node.get("Labels") or {}),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]

    def living_actors(self) -> set[tuple[str, str]]:
        """See RayApi."""
        listed = ray.util.list_named_actors(all_namespaces=True)
        return {(entry["namespace"], entry["name"]) for entry in listed}

    def job_lives(self, job_id: str) -> bool:
        """See RayApi."""
        client = ray._private.worker.global_worker.gcs_client
        jobs = client.get_all_job_info(job_or_submission_id=job_id)
        return any(not info.is_dead for key, info in jobs.items() if key.hex() == job_id)

    def start_actor(self, request: ActorRequest) -> Any:
        """See RayApi."""
        options = dict(request.options)
        groups = options.pop("concurrency_groups", None)
        options.update(ray_amounts(request.resources))
        if request.slot is not None:
            options["scheduling_strategy"] = scheduling_strategy_of(request.slot)
        elif request.node_id is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                request.node_id, soft=False
            )
        options.update(name=request.name, namespace=request.namespace, lifetime="detached")
        actor_class = _actor_class(request.cls, json.dumps(groups))
        return actor_class.options(**options).remote(*request.args)

    def find_actor(self, name: str, namespace: str) -> Any:
        """See RayApi."""
        try:
            return ray.get_actor(name, namespace=namespace)
        except ValueError:
            return None

    def kill_actor(self, handle: Any) -> None:
        """See RayApi."""
        ray.kill(handle, no_restart=True)

    def actor(self, handle: Any) -> ActorView | None:
        """See RayApi."""
        data = _actor_data(handle)
        if data is None:
            return None
        lives = data.state == gcs_pb2.ActorTableData.ALIVE
        return ActorView(
            node_id=data.address.node_id.hex() or None,
            has_process=bool(data.address.worker_id),
            pid=data.pid if lives else None,
        )

    def waits_for_room(self, handle: Any) -> bool:
        """See RayApi."""
        data = _actor_data(handle)
        if data is None or data.address.worker_id:
            return False
        node_id = data.address.node_id.hex()
        need = resources_of(data.required_resources)
        if node_id and need.beyond(_never_placed(node_id)):
            # An actor that waits for others may have lent its CPUs, which the former sum counts as taken.
            free = ray._private.state.available_resources_per_node()
            return bool(need.beyond(resources_of(free.get(node_id, {}))))
        usage = gcs_pb2.ResourceUsageBatchData.FromString(_accessor().get_all_resource_usage())
        return any(
            demand.num_ready_requests_queued or demand.num_infeasible_requests_queued
            for demand in usage.resource_load_by_shape.resource_demands
            if dict(demand.shape) == dict(data.required_resources)
        )

    def own_node_id(self) -> str:
        """See RayApi."""
        found: str = ray.get_runtime_context().get_node_id()
        return found

    def start_helper(self, cls: type, node_id: str) -> Any:
        """See RayApi."""
        pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return ray.remote(cls).options(num_cpus=0, scheduling_strategy=pinned).remote()

    async def call(self, handle: Any, method: str, *args: Any) -> Any:
        """See RayApi."""
        return await getattr(handle, method).remote(*args)

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        timeout_s: float,
        runtime_env: Mapping[str, Any] | None,
        slot: BundleSlot | None = None,
    ) -> Any:
        """See RayApi."""
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0}
        if runtime_env:
            options["runtime_env"] = dict(runtime_env)
        if slot is not None:
            options["num_gpus"] = slot.shape.bundles[0].gpu / UNIT
            options["scheduling_strategy"] = scheduling_strategy_of(slot)
        ref = ray.remote(**options)(function).remote(*args)
        try:
            return await asyncio.wait_for(asyncio.shield(as_future(ref)), timeout_s)
        except (asyncio.TimeoutError, TimeoutError) as error:
            ray.cancel(ref, force=True)
            raise TimeoutError(f"not done after {timeout_s:g} s") from error

    def recall(self, key: str) -> bytes | None:
        """See RayApi."""
        found: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=_KEPT)
        return found

    def keep(self, key: str, value: bytes | None) -> None:
        """See RayApi."""
        if value is None:
            internal_kv._internal_kv_del(key.encode(), namespace=_KEPT)
        else:
            internal_kv._internal_kv_put(key.encode(), value, overwrite=True, namespace=_KEPT)

    def session_folder(self) -> Path:
        """See RayApi."""
        return Path(ray._private.worker.global_worker.node.get_session_dir_path())


@functools.lru_cache(maxsize=256)
def _actor_class(cls: type, groups: str) -> Any:
    """The class as an actor's, with concurrency groups given as JSON. Ray exports each of these once, and
    every process that gets a handle loads it once, so the same must be used again.
    """
    found = json.loads(groups)
    return ray.remote(concurrency_groups=found)(cls) if found else ray.remote(cls)


def _never_placed(node_id: str) -> Resources:
    """What is left of a node beside all actors that run there and all placement groups. Unlike Ray's view
    of what is free, it does not lag, and leaves aside what Ray has given to a process that is being started.
    """
    left = next(
        (resources_of(n["Resources"]) for n in ray.nodes() if n["NodeID"] == node_id), NOTHING
    )
    node = bytes.fromhex(node_id)
    for entry in _accessor().get_actor_table(None, None):
        data = gcs_pb2.ActorTableData.FromString(entry) if node in entry else None
        if data is not None and data.node_id == node and data.state == gcs_pb2.ActorTableData.ALIVE:
            left = left - resources_of(
                {
                    held.name: sum(i.quantity for i in held.resource_ids)
                    for held in data.resource_mapping
                }
            )
    for group in placement_group_table().values():
        for index, placed in group["bundles_to_node_id"].items():
            if placed == node_id and group["state"] != "REMOVED":
                left = left - resources_of(group["bundles"][index])
    return left


def _accessor() -> Any:
    """Ray's own tables, which it shows to no public call without its dashboard."""
    return ray._private.state.state._connect_and_get_accessor()


def _actor_data(handle: Any) -> Any:
    """The actor's entry in Ray's table; None: there is none."""
    entry = _accessor().get_actor_info(handle._actor_id)
    return None if entry is None else gcs_pb2.ActorTableData.FromString(entry)


def as_future(ref: Any) -> asyncio.Future[Any]:
    """A future of an object reference."""
    return asyncio.wrap_future(ref.future())


def actor_id(handle: Any) -> str:
    """What tells an actor from every other one."""
    found: str = handle._actor_id.hex()
    return found
