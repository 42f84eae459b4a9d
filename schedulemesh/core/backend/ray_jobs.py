"""Ends what a Ray job has left in Ray, found by the metadata of the job. No dashboard is needed.

Each function may block for some milliseconds.
"""

from __future__ import annotations

import functools
from typing import Any

import ray
from ray import JobID
from ray._private.gcs_utils import create_gcs_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import RaySystemError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from schedulemesh.core.backend.ray_internals import accessor, all_jobs

#: The key in the metadata of a Ray job that names its owner.
OWNER = "schedulemesh_actor"
#: Seconds that Ray may take to accept the end of an actor.
_ANSWERS_S = 10.0


def end_jobs(owner: str) -> int:
    """See Backend.end_jobs."""
    jobs = _jobs_of(owner)
    if not jobs:
        return 0
    actors = [actor for job_id in jobs for actor in _living_actors(job_id)]
    groups = _groups_of({job_id.binary() for job_id in jobs})
    for actor_id in actors:
        _kill(actor_id)
    for group_id in groups:
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(group_id)))
    return len(actors) + len(groups) + sum(jobs.values())


def _jobs_of(owner: str) -> dict[JobID, bool]:
    """The Ray jobs with this owner, and whether the driver of each is connected."""
    return {
        job_id: not info.is_dead
        for job_id, info in all_jobs().items()
        if info.config.metadata.get(OWNER) == owner
    }


def _living_actors(job_id: JobID) -> list[bytes]:
    entries = accessor().get_actor_table(job_id, None)
    found = map(gcs_pb2.ActorTableData.FromString, entries)
    return [data.actor_id for data in found if data.state != gcs_pb2.ActorTableData.DEAD]


def _groups_of(job_ids: set[bytes]) -> list[bytes]:
    entries = accessor().get_placement_group_table()
    found = map(gcs_pb2.PlacementGroupTableData.FromString, entries)
    removed = gcs_pb2.PlacementGroupTableData.REMOVED
    return [
        data.placement_group_id
        for data in found
        if data.creator_job_id in job_ids and data.state != removed
    ]


def _kill(actor_id: bytes) -> None:
    """End an actor by its id. ``ray.kill`` takes a handle, and an actor without a name gives none."""
    request = gcs_service_pb2.KillActorViaGcsRequest(
        actor_id=actor_id, force_kill=True, no_restart=True
    )
    try:
        _actor_service(ray.get_runtime_context().gcs_address).KillActorViaGcs(
            request, timeout=_ANSWERS_S
        )
    except Exception as error:
        # gRPC's own errors, which callers need not know.
        raise RaySystemError(f"Ray did not end actor {actor_id.hex()}: {error}") from error


@functools.lru_cache(maxsize=1)
def _actor_service(address: str) -> Any:
    return gcs_service_pb2_grpc.ActorInfoGcsServiceStub(create_gcs_channel(address))
