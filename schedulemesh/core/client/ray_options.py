"""The user's Ray options: what passes through, what contradicts the ledger, what the scheduler decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from schedulemesh.core.backend.ray_resources import ray_amounts
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError

#: Options that a user may give; Ray checks their values.
_PASSED = frozenset(
    {
        "accelerator_type",
        "allow_out_of_order_execution",
        "concurrency_groups",
        "enable_task_events",
        "fallback_strategy",
        "label_selector",
        "max_concurrency",
        "max_pending_calls",
        "max_restarts",
        "max_task_retries",
        "name",
        "runtime_env",
        "scheduling_strategy",
    }
)
#: Options that the ledger decides; the same amount may be repeated.
_AMOUNTS = ("num_cpus", "num_gpus", "memory", "resources")
#: With one of these Ray finds the node, and the book learns it from the agent's report.
_PLACED_BY_RAY = ("accelerator_type", "fallback_strategy", "label_selector", "scheduling_strategy")


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that passed."""

    #: As JSON.
    encoded: str
    choose_node: bool


def parse_options(
    given: object,
    beneath: Mapping[str, Any],
    resources: Resources | None,
    job_env: Mapping[str, Any],
    namespace: str,
) -> RayOptions:
    """The options over those of the class's own decorator (``beneath``) and the job's runtime_env.

    ``resources`` None: the pool's default, which no amount can be compared with. Raises
    InvalidRequestError for an option that is unknown, contradicts the resources, or is no plain data.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InvalidRequestError(f"ray_options must be a dict, not {given!r}")
    own = dict(given or {})
    _check_amounts(own, resources)
    decorated = {k: v for k, v in beneath.items() if k in _PASSED or k in _AMOUNTS}
    if resources is not None:
        _check_amounts(decorated, resources)
    merged = {**decorated, **own}
    for name in _AMOUNTS:
        merged.pop(name, None)
    unknown = sorted(set(merged) - _PASSED)
    if unknown:
        raise InvalidRequestError(
            f"ray_options has {unknown[0]!r}; allowed are {', '.join(sorted(_PASSED))}, and "
            f"{', '.join(_AMOUNTS)} where they repeat the resources"
        )
    _merge_env(merged, job_env)
    if "name" in merged:
        merged["namespace"] = namespace
    return RayOptions(
        encoded=_encoded(merged), choose_node=not any(name in merged for name in _PLACED_BY_RAY)
    )


def _check_amounts(options: Mapping[str, Any], resources: Resources | None) -> None:
    for name in _AMOUNTS:
        if options.get(name) is None:
            continue
        if resources is None:
            raise InvalidRequestError(
                f"ray_options has {name!r}; say it in resources, so that it is on the book"
            )
        expected = ray_amounts(resources).get(name, 0)
        if options[name] != expected:
            raise InvalidRequestError(
                f"ray_options[{name!r}] is {options[name]!r}, but resources make it {expected!r}; "
                "leave it out, or make both the same"
            )


def _merge_env(options: dict[str, Any], job_env: Mapping[str, Any]) -> None:
    """The agent's own runtime_env over the job's; environment variables are merged one by one."""
    own = options.get("runtime_env") or {}
    merged = {**job_env, **own}
    if "env_vars" in job_env and "env_vars" in own:
        merged["env_vars"] = {**job_env["env_vars"], **own["env_vars"]}
    if merged:
        options["runtime_env"] = merged
    else:
        options.pop("runtime_env", None)


def _encoded(options: Mapping[str, Any]) -> str:
    try:
        return json.dumps(options, sort_keys=True)
    except TypeError as error:
        for name, value in options.items():
            try:
                json.dumps(value)
            except TypeError:
                raise InvalidRequestError(
                    f"ray_options[{name!r}] is {value!r}; options are kept with the agent, so only plain "
                    "data (numbers, texts, lists, dicts) is allowed"
                ) from error
        raise
