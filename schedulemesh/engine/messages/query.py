"""What the engine is asked without changing anything."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.resources import Resources


class PreemptionQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A dry run of the preemption decision, and with resources also of the victim search."""

    priority: float
    pool_name: str
    labels: dict[str, str] = {}
    resources: Resources | None = None
    limit: int = 100
