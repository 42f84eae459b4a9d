"""Ray actor handles and object references: identity and awaiting."""

from __future__ import annotations

import asyncio
from typing import Any


def actor_id(handle: Any) -> str:
    """The id that distinguishes an actor from every other one."""
    hex_id: str = handle._actor_id.hex()  # noqa: SLF001  # Ray shows it in no other way
    return hex_id


def as_future(ref: Any) -> asyncio.Future[Any]:
    """A future of an object reference."""
    return asyncio.wrap_future(ref.future())
