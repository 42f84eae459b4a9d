"""Hands the folders of jobs to Ray, and ends what jobs have left in Ray; they are found by their metadata.
No dashboard is needed.

Each function may block for some milliseconds.
"""

from __future__ import annotations

import ray
from ray._private.runtime_env import packaging
from ray.core.generated import gcs_pb2
from ray.util.placement_group import PlacementGroup

from schedulemesh.core.backend.ray_group_removal import remove_settled
from schedulemesh.core.backend.ray_internals import (
    LIVING_STATES,
    SUBMISSION,
    SUBMISSIONS,
    actor_entries,
    end_actors,
    group_entries,
    job_entries,
    submission_actor,
)
from schedulemesh.protocol.agents import DEVICES_NAMESPACE

#: The key in the metadata of a Ray job that names its owner.
OWNER = "schedulemesh_actor"
#: Namespace and name of actors of which Ray's libraries have one for the whole cluster. The first job that
#: uses the library creates it, detached, and others use it as well, so it does not end with that job.
SHARED_ACTORS = frozenset(
    {
        ("ActorLocationTracker", "ActorLocationTracker"),
        ("AutoscalingCoordinator", "AutoscalingCoordinator"),
        ("AutoscalingRequester", "AutoscalingRequester"),
        ("DataUsageCollectionActor", "DataUsageCollectionActor"),
        ("_dataset_stats_actor", "datasets_stats_actor"),
        ("_dataset_stats_summary_actor", "dataset_stats_summary_actor"),
        ("_train_state_actor", "train_state_actor"),
    }
)


def publish_folder(key: str, suffix: str, archive: bytes) -> str:
    """See Backend.publish_folder. Ray keeps a package as long as an actor or a job refers to it, and for ten
    minutes without that.
    """
    uri = f"gcs://_ray_pkg_{key}{suffix}"
    packaging.pin_runtime_env_uri(uri)
    if not packaging.package_exists(uri):
        packaging.upload_package_to_gcs(uri, archive)
    return uri


def end_jobs(owner: str) -> int:
    """See Backend.end_jobs."""
    jobs = [job for job in map(gcs_pb2.JobTableData.FromString, job_entries())
            if owner in (job.config.metadata.get(OWNER), job.job_id.hex())]  # fmt: skip
    held = _named(owner, DEVICES_NAMESPACE)
    for submission_id in {owner, *(job.config.metadata.get(SUBMISSION, owner) for job in jobs)}:
        held |= _named(submission_actor(submission_id), SUBMISSIONS)
    if not jobs and not held:
        return 0
    job_ids = {job.job_id for job in jobs}
    actors, groups = _living_actors(job_ids) | held, _groups_of(job_ids)
    end_actors(actors)
    for group_id in groups:
        remove_settled(PlacementGroup(ray.PlacementGroupID(group_id)))
    return len(actors) + len(groups) + sum(not job.is_dead for job in jobs)


def _named(name: str, namespace: str) -> set[str]:
    """The id of the actor with this name, if there is one."""
    try:
        handle = ray.get_actor(name, namespace=namespace)
    except ValueError:
        return set()
    return {handle._actor_id.hex()}  # noqa: SLF001  # Ray has no public name for it


def _living_actors(job_ids: set[bytes]) -> set[str]:
    found = map(gcs_pb2.ActorTableData.FromString, actor_entries(LIVING_STATES))
    return {data.actor_id.hex() for data in found if data.job_id in job_ids and not _shared(data)}


def _shared(data: gcs_pb2.ActorTableData) -> bool:
    """Whether an actor serves all jobs. One that holds resources is never taken for that."""
    held = any(name in data.required_resources for name in ("CPU", "GPU", "memory"))
    return not held and (data.ray_namespace, data.name) in SHARED_ACTORS


def _groups_of(job_ids: set[bytes]) -> list[bytes]:
    removed = gcs_pb2.PlacementGroupTableData.REMOVED
    found = map(gcs_pb2.PlacementGroupTableData.FromString, group_entries())
    return [
        data.placement_group_id
        for data in found
        if data.creator_job_id in job_ids and data.state != removed
    ]
