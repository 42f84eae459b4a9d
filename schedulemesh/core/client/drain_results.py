"""The answers of the calls that drain nodes and pools."""

from __future__ import annotations

from schedulemesh.api.nodes import DrainInfo
from schedulemesh.core.client.results import Result


class DrainStatus(Result, total=False):
    """The answer of ``drain_status``."""

    drains: list[DrainInfo]
