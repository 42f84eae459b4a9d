"""What exists once a supervisor has recovered, and the base of the services that use it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done
from schedulemesh.metrics.recorder import MetricsRecorder
from schedulemesh.protocol.answers import Response
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.alerts.monitor import AlertMonitor
from schedulemesh.runtime.backend import Backend
from schedulemesh.runtime.cluster.monitor import ClusterMonitor
from schedulemesh.runtime.cluster.orphans import Orphans
from schedulemesh.runtime.executor import Executor
from schedulemesh.runtime.groups.manager import Groups
from schedulemesh.runtime.history.recorder import HistoryRecorder
from schedulemesh.runtime.periodic import Loops
from schedulemesh.runtime.plugins.watchdog import PluginWatchdog
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.security.authentication import Authentication
from schedulemesh.runtime.services.answers import Answers
from schedulemesh.runtime.services.http_process import HttpProcess


class RunningSupervisor(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor that has recovered: all its parts, made once."""

    settings: SchedulerSettings
    backend: Backend
    agents: Agents
    groups: Groups
    reactor: Reactor
    answers: Answers
    executor: Executor
    orphans: Orphans
    monitor: ClusterMonitor
    plugins: PluginWatchdog
    http: HttpProcess
    recorder: MetricsRecorder
    alerts: AlertMonitor
    loops: Loops
    authentication: Authentication
    #: None: no history is written.
    history: HistoryRecorder | None


class Service:
    """Base of the services, each of which answers requests about one subject."""

    def __init__(self, running: RunningSupervisor) -> None:
        self._settings, self._backend = running.settings, running.backend
        self._agents, self._groups = running.agents, running.groups
        self._reactor, self._answers = running.reactor, running.answers
        self._executor, self._orphans = running.executor, running.orphans
        self._plugins, self._monitor = running.plugins, running.monitor
        self._http = running.http

    async def _decide(
        self, stimulus: s.AnyStimulus, blobs: Mapping[str, bytes] | None = None
    ) -> Response:
        """A change that is done when it is decided."""
        step = await self._reactor.step(stimulus, blobs)
        return Response(outcome=step.outcome or Done())
