"""Events and nodes as the history keeps them."""

from __future__ import annotations

import msgspec

#: The kind of steps that are no events: what was seen of external work, or measured of agents.
OBSERVED = "observed"


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """See the columns of ``schema.events``."""

    number: int
    at: float
    kind: str
    attempt: int | None = None
    subject: str = ""
    detail: str = ""
    fact: str = ""


class SeenNode(msgspec.Struct, kw_only=True, gc=False):
    """See the columns of ``schema.nodes``."""

    id: int
    present: bool
