"""Ends what jobs have left in Ray; they are found by their metadata. No dashboard is needed.

Each function may block for some milliseconds.
"""

from __future__ import annotations

import functools
from typing import Any

import ray
from ray._private.gcs_utils import create_gcs_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import RaySystemError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from schedulemesh.core.backend.ray_internals import actor_entries, group_entries, job_entries

#: The key in the metadata of a Ray job that names its owner.
OWNER = "schedulemesh_actor"
#: The states of actors that are not dead, in the order in which an actor passes through them, so that none is
#: missed between two answers.
_STATES = ("DEPENDENCIES_UNREADY", "RESTARTING", "PENDING_CREATION", "ALIVE")
#: Seconds that Ray may take to accept the end of an actor.
_ANSWERS_S = 10.0


def end_jobs(owner: str) -> int:
    """See Backend.end_jobs."""
    jobs = [job for job in map(gcs_pb2.JobTableData.FromString, job_entries())
            if owner in (job.config.metadata.get(OWNER), job.job_id.hex())]  # fmt: skip
    if not jobs:
        return 0
    job_ids = {job.job_id for job in jobs}
    actors, groups = _living_actors(job_ids), _groups_of(job_ids)
    for actor_id in actors:
        _kill(actor_id)
    for group_id in groups:
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(group_id)))
    return len(actors) + len(groups) + sum(not job.is_dead for job in jobs)


def _living_actors(job_ids: set[bytes]) -> set[bytes]:
    found = map(gcs_pb2.ActorTableData.FromString, actor_entries(_STATES))
    return {data.actor_id for data in found if data.job_id in job_ids}


def _groups_of(job_ids: set[bytes]) -> list[bytes]:
    removed = gcs_pb2.PlacementGroupTableData.REMOVED
    found = map(gcs_pb2.PlacementGroupTableData.FromString, group_entries())
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
