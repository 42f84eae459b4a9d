"""What Ray offers through no public call without its dashboard: its tables, its store, its session folder.

Every use of Ray's private interfaces is here, so that a new version of Ray is checked in one place. Each
function may block for some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray._private.gcs_utils import create_gcs_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2
from ray.core.generated.gcs_service_pb2_grpc import ActorInfoGcsServiceStub
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table

from schedulemesh.core.backend.ray_resources import resources_of
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.runtime.backend import ActorView, GroupMember

#: The namespace of our values in Ray's internal key-value store.
_NAMESPACE = b"schedulemesh"
#: Seconds for a call of Ray's head process.
_GCS_S = 10.0


def ignore_unread_errors() -> None:
    """Have Ray not unpickle errors that this process never asks for.

    When the last reference to an object that holds an error and was never fetched is dropped, Ray unpickles
    the error in order to log it, and so runs code of the user's exception class.
    """
    ray._private.worker.global_worker.raise_errors = lambda *_unread: None


def session_folder() -> Path:
    """Ray's own folder for this cluster on this node."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path())


def recall(key: str) -> bytes | None:
    """A value in Ray's key-value store; None: there is none."""
    found: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
    return found


def keep(key: str, value: bytes | None) -> None:
    """Store a value in Ray's key-value store; None removes it."""
    if value is None:
        internal_kv._internal_kv_del(key.encode(), namespace=_NAMESPACE)
    else:
        internal_kv._internal_kv_put(key.encode(), value, overwrite=True, namespace=_NAMESPACE)


def job_runs(job_id: str) -> bool:
    """Whether a job still runs."""
    client = ray._private.worker.global_worker.gcs_client
    jobs = client.get_all_job_info(job_or_submission_id=job_id)
    return any(not info.is_dead for key, info in jobs.items() if key.hex() == job_id)


def free_by_node() -> dict[str, Resources]:
    """What nobody holds, by node; it lags by about 0.1 s."""
    free = ray._private.state.available_resources_per_node()
    return {node_id: resources_of(amounts) for node_id, amounts in free.items()}


def draining_nodes() -> dict[str, float | None]:
    """The nodes that Ray drains, each with when it is removed, in seconds since 1970; None: not known."""
    found = ray._private.state.state.get_draining_nodes()
    return {node_id: ms / 1000 if ms else None for node_id, ms in found.items()}


def actor_view(handle: Any) -> ActorView | None:
    """What Ray's table says of an actor; None: it has no entry."""
    data = _actor_data(handle)
    if data is None:
        return None
    lives = data.state == gcs_pb2.ActorTableData.ALIVE
    return ActorView(
        node_id=data.address.node_id.hex() or None,
        has_process=bool(data.address.worker_id),
        pid=data.pid if lives else None,
    )


def waits_for_room(handle: Any) -> bool:
    """Whether Ray keeps an actor waiting because no node has room."""
    data = _actor_data(handle)
    if data is None or data.address.worker_id:
        return False
    node_id = data.address.node_id.hex()
    need = resources_of(data.required_resources)
    if node_id and need.beyond(_unallocated(node_id)):
        # An actor that waits for others may have lent its CPUs, which the former sum counts as taken.
        return bool(need.beyond(free_by_node().get(node_id, NOTHING)))
    return dict(data.required_resources) in queued_shapes()


def queued_shapes() -> list[dict[str, float]]:
    """What actors and tasks ask for that wait for room, each amount once; it lags by about 0.1 s."""
    usage = gcs_pb2.ResourceUsageBatchData.FromString(_accessor().get_all_resource_usage())
    return [
        dict(demand.shape)
        for demand in usage.resource_load_by_shape.resource_demands
        if demand.num_ready_requests_queued or demand.num_infeasible_requests_queued
    ]


def group_members(ray_id: str) -> list[GroupMember]:
    """The actors in a placement group that are not dead."""
    group_id = bytes.fromhex(ray_id)
    return [
        GroupMember(
            name=data.name,
            namespace=data.ray_namespace,
            node_id=data.address.node_id.hex(),
            pid=data.pid,
            actor_id=data.actor_id.hex(),
        )
        for data in _actors_with(group_id)
        if data.placement_group_id == group_id and data.state != gcs_pb2.ActorTableData.DEAD
    ]


def actor_entries(states: Iterable[str]) -> Iterator[bytes]:
    """The entries of Ray's actor table with these states, one state after the other."""
    for state in states:
        yield from _accessor().get_actor_table(None, state)


def group_entries() -> list[bytes]:
    """Ray's table of placement groups; removed ones stay in it for a while."""
    found: list[bytes] = _accessor().get_placement_group_table()
    return found


def job_entries() -> list[bytes]:
    """Ray's job table, without asking each driver and the dashboard where this version can do without."""
    accessor = _accessor()
    try:
        found: list[bytes] = accessor.get_job_table(
            skip_submission_job_info_field=True, skip_is_running_tasks_field=True
        )
    except TypeError:
        found = accessor.get_job_table()
    return found


def end_actors(actor_ids: Sequence[str]) -> None:
    """Begin to end actors of whatever job, by their ids. Ray's public call ends only actors of which this
    process has a handle.
    """
    with create_gcs_channel(_gcs_address()) as channel:
        stub = ActorInfoGcsServiceStub(channel)
        for actor_id in actor_ids:
            request = gcs_service_pb2.KillActorViaGcsRequest(
                actor_id=bytes.fromhex(actor_id), force_kill=True, no_restart=True
            )
            stub.KillActorViaGcs(request, timeout=_GCS_S)


def group_in_use(ray_id: str) -> bool:
    """Whether an actor or task has something of a placement group, or waits for that.

    Each bundle offers a resource of its own of which whatever runs in it takes some.
    """
    marker = f"bundle_group_{ray_id}"
    usage = gcs_pb2.ResourceUsageBatchData.FromString(_accessor().get_all_resource_usage())
    if any(
        node.resources_available.get(marker, 0.0) < total
        for node in usage.batch
        if (total := node.resources_total.get(marker, 0.0))
    ):
        return True
    return any(
        ray_id in name
        for demand in usage.resource_load_by_shape.resource_demands
        for name in demand.shape
    )


def _gcs_address() -> str:
    address: str = ray._private.worker.global_worker.gcs_client.address
    return address


def _unallocated(node_id: str) -> Resources:
    """What a node has beyond all actors and placement groups on it. Unlike Ray's view of what is free, it
    does not lag, and it ignores what Ray has given to a process that is being started.
    """
    left = next(
        (resources_of(n["Resources"]) for n in ray.nodes() if n["NodeID"] == node_id), NOTHING
    )
    node = bytes.fromhex(node_id)
    for data in _actors_with(node):
        if data.node_id == node and data.state == gcs_pb2.ActorTableData.ALIVE:
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


def _actors_with(part: bytes) -> Iterator[Any]:
    """The entries of Ray's actor table that contain these bytes. Most entries do not, and decoding them takes
    longer than searching them.
    """
    for entry in _accessor().get_actor_table(None, None):
        if part in entry:
            yield gcs_pb2.ActorTableData.FromString(entry)


def _actor_data(handle: Any) -> Any:
    """The actor's entry in Ray's table; None: there is none."""
    entry = _accessor().get_actor_info(handle._actor_id)
    return None if entry is None else gcs_pb2.ActorTableData.FromString(entry)


def _accessor() -> Any:
    return ray._private.state.state._connect_and_get_accessor()
