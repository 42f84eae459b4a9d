"""Keeps what the processes of agents really use, as they have measured it."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

from schedulemesh.api.agents import MeasuredUsage
from schedulemesh.metrics.aggregation import Aggregates
from schedulemesh.protocol.agents import MessageError, Usage, unpack

logger = logging.getLogger(__name__)

#: No amount is higher.
_MOST = 1e12
#: A process reports at least so often; what is older is not shown.
STALE_S = 300.0
#: The names under which the values are aggregated beside the metrics that agents report.
_NAMES = {
    "cpu": "cpu_used",
    "memory_mb": "memory_used_mb",
    "gpu_utilization": "gpu_utilization",
    "gpu_memory_mb": "gpu_memory_used_mb",
}


class Measured(NamedTuple):
    """What a process used, and when it was reported, in seconds since 1970."""

    usage: Usage
    at: float
    incarnation: int


class AgentUsage:
    """The newest measurement of each process, by the name of the agent or of the member of a gang."""

    def __init__(self, aggregates: Aggregates) -> None:
        self._newest: dict[str, Measured] = {}
        self._aggregates = aggregates

    def take(self, name: str, incarnation: int, message: object, now: float) -> None:
        """Store a packed Usage of a process that runs; one that cannot be read is ignored."""
        try:
            usage = unpack(message, Usage)
        except MessageError as error:
            logger.debug("what agent %s uses cannot be read: %s", name, error)
            return
        amounts = {key: value for key in _NAMES if (value := getattr(usage, key)) is not None}
        if not all(math.isfinite(value) and 0.0 <= value <= _MOST for value in amounts.values()):
            return
        self._newest[name] = Measured(usage, now, incarnation)
        report = {_NAMES[key]: value for key, value in amounts.items()}
        self._aggregates.add(name, report, now)

    def newest_of(self, name: str, now: float) -> Measured | None:
        """The newest measurement; None: there is none, or it is too old."""
        measured = self._newest.get(name)
        return None if measured is None or now - measured.at > STALE_S else measured

    def forget(self, name: str, incarnation: int) -> None:
        """Remove what an ended process used."""
        measured = self._newest.get(name)
        if measured is not None and measured.incarnation == incarnation:
            del self._newest[name]
            self._aggregates.forget(name)


def public_usage(measured: Measured | None) -> MeasuredUsage | None:
    """A measurement as plain data; None: there is none."""
    if measured is None:
        return None
    usage = measured.usage
    return {
        "cpu": round(usage.cpu, 3),
        "memory_mb": round(usage.memory_mb, 1),
        "gpu_utilization": usage.gpu_utilization,
        "gpu_memory_mb": usage.gpu_memory_mb,
        "at": measured.at,
    }
