"""The answers about Ray work that is not the scheduler's."""

from __future__ import annotations

from schedulemesh.core.client.results import Result
from schedulemesh.protocol.cluster_rows import ExternalWork


class ExternalUsageResult(Result, total=False):
    """The answer of ``external_usage``."""

    jobs: list[ExternalWork]
