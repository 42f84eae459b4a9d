"""An agent: a Ray actor that belongs to a pool and holds a claim on its quota."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.labels import MAX_BYTES, Labels, parse_labels, size_of
from schedulemesh.domain.lease import LeaseSpec, check_lease
from schedulemesh.domain.names import as_text, parse_key, parse_name
from schedulemesh.domain.node_labels import NodeLabels, check_node_labels
from schedulemesh.domain.numbers import parse_duration, parse_timeout
from schedulemesh.domain.placement import MAX_BUNDLES, PLACEMENT_STRATEGIES, check_bundles
from schedulemesh.domain.resources import UNIT, Resources, check_resources, sum_of
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


class MemberSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one member of a gang has instead of the gang's own."""

    #: The hash under which its class's bytes are stored.
    class_key: str
    #: The key of its stored constructor arguments; None: there are none.
    arguments_key: str | None = None


class GangSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A gang: an agent of several processes, its members, one in each of its bundles.

    They are started, saved, evicted and ended together, and run in a placement group of their own.
    """

    #: One of Ray's placement strategies; empty: that of the pool's groups, PACK in a pool that keeps none.
    strategy: str = ""
    #: The node label that the nodes of all members must have with the same value; empty: none.
    same_label: str = ""
    #: In the order of the bundles; empty: all members have the class and arguments of the agent.
    members: tuple[MemberSpec, ...] = ()
    #: Of an elastic gang: how many members it has at most. The bundles are its core, which it never runs
    #: without; the others, like the first of the core, come when there is room and are given up first. 0: not
    #: elastic.
    replicas: int = 0


#: The method of a job's runner that its task consists of.
RUN_DRIVER = "run_driver"

#: How the names of archives end that Ray unpacks as working directories.
FOLDER_SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar.xz")

#: How the addresses begin at which Ray finds modules that are sent with jobs.
MODULE_URI = "gcs://"
_WHEEL = re.compile(re.escape(MODULE_URI) + r"[\w.+-]+\.whl")

#: What happens to a job that holds more in Ray than it claims.
OVER_CLAIM = ("warn", "end")


class PackedModule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A Python module that is sent with a job."""

    #: Where Ray finds it, as the runtime environment says.
    uri: str
    #: The key of its stored archive.
    key: str


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job: an agent whose process runs a driver command, and takes nothing of the agent's claim in Ray.

    The claim is for what the driver starts in Ray: its actors, tasks and placement groups. What the driver
    runs is in the arguments of the agent.
    """

    #: Seconds from the notice of an eviction to its end; None: as the policy says, at least 30.
    grace_s: float | None = None
    #: One of Ray's placement strategies for the bundles of its claim; empty: PACK, and no bundles unless they
    #: are given or no node is large enough.
    strategy: str = ""
    #: "warn" or "end": what happens where it holds more in Ray than it claims; empty: as the policy says.
    over_claim: str = ""
    #: The Ray job that somebody else has started and that is a task from now on; empty: the driver is started
    #: here. Its claim is where its work is found, and until then on quota alone.
    adopts: str = ""
    #: The key of the stored archive that the driver's working directory is unpacked from; empty: it has none
    #: of the submitting machine.
    folder_key: str = ""
    #: How the name of that archive ends, such as ".zip".
    folder_suffix: str = ""
    #: The modules of the submitting machine among the ``py_modules`` of its runtime environment.
    modules: tuple[PackedModule, ...] = ()


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
    #: None: it is a single process, which runs in the first of its bundles.
    gang: GangSpec | None = None
    #: None: it runs no driver command.
    job: JobSpec | None = None
    #: Object references among its arguments; they are lost when the supervisor ends.
    references: int = 0
    #: The key under which the supervisor that received them holds these references; empty: there are none.
    references_id: str = ""
    #: None: it has a process. A lease has none.
    lease: LeaseSpec | None = None
    #: The labels that the nodes of its processes must have; empty: any node will do.
    node_labels: NodeLabels = ()
    #: The ways in which it may run, the preferred one first; empty: one alone. Its labels, resources and
    #: bundles are those of one of them; either all of them have resources, or none has.
    alternatives: tuple[Alternative, ...] = ()
    #: The number of that one, from 0.
    alternative: int = 0
    #: None: it has none of its own.
    start_limits: StartLimits | None = None

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
        """The agent as it runs in one of the ways in which it may."""
        if number == self.alternative:
            return self
        chosen = self.alternatives[number]
        labelled = msgspec.structs.replace(self, node_labels=chosen.node_labels, alternative=number)
        if chosen.resources is None:
            return labelled
        return msgspec.structs.replace(labelled, resources=chosen.resources, bundles=chosen.bundles)

    @property
    def process_names(self) -> tuple[str, ...]:
        """The names of its processes: its own; of a gang that of each member in the order of ranks; of a
        lease none.
        """
        if self.lease is not None:
            return ()
        if self.gang is None:
            return (self.name,)
        return tuple(f"{self.name}-{rank}" for rank in range(len(self.bundles)))

    @property
    def own_group(self) -> GangSpec | LeaseSpec | None:
        """How the placement group of a gang or a lease is placed, which it has in any pool."""
        return self.lease if self.gang is None else self.gang

    @property
    def kind(self) -> str:
        """What it is, as listings show it."""
        if self.lease is not None:
            return "lease"
        if self.job is not None:
            return "job"
        return "agent" if self.gang is None else "gang"

    @property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the agents that are the extra members of an elastic gang."""
        if self.gang is None or self.gang.replicas <= len(self.bundles):
            return ()
        return tuple(f"{self.name}-{n}" for n in range(len(self.bundles), self.gang.replicas))

    @property
    def class_keys(self) -> tuple[str, ...]:
        """The keys of all classes that its processes load."""
        if self.lease is not None:
            return ()
        if self.gang is None or not self.gang.members:
            return (self.class_key,)
        return tuple(dict.fromkeys(member.class_key for member in self.gang.members))


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
    if spec.bundles:
        check_bundles(spec.bundles)
    parse_labels(spec.labels)
    check_node_labels(spec.node_labels, "label_selector")
    if spec.alternatives or spec.alternative:
        _check_alternatives(spec)
    check_options(spec.options)
    if spec.gang is not None:
        check_gang(spec.gang, len(spec.bundles))
        if msgspec.json.decode(spec.options).get("max_restarts"):
            raise InvalidRequestError(
                "ray_options has max_restarts; a gang is restarted whole, so Ray must restart no member of it"
            )
    if spec.job is not None:
        check_job(spec)
    labels_asked = (spec.node_labels, *(other.node_labels for other in spec.alternatives))
    selectors = map(dict, labels_asked)
    size = size_of(spec.labels) + len(spec.options) + sum(map(size_of, selectors))
    if size > MAX_BYTES:
        raise InvalidRequestError(
            f"labels and ray_options take {size} bytes together; up to {MAX_BYTES} are kept with a task"
        )
    if spec.references_id:
        raise InvalidRequestError("references_id is set by the scheduler, not by its callers")
    if spec.lease is not None:
        _check_no_process(spec)
        check_lease(spec.lease, len(spec.bundles))
    if spec.start_limits is not None:
        parse_start_limits(msgspec.structs.asdict(spec.start_limits))
    if spec.lease is None:
        parse_key(spec.class_key, "the class's key")
    if spec.arguments_key is not None:
        parse_key(spec.arguments_key, "the arguments' key")


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
    has_parts = bool(spec.bundles)
    if spec.job is None and bool(other.bundles) is not has_parts:
        raise InvalidRequestError(
            f"{what} must have bundles like the first alternative"
            if has_parts
            else f"{what} has bundles, and the first alternative has none; give both or neither"
        )
    gang, lease = spec.gang, spec.lease
    varies = gang is None or not (gang.members or gang.replicas)
    if not varies and len(other.bundles) != len(spec.bundles):
        raise InvalidRequestError(
            f"{what} has {len(other.bundles)} members; a gang whose members differ, or come and go, has as "
            f"many in every alternative: {len(spec.bundles)}"
        )
    if lease is not None and len(other.bundles) % lease.parts:
        raise InvalidRequestError(
            f"{what} has {len(other.bundles)} bundles, which {lease.parts} groups do not divide evenly"
        )


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


def check_job(spec: AgentSpec) -> None:
    """Raise InvalidRequestError if a caller may not request such a job."""
    if spec.gang is not None:
        raise InvalidRequestError("an agent is a gang or a job, not both; leave out replicas")
    if spec.job is not None and spec.job.grace_s is not None:
        parse_duration(spec.job.grace_s, "grace_s")
    if spec.job is not None and spec.job.strategy:
        _check_strategy(spec.job.strategy, "strategy")
    if spec.job is not None and spec.job.over_claim:
        parse_over_claim(spec.job.over_claim)
    if spec.job is not None and spec.job.folder_key:
        parse_key(spec.job.folder_key, "the working directory's key")
        _check_suffix(spec.job.folder_suffix)
    for module in () if spec.job is None else spec.job.modules:
        _check_module(module)
    if msgspec.json.decode(spec.options).get("max_restarts"):
        raise InvalidRequestError(
            "ray_options has max_restarts; a job's driver is started again by max_retries instead"
        )


def module_archive(key: str) -> str:
    """Where Ray finds the archive of a module with this key."""
    return f"{MODULE_URI}_ray_pkg_{key}.zip"


def _check_module(module: PackedModule) -> None:
    parse_key(module.key, "a module's key")
    # Under another name it could stand in for a package that somebody else is about to send.
    archive = module_archive(module.key)
    if module.uri != archive and not _WHEEL.fullmatch(module.uri):
        raise InvalidRequestError(
            f"a module is to be found at {shown(module.uri)}; allowed are {archive} and the name of a wheel "
            f"after {MODULE_URI}"
        )


def _check_suffix(suffix: str) -> None:
    if suffix not in FOLDER_SUFFIXES:
        raise InvalidRequestError(
            f"the archive of the working directory ends with {shown(suffix)}; allowed are "
            f"{', '.join(FOLDER_SUFFIXES)}"
        )


def parse_over_claim(over_claim: object) -> str:
    """One of OVER_CLAIM. Raises InvalidRequestError."""
    word = as_text(over_claim)
    if word not in OVER_CLAIM:
        raise InvalidRequestError(
            f"over_claim is {shown(over_claim)}; allowed are {', '.join(OVER_CLAIM)}"
        )
    return word


def check_gang(gang: GangSpec, size: int) -> None:
    """Raise InvalidRequestError if a caller may not request such a gang of so many bundles."""
    if not size:
        raise InvalidRequestError("a gang has a bundle for each member; it has none")
    if gang.strategy:
        _check_strategy(gang.strategy, "placement")
    if gang.same_label:
        parse_name(gang.same_label, "same_label")
    if gang.members and len(gang.members) != size:
        raise InvalidRequestError(f"a gang has {len(gang.members)} members, but {size} bundles")
    if gang.replicas:
        _check_elastic(gang, size)
    for member in gang.members:
        parse_key(member.class_key, "a member's class key")
        if member.arguments_key is not None:
            parse_key(member.arguments_key, "a member's arguments' key")


def _check_strategy(strategy: str, what: str) -> None:
    if strategy not in PLACEMENT_STRATEGIES:
        raise InvalidRequestError(
            f"{what} is {shown(strategy)}; allowed are {', '.join(PLACEMENT_STRATEGIES)}"
        )


def _check_elastic(gang: GangSpec, size: int) -> None:
    if not size <= gang.replicas <= MAX_BUNDLES:
        raise InvalidRequestError(
            f"replicas is {gang.replicas}; allowed are min_replicas, {size}, to {MAX_BUNDLES}"
        )
    if gang.members or gang.same_label or gang.strategy.startswith("STRICT"):
        raise InvalidRequestError(
            "members that come and go are alike and run wherever there is room; leave out same_label and the "
            "STRICT placements, or min_replicas"
        )


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
    if spec.gang is not None or spec.job is not None:
        raise InvalidRequestError("an agent is a gang, a job or a lease, and only one of these")
