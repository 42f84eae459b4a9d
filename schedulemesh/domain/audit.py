"""The record of a change that was requested: by whom, from where, and what it changed."""

from __future__ import annotations

import msgspec

#: Outcomes of a change. OPEN: it has not been answered, or the supervisor ended before it was.
OPEN, DONE, REFUSED = "open", "done", "refused"


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A change that was requested. Texts that begin with ``{`` are JSON."""

    #: The number of the record; later ones are higher.
    number: int
    #: In seconds since 1970.
    at: float = 0.0
    #: The name of the request.
    call: str
    #: Of the token that came with it; empty: it came without one.
    token: str = ""
    role: str = ""
    owner: str = ""
    #: The address that it came from.
    address: str = ""
    #: Its fields, without bytes and hashes.
    request: str = "{}"
    #: What it was to change, before and after it; empty: nothing was there.
    before: str = ""
    after: str = ""
    outcome: str = OPEN
    #: Of a refusal: its code, and a sentence.
    reason: str = ""
    error: str = ""
