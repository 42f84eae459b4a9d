"""The class that stands ready in a pool's reserved placement groups, as it is shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from schedulemesh.core.client.ray_options import parse_options
from schedulemesh.core.client.task_request import Caller, class_bytes, unwrap
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of

_KEYS = ("actor_class", "count", "runtime_env")
#: A host that stands ready has its name and place already, and is not restarted by Ray.
_NOT_READY = (
    "name",
    "max_restarts",
    "max_task_retries",
    "accelerator_type",
    "fallback_strategy",
    "label_selector",
    "scheduling_strategy",
)


def shipped_config(given: Any, caller: Caller) -> tuple[Mapping[str, Any] | None, dict[str, bytes]]:
    """A ``pg_pool_config`` whose ``warm`` is a WarmSpec, and the bytes of its class.

    Raises InvalidRequestError for what is wrong with ``warm``; all else is looked at later.
    """
    if not isinstance(given, Mapping) or given.get("warm") is None:
        return given, {}
    warm, blobs = _warm(given["warm"], caller)
    return {**given, "warm": warm}, blobs


def _warm(given: object, caller: Caller) -> tuple[WarmSpec, dict[str, bytes]]:
    what = "pg_pool_config['warm']"
    if not isinstance(given, Mapping) or "actor_class" not in given:
        raise InvalidRequestError(
            f"{what} must be a dict with actor_class, and count and runtime_env if wanted, not {given!r}"
        )
    for key in given:
        if key not in _KEYS:
            raise InvalidRequestError(
                f"{what} has the unknown key {key!r}; allowed are {', '.join(_KEYS)}"
            )
    count = given.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidRequestError(
            f"{what}['count'] must be a whole number of at least 1, not {count!r}"
        )
    cls, beneath = unwrap(given["actor_class"])
    env = given.get("runtime_env")
    own = None if env is None else {"runtime_env": env}
    options = parse_options(own, beneath, None, caller.runtime_env, caller.namespace)
    for name in _NOT_READY:
        if name in json.loads(options.encoded):
            raise InvalidRequestError(
                f"{what}['actor_class'] is decorated with {name}; a host that stands ready cannot have it"
            )
    code = class_bytes(cls)
    spec = WarmSpec(class_key=key_of(code), options=options.encoded, count=count)
    return spec, {key_of(code): code}
