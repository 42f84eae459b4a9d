"""Parses the Ray options of an agent: allowed names, amounts that match its resources, and merging."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import ray
from ray._private.runtime_env.validation import OPTION_TO_VALIDATION_FN

from schedulemesh.core.backend.actor_classes import OF_THE_CLASS
from schedulemesh.core.backend.ray_resources import ray_amounts
from schedulemesh.domain.agent import RAY_OPTIONS, check_options
from schedulemesh.domain.containers import as_items, plain_data
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.node_labels import (
    ACCELERATOR_TYPE,
    NodeLabels,
    all_of,
    is_value,
    parse_node_labels,
)
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError, shown

#: Amounts that follow from the resources; they may only repeat these.
_AMOUNTS = ("num_cpus", "num_gpus", "memory", "resources")
#: The options that name the labels of nodes, by which the scheduler chooses one.
SELECTORS = ("accelerator_type", "fallback_strategy", "label_selector")
#: The lower bound of each count; the upper bound of all, as Ray sends them.
_COUNTS = {
    "max_concurrency": 1,
    "max_pending_calls": -1,
    "max_restarts": -1,
    "max_task_retries": -1,
}
_MOST = 2**31 - 1
_STRATEGIES = ("DEFAULT", "SPREAD")
#: What of a runtime environment may be the path of a file with packages.
_LISTS_OF_PACKAGES = {"pip", "uv", "conda"}


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed options."""

    #: As JSON.
    encoded: str
    #: False: Ray chooses the node, and the scheduler learns it from the agent's report.
    choose_node: bool
    #: The labels that the node must have, and what will do instead.
    node_labels: NodeLabels = ()
    fallback_labels: tuple[NodeLabels, ...] = ()
    #: The label of the model among them, which holds for what will do instead, too.
    model: NodeLabels = ()
    #: Whether they say labels beside the model.
    selects_nodes: bool = False


def parse_options(
    ray_options: object,
    beneath: Mapping[str, object],
    resources: Resources | None,
    job_env: Mapping[str, object],
    namespace: str,
) -> RayOptions:
    """The options merged over those of the class's decorator (``beneath``) and the job's runtime_env.

    ``resources`` None means the pool's default, with which no amount can be compared. Raises
    InvalidRequestError for an option that is unknown, contradicts the resources, or is not plain data.
    """
    agent_options = {} if ray_options is None else _plain(ray_options)
    _check_amounts(agent_options, resources)
    decorated = _plain({k: v for k, v in beneath.items() if k in RAY_OPTIONS or k in _AMOUNTS})
    if resources is not None:
        _check_amounts(decorated, resources)
    merged = {**decorated, **agent_options}
    for name in _AMOUNTS:
        merged.pop(name, None)
    unknown = sorted(set(merged) - RAY_OPTIONS)
    if unknown:
        raise InvalidRequestError(
            f"ray_options has {unknown[0]!r}; allowed are {', '.join(sorted(RAY_OPTIONS))}, and "
            f"{', '.join(_AMOUNTS)} where they repeat the resources"
        )
    _merge_env(merged, job_env)
    selector = parse_node_labels(merged.get("label_selector"), _what("label_selector"))
    model = _model(merged)
    if agent_options or decorated:
        _check_by_ray(merged)
    if "name" in merged:
        merged["name"] = parse_name(merged["name"], "ray_options['name']")
        merged["namespace"] = namespace
    encoded = json.dumps(merged, sort_keys=True)
    check_options(encoded)
    node_labels = all_of(model, selector)
    return RayOptions(
        encoded=encoded,
        choose_node=bool(node_labels) or merged.get("scheduling_strategy") in (None, "DEFAULT"),
        node_labels=node_labels,
        # Ray's fallbacks stand in for the label_selector alone.
        fallback_labels=tuple(all_of(model, f) for f in _fallbacks(merged)) if selector else (),
        model=model,
        selects_nodes=bool(selector or merged.get("fallback_strategy")),
    )


def _model(options: Mapping[str, object]) -> NodeLabels:
    """The label of nodes with the accelerator that the options name."""
    accelerator_type = options.get("accelerator_type")
    if accelerator_type is None:
        return ()
    model = as_text(accelerator_type)
    if model is None or not is_value(model):
        raise InvalidRequestError(
            f"{_what('accelerator_type')} is {shown(accelerator_type)}; it must be a model such as 'H100'"
        )
    return ((ACCELERATOR_TYPE, model),)


def _fallbacks(options: Mapping[str, Any]) -> Iterator[NodeLabels]:
    for number, fallback in enumerate(options.get("fallback_strategy") or ()):
        what = f"{_what('fallback_strategy')}[{number}]['label_selector']"
        yield parse_node_labels(fallback.get("label_selector"), what)


def _what(name: str) -> str:
    return f"ray_options[{name!r}]"


def _plain(options: object) -> dict[str, object]:
    """The options as plain data, because they are stored with the agent."""
    items = as_items(options, "ray_options", "a dict")
    return {_key(name): plain_data(value, f"ray_options[{shown(name)}]") for name, value in items}


def _key(key: object) -> str:
    name = as_text(key)
    if name is None:
        raise InvalidRequestError(f"ray_options has the key {shown(key)}, which is no text")
    return name


def _check_amounts(options: Mapping[str, object], resources: Resources | None) -> None:
    for name in _AMOUNTS:
        if options.get(name) is None:
            continue
        if resources is None:
            raise InvalidRequestError(
                f"ray_options has {name!r}; say it in resources, so that it is reserved"
            )
        expected = ray_amounts(resources).get(name, 0)
        if options[name] != expected:
            raise InvalidRequestError(
                f"ray_options[{name!r}] is {shown(options[name])}, but resources make it {expected!r}; "
                "leave it out, or make both the same"
            )


def _merge_env(options: dict[str, object], job_env: Mapping[str, object]) -> None:
    """The agent's own runtime_env over the job's; environment variables are merged one by one."""
    agent_env = options.get("runtime_env") or {}
    if not isinstance(agent_env, dict):
        raise InvalidRequestError(
            f"ray_options['runtime_env'] must be a dict, not {shown(agent_env)}"
        )
    merged = {**job_env, **agent_env}
    if "env_vars" in job_env and isinstance(agent_env.get("env_vars"), dict):
        shared = dict(as_items(job_env["env_vars"], "the job's env_vars", "a dict"))
        merged["env_vars"] = {**shared, **agent_env["env_vars"]}
    if merged:
        read = _with_files_read(merged)
        options["runtime_env"] = plain_data(read, "ray_options['runtime_env']")
    else:
        options.pop("runtime_env", None)


def _with_files_read(runtime_env: Mapping[str, object]) -> dict[str, object]:
    """A runtime environment with what is in the files of this machine that list its packages."""
    read = dict(runtime_env)
    for name in _LISTS_OF_PACKAGES & read.keys():
        value = read[name]
        if isinstance(value.get("packages") if isinstance(value, dict) else value, str):
            try:
                read[name] = OPTION_TO_VALIDATION_FN[name](value)
            except (OSError, TypeError, ValueError) as error:
                raise InvalidRequestError(f"runtime_env[{name!r}]: {error}") from error
    # A list without packages is no environment.
    return {name: value for name, value in read.items() if value is not None}


class _Checked:
    """A class on which Ray checks the options, in place of the user's."""


def _check_by_ray(options: Mapping[str, object]) -> None:
    """Raise InvalidRequestError for values that Ray would refuse when it creates the agent, or later."""
    try:
        # Ray takes them where a class is decorated, and only there.
        made = {k: v for k, v in options.items() if k in OF_THE_CLASS}
        checked_class = ray.remote(**made)(_Checked) if made else ray.remote(_Checked)
        checked_class.options(**{k: v for k, v in options.items() if k not in made})
    except Exception as error:
        raise InvalidRequestError(f"ray_options: {error}") from error
    for name, least in _COUNTS.items():
        if options.get(name) is not None:
            parse_count(options[name], f"ray_options[{name!r}]", least, _MOST)
    strategy = options.get("scheduling_strategy")
    if strategy not in (None, *_STRATEGIES):
        raise InvalidRequestError(
            f"ray_options['scheduling_strategy'] is {shown(strategy)}; allowed are "
            f"{' and '.join(_STRATEGIES)}"
        )
