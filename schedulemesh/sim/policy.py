"""The policy of a simulation: cohorts, pools and policies, as ``schedulemesh apply`` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from schedulemesh.config.policy import PreemptionPolicy, changed_policy
from schedulemesh.config.pools import changed, parse_changes, parse_lending
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.cohort import CohortSpec, parse_cohort, parse_weight
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.errors import InvalidRequestError, nearest, shown
from schedulemesh.plugins.discovery import see_folders
from schedulemesh.sim.strategies import Strategy, parse_strategies

#: The parts of a file, and of its part ``policy``.
_PARTS = ("cohorts", "pools", "policy", "tokens")
#: Those of a file for a simulation.
_SIMULATED = (*_PARTS, "strategies")
_POLICIES = ("preemption", "queue")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What decides in a simulation, beside the trace and the nodes."""

    name: str = "policy"
    cohorts: tuple[CohortSpec, ...] = ()
    #: Empty: one pool has the whole cluster, and all jobs.
    pools: tuple[PoolSpec, ...] = ()
    preemption: PreemptionPolicy = PreemptionPolicy()
    queue: QueuePolicy = QueuePolicy()
    #: Own strategies in the order in which they are asked: import paths ``module:Class``, names of installed
    #: ones, or instances, of which each simulation uses a copy.
    strategies: tuple[Strategy, ...] = ()


def read_policy(path: str | Path) -> Policy:
    """The policy that a YAML file declares, named after the file. Modules of strategies are also looked for
    in the folder of the file. Raises InvalidRequestError.
    """
    see_folders([str(Path(path).parent.resolve())])
    return parse_policy(read_declared(path, _SIMULATED), Path(path).stem)


def read_policies(paths: Sequence[str | Path]) -> list[Policy]:
    """The policies of these files. Those of the same name are named by as many of their folders as tell them
    apart. Raises InvalidRequestError, also where a file is given twice.
    """
    names = [Path(path).absolute().with_suffix("").parts for path in paths]
    policies = []
    for path, parts in zip(paths, names, strict=True):
        others = [other for other in names if other is not parts]
        if parts in others:
            raise InvalidRequestError(
                f"two policies are {Path(*parts)}; give each file once, and files of one folder other names"
            )
        depth = next(
            n for n in range(1, len(parts) + 1) if all(o[-n:] != parts[-n:] for o in others)
        )
        policy = read_policy(path)
        policies.append(msgspec.structs.replace(policy, name="/".join(parts[-depth:])))
    return policies


def read_declared(path: str | Path, parts: tuple[str, ...] = _PARTS) -> dict[str, Any]:
    """What a YAML file with a policy declares, as plain data; ``parts``: what it may contain. Raises
    InvalidRequestError.
    """
    try:
        declared = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    return _fields({} if declared is None else declared, parts, "the file")


def parse_policy(value: object, name: str = "policy") -> Policy:
    """The policy in plain data. What is said about tokens has no effect here. Raises InvalidRequestError."""
    parts = parse_parts(value)
    return Policy(
        name=name,
        cohorts=tuple(changed_cohort(CohortSpec(name=one["name"]), one) for one in parts.cohorts),
        pools=tuple(changed_pool(PoolSpec(name=one["name"]), one) for one in parts.pools),
        preemption=changed_policy(PreemptionPolicy(), parts.preemption),
        queue=changed_queue_policy(QueuePolicy(), parts.queue),
        strategies=parse_strategies(parts.strategies),
    )


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a policy in plain data; pools and cohorts have valid names."""

    cohorts: tuple[dict[str, Any], ...]
    pools: tuple[dict[str, Any], ...]
    preemption: dict[str, Any]
    queue: dict[str, Any]
    strategies: Any


def parse_parts(value: object) -> Parts:
    """The parts of a policy, whose fields are not yet checked. Raises InvalidRequestError."""
    parts = _fields(value, _SIMULATED, "the file")
    policies = _fields(_fields_of(parts, "policy"), _POLICIES, "policy")
    return Parts(
        cohorts=_listed(parts, "cohorts", "the cohort's name"),
        pools=_listed(parts, "pools", "the pool's name"),
        preemption=_fields_of(policies, "preemption"),
        queue=_fields_of(policies, "queue"),
        strategies=parts.get("strategies") or (),
    )


def _fields_of(parts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of a part, which may be left out or empty."""
    fields = parts.get(name)
    if not isinstance(fields, Mapping | None):
        raise InvalidRequestError(f"{name} must have fields, not {shown(fields)}")
    return dict(fields or {})


def changed_cohort(spec: CohortSpec, fields: dict[str, Any]) -> CohortSpec:
    """The cohort with the given fields changed. Raises InvalidRequestError."""
    checked = _fields(fields, CohortSpec.__struct_fields__, f"cohort {spec.name!r}")
    return CohortSpec(
        name=spec.name,
        parent=parse_cohort(checked.get("parent", spec.parent), "parent"),
        weight=parse_weight(checked.get("weight", spec.weight)),
    )


def changed_pool(spec: PoolSpec, fields: dict[str, Any]) -> PoolSpec:
    """The pool with the given fields changed. Raises InvalidRequestError."""
    checked = _fields(
        fields, (*PoolSpec.__struct_fields__, "pg_pool_config"), f"pool {spec.name!r}"
    )
    more = {"pg_pool_config": checked["pg_pool_config"]} if "pg_pool_config" in checked else {}
    return changed(spec, **parse_changes(checked), **parse_lending(checked), **more)


def _listed(parts: Mapping[str, Any], name: str, what: str) -> tuple[dict[str, Any], ...]:
    elements = parts.get(name) or []
    if not isinstance(elements, list):
        raise InvalidRequestError(f"{name} must be a list, not {shown(elements)}")
    for number, one in enumerate(elements):
        if not isinstance(one, dict) or "name" not in one:
            raise InvalidRequestError(f"{name}[{number}] must have a name, not {shown(one)}")
    return tuple({**one, "name": parse_name(one["name"], what)} for one in elements)


def _fields(value: object, allowed: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{what} must have fields, not {shown(value)}")
    for key in value:
        if key not in allowed:
            raise InvalidRequestError(
                f"{what} has the unknown field {shown(key)}{nearest(str(key), allowed)}; it takes "
                + ", ".join(allowed)
            )
    return dict(value)
