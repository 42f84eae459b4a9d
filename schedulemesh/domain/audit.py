"""The record of a change that was requested: by whom, from where, and what it changed."""

from __future__ import annotations

import msgspec

#: Outcomes of a change. OPEN: it has not been answered, or the supervisor ended before it was.
OPEN, DONE, REFUSED = "open", "done", "refused"

#: The names of the requests that change the rules: who may call, what there is to share, and how it is
#: shared. Operators make them, some of them also the operators of pools, and their records are kept longest.
LASTING_CALLS = frozenset(
    (
        "create_pool",
        "ensure_pool",
        "resize_pool",
        "delete_pool",
        "rename_pool",
        "create_cohort",
        "ensure_cohort",
        "delete_cohort",
        "rename_cohort",
        "change_policy",
        "change_queue_policy",
        "create_token",
        "rotate_token",
        "change_token",
        "revoke_token",
        "register_state_handlers",
        "cordon_node",
        "drain",
        "create_window",
        "delete_window",
    )
)


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
    #: The user of the process that asked, as user@host, and whether the system says so or only that process.
    user: str = ""
    user_verified: bool = False
    #: Its fields, without bytes and hashes.
    request: str = "{}"
    #: What it was to change, before and after it; empty: nothing was there.
    before: str = ""
    after: str = ""
    outcome: str = OPEN
    #: Of a refusal: its code, and a sentence.
    reason: str = ""
    error: str = ""
