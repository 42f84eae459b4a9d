"""The answers about Ray work that is not the scheduler's."""

from __future__ import annotations

from schedulemesh.api.nodes import ExternalWork
from schedulemesh.core.client.results import Result


class ExternalUsageResult(Result, total=False):
    """The answer of ``external_usage``."""

    jobs: list[ExternalWork]
