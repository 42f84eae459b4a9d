"""The bodies of calls that change something; unknown fields are refused. What is left out stays as it is."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from schedulemesh.domain.placement import MAX_BUNDLES
from schedulemesh.errors import nearest

#: What msgspec says of a field that a body does not have, and where in it.
_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `\$(.*)`)?$")


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies."""


def explained(error: str, kind: Any) -> str:
    """What msgspec says is wrong with a body of this type; of an unknown field, with those that it has."""
    unknown = _UNKNOWN.search(error)
    if unknown is None:
        return error
    for name in re.findall(r"\.(\w+)", unknown[2] or ""):
        kind = _body_in(get_type_hints(kind).get(name))
        if kind is None:
            return error
    fields = kind.__struct_fields__
    there_are = f"there are {', '.join(fields)}" if fields else "there is none"
    return f"{error}{nearest(unknown[1], fields)}; {there_are}"


def _body_in(hint: Any) -> type[Body] | None:
    """The body that a type has as a part; None: it has none."""
    if isinstance(hint, type) and issubclass(hint, Body):
        return hint
    return next(filter(None, map(_body_in, get_args(hint))), None)


class ResourceAmounts(Body, frozen=True, kw_only=True):
    """Amounts of resources; memory in MB."""

    cpu: float | UnsetType = UNSET
    memory: float | str | UnsetType = UNSET
    gpu: float | UnsetType = UNSET
    #: By the name of the custom resource.
    custom: dict[str, float] | UnsetType = UNSET

    def amounts(self) -> dict[str, Any]:
        """The amounts that are given."""
        amounts: dict[str, Any] = msgspec.to_builtins(self)
        return amounts


#: As many as one placement group may have; refused before each is looked at.
Bundles = Annotated[list[ResourceAmounts], msgspec.Meta(max_length=MAX_BUNDLES)]


class Nothing(Body, frozen=True, kw_only=True):
    """A call that needs no more than its path."""


class PoolChange(Body, frozen=True, kw_only=True):
    """Fields of a pool; null stands for the default."""

    labels: dict[str, str] | UnsetType | None = UNSET
    resources: ResourceAmounts | UnsetType | None = UNSET
    target_agents: int | UnsetType | None = UNSET
    placement_strategy: str | UnsetType | None = UNSET
    pg_pool_config: dict[str, Any] | UnsetType | None = UNSET
    on_preempted: str | UnsetType | None = UNSET
    queueing: str | UnsetType | None = UNSET
    max_run_s: float | str | UnsetType | None = UNSET
    default_max_run_s: float | str | UnsetType | None = UNSET
    idle_s: float | str | UnsetType | None = UNSET
    min_priority: float | str | UnsetType | None = UNSET
    max_priority: float | str | UnsetType | None = UNSET
    owner_limits: dict[str, Any] | UnsetType | None = UNSET
    owner_order: str | UnsetType | None = UNSET
    budget: dict[str, Any] | UnsetType | None = UNSET
    owner_budgets: dict[str, Any] | UnsetType | None = UNSET
    flavors: list[dict[str, Any]] | UnsetType | None = UNSET
    cohort: str | UnsetType | None = UNSET
    lending_limit: Any | UnsetType = UNSET
    borrowing_limit: Any | UnsetType = UNSET
    weight: float | UnsetType | None = UNSET


class NewPool(PoolChange, frozen=True, kw_only=True):
    """A pool that does not exist yet."""

    name: str


class CohortChange(Body, frozen=True, kw_only=True):
    """Fields of a cohort; null stands for the default."""

    parent: str | UnsetType | None = UNSET
    weight: float | UnsetType | None = UNSET


class NewToken(Body, frozen=True, kw_only=True):
    """A token to be issued."""

    name: str
    #: "viewer", "submitter", "pool_operator" or "operator".
    role: str
    #: Of a submitter: the pools that it may submit to; empty: all. Of a pool operator: its pools.
    pools: list[str] = []
    #: Of both: the highest priority of its tasks; null: any.
    max_priority: float | str | None = None
    #: Of both: the pools whose tasks their tasks may evict; null: any, as the policy says, and of a pool
    #: operator its pools.
    evict_pools: list[str] | None = None
    #: Of a submitter: the values that labels of its tasks may have, by key.
    label_values: dict[str, list[str]] = {}
    #: Of a submitter: its tasks ask for no lower max_preemptions; null: for any.
    least_max_preemptions: int | None = None
    #: Of a submitter: the owner of its tasks.
    owner: str = ""
    #: Seconds after which it expires; null: it does not.
    expires_in: float | str | None = None


class Rotation(Body, frozen=True, kw_only=True):
    """How a token's secret is replaced."""

    #: Seconds after which it expires; null: it does not.
    expires_in: float | str | None = None


class _Submitted(Body, frozen=True, kw_only=True):
    """What jobs and leases have in common."""

    task_id: str
    labels: dict[str, str] | None = None
    priority: float | str | None = None
    # begin written body all queued
    #: Seconds from its start to its end.
    estimated_duration: float | str | None = None
    #: The user that it belongs to; null: the owner of the token.
    owner: str | None = None
    #: Evictions after which it cannot be evicted any more; null: as the policy says.
    max_preemptions: int | None = None
    #: Seconds that each of its attempts may run, from its start; then it is saved and ended. null: what its
    #: pool says.
    max_run_s: float | str | None = None
    #: Seconds for which its GPUs may be idle before its owner is warned, and again before it is ended; null:
    #: what its pool says.
    idle_s: float | str | None = None
    #: The tasks that it starts after, in the queue: an id alone or ``ok:ID`` when that one has completed,
    #: ``any:ID`` however it ends, ``fail:ID`` when it does not complete.
    after: list[str] | str | None = None
    #: How close together its members are placed: "rack", "preferred:rack", "slice:8:rack", with commas
    #: between them, or as a dict such as {"required": "rack"}; null: anywhere.
    topology: str | dict[str, Any] | None = None
    # end written
    #: Whether it waits in the queue where it does not fit; else it is refused.
    queue: bool = False
    #: Seconds from the notice of an eviction to its end; null: as the policy says.
    grace_s: float | str | None = None
    #: One of Ray's placement strategies; null: as the pool says, else PACK.
    strategy: str | None = None
    #: Whether the answer comes when it runs; after so many seconds without that it is cancelled.
    wait: bool | float = False
    #: Conditions on the labels of its nodes, as Ray's: "H100", "!H100", "in(H100, A100)", "!in(...)".
    label_selector: dict[str, str] | None = None
    #: The task with which it ends; null: none.
    parent: str | None = None
    #: The process that submits it, as HOST:PID; null: the token and its address.
    client: str | None = None
    #: The owner where neither ``owner`` nor the token names one.
    user: str | None = None
    #: With the same token, the same one again gets the first answer, whatever else the body says; null: as
    #: Idempotency-Key says.
    request_id: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Its fields by name, as the Python calls take them; what no argument of theirs is, is left out."""
        fields = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in _OTHERS
        }
        plain: dict[str, Any] = msgspec.to_builtins(fields)
        return {name: value for name, value in plain.items() if value is not None}


#: The fields of a submission that no argument of a Python call is.
_OTHERS = frozenset(("archive", "archive_suffix", "modules", "parent", "client", "user"))


class SentModule(Body, frozen=True, kw_only=True):
    """A Python module that is sent with a job, as a ZIP archive or a wheel."""

    #: One of the ``py_modules`` of the job's runtime environment: gcs://_ray_pkg_SHA256.zip of the archive,
    #: or gcs://NAME.whl.
    uri: str
    data: bytes


class JobFallback(Body, frozen=True, kw_only=True):
    """Another way in which a job may run; null: as it asks for itself."""

    #: Conditions on the labels of its nodes; null: any node.
    label_selector: dict[str, str] | None = None
    resources: ResourceAmounts | None = None
    bundles: Bundles | None = None


class LeaseFallback(Body, frozen=True, kw_only=True):
    """Another way in which a lease may be granted; null: as it asks for itself."""

    #: Conditions on the labels of its nodes; null: any node.
    label_selector: dict[str, str] | None = None
    groups: Annotated[list[Bundles], msgspec.Meta(max_length=MAX_BUNDLES)] | None = None


class NewJob(_Submitted, frozen=True, kw_only=True):
    """A driver command that runs as a task."""

    #: A string is run by the shell, a list is not.
    entrypoint: str | list[str]
    pool_name: str | None = None
    #: Chooses among the pools in place of a name.
    pool_selector: dict[str, Any] | None = None
    #: What the driver's work takes in Ray; null: the sum of bundles, or what the pool gives by default.
    resources: ResourceAmounts | None = None
    #: The parts of its claim, each on one node.
    bundles: Bundles | None = None
    #: What will do instead, the first ones before the others.
    fallback_strategy: list[JobFallback] | None = None
    #: Variables of the driver's environment.
    env: dict[str, str] | None = None
    #: Ray's runtime environment of the driver and its workers; its folders are URIs.
    runtime_env: dict[str, Any] | None = None
    #: The folder on all nodes that every attempt finds again; null: one on the node.
    checkpoint_dir: str | None = None
    #: What of its claim the driver itself holds; both null: its GPUs, until it connects to Ray.
    driver_cpus: float | None = None
    driver_gpus: float | None = None
    #: Seconds that each phase of a start may take: "environment", "load" and "constructor".
    start_limits: dict[str, float | str] | None = None
    # begin written body ended runs
    #: How often it is started again after its run failed, it could not be started, or it was lost.
    max_retries: int = 0
    #: "requeue" or "drop" when it is evicted; null: "requeue".
    on_preempted: str | None = None
    #: What becomes of it when its process is killed because its node is short of memory: "retry" (as
    #: ``max_retries`` says), "grow" (the same with twice the memory, each time) or "fail"; null: "retry".
    on_oom: str | None = None
    #: The most memory that "grow" gives it, in MB; null: the quota of its pool.
    oom_max_memory: float | str | None = None
    #: "end" or "requeue" when it has run for as long as it may; null: "end".
    on_time_limit: str | None = None
    #: Of an array: its indices, such as "0-99", "0-99:5" or "1,4,7-9", with "%10" behind them where at most
    #: ten run at once; or the number of its members. null: it is none.
    array: str | int | None = None
    # end written
    #: "warn" or "end": what happens where it holds more in Ray than it claims; null: as the policy says.
    over_claim: str | None = None
    #: Detached actors that stay when it ends, each as NAMESPACE/NAME.
    keep_actors: list[str] | None = None
    #: An archive of the folder in which the driver runs, of up to 16 MB; null: it is at a URI, or there is
    #: none. In JSON as Base64.
    archive: bytes | None = None
    #: How the name of the archive ends: ".zip", ".tar.gz", ".tgz" or ".tar.xz".
    archive_suffix: str = ".zip"
    modules: list[SentModule] = []
    #: Whether to answer only what would happen.
    dry_run: bool = False


class NewLease(_Submitted, frozen=True, kw_only=True):
    """Placement groups that are held for work of one's own; ``ttl_s`` or ``holder_job`` ends it."""

    pool: str
    #: Placement groups, each a list of bundles; all have as many.
    groups: Annotated[list[Bundles], msgspec.Meta(max_length=MAX_BUNDLES)]
    #: A node label: all groups are on nodes with the same value of it.
    same_label: str | None = None
    #: What will do instead, the first ones before the others.
    fallback_strategy: list[LeaseFallback] | None = None
    #: Seconds after which it ends unless it is renewed.
    ttl_s: float | str | None = None
    #: The Ray job with which it ends.
    holder_job: str | None = None


class IncomingTask(Body, frozen=True, kw_only=True):
    """A task for which evictions are evaluated; nothing changes."""

    priority: float | str
    pool_name: str
    labels: dict[str, str] = {}
    resources: ResourceAmounts | None = None
    limit: int = 100
