"""A node of the cluster as Ray reports it."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.resources import NOTHING, Resources


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ray's report of one living node."""

    node_id: str
    total: Resources
    labels: Labels = {}
    #: External usage, sampled while none of our claims changed; None: currently unknown.
    external_usage: Resources | None = NOTHING
    #: Whether Ray drains it: it is about to be removed, and Ray places nothing new there.
    draining: bool = False
    #: When Ray removes it, in seconds since 1970; None: that is not known, or it is not drained.
    drain_deadline: float | None = None
