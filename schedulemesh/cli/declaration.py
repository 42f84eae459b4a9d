"""What a YAML file declares: cohorts, pools, policies, tokens, windows; how it differs from a scheduler.

The file says what is wanted; what it leaves out stays as it is. Fields are those of ``ensure_cohort``,
``ensure_pool``, ``update_preemption_policy`` and ``configure_queue``::

    cohorts: [{name: company}]
    pools:
      - {name: research, cohort: company, resources: {gpu: 8}}
    policy:
      preemption: {min_runtime: 60}
      queue: {order: fifo}
    tokens:
      - {name: rl-team, role: submitter, owner: ada, pools: [research]}
    windows:
      - {name: drivers, start: "2026-12-05T22:00+01:00", duration: 4h, node_labels: {rack: r1}}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from schedulemesh.api.policies import GetPolicy, GetQueuePolicy
from schedulemesh.api.pools import EnsureCohort, ListCohorts, ListPools
from schedulemesh.cli import declared_tokens, declared_windows, yaml_files
from schedulemesh.cli.gateway import Gateway
from schedulemesh.config.groups import parse_groups, public_groups
from schedulemesh.config.policy import PreemptionPolicy, changed_policy
from schedulemesh.config.pools import (
    DEFAULT_STRATEGY,
    lending_of,
    parse_changes,
    parse_lending,
    public_lending,
)
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.budgets import public_budget, public_owner_budgets
from schedulemesh.domain.cohort import parse_cohort, parse_weight
from schedulemesh.domain.flavors import public_flavors
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.owner_limits import public_owner_limits
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.priorities import with_own_classes
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError, nearest, shown
from schedulemesh.protocol.answers import Details, Listed

#: The fields of a pool beside its name.
POOL_FIELDS = (
    "resources",
    "labels",
    "target_agents",
    "placement_strategy",
    "pg_pool_config",
    "on_preempted",
    "queueing",
    "max_run_s",
    "default_max_run_s",
    "idle_s",
    "min_priority",
    "max_priority",
    "owner_limits",
    "owner_order",
    "budget",
    "owner_budgets",
    "flavors",
    *lending_of(PoolSpec(name="any")),
)
_COHORT_FIELDS = ("parent", "weight")
PREEMPTION_FIELDS = PreemptionPolicy.__struct_fields__
QUEUE_FIELDS = QueuePolicy.__struct_fields__

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Cohorts, pools, policies, tokens and windows, or some of their fields, in plain data."""

    #: Fields by name.
    cohorts: Mapping[str, Fields]
    pools: Mapping[str, Fields]
    preemption: Fields
    queue: Fields
    #: Fields by name; None: nothing is said about tokens.
    tokens: Mapping[str, Fields] | None = None
    #: Fields by name; None: nothing is said about windows.
    windows: Mapping[str, Fields] | None = None
    #: Whether the file has a list of pools.
    lists_pools: bool = False

    def public(self) -> dict[str, object]:
        """The declaration as it is in a file."""
        policy = {"preemption": dict(self.preemption), "queue": dict(self.queue)}
        sections: dict[str, object] = {
            "cohorts": _listed(self.cohorts),
            "pools": _listed(self.pools),
            "policy": policy,
        }
        if self.windows:
            windows = {n: declared_windows.as_in_file(f) for n, f in self.windows.items()}
            sections["windows"] = _listed(windows)
        return sections if self.tokens is None else {**sections, "tokens": _listed(self.tokens)}


def _listed(named: Mapping[str, Fields]) -> list[dict[str, Any]]:
    return [{"name": name, **fields} for name, fields in named.items()]


def read(path: str) -> Declaration:
    """What a file declares; ``-``: stdin. Raises InvalidRequestError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequestError(f"{path} cannot be read: {why}") from None
    try:
        content = yaml_files.load(text)
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    return parsed({} if content is None else content)


def parsed(content: object) -> Declaration:
    """The declaration in plain data, with every field checked. Raises InvalidRequestError."""
    parts = _fields(content, ("cohorts", "pools", "policy", "tokens", "windows"), "the file")
    policy = _fields(parts.get("policy") or {}, ("preemption", "queue"), "policy")
    preemption = normal_preemption(policy.get("preemption") or {})
    own_classes = preemption.get("priority_classes", {})
    return with_own_classes(own_classes, lambda: _declared(parts, policy, preemption))


def _declared(parts: Fields, policy: Fields, preemption: dict[str, Any]) -> Declaration:
    """What the parts of a file declare, in which the own classes of its policy are known."""
    return Declaration(
        cohorts={
            name: normal_cohort(fields, f"cohort {name!r}")
            for name, fields in _named(parts.get("cohorts"), "cohorts")
        },
        pools={
            name: normal_pool(fields, f"pool {name!r}")
            for name, fields in _named(parts.get("pools"), "pools")
        },
        lists_pools=parts.get("pools") is not None,
        preemption=preemption,
        queue=normal_queue(policy.get("queue") or {}),
        tokens=None if parts.get("tokens") is None else _tokens(parts["tokens"]),
        windows=None if parts.get("windows") is None else _windows(parts["windows"]),
    )


def _tokens(tokens: object) -> dict[str, Fields]:
    """The fields of each token. Raises InvalidRequestError."""
    return {
        name: declared_tokens.normal(_fields(fields, declared_tokens.FIELDS, f"token {name!r}"))
        for name, fields in _named(tokens, "tokens")
    }


def _windows(windows: object) -> dict[str, Fields]:
    """The fields of each window. Raises InvalidRequestError."""
    return {
        name: declared_windows.normal(_fields(fields, declared_windows.FIELDS, f"window {name!r}"))
        for name, fields in _named(windows, "windows")
    }


def current(gateway: Gateway, *, tokens: bool = False) -> Declaration:
    """What a scheduler has. ``tokens``: also its tokens, which only operators may list."""
    pools = gateway.ask(ListPools(), Listed).rows
    cohorts = gateway.ask(ListCohorts(), Listed).rows
    return Declaration(
        cohorts={row["name"]: {key: row[key] for key in _COHORT_FIELDS} for row in cohorts},
        pools={row["name"]: {key: row[key] for key in POOL_FIELDS} for row in pools},
        preemption=gateway.ask(GetPolicy(), Details).facts["policy"],
        queue=gateway.ask(GetQueuePolicy(), Details).facts["policy"],
        tokens=declared_tokens.current(gateway) if tokens else None,
        windows=declared_windows.current(gateway),
    )


def differences(declared: Declaration, current: Declaration) -> list[dict[str, object]]:
    """A row for each field that is declared and different: kind, name, field, current and declared value."""
    rows = [
        *_compared("cohort", declared.cohorts, current.cohorts),
        *_compared("pool", declared.pools, current.pools),
        *_compared("token", declared.tokens or {}, current.tokens or {}),
        *_compared("window", declared.windows or {}, current.windows or {}),
    ]
    declared_policies = {"preemption": declared.preemption, "queue": declared.queue}
    policies = {"preemption": current.preemption, "queue": current.queue}
    return [*rows, *_compared("policy", declared_policies, policies)]


def _compared(
    kind: str, declared: Mapping[str, Fields], current: Mapping[str, Fields]
) -> Iterator[dict[str, object]]:
    for name, fields in declared.items():
        present = current.get(name)
        if present is None:
            yield _difference(kind, name, "", None, "does not exist")
        for field, value in fields.items():
            now = None if present is None else _declared_keys(present.get(field), value)
            if present is None or now != value:
                yield _difference(kind, name, field, now, value)


def _declared_keys(now: object, declared: object) -> object:
    """Of the present value of ``pg_pool_config``, the keys that are declared; other values whole."""
    if isinstance(now, dict) and isinstance(declared, dict) and "enable" in now:
        return {key: now[key] for key in declared if key in now}
    return now


def _difference(
    kind: str, name: str, field: str, now: object, declared: object
) -> dict[str, object]:
    return {"kind": kind, "name": name, "field": field, "current": now, "declared": declared}


def normal_pool(value: object, what: str) -> dict[str, Any]:
    """The fields of a pool as listings show them. Raises InvalidRequestError."""
    fields = _fields(value, POOL_FIELDS, what)
    changes, lending = parse_changes(fields), _normal_lending(fields)
    normal = {
        name: field_value.public() if isinstance(field_value, Resources) else field_value
        for name, field_value in changes.items()
    }
    normal.update(lending)
    if "owner_limits" in fields:
        normal["owner_limits"] = public_owner_limits(changes["owner_limits"])
    if "budget" in fields:
        normal["budget"] = public_budget(changes["budget"])
    if "owner_budgets" in fields:
        normal["owner_budgets"] = public_owner_budgets(changes["owner_budgets"])
    if "flavors" in fields:
        normal["flavors"] = public_flavors(changes["flavors"])
    if "pg_pool_config" in fields:
        normal["pg_pool_config"] = _normal_groups(fields["pg_pool_config"])
    return {name: normal[name] for name in fields}


def _normal_lending(fields: Fields) -> dict[str, object]:
    """Those of the fields that are about lending, as listings show them."""
    spec = msgspec.structs.replace(PoolSpec(name="any"), **parse_lending(fields))
    return {name: value for name, value in public_lending(spec).items() if name in fields}


def _normal_groups(groups: object) -> dict[str, Any] | None:
    """The declared keys of a ``pg_pool_config``, as listings show them; None: no placement groups."""
    if isinstance(groups, Mapping) and "warm" in groups:
        raise InvalidRequestError(
            "pg_pool_config['warm'] names a class, which only a Python program can send: set it with "
            "ensure_pool"
        )
    normal = public_groups(parse_groups(groups, DEFAULT_STRATEGY))
    if normal is None or not isinstance(groups, Mapping):
        return None
    return {key: normal.get(key, value) for key, value in groups.items()}


def normal_cohort(value: object, what: str) -> dict[str, Any]:
    """The fields of a cohort as listings show them. Raises InvalidRequestError."""
    fields = _fields(value, _COHORT_FIELDS, what)
    normal: dict[str, Any] = {}
    if "parent" in fields:
        normal["parent"] = parse_cohort(fields["parent"], "parent")
    if "weight" in fields:
        normal["weight"] = 1.0 if fields["weight"] is None else parse_weight(fields["weight"])
    return normal


def normal_preemption(value: object) -> dict[str, Any]:
    """Fields of the preemption policy as listings show them. Raises InvalidRequestError."""
    fields = _fields(value, PREEMPTION_FIELDS, "the preemption policy")
    policy = changed_policy(PreemptionPolicy(), fields).public()
    return {name: policy[name] for name in fields}


def normal_queue(value: object) -> dict[str, Any]:
    """Fields of the policy of the queue as listings show them. Raises InvalidRequestError."""
    fields = _fields(value, QUEUE_FIELDS, "the policy of the queue")
    policy = changed_queue_policy(QueuePolicy(), fields).public()
    return {name: policy[name] for name in fields}


def pool_changes(name: str, fields: Fields) -> dict[str, Any]:
    """The fields of ``PoolChanges``: the pool's name, and what is changed of it."""
    changes: dict[str, Any] = dict(parse_changes(fields))
    if "pg_pool_config" in fields:
        changes["pg_pool_config"] = fields["pg_pool_config"]
    name = parse_name(name, "the pool's name")
    return {"name": name, "lending": parse_lending(fields), **changes}


def cohort_request(name: str, fields: Fields) -> EnsureCohort:
    """The request that creates a cohort, or changes these fields of it."""
    return EnsureCohort(name=parse_name(name, "the cohort's name"), **fields)


def parents_first(cohorts: Mapping[str, Fields]) -> list[str]:
    """The names of cohorts, each after its parent where that is declared, too."""
    ordered: list[str] = []

    def add(name: str, descendants: Sequence[str]) -> None:
        """Add a cohort after its parent; ``descendants``: for which it is added before its turn."""
        # A cohort below itself is added only once: the scheduler refuses the cycle, and says why.
        if name in ordered or name in descendants:
            return
        parent = cohorts[name].get("parent")
        if parent is not None and parent in cohorts:
            add(parent, (*descendants, name))
        ordered.append(name)

    for name in cohorts:
        add(name, ())
    return ordered


def _named(entries: object, what: str) -> Iterator[tuple[str, Fields]]:
    """Each name with the other fields. Raises InvalidRequestError."""
    if entries is None:
        return
    if not isinstance(entries, list):
        raise InvalidRequestError(f"{what} must be a list, not {shown(entries)}")
    seen: set[str] = set()
    for number, one in enumerate(entries):
        if not isinstance(one, dict) or "name" not in one:
            raise InvalidRequestError(f"{what}[{number}] must have a name, not {shown(one)}")
        name = parse_name(one["name"], f"the name of {what}[{number}]")
        if name in seen:
            raise InvalidRequestError(f"{what} has {name!r} twice")
        seen.add(name)
        yield name, {key: value for key, value in one.items() if key != "name"}


#: Amounts, which are parts of the field ``resources``.
_AMOUNTS = ("cpu", "gpu", "memory", "custom")


def _fields(value: object, allowed: Sequence[str], what: str) -> dict[str, Any]:
    """A mapping with these keys. Raises InvalidRequestError."""
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{what} must have fields, not {shown(value)}")
    for key in value:
        if key not in allowed:
            is_amount = key in _AMOUNTS and "resources" in allowed
            near = (
                f" (did you mean 'resources.{key}'?)" if is_amount else nearest(str(key), allowed)
            )
            raise InvalidRequestError(
                f"{what} has the unknown field {shown(key)}{near}; it takes " + ", ".join(allowed)
            )
    return dict(value)
