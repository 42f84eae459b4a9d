"""The Ray actor classes of hosts. Ray exports each class once, and every process that gets a handle loads it
once, so the same class is used for all agents of one user class.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import msgspec
import ray

from schedulemesh.core.agent.host import host_class
from schedulemesh.core.agent.warm_host import warm_host_class
from schedulemesh.protocol.agents import ShippedClass

#: Host classes that are kept.
_KEPT = 256


class HostClasses:
    """Host classes by the key of the user's class."""

    def __init__(self) -> None:
        #: By class key, and whether it is a warm host's.
        self._made: dict[tuple[str, bool], type] = {}

    def of(self, class_key: str, shipped: bytes, *, warm: bool) -> type:
        """The host class for a user's class, a packed ShippedClass."""
        known = self._made.get((class_key, warm))
        if known is not None:
            return known
        if len(self._made) >= _KEPT:
            self._made.pop(next(iter(self._made)))
        make = warm_host_class if warm else host_class
        made = make(msgspec.msgpack.decode(shipped, type=ShippedClass))
        self._made[class_key, warm] = made
        return made


def actor_class(cls: type, concurrency_groups: object) -> Any:
    """The Ray actor class of a host class; ``concurrency_groups``: as in the user's options."""
    return _actor_class(cls, json.dumps(concurrency_groups))


@functools.lru_cache(maxsize=_KEPT)
def _actor_class(cls: type, groups: str) -> Any:
    found = json.loads(groups)
    return ray.remote(concurrency_groups=found)(cls) if found else ray.remote(cls)
