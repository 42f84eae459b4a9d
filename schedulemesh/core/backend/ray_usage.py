"""Reads from Ray's tables which job holds what on which node; needs no dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from ray.core.generated import gcs_pb2

from schedulemesh.core.backend.ray_internals import (
    SUBMISSION,
    actor_entries,
    group_entries,
    job_entries,
    queued_requests,
    shape_of,
    submission_id_of,
    submission_info,
)
from schedulemesh.core.backend.ray_resources import resources_of
from schedulemesh.core.backend.ray_tasks import waiting_tasks
from schedulemesh.domain.resources import Resources
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayHolder, RayJob

#: The states of actors that hold resources or wait for them. Ray is asked for one after the other, in the
#: order in which an actor passes through them, so that none is missed between two answers.
_STATES = ("RESTARTING", "PENDING_CREATION", "ALIVE")

#: The states of actors that may wait for resources.
_WAITING_STATES = ("RESTARTING", "PENDING_CREATION")

_NOTHING_WAITS = ClusterUsage(jobs={}, holders=())

Value = TypeVar("Value")


class UsageReader:
    """Reads the usage again and again. Entries that have not changed since are not decoded again, which is
    most of the work. For one thread.
    """

    def __init__(self) -> None:
        self._actors: dict[bytes, RayHolder | None] = {}
        self._groups: dict[bytes, RayHolder | None] = {}
        self._jobs: dict[bytes, RayJob] = {}
        self._submissions: dict[bytes, RayJob | None] = {}
        self._last = ClusterUsage(jobs={}, holders=())

    def read(self) -> ClusterUsage:
        """The present usage; the same object as before where nothing has changed. Blocks for milliseconds."""
        actors = actor_entries(_STATES)
        self._actors = _decoded(self._actors, actors, actor_holder)
        self._submissions = _decoded(self._submissions, self._actors, submission_of)
        self._groups = _decoded(self._groups, group_entries(), group_holder)
        self._jobs = _decoded(self._jobs, job_entries(), job_of)
        usage = with_submissions(
            {job.job_id: job for job in self._jobs.values()},
            [job for job in self._submissions.values() if job is not None],
            _newest([*self._actors.values(), *self._groups.values()]),
        )
        if usage != self._last:
            self._last = usage
        return self._last


class DemandReader:
    """Reads again and again what waits for room: far less than all usage. For one thread."""

    def __init__(self) -> None:
        self._groups: dict[bytes, RayHolder | None] = {}

    def read(self) -> ClusterUsage:
        """The holders that wait, and if there are any, all jobs. Blocks for milliseconds."""
        self._groups = _decoded(self._groups, group_entries(), group_holder)
        queued = queued_requests()
        actors = _unplaced_actors(actor_entries(_WAITING_STATES))
        shapes = {data.actor_id: shape_of(data.required_resources) for data in actors}
        waiting = [
            *(_actor_holder(data) for data in actors if shapes[data.actor_id] in queued),
            *(holder for holder in self._groups.values() if holder is not None and holder.waiting),
            *waiting_tasks(queued, shapes.values()),
        ]
        if not waiting:
            return _NOTHING_WAITS
        jobs = {job.job_id: job for job in map(job_of, job_entries())}
        holders = (_in_namespace(holder, jobs) for holder in _newest(waiting))
        return ClusterUsage(jobs=jobs, holders=tuple(holders))


def _in_namespace(holder: RayHolder, jobs: Mapping[str, RayJob]) -> RayHolder:
    """Plain tasks with the namespace of their driver; they have none of their own."""
    job = jobs.get(holder.job_id)
    if job is None or not holder.are_tasks:
        return holder
    return msgspec.structs.replace(holder, namespace=job.namespace)


def _unplaced_actors(entries: Iterable[bytes]) -> list[Any]:
    """Those of these actors that have no worker: there is no room for them, or they are being started, and
    Ray has given them their room already.
    """
    pending = (gcs_pb2.ActorTableData.FromString(entry) for entry in entries)
    return [data for data in pending if not data.address.worker_id]


def actor_holder(entry: bytes) -> RayHolder | None:
    """An entry of the actor table; None: it neither holds resources of its own nor waits for any."""
    return _actor_holder(gcs_pb2.ActorTableData.FromString(entry))


def _actor_holder(data: Any) -> RayHolder | None:
    need = resources_of(data.required_resources)
    if data.state == gcs_pb2.ActorTableData.DEAD or data.placement_group_id or not need:
        return None
    # It has a worker as soon as Ray has given it its resources, also while it is still being built.
    has_worker = bool(data.address.worker_id)
    return RayHolder(
        ray_id=data.actor_id.hex(),
        is_group=False,
        job_id=data.job_id.hex(),
        name=data.name,
        namespace=data.ray_namespace,
        held=((data.address.node_id.hex(), need),) if has_worker else (),
        waiting=() if has_worker else (need,),
    )


def submission_of(entry: bytes) -> RayJob | None:
    """What ``ray job submit`` has started, if an entry of the actor table is the actor that runs its command:
    with the process of that actor as the driver; None: it is another actor.
    """
    data = gcs_pb2.ActorTableData.FromString(entry)
    submission_id = submission_id_of(data.ray_namespace, data.name)
    if not submission_id or not data.address.node_id:
        return None
    info = submission_info(submission_id)
    return RayJob(
        job_id=submission_id,
        namespace=data.ray_namespace,
        metadata={**(info.get("metadata") or {}), SUBMISSION: submission_id},
        driver_node_id=data.address.node_id.hex(),
        driver_pid=data.pid,
        entrypoint=str(info.get("entrypoint", "")),
        started_at=data.start_time / 1000,
        ended=False,
    )


def with_submissions(
    jobs: dict[str, RayJob], submissions: Iterable[RayJob], holders: Iterable[RayHolder]
) -> ClusterUsage:
    """The usage, with what the command of a submission holds as its own: that of the driver that it has
    started, or of the submission where none has connected to Ray. In Ray's tables it is the dashboard's.
    """
    drivers: dict[str, str] = {}
    for job in sorted(jobs.values(), key=lambda job: job.job_id):
        if not job.ended and (submission_id := job.metadata.get(SUBMISSION)):
            drivers.setdefault(submission_id, job.job_id)
    alone = {job.job_id: job for job in submissions if job.job_id not in drivers}
    return ClusterUsage(
        jobs={**jobs, **alone},
        holders=tuple(_of_its_submission(holder, drivers) for holder in holders),
    )


def _of_its_submission(holder: RayHolder, drivers: Mapping[str, str]) -> RayHolder:
    submission_id = submission_id_of(holder.namespace, holder.name)
    if not submission_id:
        return holder
    job_id = drivers.get(submission_id, submission_id)
    return msgspec.structs.replace(holder, job_id=job_id)


def group_holder(entry: bytes) -> RayHolder | None:
    """An entry of the table of placement groups; None: the group is removed."""
    data = gcs_pb2.PlacementGroupTableData.FromString(entry)
    if data.state == gcs_pb2.PlacementGroupTableData.REMOVED:
        return None
    placed: list[tuple[str, Resources]] = []
    waiting: list[Resources] = []
    for bundle in data.bundles:
        amount = resources_of(bundle.unit_resources)
        if _is_placed(bundle.node_id) and data.state != gcs_pb2.PlacementGroupTableData.PENDING:
            placed.append((bundle.node_id.hex(), amount))
        else:
            waiting.append(amount)
    return RayHolder(
        ray_id=data.placement_group_id.hex(),
        is_group=True,
        job_id=data.creator_job_id.hex(),
        name=data.name,
        namespace=data.ray_namespace,
        held=tuple(placed),
        waiting=tuple(waiting),
    )


def job_of(entry: bytes) -> RayJob:
    """An entry of the job table."""
    data = gcs_pb2.JobTableData.FromString(entry)
    return RayJob(
        job_id=data.job_id.hex(),
        namespace=data.config.ray_namespace,
        metadata=dict(data.config.metadata),
        driver_node_id=data.driver_address.node_id.hex(),
        driver_pid=data.driver_pid,
        entrypoint=data.entrypoint,
        started_at=data.start_time / 1000,
        ended=data.is_dead,
    )


def _decoded(
    before: dict[bytes, Value], entries: Iterable[bytes], decode: Callable[[bytes], Value]
) -> dict[bytes, Value]:
    """By entry, what it says; ``before``: those that are known."""
    return {e: before[e] if e in before else decode(e) for e in entries}


def _newest(holders: Iterable[RayHolder | None]) -> Iterator[RayHolder]:
    """One per id: an actor that passed from one state to the next between two answers is in both."""
    by_id = {holder.ray_id: holder for holder in holders if holder is not None}
    return iter(by_id.values())


def _is_placed(node_id: bytes) -> bool:
    """Whether an id of a node is one: Ray writes none as nothing or as ones."""
    return bool(node_id.strip(b"\xff"))
