"""A node of the cluster as Ray reports it."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.resources import NOTHING, Resources


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Ray says of one living node."""

    node_id: str
    total: Resources
    labels: Labels = {}
    #: What other Ray work uses there, taken while none of our claims changed; None: not known now.
    others_use: Resources | None = NOTHING
