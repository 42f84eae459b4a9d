"""How much of a pool each owner's tasks may hold at once, how many run, and how many wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.resources import (
    UNIT,
    Resources,
    bytes_hint,
    check_resources,
    parse_resources,
)
from schedulemesh.errors import InvalidRequestError, shown

#: The entry for owners that have none of their own, and for what theirs leaves out.
DEFAULT_OWNER = "default"
#: How a pool's queue is ordered between owners: not at all, or by what each of them has used lately.
OWNER_ORDERS = ("none", "fair")
#: The most owners that one pool names.
MAX_OWNERS = 1_000
#: The keys of an entry beside kinds of resources: how many tasks run at once, and how many wait.
COUNTS = ("running", "queued")
#: MB of memory that no owner has on all machines together: an amount of bytes.
_LIKE_BYTES = 10**9
_KINDS = ("cpu", "memory", "gpu")
#: The least of each of ``COUNTS``: an owner of whom nothing may wait could not submit anything.
_LEAST = {"running": 0, "queued": 1}


class OwnerLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the tasks of one owner may have in a pool. What it does not name is not limited."""

    #: (kind or name of a custom resource, units), sorted: the most that they hold at once.
    named: tuple[tuple[str, int], ...] = ()
    #: The most of them that run at once; None: no limit.
    running: int | None = None
    #: The most of them that wait in the queue; None: no limit.
    queued: int | None = None
    #: What is not limited although the default limits it, sorted.
    lifted: tuple[str, ...] = ()

    def public(self) -> dict[str, object]:
        """As it is given; None stands for what the default does not limit."""
        limits: dict[str, object] = {kind: units / UNIT for kind, units in self.named}
        limits |= dict.fromkeys(self.lifted)
        entry = {kind: limits.pop(kind) for kind in _KINDS if kind in limits}
        counts = {"running": self.running, "queued": self.queued}
        entry |= {name: n for name, n in counts.items() if n is not None or name in limits}
        if custom := {name: value for name, value in limits.items() if name not in COUNTS}:
            entry["custom"] = custom
        return entry

    def or_else(self, default: OwnerLimit) -> OwnerLimit:
        """With the limits of the default for what this entry leaves out."""
        inherited = dict(default.named) | dict(self.named)
        running = default.running if self.running is None else self.running
        queued = default.queued if self.queued is None else self.queued
        return OwnerLimit(
            named=tuple(sorted((k, n) for k, n in inherited.items() if k not in self.lifted)),
            running=None if "running" in self.lifted else running,
            queued=None if "queued" in self.lifted else queued,
        )


OwnerLimits = dict[str, OwnerLimit]


def limit_of(limits: Mapping[str, OwnerLimit], owner: str) -> OwnerLimit:
    """What limits this owner in a pool with these limits."""
    default = limits.get(DEFAULT_OWNER, OwnerLimit())
    entry = limits.get(owner)
    return default if entry is None else entry.or_else(default)


def parse_owner_limits(limits: object) -> OwnerLimits:
    """The limits from a dict of dicts by owner, or None for none; an entry of None is left out.

    Raises InvalidRequestError.
    """
    if limits is None:
        return {}
    entries = as_items(limits, "owner_limits", "a dict such as {'default': {'gpu': 8}}")
    parsed = {
        parse_name(owner, "each owner of owner_limits"): _parse_entry(owner, entry)
        for owner, entry in entries
        if entry is not None
    }
    check_owner_limits(parsed)
    return parsed


def _parse_entry(owner: object, entry: object) -> OwnerLimit:
    what = f"owner_limits[{shown(owner)}]"
    fields = dict(as_items(entry, what, "a dict of limits such as {'gpu': 8}"))
    counts = {name: fields.pop(name) for name in COUNTS if name in fields}
    custom = fields.pop("custom", None)
    named = {} if custom is None else dict(as_items(custom, f"{what}['custom']", "a dict"))
    _check_kinds(fields, named, what)
    amounts = parse_resources({**_not_none(fields), "custom": _not_none(named)}, what)
    if amounts.memory >= _LIKE_BYTES * UNIT:
        raise InvalidRequestError(
            f"{what}['memory'] is {shown(fields['memory'])}, which nobody has. {bytes_hint(amounts)}; write "
            "it with its unit, such as '64GB'"
        )
    units = dict(amounts.items())
    kinds = {as_text(kind) or "": value for kind, value in {**fields, **named}.items()}
    return OwnerLimit(
        named=tuple(sorted((k, units.get(k, 0)) for k, v in kinds.items() if v is not None)),
        lifted=tuple(sorted(k for k, v in {**kinds, **counts}.items() if v is None)),
        **{name: _count(n, name, what) for name, n in counts.items()},
    )


def _check_kinds(fields: Mapping[Any, object], custom: Mapping[Any, object], what: str) -> None:
    """Raise InvalidRequestError for a key that is none, and for a custom resource with the name of one."""
    for key in fields:
        if as_text(key) not in _KINDS:
            allowed = ", ".join((*_KINDS, "custom", *COUNTS))
            raise InvalidRequestError(
                f"{what} has the unknown key {shown(key)}; allowed are {allowed}"
            )
    for name in custom:
        if as_text(name) in (*_KINDS, *COUNTS):
            raise InvalidRequestError(
                f"{what}['custom'] has the name {shown(name)}, which is a limit of its own"
            )


def _count(value: object, name: str, what: str) -> int | None:
    """How many tasks run at once, or wait; None: no limit. Raises InvalidRequestError."""
    return None if value is None else parse_count(value, f"{what}[{name!r}]", _LEAST[name])


def _not_none(amounts: Mapping[Any, object]) -> dict[Any, object]:
    return {kind: value for kind, value in amounts.items() if value is not None}


def check_owner_limits(limits: Mapping[str, OwnerLimit]) -> None:
    """Raise InvalidRequestError for limits that ``parse_owner_limits`` cannot have made."""
    if len(limits) > MAX_OWNERS:
        raise InvalidRequestError(
            f"owner_limits names {len(limits):,} owners, not {MAX_OWNERS:,} or fewer"
        )
    for owner, limit in limits.items():
        what = f"owner_limits[{owner!r}]"
        parse_name(owner, "each owner of owner_limits")
        names = [name for name, _ in limit.named]
        if names != sorted(set(names)) or set(names) & set(limit.lifted):
            raise InvalidRequestError(f"{what} is {shown(limit)}")
        check_resources(_resources(limit.named), what)
        for name in COUNTS:
            _count(getattr(limit, name), name, what)


def _resources(named: Iterable[tuple[str, int]]) -> Resources:
    units = {name: n for name, n in named if n}
    return Resources(
        cpu=units.pop("cpu", 0),
        memory=units.pop("memory", 0),
        gpu=units.pop("gpu", 0),
        custom=tuple(sorted(units.items())),
    )


def parse_owner_order(value: object) -> str:
    """One of ``OWNER_ORDERS``; None: the first. Raises InvalidRequestError."""
    word = OWNER_ORDERS[0] if value is None else as_text(value)
    if word not in OWNER_ORDERS:
        allowed = ", ".join(OWNER_ORDERS)
        raise InvalidRequestError(f"owner_order is {shown(value)}; allowed are {allowed}")
    return word


def public_owner_limits(limits: Mapping[str, OwnerLimit]) -> dict[str, dict[str, object]]:
    """The limits as they are given, by owner."""
    return {owner: limit.public() for owner, limit in limits.items()}
