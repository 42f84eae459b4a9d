"""Parses and validates the definition of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

import msgspec
from msgspec import UNSET, UnsetType
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
from schedulemesh.domain.flavors import Flavor, check_flavors, check_quota, parse_flavors
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
    on_preempted: object = UNSET,
    queueing: object = UNSET,
    *,
    max_run_s: object = UNSET,
    default_max_run_s: object = UNSET,
    idle_s: object = UNSET,
    min_priority: object = UNSET,
    max_priority: object = UNSET,
    owner_limits: object = UNSET,
    owner_order: object = UNSET,
    budget: object = UNSET,
    owner_budgets: object = UNSET,
    flavors: object = UNSET,
    **lending: Unpack[Lending],
) -> PoolSpec:
    """The pool that these arguments describe. Raises InvalidRequestError naming what is wrong."""
    return changed(
        PoolSpec(name=parse_name(name, "the pool's name")),
        labels=parse_labels(labels),
        resources=parse_resources(resources),
        target_agents=parse_target(target_agents),
        placement_strategy=placement_strategy,
        pg_pool_config=pg_pool_config,
        on_preempted=on_preempted,
        queueing=queueing,
        max_run_s=max_run_s,
        default_max_run_s=default_max_run_s,
        idle_s=idle_s,
        min_priority=min_priority,
        max_priority=max_priority,
        owner_limits=owner_limits,
        owner_order=owner_order,
        budget=budget,
        owner_budgets=owner_budgets,
        flavors=flavors,
        **lending,
    )


def changed(
    spec: PoolSpec,
    *,
    labels: Labels | UnsetType = UNSET,
    resources: Resources | UnsetType = UNSET,
    target_agents: int | UnsetType = UNSET,
    placement_strategy: object = UNSET,
    pg_pool_config: object = UNSET,
    on_preempted: object = UNSET,
    queueing: object = UNSET,
    max_run_s: object = UNSET,
    default_max_run_s: object = UNSET,
    idle_s: object = UNSET,
    min_priority: object = UNSET,
    max_priority: object = UNSET,
    owner_limits: object = UNSET,
    owner_order: object = UNSET,
    budget: object = UNSET,
    owner_budgets: object = UNSET,
    flavors: object = UNSET,
    **lending: Unpack[Lending],
) -> PoolSpec:
    """The pool with the given values changed, its groups key by key. Raises InvalidRequestError."""
    changes: dict[str, Any] = {"labels": labels, "resources": resources, **lending}
    changes["target_agents"] = target_agents
    if placement_strategy is not UNSET:
        changes["placement_strategy"] = parse_strategy(placement_strategy)
    if on_preempted is not UNSET:
        changes["on_preempted"] = (
            "drop" if on_preempted is None else parse_on_preempted(on_preempted)
        )
    if queueing is not UNSET:
        changes["queueing"] = QUEUEING[0] if queueing is None else parse_queueing(queueing)
    limits = zip(TIME_LIMITS, (max_run_s, default_max_run_s, idle_s), strict=True)
    changes.update((name, parse_time_limit(name, value)) for name, value in limits)
    priorities = zip(PRIORITY_LIMITS, (min_priority, max_priority), strict=True)
    changes.update((name, parse_priority_limit(name, value)) for name, value in priorities)
    if owner_limits is not UNSET:
        changes["owner_limits"] = as_owner_limits(owner_limits)
    if owner_order is not UNSET:
        changes["owner_order"] = parse_owner_order(owner_order)
    if budget is not UNSET:
        changes["budget"] = as_budget(budget)
    if owner_budgets is not UNSET:
        changes["owner_budgets"] = as_owner_budgets(owner_budgets)
    if flavors is not UNSET:
        changes["flavors"] = parse_flavors(flavors)
    spec = msgspec.structs.replace(spec, **{k: v for k, v in changes.items() if v is not UNSET})
    if pg_pool_config is not UNSET:
        groups = parse_groups(pg_pool_config, spec.placement_strategy, spec.groups)
        spec = msgspec.structs.replace(spec, groups=groups)
    return _consistent(spec)


def parse_time_limit(name: str, value: object) -> float | UnsetType | None:
    """The seconds of one of ``TIME_LIMITS``; None: no limit. Raises InvalidRequestError."""
    return value if value is None or isinstance(value, UnsetType) else parse_timeout(value, name)


def parse_priority_limit(name: str, value: object) -> float | UnsetType | None:
    """One of ``PRIORITY_LIMITS``; None: no limit. Raises InvalidRequestError."""
    return value if value is None or isinstance(value, UnsetType) else parse_priority(value, name)


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


def parse_changes(fields: Mapping[str, object]) -> PoolFields:
    """The fields of ``PoolFields`` that were given; None and empty values stand for the default of each.
    Raises InvalidRequestError.
    """
    changes: PoolFields = {}
    if "labels" in fields:
        changes["labels"] = parse_labels(fields["labels"])
    if "resources" in fields:
        resources = fields["resources"]
        changes["resources"] = NOTHING if resources is None else parse_resources(resources)
    if "target_agents" in fields:
        target = fields["target_agents"]
        changes["target_agents"] = 0 if target is None else parse_target(target)
    if "placement_strategy" in fields:
        strategy = fields["placement_strategy"]
        is_default = strategy is None or as_text(strategy) == ""
        changes["placement_strategy"] = parse_strategy(DEFAULT_STRATEGY if is_default else strategy)
    if "on_preempted" in fields:
        changes["on_preempted"] = parse_on_preempted(fields["on_preempted"] or "drop")
    if "queueing" in fields:
        changes["queueing"] = parse_queueing(fields["queueing"] or QUEUEING[0])
    if "owner_limits" in fields:
        changes["owner_limits"] = as_owner_limits(fields["owner_limits"])
    if "owner_order" in fields:
        changes["owner_order"] = parse_owner_order(fields["owner_order"])
    if "budget" in fields:
        changes["budget"] = as_budget(fields["budget"])
    if "owner_budgets" in fields:
        changes["owner_budgets"] = as_owner_budgets(fields["owner_budgets"])
    if "flavors" in fields:
        changes["flavors"] = parse_flavors(fields["flavors"])
    limits = {name: parse_time_limit(name, fields[name]) for name in TIME_LIMITS if name in fields}
    priorities = {
        name: parse_priority_limit(name, fields[name]) for name in PRIORITY_LIMITS if name in fields
    }
    return cast("PoolFields", {**changes, **limits, **priorities})


def parse_target(value: object) -> int:
    """The intended number of agents of a pool. Raises InvalidRequestError."""
    return parse_count(value, "target_agents")


def parse_queueing(value: object) -> str:
    """How the queue of a pool is served. Raises InvalidRequestError."""
    word = as_text(value)
    if word not in QUEUEING:
        raise InvalidRequestError(f"queueing is {shown(value)}; allowed are {', '.join(QUEUEING)}")
    return word


def check_pool(spec: PoolSpec) -> None:
    """Raise InvalidRequestError for a pool that ``parse_pool`` cannot have made."""
    parse_name(spec.name, "the pool's name")
    parse_labels(spec.labels)
    check_resources(spec.resources)
    parse_target(spec.target_agents)
    parse_strategy(spec.placement_strategy)
    parse_on_preempted(spec.on_preempted)
    parse_queueing(spec.queueing)
    for name in TIME_LIMITS:
        parse_time_limit(name, getattr(spec, name))
    for name in PRIORITY_LIMITS:
        parse_priority_limit(name, getattr(spec, name))
    check_owner_limits(spec.owner_limits)
    parse_owner_order(spec.owner_order)
    check_budget(spec.budget)
    check_owner_budgets(spec.owner_budgets)
    check_flavors(spec.flavors)
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
