"""Ray actor handles and object references: identity and awaiting."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from ray.actor import ActorHandle


def actor_id(handle: Any) -> str:
    """The id that distinguishes an actor from every other one."""
    hex_id: str = handle._actor_id.hex()  # noqa: SLF001  # Ray shows it in no other way
    return hex_id


def packed_handle(handle: Any) -> bytes:
    """A handle of an actor as bytes, which any process of the cluster can make one from. Ray does not count
    such a handle, so the actor must be a detached one, which no count keeps alive.
    """
    state, _, weak_ref = handle._serialization_helper()  # noqa: SLF001  # as its __reduce__ does
    return msgspec.msgpack.encode((state, weak_ref))


def unpacked_handle(packed: bytes) -> ActorHandle:
    """The handle of which these are the bytes."""
    state, weak_ref = msgspec.msgpack.decode(packed, type=tuple[bytes, bool])
    return ActorHandle._deserialization_helper(state, weak_ref)  # noqa: SLF001  # see packed_handle


def as_future(ref: Any) -> asyncio.Future[Any]:
    """A future of an object reference."""
    return asyncio.wrap_future(ref.future())
