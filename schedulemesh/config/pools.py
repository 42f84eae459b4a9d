"""Parses and validates the definition of a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, cast

import msgspec
from msgspec import UNSET
from typing_extensions import Unpack

from schedulemesh.config.groups import check_groups, parse_groups, parse_strategy
from schedulemesh.domain.budgets import (
    Budget,
    OwnerBudgets,
    check_budget,
    check_owner_budgets,
    parse_budget,
    parse_owner_budgets,
)
from schedulemesh.domain.cohort import (
    LoanLimit,
    check_limit,
    parse_cohort,
    parse_limit,
    parse_weight,
)
from schedulemesh.domain.flavors import Flavor, check_quota, parse_flavors
from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_count, parse_priority, parse_timeout, span_text
from schedulemesh.domain.owner_limits import (
    OwnerLimit,
    OwnerLimits,
    check_owner_limits,
    parse_owner_limits,
    parse_owner_order,
)
from schedulemesh.domain.pool import QUEUEING, PoolSpec
from schedulemesh.domain.resources import NOTHING, Resources, check_resources, parse_resources
from schedulemesh.domain.task import parse_on_preempted
from schedulemesh.errors import InvalidRequestError, shown

#: The fields of a pool that limit for how long its tasks run.
TIME_LIMITS = ("max_run_s", "default_max_run_s", "idle_s")
#: The fields of a pool that say which priorities its tasks may have.
PRIORITY_LIMITS = ("min_priority", "max_priority")
#: The placement strategy of a pool where none is given.
DEFAULT_STRATEGY = "STRICT_PACK"


def parse_pool(
    name: object,
    labels: object,
    resources: object,
    target_agents: object = 0,
    placement_strategy: object = DEFAULT_STRATEGY,
    pg_pool_config: object = None,
    *,
    lending: Lending | None = None,
    **others: object,
) -> PoolSpec:
    """The pool that these arguments describe; ``others`` are further fields of ``PARSERS``. Raises
    InvalidRequestError naming what is wrong, and KeyError for a field that no pool has.
    """
    spec = PoolSpec(name=parse_name(name, "the pool's name"))
    fields = {
        "labels": labels,
        "resources": resources,
        "target_agents": target_agents,
        "placement_strategy": placement_strategy,
        **others,
    }
    changes = {field: PARSERS[field](value) for field, value in fields.items()}
    all_fields = cast("_AllFields", {**changes, **(lending or {})})
    return changed(spec, pg_pool_config=pg_pool_config, **all_fields)


def changed(
    spec: PoolSpec, *, pg_pool_config: object = UNSET, **changes: Unpack[_AllFields]
) -> PoolSpec:
    """The pool with the given fields changed, which were parsed before, and its groups key by key. Raises
    InvalidRequestError.
    """
    spec = msgspec.structs.replace(spec, **changes)
    if pg_pool_config is not UNSET:
        groups = parse_groups(pg_pool_config, spec.placement_strategy, spec.groups)
        spec = msgspec.structs.replace(spec, groups=groups)
    return _consistent(spec)


def parse_time_limit(value: object, name: str) -> float | None:
    """The seconds of one of ``TIME_LIMITS``; None: no limit. Raises InvalidRequestError."""
    return None if value is None else parse_timeout(value, name)


def parse_priority_limit(value: object, name: str) -> float | None:
    """One of ``PRIORITY_LIMITS``; None: no limit. Raises InvalidRequestError."""
    return None if value is None else parse_priority(value, name)


def as_quota(value: object) -> Resources:
    """The quota of a pool as it is given, or as it was parsed before. Raises InvalidRequestError."""
    if type(value) is Resources:
        check_resources(value)
        return value
    return parse_resources(value)


def as_owner_limits(value: object) -> OwnerLimits:
    """Limits of owners as they are given, or as they were parsed before. Raises InvalidRequestError."""
    if type(value) is dict and all(type(entry) is OwnerLimit for entry in value.values()):
        check_owner_limits(value)
        return value
    return parse_owner_limits(value)


def as_budget(value: object) -> Budget | None:
    """The budget of a pool as it is given, or as it was parsed before. Raises InvalidRequestError."""
    if type(value) is Budget:
        check_budget(value)
        return value
    return parse_budget(value)


def as_owner_budgets(value: object) -> OwnerBudgets:
    """Budgets of owners as they are given, or as they were parsed before. Raises InvalidRequestError."""
    if type(value) is dict and all(type(entry) is Budget for entry in value.values()):
        check_owner_budgets(value)
        return value
    return parse_owner_budgets(value)


def parse_queueing(value: object) -> str:
    """How the queue of a pool is served; None: as by default. Raises InvalidRequestError."""
    word = QUEUEING[0] if value is None else as_text(value)
    if word not in QUEUEING:
        raise InvalidRequestError(f"queueing is {shown(value)}; allowed are {', '.join(QUEUEING)}")
    return word


class Lending(TypedDict, total=False):
    """The fields of a pool that say from whom it may borrow, and to whom it lends."""

    cohort: str | None
    lending_limit: LoanLimit | None
    borrowing_limit: LoanLimit | None
    weight: float


def parse_lending(fields: Mapping[str, object]) -> Lending:
    """Those of ``cohort``, ``lending_limit``, ``borrowing_limit`` and ``weight`` that are given; None stands
    for the default of each. Raises InvalidRequestError.
    """
    lending: Lending = {}
    if "cohort" in fields:
        lending["cohort"] = parse_cohort(fields["cohort"])
    if "lending_limit" in fields:
        lending["lending_limit"] = parse_limit(fields["lending_limit"], "lending_limit")
    if "borrowing_limit" in fields:
        lending["borrowing_limit"] = parse_limit(fields["borrowing_limit"], "borrowing_limit")
    if "weight" in fields:
        weight = fields["weight"]
        lending["weight"] = 1.0 if weight is None else parse_weight(weight)
    return lending


def check_lending(lending: Lending) -> None:
    """Raise InvalidRequestError for what ``parse_lending`` cannot have made."""
    cohort = lending.get("cohort")
    if isinstance(cohort, str):
        parse_name(cohort, "cohort")
    for what, limit in (
        ("lending_limit", lending.get("lending_limit")),
        ("borrowing_limit", lending.get("borrowing_limit")),
    ):
        if isinstance(limit, LoanLimit):
            check_limit(limit, what)
    if "weight" in lending:
        parse_weight(lending["weight"])


def lending_of(spec: PoolSpec) -> Lending:
    """These fields of a pool."""
    return {
        "cohort": spec.cohort,
        "lending_limit": spec.lending_limit,
        "borrowing_limit": spec.borrowing_limit,
        "weight": spec.weight,
    }


def public_lending(spec: PoolSpec) -> dict[str, object]:
    """These fields as listings show them."""
    limits = {"lending_limit": spec.lending_limit, "borrowing_limit": spec.borrowing_limit}
    shown = {name: None if limit is None else limit.public() for name, limit in limits.items()}
    return {"cohort": spec.cohort, **shown, "weight": spec.weight}


class PoolFields(TypedDict, total=False):
    """The fields of a pool that do not say anything about lending or placement groups."""

    labels: Labels
    resources: Resources
    target_agents: int
    placement_strategy: str
    on_preempted: str
    queueing: str
    max_run_s: float | None
    default_max_run_s: float | None
    idle_s: float | None
    min_priority: float | None
    max_priority: float | None
    owner_limits: OwnerLimits
    owner_order: str
    budget: Budget | None
    owner_budgets: OwnerBudgets
    flavors: tuple[Flavor, ...]


class _AllFields(PoolFields, Lending, total=False):
    """The fields of a pool but its placement groups."""


#: How each of ``PoolFields`` is checked and converted, as it is given or as it was parsed before. All raise
#: InvalidRequestError.
PARSERS: dict[str, Callable[[Any], object]] = {
    "labels": parse_labels,
    "resources": as_quota,
    "target_agents": lambda value: parse_count(value, "target_agents"),
    "placement_strategy": parse_strategy,
    "on_preempted": lambda value: "drop" if value is None else parse_on_preempted(value),
    "queueing": parse_queueing,
    "owner_limits": as_owner_limits,
    "owner_order": parse_owner_order,
    "budget": as_budget,
    "owner_budgets": as_owner_budgets,
    "flavors": parse_flavors,
    **{name: partial(parse_time_limit, name=name) for name in TIME_LIMITS},
    **{name: partial(parse_priority_limit, name=name) for name in PRIORITY_LIMITS},
}
#: What None stands for in a change, and in place of a text the empty one, too; of other fields their parsers
#: say it.
_DEFAULTS: dict[str, object] = {
    "resources": NOTHING,
    "target_agents": 0,
    "placement_strategy": DEFAULT_STRATEGY,
    "on_preempted": "drop",
    "queueing": QUEUEING[0],
}


def parse_changes(fields: Mapping[str, object]) -> PoolFields:
    """The fields of ``PoolFields`` that were given; None and empty values stand for the default of each.
    Raises InvalidRequestError.
    """
    changes = {
        name: parse(_or_default(name, fields[name]))
        for name, parse in PARSERS.items()
        if name in fields
    }
    return cast("PoolFields", changes)


def _or_default(name: str, value: object) -> object:
    default = _DEFAULTS.get(name)
    is_empty = value is None or (isinstance(default, str) and as_text(value) == "")
    return default if is_empty else value


def check_pool(spec: PoolSpec) -> None:
    """Raise InvalidRequestError for a pool that ``parse_pool`` cannot have made."""
    parse_name(spec.name, "the pool's name")
    for name, parse in PARSERS.items():
        parse(getattr(spec, name))
    if spec.groups is not None:
        check_groups(spec.groups)
    check_lending(lending_of(spec))
    _consistent(spec)


def _consistent(spec: PoolSpec) -> PoolSpec:
    check_quota(spec.resources, spec.flavors)
    if spec.groups is not None and spec.groups.fill_target and not spec.target_agents:
        raise InvalidRequestError(
            "pg_pool_config['fill_target_agents'] is True, but target_agents is 0: say how many groups "
            "are to be kept"
        )
    default, most = spec.default_max_run_s, spec.max_run_s
    if default is not None and most is not None and default > most:
        raise InvalidRequestError(
            f"default_max_run_s is {span_text(default)}, longer than the {span_text(most)} of "
            "max_run_s; give a shorter one, or leave it out for as long as max_run_s"
        )
    lowest, highest = spec.min_priority, spec.max_priority
    if lowest is not None and highest is not None and lowest > highest:
        raise InvalidRequestError(
            f"min_priority is {lowest:g}, above the {highest:g} of max_priority; no task could have both"
        )
    return spec
