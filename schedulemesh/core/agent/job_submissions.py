"""The address of Ray's job API for the drivers of jobs: with it, their submissions carry the job's metadata.

Ray imports this module in a process of the driver where RAY_API_SERVER_ADDRESS names it, whenever a
``JobSubmissionClient`` is made or ``ray job submit`` runs.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ray.dashboard.modules.dashboard_sdk import ClusterInfo
from ray.dashboard.utils import ray_address_to_api_server_url


def get_job_submission_client_cluster_info(
    address: str,
    *,
    cookies: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    headers: dict[str, Any] | None = None,
    **_others: object,
) -> ClusterInfo:
    """Where the dashboard of the cluster at this address serves its API, and the metadata of submissions:
    that of the job to which this process belongs. The name and the arguments of this function are Ray's.
    """
    return ClusterInfo(
        address=ray_address_to_api_server_url(address),
        cookies=cookies,
        metadata={**(metadata or {}), **_metadata_of_this_job()},
        headers=headers,
    )


def _metadata_of_this_job() -> dict[str, str]:
    config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    return dict(config.get("metadata") or {})
