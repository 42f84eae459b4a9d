"""A ``pg_pool_config`` as it is sent: plain data, with the class of warm hosts beside it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET, UnsetType

from schedulemesh.domain.containers import as_items, plain_data
from schedulemesh.domain.names import as_text
from schedulemesh.domain.placement import WarmSpec
from schedulemesh.errors import InvalidRequestError

#: Serializes the value of ``warm``: what the supervisor is to know of its class, and the class's bytes by
#: their keys.
ShipWarm = Callable[[object], tuple[WarmSpec, dict[str, bytes]]]


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A ``pg_pool_config``, with the warm class separate from the plain data."""

    #: In plain data, without ``warm``.
    config: dict[str, object] | None
    warm: WarmSpec | UnsetType | None = UNSET
    #: The bytes of the warm class.
    blobs: dict[str, bytes] = {}

    @property
    def whole(self) -> dict[str, object] | None:
        """The config with ``warm`` in its place."""
        if self.config is None or self.warm is UNSET:
            return self.config
        return {**self.config, "warm": self.warm}


def _no_class(_warm: object) -> tuple[WarmSpec, dict[str, bytes]]:
    raise InvalidRequestError(
        "pg_pool_config['warm'] has a class, which only a connection over Ray sends; define the pool without "
        "it, and add it with RayScheduler on a node of the cluster"
    )


def parse_group_config(pg_pool_config: object, ship_warm: ShipWarm = _no_class) -> GroupConfig:
    """The config as it is sent. Raises InvalidRequestError for what is wrong with ``warm``, or no plain
    data; everything else is checked later.
    """
    if pg_pool_config is None:
        return GroupConfig(config=None)
    what = "pg_pool_config"
    items = as_items(pg_pool_config, what, "a dict such as {'enable': True}")
    by_name = {as_text(key): value for key, value in items}
    config = plain_data({key: value for key, value in items if as_text(key) != "warm"}, what)
    if "warm" not in by_name:
        return GroupConfig(config=config)
    if by_name["warm"] is None:
        return GroupConfig(config=config, warm=None)
    warm, blobs = ship_warm(by_name["warm"])
    return GroupConfig(config=config, warm=warm, blobs=blobs)
