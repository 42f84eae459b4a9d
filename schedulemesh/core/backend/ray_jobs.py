"""Gives Ray the folders of jobs, and ends what jobs have left in Ray; they are found by their metadata.
No dashboard is needed.

Each function may block for some milliseconds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator

import ray
from ray import JobID
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
    submission_id_of,
    submission_info,
)
from schedulemesh.protocol.agents import DEVICES_NAMESPACE
from schedulemesh.runtime.backend import JobRemains

#: The key in the metadata of a Ray job that names its owner.
OWNER = "schedulemesh_actor"
#: The key in that metadata of the detached actors that stay when the job ends: a list of NAMESPACE/NAME as
#: JSON.
KEEP_ACTORS = "schedulemesh_keep_actors"
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
    publish_package(uri, archive)
    return uri


def publish_package(uri: str, archive: bytes) -> None:
    """See Backend.publish_package."""
    packaging.pin_runtime_env_uri(uri)
    if not packaging.package_exists(uri):
        packaging.upload_package_to_gcs(uri, archive)


def end_jobs(owner: str) -> JobRemains:
    """See Backend.end_jobs."""
    jobs = [job for job in map(gcs_pb2.JobTableData.FromString, job_entries())
            if owner in _owners_of(job)]  # fmt: skip
    submissions = _submissions_of(owner)
    holder_ids = _named(owner, DEVICES_NAMESPACE)
    adopted = (job.config.metadata.get(SUBMISSION) for job in jobs if job.job_id.hex() == owner)
    for submission_id in {owner, *filter(None, adopted)}:
        holder_ids |= _named(submission_actor(submission_id), SUBMISSIONS)
    if not jobs and not holder_ids and not submissions:
        return JobRemains()
    for name in submissions:
        _stop_submission(name)
    job_ids = {job.job_id for job in jobs}
    keep_addresses = _kept_actors(job.config.metadata.get(KEEP_ACTORS, "") for job in jobs)
    living = {data.actor_id: data for data in _actors(LIVING_STATES) if data.job_id in job_ids}
    staying = [data for data in living.values() if _stays(data, keep_addresses)]
    actors = holder_ids | living.keys() - {data.actor_id for data in staying}
    groups = _groups_of(job_ids)
    end_actors(actor_id.hex() for actor_id in actors)
    for group_id in groups:
        remove_settled(PlacementGroup(ray.PlacementGroupID(group_id)))
    dead = [data for job_id in job_ids for data in _actors(["DEAD"], JobID(job_id))]
    return JobRemains(
        living=len(submissions) + len(actors) + len(groups) + sum(not job.is_dead for job in jobs),
        node_ids=frozenset(_node_of(data) for data in (*living.values(), *dead)) - {""},
        staying=_by_node(staying),
    )


def _owners_of(job: gcs_pb2.JobTableData) -> tuple[str, ...]:
    """What a Ray job is found by: its runner, its id, and the submission to which its driver belongs."""
    metadata = job.config.metadata
    return metadata.get(OWNER, ""), job.job_id.hex(), metadata.get(SUBMISSION, "")


def _named(name: str, namespace: str) -> set[bytes]:
    """The id of the actor with this name, if there is one."""
    try:
        handle = ray.get_actor(name, namespace=namespace)
    except ValueError:
        return set()
    return {handle._actor_id.binary()}  # noqa: SLF001  # Ray has no public name for it


def _stop_submission(actor_name: str) -> None:
    """Have an actor that runs a submission end its command and itself, as ``ray job stop`` does: killed, it
    would leave the command.
    """
    with contextlib.suppress(ValueError):  # it has ended meanwhile
        ray.get_actor(actor_name, namespace=SUBMISSIONS).stop.remote()


def _submissions_of(owner: str) -> set[str]:
    """The names of the actors that run what the jobs of an owner have submitted with Ray's job API."""
    return {
        data.name
        for data in _actors(LIVING_STATES, part=SUBMISSIONS.encode())
        if (submission_id := submission_id_of(data.ray_namespace, data.name))
        and (submission_info(submission_id).get("metadata") or {}).get(OWNER) == owner
    }


def _actors(
    states: Iterable[str], job_id: JobID | None = None, part: bytes = b""
) -> Iterator[gcs_pb2.ActorTableData]:
    """The actors with these states; those of one job, and those whose entries contain these bytes."""
    for entry in actor_entries(states, job_id):
        if part in entry:
            yield gcs_pb2.ActorTableData.FromString(entry)


def _kept_actors(metadata: Iterable[str]) -> set[tuple[str, str]]:
    """Namespace and name of the actors that stay, as the metadata of jobs say."""
    listed = [actor for value in metadata if value for actor in json.loads(value)]
    return {(namespace, name) for namespace, _, name in (a.partition("/") for a in listed)}


def _stays(data: gcs_pb2.ActorTableData, keep_addresses: set[tuple[str, str]]) -> bool:
    """Whether an actor stays when its job ends: it was asked for, or serves all jobs. One that holds
    resources is never taken for the latter.
    """
    address = (data.ray_namespace, data.name)
    holds_resources = any(name in data.required_resources for name in ("CPU", "GPU", "memory"))
    return (data.is_detached and address in keep_addresses) or (
        not holds_resources and address in SHARED_ACTORS
    )


def _node_of(data: gcs_pb2.ActorTableData) -> str:
    """The node of an actor; empty: it has none."""
    return data.address.node_id.hex() if data.address.node_id.strip(b"\xff") else ""


def _by_node(actors: Iterable[gcs_pb2.ActorTableData]) -> dict[str, tuple[int, ...]]:
    pids: dict[str, tuple[int, ...]] = {}
    for data in actors:
        pids[_node_of(data)] = (*pids.get(_node_of(data), ()), data.pid)
    return pids


def _groups_of(job_ids: set[bytes]) -> list[bytes]:
    removed = gcs_pb2.PlacementGroupTableData.REMOVED
    entries = map(gcs_pb2.PlacementGroupTableData.FromString, group_entries())
    return [
        data.placement_group_id
        for data in entries
        if data.creator_job_id in job_ids and data.state != removed
    ]
