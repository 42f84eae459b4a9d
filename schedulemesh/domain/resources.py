"""Amounts of CPU, memory, GPU and custom resources, exact to 1/10,000.

At the edge amounts are floats (memory in MB); inside they are integers of 1/10,000, the grain that
Ray itself uses, so that a million reservations and releases drift by nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from schedulemesh.errors import InvalidRequestError

#: How many units make one CPU, one MB, one GPU or one of a custom resource.
UNIT = 10_000

_KINDS = ("cpu", "memory", "gpu")


class Resources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An amount of each kind of resource, in units of 1/10,000; hashable, compared by value."""

    #: CPUs.
    cpu: int = 0
    #: MB of memory.
    memory: int = 0
    #: GPUs: a share of one device below 1, whole devices above.
    gpu: int = 0
    #: Custom resources, sorted by name, none of them zero.
    custom: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Resources) -> Resources:
        """The sum, kind by kind."""
        return Resources(
            cpu=self.cpu + other.cpu,
            memory=self.memory + other.memory,
            gpu=self.gpu + other.gpu,
            custom=_merge(self.custom, other.custom, 1) if other.custom else self.custom,
        )

    def __sub__(self, other: Resources) -> Resources:
        """The difference, kind by kind; may be negative."""
        return Resources(
            cpu=self.cpu - other.cpu,
            memory=self.memory - other.memory,
            gpu=self.gpu - other.gpu,
            custom=_merge(self.custom, other.custom, -1) if other.custom else self.custom,
        )

    def __bool__(self) -> bool:
        """Whether any kind is not zero."""
        return bool(self.cpu or self.memory or self.gpu or self.custom)

    def fits(self, room: Resources) -> bool:
        """Whether ``room`` has at least this much of every kind that is asked for here."""
        for need, has in (
            (self.cpu, room.cpu),
            (self.memory, room.memory),
            (self.gpu, room.gpu),
        ):
            if need and need > has:
                return False
        return not self.custom or _custom_fits(self.custom, room.custom)

    def beyond(self, room: Resources) -> Resources:
        """What ``room`` lacks of every kind that is asked for here: max(0, self - room)."""
        return Resources(
            cpu=max(0, self.cpu - room.cpu) if self.cpu else 0,
            memory=max(0, self.memory - room.memory) if self.memory else 0,
            gpu=max(0, self.gpu - room.gpu) if self.gpu else 0,
            custom=_custom_beyond(self.custom, room.custom) if self.custom else (),
        )

    def within(self, room: Resources) -> Resources:
        """What of this ``room`` has, kind by kind: min(self, max(0, room))."""
        return Resources(
            cpu=max(0, min(self.cpu, room.cpu)),
            memory=max(0, min(self.memory, room.memory)),
            gpu=max(0, min(self.gpu, room.gpu)),
            custom=_custom_within(self.custom, room.custom) if self.custom else (),
        )

    def helps(self, short: Resources) -> bool:
        """Whether this holds any of a kind that ``short`` lacks."""
        if (short.cpu and self.cpu) or (short.memory and self.memory) or (short.gpu and self.gpu):
            return True
        return bool(short.custom) and any(name in dict(short.custom) for name, _ in self.custom)

    def negative(self) -> bool:
        """Whether any kind is below zero."""
        return min(self.cpu, self.memory, self.gpu) < 0 or any(n < 0 for _, n in self.custom)

    def items(self) -> Iterator[tuple[str, int]]:
        """Each kind that is not zero with its units: cpu, memory, gpu, then custom ones by name."""
        for kind in _KINDS:
            amount: int = getattr(self, kind)
            if amount:
                yield kind, amount
        yield from self.custom

    def public(self) -> dict[str, Any]:
        """The documented dict of floats; kinds of amount zero are left out."""
        shown: dict[str, Any] = {k: getattr(self, k) / UNIT for k in _KINDS if getattr(self, k)}
        if self.custom:
            shown["custom"] = {name: amount / UNIT for name, amount in self.custom}
        return shown

    def __str__(self) -> str:
        """Short and readable, such as ``cpu 2, memory 512 MB``."""
        parts = [
            f"{kind} {amount / UNIT:g}{' MB' if kind == 'memory' else ''}"
            for kind, amount in self.items()
        ]
        return ", ".join(parts) or "nothing"


#: No resources at all.
NOTHING = Resources()


def least(amounts: Iterable[Resources]) -> Resources:
    """Kind by kind the least of these; nothing of none."""
    found: Resources | None = None
    for amount in amounts:
        found = amount if found is None else found.within(amount)
    return found or NOTHING


def most(amounts: Iterable[Resources]) -> Resources:
    """Kind by kind the most of these."""
    found = NOTHING
    for amount in amounts:
        found = found + amount.beyond(found)
    return found


def sum_of(amounts: Iterable[Resources]) -> Resources:
    """The sum of these."""
    total = NOTHING
    for amount in amounts:
        total = total + amount
    return total


def parse_resources(given: object, what: str = "resources") -> Resources:
    """The amounts of ``{"cpu", "memory", "gpu", "custom"}``; every key is optional.

    Raises InvalidRequestError, naming the key and the value, for an unknown key and for an amount that
    is no number, negative, NaN, infinite or below 1/10,000, or a GPU amount above 1 that is not whole.
    """
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{what} must be a dict such as {{'cpu': 1.0}}, not {given!r}")
    for key in given:
        if key not in (*_KINDS, "custom"):
            raise InvalidRequestError(
                f"{what} has the unknown key {key!r}; allowed are cpu, memory (MB), gpu and custom"
            )
    amounts = {k: _units(given[k], f"{what}[{k!r}]") for k in _KINDS if given.get(k) is not None}
    if amounts.get("gpu", 0) > UNIT and amounts["gpu"] % UNIT:
        raise InvalidRequestError(
            f"{what}['gpu'] is {given['gpu']!r}; above 1 it must be a whole number of devices"
        )
    return Resources(**amounts, custom=_parse_custom(given.get("custom"), what))


def _parse_custom(given: object, what: str) -> tuple[tuple[str, int], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{what}['custom'] must be a dict of amounts, not {given!r}")
    found = []
    for name, amount in given.items():
        if not isinstance(name, str) or not name or name.lower() in _KINDS:
            raise InvalidRequestError(
                f"{what}['custom'] has the name {name!r}; it must be a text other than cpu, gpu, memory"
            )
        found.append((name, _units(amount, f"{what}['custom'][{name!r}]")))
    return tuple(sorted((name, units) for name, units in found if units))


def _units(amount: object, what: str) -> int:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise InvalidRequestError(f"{what} must be a number, not {amount!r}")
    if not math.isfinite(amount) or amount < 0:
        raise InvalidRequestError(f"{what} is {amount!r}; it must be a finite number of at least 0")
    units = round(amount * UNIT)
    if amount > 0 and units == 0:
        raise InvalidRequestError(f"{what} is {amount!r}; the smallest amount is 0.0001")
    return units


def _merge(
    left: tuple[tuple[str, int], ...], right: tuple[tuple[str, int], ...], sign: int
) -> tuple[tuple[str, int], ...]:
    total = dict(left)
    for name, amount in right:
        total[name] = total.get(name, 0) + sign * amount
    return tuple(sorted((name, amount) for name, amount in total.items() if amount))


def _clip(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((name, amount) for name, amount in amounts if amount > 0)


def _custom_fits(need: tuple[tuple[str, int], ...], room: tuple[tuple[str, int], ...]) -> bool:
    has = dict(room)
    return all(amount <= has.get(name, 0) for name, amount in need)


def _custom_beyond(
    need: tuple[tuple[str, int], ...], room: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    has = dict(room)
    return _clip(tuple((name, amount - has.get(name, 0)) for name, amount in need))


def _custom_within(
    need: tuple[tuple[str, int], ...], room: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    has = dict(room)
    return _clip(tuple((name, min(amount, has.get(name, 0))) for name, amount in need))
