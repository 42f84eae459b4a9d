"""The answers about Ray work that is not the scheduler's."""

from __future__ import annotations

from typing import TypedDict

from schedulemesh.core.client.results import Result
from schedulemesh.domain.resources import Amounts


class ExternalJobInfo(TypedDict, total=False):
    """What a Ray job that is not the scheduler's holds of a node."""

    job_id: str
    namespace: str
    #: The command of its driver.
    entrypoint: str
    resources: Amounts


class ExternalWork(TypedDict, total=False):
    """What a Ray job holds and waits for in one namespace, beside what is the scheduler's."""

    job_id: str
    #: Of its actors and placement groups.
    namespace: str
    #: The command of its driver; empty: Ray has forgotten it.
    entrypoint: str
    driver_node_id: str | None
    driver_pid: int | None
    #: Seconds since 1970.
    started_at: float | None
    #: Whether its driver has ended; what is detached may still hold resources.
    ended: bool
    #: The metadata of its job config.
    metadata: dict[str, str]
    #: What it holds, altogether and by node.
    resources: Amounts
    nodes: dict[str, Amounts]
    #: What it waits for.
    waiting: Amounts
    #: How many actors outside placement groups, and placement groups, hold this or wait.
    actors: int
    placement_groups: int


class ExternalUsageResult(Result, total=False):
    """The answer of ``external_usage``."""

    jobs: list[ExternalWork]
