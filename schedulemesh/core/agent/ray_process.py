"""What Ray offers the process of an agent through no public call.

Every use of Ray's private interfaces in the processes of agents is here; those of the supervisor and of
clients are in ``core/backend``, which this package does not import.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ray
from ray import PlacementGroupID
from ray._private import accelerators
from ray._private.worker import Worker


def hide_placement_group() -> None:
    """Show this process to code that asks Ray as one outside of placement groups. Libraries such as vLLM
    start their workers in the current group, and would wait for ever for what this process holds of it.
    """
    Worker.placement_group_id = property(lambda _: PlacementGroupID.nil())


def gpu_variable() -> str:
    """The environment variable by which libraries find the GPUs that they may use."""
    manager = accelerators.get_accelerator_manager_for_resource("GPU")
    name: str = manager.get_visible_accelerator_ids_env_var()
    return name


def log_files() -> dict[str, Path]:
    """The files that Ray writes the streams of this process to; none where it was told to write none."""
    worker = ray._private.worker.global_worker  # noqa: SLF001
    paths = {"stdout": worker.get_out_file_path(), "stderr": worker.get_err_file_path()}
    return {stream: Path(path) for stream, path in paths.items() if path}


def metadata_of_living_jobs(key: str) -> Iterator[str]:
    """The values of a key in the metadata of Ray's jobs whose drivers are connected. Raises RayError where
    Ray does not answer.
    """
    client = ray._private.worker.global_worker.gcs_client  # noqa: SLF001
    try:
        jobs = client.get_all_job_info(
            skip_submission_job_info_field=True, skip_is_running_tasks_field=True
        )
    except TypeError:  # older versions ask each driver, too
        jobs = client.get_all_job_info()
    for job in jobs.values():
        if key in job.config.metadata and not job.is_dead:
            yield job.config.metadata[key]
