"""Keeps the last metrics that each agent's process reported, and aggregates the numbers among them."""

from __future__ import annotations

import logging

import msgspec

from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics.aggregation import Aggregates
from schedulemesh.protocol.agents import MessageError, MetricsReport, unpack
from schedulemesh.protocol.metric_values import MAX_METRICS_BYTES, decode_metrics
from schedulemesh.runtime.agents.progress import Progress, advanced

logger = logging.getLogger(__name__)

#: Bytes of a report in addition to its metrics, mainly the agent's name.
_ENVELOPE = 4 * 1024
#: The number of external agents with metrics above which those without a running task are dropped.
_OUTSIDE = 1000


def is_process(state: MeshState, name: str, incarnation: int) -> bool:
    """Whether this incarnation of the agent, or of the gang whose member has this name, exists."""
    if current(state, name, incarnation) is not None:
        return True
    gang = state.gang_with(name)
    return gang is not None and gang.incarnation == incarnation


class _Last(msgspec.Struct, kw_only=True):
    #: None: an agent that ScheduleMesh did not start.
    incarnation: int | None
    #: Distinguishes it from other reports of the process; 0: it does not.
    number: int
    #: When it arrived, in seconds since 1970.
    at: float
    metrics: dict[str, object]
    #: None: it has reported none.
    progress: Progress | None


class ReportedMetrics:
    """Metrics by agent name. Reports are accepted only from the agent's current process."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self.aggregates = Aggregates()
        self._outside: set[str] = set()
        #: Agents started by a previous supervisor, whose earlier reports are unknown.
        self._unknown: set[str] = set()

    def take(self, state: MeshState, message: object, now: float) -> bool:
        """Store an encoded MetricsReport; False: it is malformed, or not from an agent that may report.

        A report that was sent again is aggregated once.
        """
        if type(message) is bytes and len(message) > MAX_METRICS_BYTES + _ENVELOPE:
            return False
        try:
            report = unpack(message, MetricsReport)
        except MessageError as error:
            logger.debug("metrics that cannot be read: %s", error)
            return False
        name, incarnation = report.agent_name, report.incarnation
        if incarnation is None and not self._is_outside(state, name):
            return False
        if incarnation is not None and not is_process(state, name, incarnation):
            return False
        self._unknown.discard(name)
        last = self._last.get(name)
        if last is not None and report.number and last.number == report.number:
            return True
        metrics = _decoded(name, report.metrics)
        same = last is not None and last.incarnation == incarnation
        previous_progress = last.progress if last is not None and same else None
        self._last[name] = _Last(
            incarnation=incarnation,
            number=report.number,
            at=now,
            metrics=metrics,
            progress=advanced(previous_progress, metrics.get("progress"), now),
        )
        self.aggregates.add(name, metrics, now)
        return True

    def newest_of(self, name: str) -> dict[str, object]:
        """The last metrics of the agent; empty: none, or they cannot be decoded."""
        last = self._last.get(name)
        return {} if last is None else last.metrics

    def at(self, name: str) -> float | None:
        """When the last metrics of the agent arrived, in seconds since 1970; None: there are none."""
        last = self._last.get(name)
        return None if last is None else last.at

    def progress_of(self, name: str) -> Progress | None:
        """The progress that the agent has reported; None: none."""
        last = self._last.get(name)
        return None if last is None else last.progress

    def take_over(self, name: str) -> None:
        """Register an agent that a previous supervisor started."""
        self._unknown.add(name)

    def may_have_newer(self, name: str) -> bool:
        """Whether the agent may have metrics that it has not sent yet; False if it never reported."""
        return name in self._last or name in self._unknown

    def forget(self, name: str, incarnation: int) -> None:
        """Remove the metrics of an ended process; those of a later one with the same name are kept."""
        self._unknown.discard(name)
        last = self._last.get(name)
        if last is not None and last.incarnation in (None, incarnation):
            self._drop(name)

    def _is_outside(self, state: MeshState, name: str) -> bool:
        """Whether ScheduleMesh did not start the agent, and a task is registered on it."""
        if name in state.agents or not state.running.on_agent(name):
            return False
        self._outside.add(name)
        if len(self._outside) > _OUTSIDE:
            for other in [o for o in self._outside if not state.running.on_agent(o)]:
                self._drop(other)
        return True

    def _drop(self, name: str) -> None:
        self._last.pop(name, None)
        self.aggregates.forget(name)
        self._outside.discard(name)


def _decoded(name: str, encoded: msgspec.Raw) -> dict[str, object]:
    """The metrics of a report; empty: they cannot be decoded."""
    try:
        return decode_metrics(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        logger.debug("metrics of agent %s cannot be read: %s", name, error)
        return {}
