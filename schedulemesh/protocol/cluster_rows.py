"""Rows of nodes and of what runs on them, as the Python calls and the HTTP API return them."""

from __future__ import annotations

from typing import Literal, TypedDict

from schedulemesh.domain.resources import Amounts


class MeasuredUsage(TypedDict):
    """What a process and those that it has started really use."""

    cpu: float
    memory_mb: float
    #: In per cent, and the memory used on its GPUs; None: they are not measured.
    gpu_utilization: float | None
    gpu_memory_mb: float | None
    #: When it was reported, in seconds since 1970.
    at: float


class ExternalJobInfo(TypedDict, total=False):
    """What a Ray job that is not the scheduler's holds of a node, or a job of the scheduler's holds there
    beyond its claim.
    """

    job_id: str
    #: Of the scheduler's job; empty: it is none.
    task_id: str
    namespace: str
    #: The command of its driver.
    entrypoint: str
    resources: Amounts


class ExternalWork(TypedDict, total=False):
    """What a Ray job holds and waits for in one namespace, beside what is the scheduler's; or what a job of
    the scheduler's holds beyond its claim.
    """

    #: Empty: it is a job of the scheduler's.
    job_id: str
    #: Of the scheduler's job; empty: it is none.
    task_id: str
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


class NodeInfo(TypedDict, total=False):
    """A living node of the cluster."""

    node_id: str
    #: The shortest beginning of ``node_id`` that no other node has, of at least four characters.
    short_id: str
    #: The name of its machine, and its IP address; empty: unknown.
    host: str
    address: str
    labels: dict[str, str]
    total: Amounts
    #: By the scheduler's own accounting.
    free: Amounts
    #: What Ray work that is not the scheduler's uses.
    external_usage: Amounts
    #: Who that is, as far as Ray knows; it keeps no record of what plain tasks hold.
    external_jobs: list[ExternalJobInfo]
    cordoned: bool
    draining: bool
    agents: list[str]


class OrphanInfo(TypedDict, total=False):
    """An actor or a placement group of the scheduler that its journal does not know."""

    #: In Ray.
    name: str
    #: Of an actor.
    namespace: str | None
    kind: Literal["actor", "placement group"]


class StrategyInfo(TypedDict, total=False):
    """A strategy that the scheduler was made with, and how often it was called."""

    name: str
    hooks: list[str]
    calls: int
    failures: int
    slow_calls: int
    #: Why it is not called any more; empty: it is called.
    disabled: str
