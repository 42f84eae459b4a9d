"""Settings of one scheduler: where it lives and how it keeps time."""

from __future__ import annotations

import msgspec

#: Spoken between client and supervisor; a change that an older side cannot read raises it.
PROTOCOL_VERSION = 1

DEFAULT_NAMESPACE = "schedulemesh"

#: Answers to submissions are remembered this long, so that a retried request is answered once.
ANSWER_MEMORY_S = 24 * 3600.0

#: Quota freed by ``preempt_task(for_pool=...)`` is held this long for that pool.
POOL_HOLD_S = 60.0

#: Constructor arguments and payloads above this many bytes are refused.
MAX_BLOB_BYTES = 16 * 1024 * 1024


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor is made with; it cannot be changed while it lives."""

    name: str
    namespace: str = DEFAULT_NAMESPACE
    #: Whether it outlives the job that made it.
    detached: bool = False
    #: A directory on the supervisor's node for the journal; None: Ray's session folder.
    state_path: str | None = None
    #: Which node of those with room takes an agent: "bin_pack" (fullest) or "spread" (emptiest).
    node_strategy: str = "bin_pack"
    #: Seconds between rounds of ensure_agent_health made by the supervisor itself; None: only when asked.
    health_interval_s: float | None = None
    #: Seconds between looks at the cluster and at who still lives.
    patrol_interval_s: float = 1.0
