"""An agent: a Ray actor that belongs to a pool and holds a claim on its quota."""

from __future__ import annotations

from typing import Any

import msgspec
from typing_extensions import assert_never

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.flavors import Flavor, TakenFlavor, counted
from schedulemesh.domain.labels import MAX_BYTES, Labels, parse_labels, size_of
from schedulemesh.domain.names import as_text, parse_key, parse_name
from schedulemesh.domain.node_labels import NodeLabels, all_of, check_node_labels
from schedulemesh.domain.numbers import parse_timeout
from schedulemesh.domain.payloads import (
    SINGLE_PROCESS,
    AgentPayload,
    GangPayload,
    JobPayload,
    LeasePayload,
    Payload,
    check_gang,
    check_groups,
    check_job,
    check_lease,
)
from schedulemesh.domain.placement import check_bundles
from schedulemesh.domain.resources import OF_FLAVORS, UNIT, Resources, check_resources, sum_of
from schedulemesh.errors import InvalidRequestError, shown

#: Ray options that a user may give; Ray checks their values.
RAY_OPTIONS = frozenset(
    {
        "accelerator_type",
        "allow_out_of_order_execution",
        "concurrency_groups",
        "enable_task_events",
        "enable_tensor_transport",
        "fallback_strategy",
        "label_selector",
        "max_concurrency",
        "max_pending_calls",
        "max_restarts",
        "max_task_retries",
        "name",
        "runtime_env",
        "scheduling_strategy",
    }
)


class MemberProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The process of one member of a gang, as it was reported."""

    node_id: str | None = None
    #: Its GPUs by their names on the node; empty: it does not know them.
    gpu_ids: tuple[str, ...] = ()
    pid: int = 0
    #: The control methods that its class has.
    capabilities: tuple[str, ...] = ()
    #: Its Ray name and namespace, by which it is found again.
    actor_name: str = ""
    actor_namespace: str = ""


class Death(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a process died that nobody has ended, as the cluster tells it."""

    #: A clause about the process, such as "exited with code 3".
    how: str
    #: Whether it was killed because its node was short of memory.
    out_of_memory: bool = False
    #: The memory that it had then, in MB; 0: not known.
    memory_mb: float = 0.0
    #: Of a gang: the rank of the member; None: it is no member.
    rank: int | None = None
    #: The whole message of which ``how`` is a part; empty: there is none, or it is not kept.
    detail: str = ""


#: What happens one after the other when a process is started: Ray sets up its runtime environment and starts
#: it, it loads its class and arguments, and it builds its object, and restores that where there is a state.
START_PHASES = ("environment", "load", "constructor")


class StartLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How long each phase of a start may take, in seconds; None: see ``AgentStart.limits``."""

    environment: float | None = None
    load: float | None = None
    constructor: float | None = None


#: The ways in which one agent may run, at most.
MAX_ALTERNATIVES = 10


class Alternative(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One of the ways in which an agent may run: on which nodes, and with how much."""

    #: The labels that the nodes of its processes must have; empty: any node will do.
    node_labels: NodeLabels = ()
    #: What it takes in all; None: the same in every alternative.
    resources: Resources | None = None
    #: The bundles of its placement group, where ``resources`` are given.
    bundles: tuple[Resources, ...] = ()


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How an agent is created, sufficient to create it again."""

    name: str
    pool_name: str
    resources: Resources
    labels: Labels = {}
    #: The hash under which the class's bytes are stored; empty: created elsewhere, cannot be created again.
    class_key: str = ""
    #: The key of the stored constructor arguments; None: there are none.
    arguments_key: str | None = None
    #: The user's Ray options as JSON; the engine never looks inside.
    options: str = "{}"
    #: Whether it can be created again from stored bytes (no object references within its arguments).
    restartable: bool = True
    #: The bundles of its placement group, whose sum is its resources; empty: one bundle.
    bundles: tuple[Resources, ...] = ()
    #: Whether its own process takes the first of its bundles; False: it takes nothing, and all of them are
    #: for what it starts.
    driver_bundle: bool = True
    #: What it is: a single process, a gang, a job, or a lease.
    payload: Payload = SINGLE_PROCESS
    #: Object references among its arguments; they are lost when the supervisor ends.
    references: int = 0
    #: The key under which the supervisor that received them holds these references; empty: there are none.
    references_id: str = ""
    #: The labels that the nodes of its processes must have; empty: any node will do.
    node_labels: NodeLabels = ()
    #: The ways in which it may run, the preferred one first; empty: one alone. Its labels, resources and
    #: bundles are those of one of them; either all of them have resources, or none has.
    alternatives: tuple[Alternative, ...] = ()
    #: The number of that one, from 0.
    alternative: int = 0
    #: None: it has none of its own.
    start_limits: StartLimits | None = None
    #: The flavor of its pool in which it runs, whose labels are among its own; None: it runs in none.
    flavor: TakenFlavor | None = None

    @property
    def quota(self) -> Resources:
        """What it holds of its pool's quota: its resources, those of its flavor as that names them."""
        return self.resources if self.flavor is None else self.flavor.quota_of(self.resources)

    @property
    def counted(self) -> Resources:
        """What counts against the limits of its owner: its resources, and those of its flavor beside them."""
        return self.resources if self.flavor is None else counted(self.resources, self.quota)

    @property
    def taken_flavor(self) -> str:
        """The name of the flavor in which it runs, as listings show it; empty: it runs in none."""
        return "" if self.flavor is None else self.flavor.name

    @property
    def label_selector(self) -> dict[str, str]:
        """The labels that its nodes must have, as listings show them."""
        return dict(self.node_labels)

    @property
    def taken(self) -> int:
        """The number of the way in which it runs, from 1, as listings show it; 0: there is one alone."""
        return self.alternative + 1 if self.alternatives else 0

    @property
    def each_alternative(self) -> tuple[AgentSpec, ...]:
        """The agent in each of the ways in which it may run, the preferred one first."""
        if not self.alternatives:
            return (self,)
        return tuple(map(self.with_alternative, range(len(self.alternatives))))

    def with_alternative(self, number: int) -> AgentSpec:
        """The agent as it runs in one of its alternatives, in no flavor yet."""
        if self.flavor is not None:
            plain = msgspec.structs.replace(self, flavor=None, node_labels=self.flavor.asked_labels)
            return plain.with_alternative(number)
        if number == self.alternative:
            return self
        chosen = self.alternatives[number]
        labelled = msgspec.structs.replace(self, node_labels=chosen.node_labels, alternative=number)
        if chosen.resources is None:
            return labelled
        return msgspec.structs.replace(labelled, resources=chosen.resources, bundles=chosen.bundles)

    def with_flavor(self, flavor: Flavor) -> AgentSpec:
        """The agent, which has none yet, as it runs in a flavor of its pool."""
        taken = TakenFlavor(name=flavor.name, kinds=flavor.kinds, asked_labels=self.node_labels)
        labels = all_of(flavor.node_labels, self.node_labels)
        return msgspec.structs.replace(self, flavor=taken, node_labels=labels)

    def as_chosen(self, chosen: AgentSpec) -> AgentSpec:
        """The agent in the alternative and the flavor of another one that may run in the same ways."""
        return msgspec.structs.replace(
            self,
            alternative=chosen.alternative,
            flavor=chosen.flavor,
            node_labels=chosen.node_labels,
            resources=chosen.resources,
            bundles=chosen.bundles,
        )

    @property
    def process_names(self) -> tuple[str, ...]:
        """The names of its processes: its own; of a gang that of each member in the order of ranks; of a
        lease none.
        """
        match self.payload:
            case LeasePayload():
                return ()
            case GangPayload():
                return tuple(f"{self.name}-{rank}" for rank in range(len(self.bundles)))
            case AgentPayload() | JobPayload():
                return (self.name,)

    @property
    def own_group(self) -> GangPayload | LeasePayload | None:
        """How the placement group of a gang or a lease is placed, which it has in any pool."""
        return self.payload if isinstance(self.payload, (GangPayload, LeasePayload)) else None

    @property
    def kind(self) -> str:
        """What it is, as listings show it."""
        return self.payload.kind

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the agents that are the extra members of an elastic gang."""
        if not isinstance(self.payload, GangPayload):
            return ()
        return tuple(f"{self.name}-{n}" for n in range(len(self.bundles), self.payload.replicas))

    @property
    def class_keys(self) -> tuple[str, ...]:
        """The keys of all classes that its processes load."""
        if isinstance(self.payload, LeasePayload):
            return ()
        members = self.payload.members
        if not members:
            return (self.class_key,)
        return tuple(dict.fromkeys(member.class_key for member in members))


def with_more_memory(spec: AgentSpec, used_mb: float, most: int) -> AgentSpec | None:
    """The agent with twice the memory, up to ``most`` units in all; None: it has as much already. One that
    asks for none gets twice what its process had used, in MB; of a gang each member is that process.
    """
    grown = _grown(spec, used_mb, most)
    if grown is None or not spec.alternatives or spec.alternatives[0].resources is None:
        return grown
    return _with_more_memory_everywhere(spec, used_mb, most)


def _grown(spec: AgentSpec, used_mb: float, most: int) -> AgentSpec | None:
    parts = spec.bundles or (spec.resources,)
    memory = spec.resources.memory or round(used_mb * UNIT) * len(parts)
    total = min(2 * memory, most)
    if total <= spec.resources.memory:
        return None
    shares = [part.memory for part in parts] if spec.resources.memory else [1] * len(parts)
    share_sum = sum(shares)
    grown = tuple(
        msgspec.structs.replace(part, memory=total * share // share_sum)
        for part, share in zip(parts, shares, strict=True)
    )
    return msgspec.structs.replace(
        spec, resources=sum_of(grown), bundles=grown if spec.bundles else ()
    )


def _with_more_memory_everywhere(spec: AgentSpec, used_mb: float, most: int) -> AgentSpec:
    """An agent with alternatives of different amounts, each of them with twice its memory where it may have
    that.
    """
    each = tuple(
        _grown(agent, used_mb, most) or agent
        for agent in (
            msgspec.structs.replace(one, alternatives=()) for one in spec.each_alternative
        )
    )
    alternatives = tuple(
        msgspec.structs.replace(before, resources=now.resources, bundles=now.bundles)
        for before, now in zip(spec.alternatives, each, strict=True)
    )
    return msgspec.structs.replace(each[spec.alternative], alternatives=alternatives)


def gang_of(process_name: str) -> tuple[str, int] | None:
    """The name of the gang whose member has this name, if it is one, and its rank; None: no gang's is so."""
    name, _, rank = process_name.rpartition("-")
    if not name or not rank.isdecimal() or (rank != "0" and rank.startswith("0")):
        return None
    return name, int(rank)


def check_agent(spec: AgentSpec) -> None:
    """Raise InvalidRequestError if a caller may not request such an agent."""
    for name, what in ((spec.name, "the agent's name"), (spec.pool_name, "the pool's name")):
        if name:
            parse_name(name, what)
    check_resources(spec.resources)
    _check_no_flavor(spec)
    if spec.bundles:
        check_bundles(spec.bundles)
    parse_labels(spec.labels)
    check_node_labels(spec.node_labels, "label_selector")
    if spec.alternatives or spec.alternative:
        _check_alternatives(spec)
    check_options(spec.options)
    labels_asked = (spec.node_labels, *(other.node_labels for other in spec.alternatives))
    selectors = map(dict, labels_asked)
    size = size_of(spec.labels) + len(spec.options) + sum(map(size_of, selectors))
    if size > MAX_BYTES:
        raise InvalidRequestError(
            f"labels and ray_options take {size} bytes together; up to {MAX_BYTES} are kept with a task"
        )
    if spec.references_id:
        raise InvalidRequestError("references_id is set by the scheduler, not by its callers")
    _check_payload(spec)
    if spec.start_limits is not None:
        parse_start_limits(msgspec.structs.asdict(spec.start_limits))
    if not isinstance(spec.payload, LeasePayload):
        parse_key(spec.class_key, "the class's key")
    if spec.arguments_key is not None:
        parse_key(spec.arguments_key, "the arguments' key")


def _check_no_flavor(spec: AgentSpec) -> None:
    """Raise InvalidRequestError for an agent that names the flavor of a pool: only quotas do."""
    if spec.flavor is not None:
        raise InvalidRequestError("flavor is set by the scheduler, not by its callers")
    for kind, _ in spec.resources.custom:
        if kind.startswith(OF_FLAVORS):
            plain, _, _ = kind.partition("@")
            raise InvalidRequestError(
                f"resources has {kind!r}, of which only pools have a quota; ask for {plain}, and choose "
                "a flavor by label_selector"
            )


def _check_alternatives(spec: AgentSpec) -> None:
    """Raise InvalidRequestError for alternatives that a caller may not request."""
    count = len(spec.alternatives)
    if not 2 <= count <= MAX_ALTERNATIVES:
        raise InvalidRequestError(
            f"an agent has {count} alternatives with the first one; 2 to {MAX_ALTERNATIVES} are allowed, so "
            f"give up to {MAX_ALTERNATIVES - 1} in fallback_strategy"
        )
    if spec.alternative:
        raise InvalidRequestError("alternative is set by the scheduler, not by its callers")
    first, *others = spec.alternatives
    has_amounts = first.resources is not None
    if first != _own_alternative(spec, has_amounts=has_amounts):
        raise InvalidRequestError("the first alternative must be what the agent asks for itself")
    for number, other in enumerate(others, start=1):
        what = f"fallback_strategy[{number - 1}]"
        check_node_labels(other.node_labels, f"{what}['label_selector']")
        if (other.resources is not None) is not has_amounts:
            raise InvalidRequestError(
                f"{what}: either all alternatives say their amounts, or none does"
            )
        if other.resources is not None:
            _check_amount(spec, other, other.resources, what)


def _own_alternative(spec: AgentSpec, *, has_amounts: bool) -> Alternative:
    if not has_amounts:
        return Alternative(node_labels=spec.node_labels)
    return Alternative(node_labels=spec.node_labels, resources=spec.resources, bundles=spec.bundles)


def _check_amount(spec: AgentSpec, other: Alternative, total: Resources, what: str) -> None:
    check_resources(total, what)
    if other.bundles:
        check_bundles(other.bundles, f"{what}['bundles']")
        if sum_of(other.bundles) != total:
            raise InvalidRequestError(f"{what} has {total}, which is not the sum of its bundles")
    has_parts, payload = bool(spec.bundles), spec.payload
    if not isinstance(payload, JobPayload) and bool(other.bundles) is not has_parts:
        raise InvalidRequestError(
            f"{what} must have bundles like the first alternative"
            if has_parts
            else f"{what} has bundles, and the first alternative has none; give both or neither"
        )
    is_fixed = isinstance(payload, GangPayload) and bool(payload.members or payload.replicas)
    if is_fixed and len(other.bundles) != len(spec.bundles):
        raise InvalidRequestError(
            f"{what} has {len(other.bundles)} members; a gang whose members differ, or come and go, has as "
            f"many in every alternative: {len(spec.bundles)}"
        )
    if len(other.bundles) % payload.parts:
        raise InvalidRequestError(
            f"{what} has {len(other.bundles)} bundles, which {payload.parts} groups do not divide evenly"
        )
    check_groups(payload.parts, other.bundles)


def with_alternatives(spec: AgentSpec, others: tuple[Alternative, ...]) -> AgentSpec:
    """The agent with further alternatives. One that says no amount takes what the agent does."""
    if not others:
        return spec
    has_amounts = any(other.resources is not None for other in others)
    if has_amounts and not spec.resources:
        raise InvalidRequestError(
            "fallback_strategy says what an alternative takes; say resources for the first one, too"
        )
    first = _own_alternative(spec, has_amounts=has_amounts)
    return msgspec.structs.replace(
        spec,
        alternatives=(
            first,
            *(
                other
                if other.resources is not None or not has_amounts
                else msgspec.structs.replace(first, node_labels=other.node_labels)
                for other in others
            ),
        ),
    )


def _check_payload(spec: AgentSpec) -> None:
    match spec.payload:
        case AgentPayload():
            pass
        case GangPayload() as gang:
            check_gang(gang, len(spec.bundles))
            _check_no_restarts(
                spec, "a gang is restarted whole, so Ray must restart no member of it"
            )
        case JobPayload() as job:
            check_job(job)
            _check_no_restarts(spec, "a job's driver is started again by max_retries instead")
        case LeasePayload() as lease:
            _check_no_process(spec)
            check_lease(lease, spec.bundles)
        case _:
            assert_never(spec.payload)


def _check_no_restarts(spec: AgentSpec, why: str) -> None:
    if msgspec.json.decode(spec.options).get("max_restarts"):
        raise InvalidRequestError(f"ray_options has max_restarts; {why}")


def parse_start_limits(start_limits: object) -> StartLimits | None:
    """The limits in a mapping from phases to seconds; None: it has none. Raises InvalidRequestError."""
    if start_limits is None:
        return None
    limits = {}
    for key, seconds in as_items(start_limits, "start_limits", "a dict of seconds by phase"):
        phase = as_text(key)
        if phase not in START_PHASES:
            raise InvalidRequestError(
                f"start_limits has {shown(key)}; allowed are {', '.join(START_PHASES)}"
            )
        if seconds is not None:
            limits[phase] = parse_timeout(seconds, f"start_limits[{phase!r}]")
    return StartLimits(**limits) if limits else None


def check_options(encoded: str) -> None:
    """Raise InvalidRequestError for what are no Ray options as JSON that a user may give."""
    if encoded == "{}":
        return
    try:
        options = msgspec.json.decode(encoded, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"ray_options are {shown(encoded)}: {error}") from error
    unknown = sorted(set(options) - RAY_OPTIONS - {"namespace"})
    if unknown:
        raise InvalidRequestError(
            f"ray_options has {unknown[0]!r}; allowed are {', '.join(sorted(RAY_OPTIONS))}"
        )
    for key in ("name", "namespace"):
        if key in options:
            parse_name(options[key], f"ray_options[{key!r}]")


def _check_no_process(spec: AgentSpec) -> None:
    """Raise InvalidRequestError for a lease with something of a process."""
    if spec.class_key or spec.arguments_key is not None or spec.options != "{}" or spec.references:
        raise InvalidRequestError(
            "a lease has no process: leave out the class, its arguments and ray_options"
        )
