"""The keyword arguments of the calls: one definition for signatures, checks and help."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict, get_type_hints

from msgspec import UNSET, UnsetType

from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.placement.strategies import POOL_STRATEGY


class DescriptionFields(TypedDict, total=False):
    """What describes whatever runs as a task: an agent, a job, one that was adopted, a lease."""

    labels: Mapping[str, str] | None
    # begin written arguments all
    #: Seconds from its start to its end.
    estimated_duration: float | None
    #: The user that it belongs to; None: the one that this process runs as.
    owner: str | None
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None
    #: Seconds that each of its attempts may run, from its start; then it is saved and ended. None: what its
    #: pool says.
    max_run_s: float | None
    #: Seconds for which its GPUs may be idle before its owner is warned, and again before it is ended; None:
    #: what its pool says.
    idle_s: float | None
    # end written


class QueueFields(TypedDict, total=False):
    """What says when a submitted task may start, and how close together what it consists of runs."""

    # begin written arguments queued
    #: The tasks that it starts after, in the queue: an id alone or ``ok:ID`` when that one has completed,
    #: ``any:ID`` however it ends, ``fail:ID`` when it does not complete.
    after: str | Sequence[str] | None
    #: How close together its members are placed: "rack", "preferred:rack", "slice:8:rack", with commas
    #: between them, or as a dict such as {"required": "rack"}; None: anywhere.
    topology: str | Mapping[str, object] | None
    # end written


class PlacementFields(TypedDict, total=False):
    """On which nodes something runs."""

    #: Conditions on the labels of its nodes, as Ray's: "H100", "!H100", "in(H100, A100)", "!in(...)".
    label_selector: Mapping[str, str] | None
    #: What will do instead, the first ones before the others: each has a label_selector, and the amounts if
    #: they are others.
    fallback_strategy: Sequence[Mapping[str, object]] | None


class RepetitionFields(TypedDict, total=False):
    """What says how often a submitted task runs."""

    # begin written arguments runs
    #: How often it is started again after its run failed, it could not be started, or it was lost.
    max_retries: int
    #: What becomes of it when its process is killed because its node is short of memory: "retry" (as
    #: ``max_retries`` says), "grow" (the same with twice the memory, each time) or "fail"; None: "retry".
    on_oom: str | None
    #: The most memory that "grow" gives it, in MB; None: the quota of its pool.
    oom_max_memory: float | None
    #: Of an array: its indices, such as "0-99", "0-99:5" or "1,4,7-9", with "%10" behind them where at most
    #: ten run at once; or the number of its members. None: it is none.
    array: str | int | None
    # end written


class EndFields(TypedDict, total=False):
    """What becomes of a task that is ended, and whether it is ended with another one."""

    # begin written arguments ended
    #: "requeue" or "drop" when it is evicted; None: what its pool says, of a job "requeue".
    on_preempted: str | None
    #: "end" or "requeue" when it has run for as long as it may; None: "end".
    on_time_limit: str | None
    # end written
    #: Whether it outlives the task from inside which it is submitted; else it ends with that one.
    detached: bool


class TaskFields(DescriptionFields, EndFields, total=False):
    """What describes a task, whether it is submitted or only registered, beside its priority."""

    payload: UserValue


class RunFields(TypedDict, total=False):
    """What makes a submitted task run by itself."""

    #: The method of ``actor_class`` that it consists of; None: its caller calls methods and completes it.
    run: str | None
    #: The arguments of that method, or of the function that is submitted in place of a class.
    run_args: Sequence[UserValue] | None
    run_kwargs: Mapping[str, UserValue] | None
    # begin written arguments agents
    #: What becomes of it, after its retries, when its saved state cannot be restored: "fail", "previous" (it
    #: is started from the state before) or "restart" (it is started anew); None: "fail".
    on_restore_failure: str | None
    # end written


class ConstructionFields(PlacementFields, total=False):
    """How an agent's object is built, and the bundles of its placement group."""

    actor_args: Sequence[UserValue] | None
    actor_kwargs: Mapping[str, UserValue] | None
    #: The agent's resources are their sum.
    bundles: Sequence[Mapping[str, object]] | None
    #: Whether the agent itself takes the first of its bundles; False: it takes nothing, and every bundle is
    #: for what it starts.
    driver_bundle: bool
    #: Start a gang of so many equal members, all or none; ``resources`` are then those of each.
    replicas: int | None
    #: Make the gang elastic: it runs with as few members, grows up to ``replicas`` when there is room, and
    #: gives up the others before anything is evicted whole.
    min_replicas: int | None
    #: How the members of a gang are placed on nodes: STRICT_PACK, PACK, SPREAD or STRICT_SPREAD.
    placement: str | None
    #: A node label: all members of a gang run on nodes with the same value of it.
    same_label: str | None
    #: Seconds that each phase of its start may take: "environment", "load" and "constructor".
    start_limits: Mapping[str, float] | None


class AgentFields(ConstructionFields, total=False):
    """What ``create_agent`` takes by keyword only."""

    labels: Mapping[str, str] | None


class PreemptionFilter(TypedDict, total=False):
    """Which preemptions ``list_preemptions`` returns; what is not given selects nothing."""

    #: These took part, as the evicted side or as the evicting one.
    task_id: str | None
    pool_name: str | None
    owner: str | None
    #: The last so many.
    limit: int


class OptionalFields(
    TaskFields,
    QueueFields,
    RepetitionFields,
    RunFields,
    ConstructionFields,
    total=False,
):
    """What ``submit_task_with_preemption`` takes by keyword only."""

    agent_name: str | None
    ray_options: Mapping[str, object] | None
    pool_selector: Mapping[str, object] | None
    #: Whether the task waits in the queue where it does not fit; the call returns at once.
    queue: bool
    #: Whether it waits in the queue and the call returns when the task runs; after so many seconds it is
    #: cancelled.
    wait: bool | float
    dry_run: bool
    request_id: str | None


class JobFields(
    DescriptionFields, EndFields, PlacementFields, QueueFields, RepetitionFields, total=False
):
    """What ``submit_job`` takes by keyword only."""

    #: The parts of its claim, each on one node; their sum is what it asks for.
    bundles: Sequence[Mapping[str, object]] | None
    #: How the parts are placed on nodes: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD. Without bundles there is
    #: a part for each GPU, or for each CPU where it asks for no GPU.
    strategy: str | None
    pool_selector: Mapping[str, object] | None
    #: Whether it waits in the queue where it does not fit; the call returns at once.
    queue: bool
    #: Whether it waits in the queue and the call returns when it runs; after so many seconds it is cancelled.
    wait: bool | float
    dry_run: bool
    request_id: str | None
    #: Variables of the driver's environment.
    env: Mapping[str, str] | None
    #: A folder of this machine, whose files the driver and its workers find in their working directory.
    working_dir: str | os.PathLike[str] | None
    #: Ray's runtime environment of the driver and its workers.
    runtime_env: Mapping[str, object] | None
    #: The folder that every attempt finds again; None: one on the node.
    checkpoint_dir: str | os.PathLike[str] | None
    #: What of its claim the driver itself holds; both None: its GPUs, until it connects to Ray.
    driver_cpus: float | None
    driver_gpus: float | None
    #: Seconds that each phase of a start may take: "environment", "load" and "constructor".
    start_limits: Mapping[str, float] | None
    #: Seconds from the notice of an eviction to the end of the driver; None: as the policy says, at least 30.
    grace_s: float | None
    #: "warn" or "end": what happens where it holds more in Ray than it claims; None: as the policy says.
    over_claim: str | None
    #: Detached actors that stay when it ends, each as NAMESPACE/NAME.
    keep_actors: Sequence[str] | None


class AdoptionFields(DescriptionFields, total=False):
    """What ``adopt_job`` takes by keyword only; ``estimated_duration`` begins with the adoption."""

    #: Its id as a task; None: one is made of the id of the Ray job.
    task_id: str | None
    request_id: str | None
    #: Seconds from SIGTERM to its end when it is evicted or cancelled; None: as the policy says, when it is
    #: evicted at least 30.
    grace_s: float | None
    #: "warn" or "end": what happens where it holds more in Ray than it claims; None: as the policy says.
    over_claim: str | None


class LendingFields(TypedDict, total=False):
    """What a pool shares with the other pools of its cohort, by keyword only."""

    cohort: str | UnsetType | None
    lending_limit: Mapping[str, object] | int | UnsetType | None
    borrowing_limit: Mapping[str, object] | int | UnsetType | None
    weight: float | UnsetType | None


class SubmitFields(OptionalFields, total=False):
    """What every submission of a task takes beside task_id, pool and class."""

    resources: Mapping[str, object] | None
    priority: float | str


#: The defaults of fields, where they are not None.
DEFAULTS: dict[str, object] = {
    "priority": DEFAULT_PRIORITY,
    "queue": False,
    "wait": False,
    "dry_run": False,
    "limit": 100,
    "detached": False,
    "max_retries": 0,
    "driver_bundle": True,
    "node_strategy": "bin_pack",
    "pool_strategy": POOL_STRATEGY,
    "strategies": (),
    **dict.fromkeys(get_type_hints(LendingFields), UNSET),
}
