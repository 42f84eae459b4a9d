"""Amounts of CPU, memory, GPU and custom resources, exact to 1/10,000.

In the API amounts are floats (memory in MB); internally they are integers of 1/10,000, the precision that
Ray itself uses, so that sums are exact after any number of reservations and releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, TypedDict

import msgspec

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.names import MAX_CHARS, as_text, is_name
from schedulemesh.domain.numbers import as_number, parse_number
from schedulemesh.errors import InvalidRequestError, shown

#: Units per CPU, MB, GPU or unit of a custom resource.
UNIT = 10_000

#: Amounts whose units are rounded down, such as a third, as they are claimed in a bundle: Ray compares plain
#: numbers, and counts in the same units, so that three thirds of a device are one.
_SHARES = {
    units: part / whole + 1e-6
    for whole in range(3, 101)
    for part in range(1, whole)
    # What is added must not make it round up.
    if 0 < part * UNIT / whole - (units := part * UNIT // whole) < 0.49
}

#: The largest allowed amount of one kind.
MAX_AMOUNT = 1e12

_KINDS = ("cpu", "memory", "gpu")
_KEYS = (*_KINDS, "custom")
#: How the kinds of flavors begin, of which a quota has amounts.
OF_FLAVORS = tuple(f"{kind}@" for kind in _KINDS)
#: Common wrong names of a kind, in lower case and without the prefix "num_" and a plural "s".
_MEANT = {
    "cpu": "cpu",
    "gpu": "gpu",
    "mem": "memory",
    "memory": "memory",
    "memory_mb": "memory",
    "ram": "memory",
    "resource": "custom",
    "custom": "custom",
}
#: MB of memory that no machine has: an amount of bytes.
LIKE_BYTES = 10**8
_MOST_UNITS = int(MAX_AMOUNT) * UNIT
#: Kinds of custom resources of one amount.
_MAX_CUSTOM = 1_000


class Amounts(TypedDict, total=False):
    """Amounts of resources; kinds whose amount is zero are left out."""

    cpu: float
    #: MB.
    memory: float
    gpu: float
    #: By the name of the custom resource.
    custom: dict[str, float]


#: MB of a unit of memory.
_UNITS_MB = {"k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt])(?:i?b)?", re.IGNORECASE | re.ASCII)


def size_of(text: str) -> float | None:
    """The MB of a size as people write it: ``512MB``, ``64GB``, ``64Gi``, ``1TB``; None: it is none."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS_MB[match[2].lower()]


def size_text(memory_mb: float) -> str:
    """Memory as people read it, such as ``64 GB``."""
    if memory_mb < _UNITS_MB["g"]:
        return f"{memory_mb:.12g} MB"
    return f"{round(memory_mb / _UNITS_MB['g'], 3):.12g} GB"


def amounts_text(amounts: Mapping[str, Any]) -> str:
    """Amounts as people read them, such as ``cpu 8, memory 64 GB, gpu 4``."""
    standard_amounts = ((kind, amounts.get(kind)) for kind in ("cpu", "memory", "gpu"))
    shown_amounts = [*standard_amounts, *amounts.get("custom", {}).items()]
    return ", ".join(_amount_text(*part) for part in shown_amounts if part[1] is not None) or "-"


def _amount_text(kind: str, amount: float) -> str:
    return f"{kind} {size_text(amount) if is_memory(kind) else f'{amount:.12g}'}"


def is_memory(kind: str) -> bool:
    """Whether this is memory, maybe that of a flavor."""
    return kind == "memory" or kind.startswith("memory@")


#: CPUs that count as much as a GPU where work is compared: about what a node has of them per GPU.
_CPUS_PER_GPU = 8


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
        """Whether ``room`` has at least this much of every kind requested here."""
        if self.cpu > room.cpu and self.cpu:
            return False
        if self.memory > room.memory and self.memory:
            return False
        if self.gpu > room.gpu and self.gpu:
            return False
        return not self.custom or _custom_fits(self.custom, room.custom)

    def beyond(self, room: Resources) -> Resources:
        """What ``room`` lacks of every kind requested here: max(0, self - room)."""
        return Resources(
            cpu=max(0, self.cpu - room.cpu) if self.cpu else 0,
            memory=max(0, self.memory - room.memory) if self.memory else 0,
            gpu=max(0, self.gpu - room.gpu) if self.gpu else 0,
            custom=_custom_beyond(self.custom, room.custom) if self.custom else (),
        )

    def times(self, count: int) -> Resources:
        """The sum of so many equal amounts."""
        return Resources(
            cpu=self.cpu * count,
            memory=self.memory * count,
            gpu=self.gpu * count,
            custom=tuple((name, units * count) for name, units in self.custom if count),
        )

    def count_in(self, room: Resources, most: int) -> int:
        """How many of these ``room`` has together, up to so many; GPUs are not looked at."""
        amounts = [(self.cpu, room.cpu), (self.memory, room.memory)]
        if self.custom:
            custom = dict(room.custom)
            amounts += [(amount, custom.get(name, 0)) for name, amount in self.custom]
        return max(0, min([most, *(free // amount for amount, free in amounts if amount)]))

    def within(self, room: Resources) -> Resources:
        """The part of this that ``room`` has, kind by kind: min(self, max(0, room))."""
        return Resources(
            cpu=max(0, min(self.cpu, room.cpu)),
            memory=max(0, min(self.memory, room.memory)),
            gpu=max(0, min(self.gpu, room.gpu)),
            custom=_custom_within(self.custom, room.custom) if self.custom else (),
        )

    def of_kinds(self, other: Resources) -> Resources:
        """What is requested here of the kinds of which ``other`` has any."""
        kinds = dict(other.custom) if self.custom else {}
        return Resources(
            cpu=self.cpu if other.cpu else 0,
            memory=self.memory if other.memory else 0,
            gpu=self.gpu if other.gpu else 0,
            custom=tuple((name, units) for name, units in self.custom if name in kinds),
        )

    def helps(self, short: Resources) -> bool:
        """Whether this holds any of a kind that ``short`` lacks."""
        if (short.cpu and self.cpu) or (short.memory and self.memory) or (short.gpu and self.gpu):
            return True
        return bool(short.custom) and any(name in dict(short.custom) for name, _ in self.custom)

    @property
    def gpu_equivalents(self) -> float:
        """How much this is, in GPUs, to compare what tasks lose or leave idle: the GPUs, or where there are
        none an eighth of the CPUs.
        """
        return (self.gpu or self.cpu / _CPUS_PER_GPU) / UNIT

    @property
    def work_rate(self) -> float:
        """GPU-seconds of work per second of a task that holds this; 1 where that is neither GPUs nor CPUs."""
        return self.gpu_equivalents or 1.0

    @property
    def scarce(self) -> Resources:
        """What of this decides about room: all but CPUs and memory, or these where it is nothing else."""
        return Resources(gpu=self.gpu, custom=self.custom) or self

    def negative(self) -> bool:
        """Whether any kind is below zero."""
        if self.custom and any(n < 0 for _, n in self.custom):
            return True
        return self.cpu < 0 or self.memory < 0 or self.gpu < 0

    @property
    def gpus(self) -> float:
        """The GPU amount as users give it."""
        return self.gpu / UNIT

    def items(self) -> tuple[tuple[str, int], ...]:
        """Each kind that is not zero with its units: cpu, memory, gpu, then custom ones by name."""
        amounts = self.custom
        if self.gpu:
            amounts = (("gpu", self.gpu), *amounts)
        if self.memory:
            amounts = (("memory", self.memory), *amounts)
        return (("cpu", self.cpu), *amounts) if self.cpu else amounts

    def public(self) -> Amounts:
        """The documented dict of floats."""
        amounts: Amounts = {}
        if self.cpu:
            amounts["cpu"] = self.cpu / UNIT
        if self.memory:
            amounts["memory"] = self.memory / UNIT
        if self.gpu:
            amounts["gpu"] = self.gpu / UNIT
        if self.custom:
            amounts["custom"] = {name: amount / UNIT for name, amount in self.custom}
        return amounts

    def __str__(self) -> str:
        """Short and readable, such as ``cpu 2, memory 512 MB``."""
        parts = [
            f"{kind} {size_text(amount / UNIT) if is_memory(kind) else f'{amount / UNIT:g}'}"
            for kind, amount in self.items()
        ]
        return ", ".join(parts) or "nothing"


#: No resources at all.
NOTHING = Resources()


def least(amounts: Iterable[Resources]) -> Resources:
    """The minimum kind by kind; nothing if there are none."""
    minimum: Resources | None = None
    for amount in dict.fromkeys(amounts):  # bundles are mostly alike
        minimum = amount if minimum is None else minimum.within(amount)
    return minimum or NOTHING


def most(amounts: Iterable[Resources]) -> Resources:
    """The maximum kind by kind."""
    maximum = NOTHING
    for amount in amounts:
        maximum = maximum + amount.beyond(maximum)
    return maximum


def sum_of(amounts: Iterable[Resources]) -> Resources:
    """The sum of these."""
    total = NOTHING
    for amount in amounts:
        total = total + amount
    return total


def parse_resources(
    resources: object, what: str = "resources", *, covering: bool = False
) -> Resources:
    """The amounts of ``{"cpu", "memory", "gpu", "custom"}``; every key is optional. ``covering``: a bundle of
    them holds what others claim in Ray with the same plain numbers.

    Raises InvalidRequestError, naming the key and the value, for an unknown key and for an amount that
    is no number, negative, NaN, infinite or below 1/10,000, or a GPU amount above 1 that is not whole.
    """
    items = as_items(resources, what, "a dict such as {'cpu': 1.0}")
    named = {_kind(key, what): value for key, value in items}
    custom = _parse_custom(named.pop("custom", None), what)
    amounts = {k: _amount(k, v, what) for k, v in named.items() if v is not None}
    if covering:
        amounts = {k: _covering(k, named[k], units, what) for k, units in amounts.items()}
    if of_flavors := amounts.keys() - _KINDS:
        units = {**dict(custom), **{kind: amounts.pop(kind) for kind in of_flavors}}
        custom = tuple(sorted((name, amount) for name, amount in units.items() if amount))
    if amounts.get("gpu", 0) > UNIT and amounts["gpu"] % UNIT:
        raise InvalidRequestError(
            f"{what}['gpu'] is {shown(named['gpu'])}; above 1 it must be a whole number of devices"
        )
    return Resources(**amounts, custom=custom)


def _covering(kind: str, amount: object, units: int, what: str) -> int:
    """The units of an amount that is valid, rounded up where a bundle of them would hold less."""
    if kind != "memory":
        return covering_units(as_number(amount) or 0.0)
    megabytes = as_number(as_megabytes(amount, what)) or 0.0
    # The product of an exact amount is off by less than that.
    return max(units, ceil(round(megabytes * UNIT, 6)))


def covering_units(amount: float) -> int:
    """The fewest units of which a bundle holds this amount."""
    units = round(amount * UNIT)
    return units if share_of(units) >= amount else units + 1


def share_of(units: int) -> float:
    """An amount as it is claimed in a bundle."""
    count, fraction = divmod(units, UNIT)
    return count + _SHARES[fraction] if fraction in _SHARES else units / UNIT


def as_megabytes(value: object, what: str) -> object:
    """The MB of a size that is written as a text; anything else as it is. Raises InvalidRequestError for
    another text.
    """
    text = as_text(value)
    if text is None:
        return value
    size = size_of(text)
    if size is None:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed are MB as a number, and a size such as '512MB', '64GB' or "
            "'1TB'"
        )
    return size


def like_bytes(resources: Resources) -> float | None:
    """A memory that is probably given in bytes; None: it is not."""
    return None if resources.memory < LIKE_BYTES * UNIT else resources.memory / UNIT


def bytes_hint(resources: Resources) -> str:
    """What is said of a memory that is probably given in bytes; empty: it is not."""
    memory = like_bytes(resources)
    return "" if memory is None else _hint(memory)


def _hint(memory: float) -> str:
    return f"Memory is given in MB; {memory:.12g} bytes are {memory / 2**20:.6g} MB"


def check_resources(resources: Resources, what: str = "resources") -> None:
    """Raise InvalidRequestError for amounts that ``parse_resources`` cannot have made, or sums of them."""
    names = [name for name, _ in resources.custom]
    amounts = (resources.cpu, resources.memory, resources.gpu, *(n for _, n in resources.custom))
    if not all(0 <= units <= _MOST_UNITS for units in amounts) or not all(
        units for _, units in resources.custom
    ):
        raise InvalidRequestError(
            f"{what} are {shown(resources)}; an amount must be from 0 to {MAX_AMOUNT:g}"
        )
    if names != sorted(set(names)) or not all(_is_custom(name) for name in names):
        raise InvalidRequestError(f"{what} have the custom names {shown(names)}")


def _kind(key: object, what: str) -> str:
    """One of the keys of resources, or a kind of a flavor, such as ``gpu@h100``, of which quotas have some
    among their custom resources; the error of another names the one that was meant, if any.
    """
    kind = as_text(key)
    if kind in _KEYS:
        return kind
    if kind is not None and _is_custom(kind) and kind.startswith(OF_FLAVORS):
        return kind
    meant = None if kind is None else _MEANT.get(kind.lower().removeprefix("num_").rstrip("s"))
    hint = "" if meant is None else f" (did you mean {meant!r}?)"
    raise InvalidRequestError(
        f"{what} has the unknown key {shown(key)}{hint}; allowed are cpu, memory (MB), gpu and custom"
    )


def _parse_custom(custom: object, what: str) -> tuple[tuple[str, int], ...]:
    if custom is None:
        return ()
    amounts: dict[str, int] = {}
    for key, amount in as_items(custom, f"{what}['custom']", "a dict of amounts"):
        name = as_text(key)
        if name is None or not _is_custom(name):
            raise InvalidRequestError(
                f"{what}['custom'] has the name {shown(key)}; it must be a text of 1 to {MAX_CHARS} "
                "printable characters other than cpu, gpu, memory"
            )
        amounts[name] = _units(amount, f"{what}['custom'][{name!r}]")
    if len(amounts) > _MAX_CUSTOM:
        raise InvalidRequestError(f"{what}['custom'] has more than {_MAX_CUSTOM} kinds")
    return tuple(sorted((name, units) for name, units in amounts.items() if units))


def _is_custom(name: str) -> bool:
    return is_name(name) and name.lower() not in _KINDS


def _amount(kind: str, amount: object, what: str) -> int:
    """The units of an amount of one kind. Raises InvalidRequestError."""
    of_memory = is_memory(kind)
    if of_memory:
        amount = as_megabytes(amount, f"{what}['{kind}']")
    number = as_number(amount)
    if of_memory and number is not None and MAX_AMOUNT < number < float("inf"):
        raise InvalidRequestError(
            f"{what}['{kind}'] is {shown(amount)}; it must be at most {MAX_AMOUNT:g}. {_hint(number)}"
        )
    return _units(amount, f"{what}[{kind!r}]")


def _units(amount: object, what: str) -> int:
    number = parse_number(amount, what, 0.0, MAX_AMOUNT)
    units = round(number * UNIT)
    if number > 0 and units == 0:
        raise InvalidRequestError(f"{what} is {shown(amount)}; the smallest amount is 0.0001")
    return units


def _merge(
    amounts: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...], sign: int
) -> tuple[tuple[str, int], ...]:
    total = dict(amounts)
    for name, amount in other:
        total[name] = total.get(name, 0) + sign * amount
    if len(total) == len(amounts) and 0 not in total.values():
        return tuple(total.items())
    return _without_zeros(total, len(amounts))


def without(
    amounts: tuple[tuple[str, int], ...], *others: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    """Amounts by name, less these others; may be negative."""
    remaining = dict(amounts)
    for other in others:
        for name, units in other:
            remaining[name] = remaining.get(name, 0) - units
    if len(remaining) == len(amounts) and 0 not in remaining.values():
        return tuple(remaining.items())
    return _without_zeros(remaining, len(amounts))


def _without_zeros(units: dict[str, int], sorted_count: int) -> tuple[tuple[str, int], ...]:
    """Amounts that are not zero, sorted by name, of which the first ones are sorted already."""
    pairs = units.items()
    if 0 in units.values():
        pairs = {name: amount for name, amount in pairs if amount}.items()
    return tuple(sorted(pairs) if len(units) > sorted_count else pairs)


def _clip(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((name, amount) for name, amount in amounts if amount > 0)


def _custom_fits(need: tuple[tuple[str, int], ...], room: tuple[tuple[str, int], ...]) -> bool:
    has = dict(room)
    for name, amount in need:  # noqa: SIM110  # faster, and asked often
        if amount > has.get(name, 0):
            return False
    return True


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
