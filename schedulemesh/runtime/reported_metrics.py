"""The last metrics of each agent, as its own process reported them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.protocol.agents import MessageError, MetricsReport, unpack
from schedulemesh.protocol.metric_values import MAX_METRICS_BYTES, decode_metrics

logger = logging.getLogger(__name__)

#: Bytes of a report beside its metrics: the agent's name above all.
_ENVELOPE = 4 * 1024
#: Agents made elsewhere whose metrics are kept before those without a running task are dropped.
_OUTSIDE = 1000


class _Last(msgspec.Struct, kw_only=True):
    #: None: an agent that was made elsewhere.
    incarnation: int | None
    #: As it came; decoded when somebody looks, so that a report that nobody sees costs next to nothing.
    encoded: msgspec.Raw
    metrics: dict[str, Any] | None = None


class ReportedMetrics:
    """By agent name. A report is taken from the agent's present process alone."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self._outside: set[str] = set()
        #: Agents of a former supervisor; what they told that one is not known here.
        self._unknown: set[str] = set()

    def take(self, state: MeshState, message: object) -> bool:
        """Keep a packed MetricsReport; False: it is none, or not of an agent that may report."""
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
        if incarnation is not None and current(state, name, incarnation) is None:
            return False
        self._unknown.discard(name)
        self._last[name] = _Last(incarnation=incarnation, encoded=report.metrics.copy())
        return True

    def of(self, name: str) -> dict[str, Any]:
        """What the agent reported last; empty: nothing that can be read."""
        last = self._last.get(name)
        if last is None:
            return {}
        if last.metrics is None:
            try:
                last.metrics = decode_metrics(last.encoded)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                logger.warning("metrics of agent %s cannot be read: %s", name, error)
                last.metrics = {}
        return last.metrics

    def take_over(self, name: str) -> None:
        """A former supervisor started this agent."""
        self._unknown.add(name)

    def may_have_newer(self, name: str) -> bool:
        """Whether the agent may hold back metrics; one that never reported holds none back."""
        return name in self._last or name in self._unknown

    def forget(self, name: str, incarnation: int) -> None:
        """The agent's process is gone; what another one of its name reported stays."""
        self._unknown.discard(name)
        last = self._last.get(name)
        if last is not None and last.incarnation in (None, incarnation):
            self._drop(name)

    def _is_outside(self, state: MeshState, name: str) -> bool:
        """Whether it was made elsewhere and a task is registered on it."""
        if name in state.agents or not state.running.on_agent(name):
            return False
        self._outside.add(name)
        if len(self._outside) > _OUTSIDE:
            for other in [o for o in self._outside if not state.running.on_agent(o)]:
                self._drop(other)
        return True

    def _drop(self, name: str) -> None:
        self._last.pop(name, None)
        self._outside.discard(name)
