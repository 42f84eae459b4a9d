"""Facts about pools that end or get another name; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.engine.messages.fact import Fact


class PoolDeleted(Fact, tag="pool_deleted", frozen=True, kw_only=True):
    """The pool exists no more, and with it its drain and its handlers. Nothing used it."""

    pool_name: str
    at: float


class PoolRenamed(Fact, tag="pool_renamed", frozen=True, kw_only=True):
    """The pool has another name. All that refers to it refers to the new name; what has ended keeps the old
    one.
    """

    #: The name until now.
    pool_name: str
    new_name: str
    at: float


AnyPoolFact = Union[PoolDeleted, PoolRenamed]
