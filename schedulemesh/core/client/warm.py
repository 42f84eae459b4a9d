"""Serializes the ``warm`` class of a ``pg_pool_config``, of which warm hosts are started."""

from __future__ import annotations

import json

from schedulemesh.config.groups import MAX_WARM
from schedulemesh.core.backend.ray_options import parse_options
from schedulemesh.core.client.run_request import unwrap
from schedulemesh.core.client.task_request import Caller, class_bytes
from schedulemesh.domain.containers import as_items
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import key_of

_KEYS = ("actor_class", "count", "runtime_env")
#: Options that a warm host cannot have: its name and place are given, and Ray does not restart it.
_NOT_READY = (
    "name",
    "max_restarts",
    "max_task_retries",
    "accelerator_type",
    "fallback_strategy",
    "label_selector",
    "scheduling_strategy",
)


def shipped_warm(warm: object, caller: Caller) -> tuple[WarmSpec, dict[str, bytes]]:
    """The class of warm hosts from the value of ``warm``, and its bytes. Raises InvalidRequestError."""
    what = "pg_pool_config['warm']"
    expected = "a dict with actor_class, and count and runtime_env if wanted"
    config = {as_text(key): value for key, value in as_items(warm, what, expected)}
    if "actor_class" not in config:
        raise InvalidRequestError(f"{what} must be {expected}, not {shown(warm)}")
    for key in config:
        if key not in _KEYS:
            raise InvalidRequestError(
                f"{what} has the unknown key {shown(key)}; allowed are {', '.join(_KEYS)}"
            )
    count = parse_count(config.get("count", 1), f"{what}['count']", 1, MAX_WARM)
    cls, beneath = unwrap(config["actor_class"])
    env = config.get("runtime_env")
    options_of_warm = None if env is None else {"runtime_env": env}
    options = parse_options(options_of_warm, beneath, None, caller.runtime_env, caller.namespace)
    for name in _NOT_READY:
        if name in json.loads(options.encoded):
            raise InvalidRequestError(
                f"{what}['actor_class'] is decorated with {name}; a host that stands ready cannot have it"
            )
    code = class_bytes(cls)
    spec = WarmSpec(class_key=key_of(code), options=options.encoded, count=count)
    return spec, {key_of(code): code}
