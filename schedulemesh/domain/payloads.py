"""What runs in an agent, or is held by it: the payload, which is one of four.

A payload holds what only its kind has; name, pool, claim and labels are in ``AgentSpec``.
"""

from __future__ import annotations

import re
from typing import ClassVar, Union

import msgspec

from schedulemesh.domain.names import as_text, parse_key, parse_name
from schedulemesh.domain.numbers import parse_duration
from schedulemesh.domain.placement import (
    MAX_BUNDLES,
    MAX_UNLIKE_BUNDLES,
    PLACEMENT_STRATEGIES,
)
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError, shown


class AgentPayload(msgspec.Struct, frozen=True, kw_only=True, tag="agent", gc=False):
    """A single process, which runs in the first of its agent's bundles."""

    #: What the agent is, as listings show it.
    kind: ClassVar[str] = "agent"
    # What other payloads have as fields, and this one as these constants.
    members: ClassVar[tuple[MemberSpec, ...]] = ()
    adopts: ClassVar[str] = ""
    parts: ClassVar[int] = 1


class MemberSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one member of a gang has instead of the gang's own."""

    #: The hash under which its class's bytes are stored.
    class_key: str
    #: The key of its stored constructor arguments; None: there are none.
    arguments_key: str | None = None


#: Of every agent that is a single process: one object, because a default is left out where it is stored.
SINGLE_PROCESS = AgentPayload()


class GangPayload(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="gang", gc=False
):
    """A gang: an agent of several processes, its members, one in each of its bundles.

    They are started, saved, evicted and ended together, and run in a placement group of their own.
    """

    kind: ClassVar[str] = "gang"
    adopts: ClassVar[str] = ""
    parts: ClassVar[int] = 1
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


class JobPayload(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="job", gc=False
):
    """A job: an agent whose process runs a driver command, and takes nothing of the agent's claim in Ray.

    The claim is for what the driver starts in Ray: its actors, tasks and placement groups. What the driver
    runs is in the arguments of the agent.
    """

    kind: ClassVar[str] = "job"
    members: ClassVar[tuple[MemberSpec, ...]] = ()
    parts: ClassVar[int] = 1
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


#: The least time to live in seconds: a holder renews in time although the supervisor is restarted meanwhile.
LEAST_TTL_S = 5.0


class LeasePayload(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="lease", gc=False
):
    """What an agent without a process holds: one or more placement groups, all of them or none.

    Every bundle of them is for the holder's own actors and tasks. Whatever runs in them ends with the lease.
    """

    kind: ClassVar[str] = "lease"
    members: ClassVar[tuple[MemberSpec, ...]] = ()
    adopts: ClassVar[str] = ""
    #: One of Ray's placement strategies, which applies to each of the groups; empty: that of the pool's
    #: groups, PACK in a pool that keeps none.
    strategy: str = ""
    #: The node label that the nodes of all groups must have with the same value; empty: none.
    same_label: str = ""
    #: The number of placement groups; the agent's bundles are divided evenly among them, in order.
    parts: int = 1
    #: The Ray job of its holder, with which it ends; empty: it does not end with a job.
    holder_job: str = ""
    #: Seconds from the notice of an eviction to its end, unless it is released before; None: as the policy
    #: says, at least 30.
    grace_s: float | None = None
    #: Seconds after which it ends unless it is renewed; None: it need not be.
    ttl_s: float | None = None


#: What an agent is; ``kind`` is the word that listings show.
Payload = Union[AgentPayload, GangPayload, JobPayload, LeasePayload]


def check_job(job: JobPayload) -> None:
    """Raise InvalidRequestError if a caller may not request such a job."""
    if job.grace_s is not None:
        parse_duration(job.grace_s, "grace_s")
    if job.strategy:
        _check_strategy(job.strategy, "strategy")
    if job.over_claim:
        parse_over_claim(job.over_claim)
    if job.folder_key:
        parse_key(job.folder_key, "the working directory's key")
        _check_suffix(job.folder_suffix)
    for module in job.modules:
        _check_module(module)


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


def check_gang(gang: GangPayload, size: int) -> None:
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


def _check_elastic(gang: GangPayload, size: int) -> None:
    if not size <= gang.replicas <= MAX_BUNDLES:
        raise InvalidRequestError(
            f"replicas is {gang.replicas}; allowed are min_replicas, {size}, to {MAX_BUNDLES}"
        )
    if gang.members or gang.same_label or gang.strategy.startswith("STRICT"):
        raise InvalidRequestError(
            "members that come and go are alike and run wherever there is room; leave out same_label and the "
            "STRICT placements, or min_replicas"
        )


def check_groups(count: int, bundles: tuple[Resources, ...]) -> None:
    """Raise InvalidRequestError for several groups with more bundles that differ than there may be. Each is
    placed by itself, in every attempt to find what to evict for them, and others wait for that.
    """
    if count > 1 and len(bundles) > MAX_UNLIKE_BUNDLES and len(set(bundles)) > 1:
        raise InvalidRequestError(
            f"a lease of several groups whose bundles differ has up to {MAX_UNLIKE_BUNDLES} bundles, not "
            f"{len(bundles):,}; give all bundles the same amounts, or take several leases"
        )


def check_lease(lease: LeasePayload, bundles: tuple[Resources, ...]) -> None:
    """Raise InvalidRequestError if a caller may not request such a lease of these bundles."""
    size = len(bundles)
    if not 1 <= lease.parts <= size or size % lease.parts:
        raise InvalidRequestError(
            f"a lease of {lease.parts} groups has {size} bundles; each group has as many as the others, and "
            "at least one"
        )
    check_groups(lease.parts, bundles)
    if lease.strategy:
        _check_strategy(lease.strategy, "strategy")
    for value, what in ((lease.same_label, "same_label"), (lease.holder_job, "the holder's job")):
        if value:
            parse_name(value, what)
    if lease.grace_s is not None:
        parse_duration(lease.grace_s, "grace_s")
    if lease.ttl_s is not None and parse_duration(lease.ttl_s, "ttl_s") < LEAST_TTL_S:
        raise InvalidRequestError(
            f"ttl_s is {lease.ttl_s:g}; at least {LEAST_TTL_S:g} s are needed"
        )
