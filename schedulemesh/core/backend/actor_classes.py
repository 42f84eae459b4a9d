"""The Ray actor classes of hosts. Ray exports each class once, and every process that gets a handle loads it
once, so the same class is used for all agents of one user class.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import ray

from schedulemesh.core.agent.host import host_class
from schedulemesh.core.agent.warm_host import warm_host_class
from schedulemesh.protocol.agents import ShippedClass

#: Options that Ray takes where a class is decorated, and only there.
OF_THE_CLASS = ("concurrency_groups", "enable_tensor_transport")
#: Host classes that are kept.
_KEPT = 256


class HostClasses:
    """Host classes by the key of the user's class."""

    def __init__(self) -> None:
        #: By class key, and whether it is a warm host's.
        self._made: dict[tuple[str, bool], type] = {}

    def host_class_for(self, class_key: str, shipped: bytes, *, warm: bool) -> type:
        """The host class for a user's class, a packed ShippedClass."""
        cached_class = self._made.get((class_key, warm))
        if cached_class is not None:
            return cached_class
        if len(self._made) >= _KEPT:
            self._made.pop(next(iter(self._made)))
        make = warm_host_class if warm else host_class
        made = make(msgspec.msgpack.decode(shipped, type=ShippedClass))
        self._made[class_key, warm] = made
        return made


def actor_class(cls: type, options: Mapping[str, object]) -> Any:
    """The Ray actor class of a host class; ``options``: those of the user's that are ``OF_THE_CLASS``."""
    return _actor_class(cls, json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=_KEPT)
def _actor_class(cls: type, options: str) -> Any:
    actor_options = json.loads(options)
    return ray.remote(**actor_options)(cls) if actor_options else ray.remote(cls)
