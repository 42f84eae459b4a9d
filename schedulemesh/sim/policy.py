"""The policy of a simulation: cohorts, pools and policies, as ``schedulemesh apply`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
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


def read_declared(path: str | Path, parts: tuple[str, ...] = _PARTS) -> dict[str, Any]:
    """What a YAML file with a policy declares, as plain data; ``parts``: what it may contain. Raises
    InvalidRequestError.
    """
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    return _fields({} if given is None else given, parts, "the file")


def parse_policy(given: object, name: str = "policy") -> Policy:
    """The policy in plain data. What is said about tokens has no effect here. Raises InvalidRequestError."""
    parts = _fields(given, _SIMULATED, "the file")
    policies = _fields(parts.get("policy") or {}, _POLICIES, "policy")
    return Policy(
        name=name,
        cohorts=tuple(_cohort(fields) for fields in _listed(parts, "cohorts")),
        pools=tuple(_pool(fields) for fields in _listed(parts, "pools")),
        preemption=changed_policy(PreemptionPolicy(), policies.get("preemption") or {}),
        queue=changed_queue_policy(QueuePolicy(), policies.get("queue") or {}),
        strategies=parse_strategies(parts.get("strategies") or ()),
    )


def _cohort(fields: dict[str, Any]) -> CohortSpec:
    known = _fields(fields, CohortSpec.__struct_fields__, f"cohort {fields['name']!r}")
    return CohortSpec(
        name=parse_name(known["name"], "the cohort's name"),
        parent=parse_cohort(known.get("parent"), "parent"),
        weight=parse_weight(known.get("weight", 1.0)),
    )


def _pool(fields: dict[str, Any]) -> PoolSpec:
    what = f"pool {fields['name']!r}"
    known = _fields(fields, (*PoolSpec.__struct_fields__, "pg_pool_config"), what)
    more = {"pg_pool_config": known["pg_pool_config"]} if "pg_pool_config" in known else {}
    return changed(
        PoolSpec(name=parse_name(known["name"], "the pool's name")),
        **parse_changes(known),
        **parse_lending(known),
        **more,
    )


def _listed(parts: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    given = parts.get(name) or []
    if not isinstance(given, list):
        raise InvalidRequestError(f"{name} must be a list, not {shown(given)}")
    for number, one in enumerate(given):
        if not isinstance(one, dict) or "name" not in one:
            raise InvalidRequestError(f"{name}[{number}] must have a name, not {shown(one)}")
    return given


def _fields(given: object, allowed: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{what} must have fields, not {shown(given)}")
    for key in given:
        if key not in allowed:
            raise InvalidRequestError(
                f"{what} has the unknown field {shown(key)}{nearest(str(key), allowed)}; it takes "
                + ", ".join(allowed)
            )
    return dict(given)
