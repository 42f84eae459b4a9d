"""Budgets: how many GPU-hours a pool, or an owner in it, may use in each day, week or month."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import msgspec

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import as_number, parse_positive, parse_priority
from schedulemesh.domain.owner_limits import DEFAULT_OWNER, MAX_OWNERS
from schedulemesh.domain.priorities import PRIORITY_CLASSES
from schedulemesh.errors import InvalidRequestError, shown

#: The calendar periods for which a budget may be.
PERIODS = ("day", "week", "month")
#: What becomes of tasks that ask for GPUs once a budget is spent.
THEN = ("hold", "lower_priority", "warn")
#: The parts of a budget, in percent, at which somebody is told.
LEVELS = (80, 100)
#: How far a budget is used up: less than the first of these parts, more, or all of it.
STATES = ("open", "nearly_spent", "spent")
#: GPU-hours that no cluster has in a month.
MAX_GPU_HOURS = 1e12
_DAY_S = 86_400
#: The ordinal of 1970-01-01, a Thursday.
_EPOCH = date(1970, 1, 1).toordinal()
_OFFSET = re.compile(r"([+-])(\d{1,2}):([0-5]\d)", re.ASCII)
#: Minutes by which the clocks of the world differ from UTC.
_LEAST_OFFSET, _MOST_OFFSET = -12 * 60, 14 * 60


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A budget as it is given; what it does not say is as in the default for owners, else as usual."""

    #: None: as the default says; of the default itself: no budget.
    gpu_hours: float | None = None
    #: One of ``PERIODS``; empty: not said.
    period: str = ""
    #: One of ``THEN``; empty: not said.
    then: str = ""
    #: The highest priority that tasks have while it is spent and ``then`` is "lower_priority".
    priority: float | None = None
    #: Minutes by which the clock that turns its periods is ahead of UTC; None: not said.
    utc_offset: int | None = None
    #: Whether the owner has no budget although the default is one.
    lifted: bool = False

    def public(self) -> dict[str, object]:
        """As it is given."""
        offset = None if self.utc_offset is None else offset_text(self.utc_offset)
        fields = {
            "period": self.period or None,
            "then": self.then or None,
            "priority": self.priority,
            "utc_offset": offset,
        }
        entry: dict[str, object] = {k: value for k, value in fields.items() if value is not None}
        if self.gpu_hours is None and not self.lifted:
            return entry
        return {"gpu_hours": self.gpu_hours, **entry}

    def or_else(self, default: Budget) -> Budget:
        """With what the default says for what this one does not."""
        gpu_hours = default.gpu_hours if self.gpu_hours is None else self.gpu_hours
        return Budget(
            gpu_hours=None if self.lifted else gpu_hours,
            period=self.period or default.period,
            then=self.then or default.then,
            priority=default.priority if self.priority is None else self.priority,
            utc_offset=default.utc_offset if self.utc_offset is None else self.utc_offset,
        )

    @property
    def complete(self) -> Budget:
        """With the usual values for what it does not say."""
        return self.or_else(_USUAL)

    @property
    def gpu_s(self) -> float:
        """The GPU-seconds that it permits in a period."""
        return (self.gpu_hours or 0.0) * 3600.0

    @property
    def calendar(self) -> tuple[str, int]:
        """What its periods depend on."""
        return (self.period, self.utc_offset or 0)

    def begin(self, at: float) -> float:
        """When the period began in which a time is, in seconds since 1970."""
        offset_s = (self.utc_offset or 0) * 60
        day = int((at + offset_s) // _DAY_S)
        if self.period == "week":
            day -= (day + 3) % 7  # weeks begin on Mondays
        elif self.period == "month":
            day = date.fromordinal(_EPOCH + day).replace(day=1).toordinal() - _EPOCH
        return float(day * _DAY_S - offset_s)

    def end(self, at: float) -> float:
        """When the period turns in which a time is, in seconds since 1970."""
        days = {"day": 1, "week": 7, "month": 31}[self.period]
        # A month after the first of a month is some day of the next one, or its first.
        return self.begin(self.begin(at) + days * _DAY_S)


_USUAL = Budget(period="month", then="hold", priority=PRIORITY_CLASSES["background"], utc_offset=0)

OwnerBudgets = dict[str, Budget]


def budget_of(budgets: Mapping[str, Budget], owner: str) -> Budget | None:
    """The budget of an owner in a pool with these budgets, whole; None: it has none."""
    default = budgets.get(DEFAULT_OWNER, Budget())
    entry = budgets.get(owner)
    budget = (default if entry is None else entry.or_else(default)).complete
    return None if budget.gpu_hours is None else budget


def parse_budget(value: object, what: str = "budget") -> Budget | None:
    """The budget of a pool from a dict, whole; None: none. Raises InvalidRequestError."""
    if value is None:
        return None
    budget = _parse_entry(value, what)
    if budget.gpu_hours is None:
        raise InvalidRequestError(f"{what} names no gpu_hours; write {{'gpu_hours': 10000}}")
    return budget.complete


def parse_owner_budgets(value: object) -> OwnerBudgets:
    """Budgets from a dict of dicts by owner, or None for none; an entry of None is left out.

    Raises InvalidRequestError.
    """
    if value is None:
        return {}
    example = "a dict such as {'default': {'gpu_hours': 100}}"
    budgets = {
        parse_name(owner, "each owner of owner_budgets"): _parse_entry(
            entry, f"owner_budgets[{shown(owner)}]"
        )
        for owner, entry in as_items(value, "owner_budgets", example)
        if entry is not None
    }
    check_owner_budgets(budgets)
    return budgets


def _parse_entry(value: object, what: str) -> Budget:
    fields = dict[Any, Any](as_items(value, what, "a dict such as {'gpu_hours': 10000}"))
    for key in fields:
        if as_text(key) not in _KEYS:
            raise InvalidRequestError(
                f"{what} has the unknown key {shown(key)}; allowed are {', '.join(_KEYS)}"
            )
    named = {as_text(key) or "": field for key, field in fields.items()}
    parsed = {
        key: _PARSERS[key](field, f"{what}[{key!r}]")
        for key, field in named.items()
        if field is not None
    }
    return Budget(**parsed, lifted="gpu_hours" in named and "gpu_hours" not in parsed)


def _parse_gpu_hours(value: object, what: str) -> float:
    return parse_positive(value, what, MAX_GPU_HOURS)


def _parse_period(value: object, what: str) -> str:
    return _one_of(PERIODS, value, what)


def _parse_then(value: object, what: str) -> str:
    return _one_of(THEN, value, what)


def _one_of(allowed: tuple[str, ...], value: object, what: str) -> str:
    word = as_text(value)
    if word not in allowed:
        raise InvalidRequestError(f"{what} is {shown(value)}; allowed are {', '.join(allowed)}")
    return word


def parse_offset(value: object, what: str = "utc_offset") -> int:
    """Minutes by which clocks are ahead of UTC, from "+08:00", "-03:30" or a number of minutes, as which YAML
    reads ``+10:00``. Raises InvalidRequestError.
    """
    minutes = as_number(value)
    text = _OFFSET.fullmatch(as_text(value) or "")
    if text is not None:
        minutes = (int(text[2]) * 60 + int(text[3])) * (-1 if text[1] == "-" else 1)
    if not isinstance(minutes, int) or not _LEAST_OFFSET <= minutes <= _MOST_OFFSET:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; it must be the difference to UTC from '-12:00' to '+14:00', such "
            "as '+08:00'"
        )
    return minutes


_PARSERS: dict[str, Callable[[object, str], Any]] = {
    "gpu_hours": _parse_gpu_hours,
    "period": _parse_period,
    "then": _parse_then,
    "priority": parse_priority,
    "utc_offset": parse_offset,
}
_KEYS = tuple(_PARSERS)


def offset_text(minutes: int) -> str:
    """A difference to UTC as it is written: +08:00."""
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02d}:{rest:02d}"


def local_time(at: float, budget: Budget) -> str:
    """A time by the clock that turns the periods of a budget: 2026-12-01 00:00 +08:00."""
    offset = budget.utc_offset or 0
    minutes = int(at // 60) + offset
    day = date.fromordinal(_EPOCH + minutes // (24 * 60)).isoformat()
    zone = offset_text(offset) if offset else "UTC"
    return f"{day} {minutes // 60 % 24:02d}:{minutes % 60:02d} {zone}"


def check_budget(budget: Budget | None, what: str = "budget") -> None:
    """Raise InvalidRequestError for a budget of a pool that ``parse_budget`` cannot have made."""
    if budget is not None and parse_budget(budget.public(), what) != budget:
        raise InvalidRequestError(f"{what} is {shown(budget)}")


def check_owner_budgets(budgets: Mapping[str, Budget]) -> None:
    """Raise InvalidRequestError for budgets that ``parse_owner_budgets`` cannot have made."""
    if len(budgets) > MAX_OWNERS:
        raise InvalidRequestError(
            f"owner_budgets names {len(budgets):,} owners, not {MAX_OWNERS:,} or fewer"
        )
    for owner, budget in budgets.items():
        parse_name(owner, "each owner of owner_budgets")
        if _parse_entry(budget.public(), f"owner_budgets[{owner!r}]") != budget:
            raise InvalidRequestError(f"owner_budgets[{owner!r}] is {shown(budget)}")


def public_budget(budget: Budget | None) -> dict[str, object] | None:
    """A pool's budget as it is given; None: it has none."""
    return None if budget is None else budget.public()


def public_owner_budgets(budgets: Mapping[str, Budget]) -> dict[str, dict[str, object]]:
    """Budgets as they are given, by owner."""
    return {owner: budget.public() for owner, budget in budgets.items()}
