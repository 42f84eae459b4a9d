"""Cohorts: groups of pools that lend each other their idle quota, and the limits of what is lent."""

from __future__ import annotations

from typing import Literal

import msgspec

from schedulemesh.domain.containers import as_items
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import as_number, parse_positive
from schedulemesh.domain.resources import (
    UNIT,
    Amounts,
    Resources,
    check_resources,
    parse_resources,
)
from schedulemesh.errors import InvalidRequestError, shown

#: The largest weight of a pool or cohort.
MAX_WEIGHT = 1e6


class CohortSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The definition of a cohort. Pools name the cohort that they are in; cohorts name their parent."""

    name: str
    #: The cohort that it is in; None: it is in none.
    parent: str | None = None
    #: What its use of other cohorts' quota is divided by; twice the weight is entitled to twice as much.
    weight: float = 1.0


class LoanLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The most that a pool may lend, or borrow, of each kind of resource."""

    #: (kind or name of a custom resource, units), sorted. Kinds that are not named are not limited.
    named: tuple[tuple[str, int], ...] = ()
    #: Whether nothing may be lent or borrowed of any kind.
    nothing: bool = False

    def room(self, amount: Resources, used: Resources) -> Resources:
        """The part of ``amount`` that may be added to what is lent or borrowed already, kind by kind."""
        if self.nothing:
            return Resources()
        limits, already = dict(self.named), dict(used.items())
        units = {
            kind: max(0, min(n, limits[kind] - already.get(kind, 0))) if kind in limits else n
            for kind, n in amount.items()
        }
        return Resources(
            cpu=units.pop("cpu", 0),
            memory=units.pop("memory", 0),
            gpu=units.pop("gpu", 0),
            custom=tuple((name, n) for name, n in sorted(units.items()) if n),
        )

    def public(self) -> Amounts | Literal[0]:
        """As it is given: a dict of floats, or 0 for nothing at all."""
        if self.nothing:
            return 0
        # A limit of zero is shown, unlike an amount of zero.
        by_kind = {name: units / UNIT for name, units in self.named}
        shown_limit: Amounts = {}
        for kind in ("cpu", "memory", "gpu"):
            if kind in by_kind:
                shown_limit[kind] = by_kind.pop(kind)
        if by_kind:
            shown_limit["custom"] = by_kind
        return shown_limit


def parse_limit(limit: object, what: str) -> LoanLimit | None:
    """A limit from a dict of amounts, or 0 for nothing of any kind; None or {}: no limit.

    Raises InvalidRequestError.
    """
    if limit is None:
        return None
    number = as_number(limit)
    if number is not None:
        if number != 0:
            raise InvalidRequestError(
                f"{what} is {shown(limit)}; it must be a dict such as {{'gpu': 2}}, or 0 for nothing of "
                "any kind"
            )
        return LoanLimit(nothing=True)
    amounts = dict(parse_resources(limit, what).items())
    kinds = [as_text(k) for k, v in as_items(limit, what, "a dict") if v is not None]
    names = [kind for kind in kinds if kind is not None and kind != "custom"]
    if "custom" in kinds:
        custom = dict(as_items(limit, what, "a dict"))["custom"]
        names += [as_text(name) or "" for name, _ in as_items(custom, what, "a dict")]
    named = tuple(sorted((name, amounts.get(name, 0)) for name in names))
    return LoanLimit(named=named) if named else None


def check_limit(limit: LoanLimit, what: str) -> None:
    """Raise InvalidRequestError for a limit that ``parse_limit`` cannot have made."""
    names = [name for name, _ in limit.named]
    if names != sorted(set(names)) or bool(names) == limit.nothing:
        raise InvalidRequestError(f"{what} is {shown(limit)}")
    units = {name: n for name, n in limit.named if n}
    check_resources(
        Resources(
            cpu=units.pop("cpu", 0),
            memory=units.pop("memory", 0),
            gpu=units.pop("gpu", 0),
            custom=tuple(sorted(units.items())),
        ),
        what,
    )


def parse_weight(weight: object, what: str = "weight") -> float:
    """The weight of a pool or cohort, above 0. Raises InvalidRequestError."""
    return parse_positive(weight, what, MAX_WEIGHT)


def parse_cohort(cohort: object, what: str = "cohort") -> str | None:
    """The name of a cohort; None or an empty text: none. Raises InvalidRequestError."""
    return None if cohort is None or as_text(cohort) == "" else parse_name(cohort, what)
