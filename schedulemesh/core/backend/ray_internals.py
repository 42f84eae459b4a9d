"""What Ray offers through no public call without its dashboard: its tables, its store, its session folder.

Every use of Ray's private interfaces is here, so that a new version of Ray is checked in one place. Each
function may block for some milliseconds.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import ActorID, JobID
from ray._private.gcs_utils import create_gcs_channel
from ray._private.internal_api import node_stats
from ray.core.generated import gcs_pb2, gcs_service_pb2
from ray.exceptions import RaySystemError
from ray.experimental import internal_kv

from schedulemesh.core.backend.ray_errors import grpc_errors
from schedulemesh.core.backend.ray_resources import resources_of
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.runtime.backend import ActorView, GroupMember

#: What a request asks for: names and amounts of Ray's resources.
Shape = frozenset[tuple[str, float]]
#: The namespace of our values in Ray's internal key-value store.
_NAMESPACE = b"schedulemesh"
#: The ids of actors that processes of plain tasks report.
_NO_ACTOR = (b"", ActorID.nil().binary())
#: The states of actors that are not dead, in the order in which an actor passes through them, so that none is
#: missed between two answers; one that has lived may start again.
LIVING_STATES = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING", "ALIVE", "RESTARTING")
#: The key in the metadata of a Ray job that names the submission to which its driver belongs.
SUBMISSION = "job_submission_id"
#: The namespace of the actors that run the commands of ``ray job submit``, and how their names begin.
SUBMISSIONS = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
_SUBMISSION_ACTOR = "_ray_internal_job_actor_"
#: Has Ray's head asked for some actors beside others.
_BESIDE = ThreadPoolExecutor(4, "actor-states")
#: Seconds for a call of Ray's head process.
_GCS_S = 10.0


def ignore_unread_errors() -> None:
    """Have Ray not unpickle errors that this process never asks for.

    When the last reference to an object that holds an error and was never fetched is dropped, Ray unpickles
    the error in order to log it, and so runs code of the user's exception class.
    """
    ray._private.worker.global_worker.raise_errors = lambda *_unread: None


@contextmanager
def errors_on_stderr() -> Iterator[None]:
    """Within, what Ray says of errors in the cluster, as of a process that was killed, is printed on stderr.
    Ray prints it on stdout, among the data of a program.
    """
    worker = ray._private.worker
    printed = worker.print_to_stdstream

    def print_to_stderr(message: Mapping[str, Any], *more: object, **named: object) -> None:
        printed({**message, "is_err": True}, *more, **named)

    worker.print_to_stdstream = print_to_stderr
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


def session_folder() -> Path:
    """Ray's own folder for this cluster on this node."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path())


def recall(key: str) -> bytes | None:
    """A value in Ray's key-value store; None: there is none."""
    value: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
    return value


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
    removal_times_ms = ray._private.state.state.get_draining_nodes()
    return {node_id: ms / 1000 if ms else None for node_id, ms in removal_times_ms.items()}


def actor_view(handle: Any) -> ActorView | None:
    """What Ray's table says of an actor; None: it has no entry."""
    data = actor_data(handle)
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
    data = actor_data(handle)
    if data is None or data.address.worker_id:
        return False
    need = resources_of(data.required_resources)
    if node_id := data.address.node_id.hex():
        free, unallocated = free_by_node().get(node_id, NOTHING), _unallocated(node_id)
        if need.beyond(unallocated):
            # An actor that waits for others may have lent its CPUs, which that sum counts as taken.
            return bool(need.beyond(free))
        if need.beyond(free) and _is_held_by_tasks(node_id, unallocated.beyond(free), need):
            return True
    # Ray lists no actor among these that may run on one node alone.
    return shape_of(data.required_resources) in queued_requests()


def lost_by_node() -> dict[str, Resources]:
    """What Ray says is taken of its nodes, although no actor, placement group or task has it. For a moment it
    says so, too, of what it gives to a process that is being started.
    """
    amounts: dict[str, Resources] = {}
    for node_id, free in free_by_node().items():
        taken = _unallocated(node_id).beyond(free)
        held_by_tasks = _held_by_tasks(node_id) if taken else None
        if held_by_tasks is not None and (lost := taken.beyond(held_by_tasks)):
            amounts[node_id] = lost
    return amounts


def _is_held_by_tasks(node_id: str, allocated: Resources, need: Resources) -> bool:
    """Whether plain tasks hold all that Ray has given on a node beside actors and groups. Otherwise a part of
    it may be for a process that is being started.
    """
    held_by_tasks = _held_by_tasks(node_id)
    return held_by_tasks is not None and not allocated.beyond(held_by_tasks).helps(need)


def _held_by_tasks(node_id: str) -> Resources | None:
    """What plain tasks hold on a node. It is in none of Ray's tables, so the processes there are asked. What
    a task has lent while it waits for others is included. None: the node has died, or does not answer.
    """
    node = next((n for n in ray.nodes() if n["NodeID"] == node_id and n["Alive"]), None)
    if node is None:
        return None
    address = node["NodeManagerAddress"], node["NodeManagerPort"]
    try:
        workers = node_stats(*address, include_memory_info=False).core_workers_stats
    except grpc_errors():
        return None
    return sum_of(
        resources_of(
            {name: _allocated(resource) for name, resource in worker.used_resources.items()}
        )
        for worker in workers
        # A process that has run a task still has its amounts.
        if worker.num_running_tasks and worker.actor_id in _NO_ACTOR
    )


def _allocated(resource: Any) -> float:
    return float(sum(slot.allocation for slot in resource.resource_slots))


def shape_of(amounts: Mapping[str, float]) -> Shape:
    """What a request asks for, in Ray's words."""
    return frozenset(amounts.items())


def queued_requests() -> Counter[Shape]:
    """How many actors and tasks wait for room with each shape; it lags by up to a second, because the GCS
    asks the nodes only so often. Ray lists none among them that may run on one node alone.
    """
    usage = gcs_pb2.ResourceUsageBatchData.FromString(_accessor().get_all_resource_usage())
    counts: Counter[Shape] = Counter()
    for demand in usage.resource_load_by_shape.resource_demands:
        queued = demand.num_ready_requests_queued + demand.num_infeasible_requests_queued
        # The backlog is what an owner has not asked for yet beside what is queued.
        if queued:
            counts[shape_of(demand.shape)] += queued + demand.backlog_size
    return counts


def group_members(ray_id: str) -> list[GroupMember]:
    """The actors in a placement group that are not dead."""
    group_id = bytes.fromhex(ray_id)
    members = {
        data.actor_id: GroupMember(
            name=data.name,
            namespace=data.ray_namespace,
            node_id=data.address.node_id.hex(),
            pid=data.pid,
            actor_id=data.actor_id.hex(),
        )
        for data in _containing(group_id, _living_entries())
        if data.placement_group_id == group_id
    }
    return list(members.values())


def _living_entries() -> Iterator[bytes]:
    """The entries of all actors that are not dead, as ``actor_entries`` gives them, a quarter sooner: those
    that start again are asked for beside those that were never alive, and both before those that are.
    """
    starting_again = _BESIDE.submit(lambda: [*actor_entries(("RESTARTING",))])
    yield from actor_entries(("DEPENDENCIES_UNREADY", "PENDING_CREATION"))
    yield from starting_again.result()
    yield from actor_entries(("ALIVE", "RESTARTING"))


def actor_entries(states: Iterable[str], job_id: JobID | None = None) -> Iterator[bytes]:
    """The entries of Ray's actor table with these states, one state after the other, of all jobs or of one.
    With any state there would be dead ones among them, of which Ray keeps 100,000: half a second for each
    20,000.
    """
    for state in states:
        yield from _accessor().get_actor_table(job_id, state)


def group_entries(part: bytes = b"") -> list[bytes]:
    """The entries of Ray's table of placement groups that contain these bytes. Those that were removed stay
    in it.
    """
    entries: list[bytes] = _accessor().get_placement_group_table()
    return [entry for entry in entries if part in entry] if part else entries


def job_entries() -> list[bytes]:
    """Ray's job table, without asking each driver and the dashboard where this version can do without."""
    accessor = _accessor()
    try:
        entries: list[bytes] = accessor.get_job_table(
            skip_submission_job_info_field=True, skip_is_running_tasks_field=True
        )
    except TypeError:
        entries = accessor.get_job_table()
    return entries


def submission_id_of(namespace: str, actor_name: str) -> str:
    """The id of the submission whose command an actor runs for ``ray job submit``; empty: it runs none."""
    is_one = namespace == SUBMISSIONS and actor_name.startswith(_SUBMISSION_ACTOR)
    return actor_name.removeprefix(_SUBMISSION_ACTOR) if is_one else ""


def submission_actor(submission_id: str) -> str:
    """The name of the actor that runs the command of a submission."""
    return f"{_SUBMISSION_ACTOR}{submission_id}"


@functools.lru_cache(maxsize=1_000)
def submission_info(submission_id: str) -> Mapping[str, Any]:
    """What Ray has stored of a submission, such as its ``entrypoint`` and ``metadata``, which do not change;
    empty: it is not known.
    """
    key = f"_ray_internal_job_info_{submission_id}"
    data = internal_kv._internal_kv_get(key.encode(), namespace=b"job")
    return {} if data is None else dict(json.loads(data))


def end_actors(actor_ids: Iterable[str]) -> None:
    """Begin to end actors of whatever job, by their ids. Ray's public call ends only actors of which this
    process has a handle, and an actor without a name gives none.
    """
    kill = _actor_service(_gcs_address()).KillActorViaGcs
    calls = [(each, kill.future(_kill_request(each), timeout=_GCS_S)) for each in actor_ids]
    failed = {
        actor_id: error for actor_id, call in calls if (error := call.exception()) is not None
    }
    if failed:
        # gRPC's own errors, which callers need not know.
        actor_id, error = next(iter(failed.items()))
        raise RaySystemError(f"Ray did not end actor {actor_id}: {error}") from error


def _kill_request(actor_id: str) -> gcs_service_pb2.KillActorViaGcsRequest:
    return gcs_service_pb2.KillActorViaGcsRequest(
        actor_id=bytes.fromhex(actor_id), force_kill=True, no_restart=True
    )


@functools.lru_cache(maxsize=1)
def _actor_service(address: str) -> Any:
    from ray.core.generated.gcs_service_pb2_grpc import ActorInfoGcsServiceStub

    return ActorInfoGcsServiceStub(create_gcs_channel(address))


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
    unallocated = next(
        (resources_of(n["Resources"]) for n in ray.nodes() if n["NodeID"] == node_id), NOTHING
    )
    node = bytes.fromhex(node_id)
    for data in _actors_with(node, ("ALIVE",)):
        if data.node_id == node:
            unallocated = unallocated - resources_of(
                {
                    resource.name: sum(i.quantity for i in resource.resource_ids)
                    for resource in data.resource_mapping
                }
            )
    for data in map(gcs_pb2.PlacementGroupTableData.FromString, group_entries(node)):
        if data.state != gcs_pb2.PlacementGroupTableData.REMOVED:
            placed = (bundle for bundle in data.bundles if bundle.node_id == node)
            unallocated = unallocated - sum_of(
                resources_of(bundle.unit_resources) for bundle in placed
            )
    return unallocated


def _actors_with(part: bytes, states: Iterable[str]) -> Iterator[Any]:
    """The entries of Ray's actor table with these states that contain these bytes. Most do not, and decoding
    them takes longer than searching them.
    """
    return _containing(part, actor_entries(states))


def _containing(part: bytes, entries: Iterable[bytes]) -> Iterator[Any]:
    return (gcs_pb2.ActorTableData.FromString(entry) for entry in entries if part in entry)


def actor_data(handle: Any) -> Any:
    """The actor's entry in Ray's table; None: there is none."""
    entry = _accessor().get_actor_info(handle._actor_id)
    return None if entry is None else gcs_pb2.ActorTableData.FromString(entry)


def _accessor() -> Any:
    """Ray's access to the tables of its GCS."""
    state = ray._private.state.state
    connect = getattr(state, "_connect_and_get_accessor", None)
    if connect is not None:
        return connect()
    # Older versions connect in one step and have the access as an attribute.
    state._check_connected()
    return state.global_state_accessor
