"""Answers requests for metrics: what the recorder counted, what the state says, and what only the runtime
knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from schedulemesh.api.metrics import GetMetrics, GetReportedMetrics, ReportedMetric
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics import gauges, recent
from schedulemesh.metrics.exposition import PAUSE_S, PIECE_S, written
from schedulemesh.metrics.values import Family, Sample
from schedulemesh.protocol.answers import Details, Listed, details, listed
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services import metric_groups
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.runtime.services.usage_metrics import jobs_beyond_claim, usage_families


class MetricsService(Service):
    """Writes the metrics of one scheduler."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self._recorder, self._alerts = running.recorder, running.alerts
        self._authentication, self._monitor = running.authentication, running.monitor
        self._loops = running.loops
        self._started_at = self._reactor.now()

    @handler
    async def exposition(self, request: GetMetrics) -> Details:
        """All metrics in the Prometheus text format; decisions are made while it is written."""
        while True:
            await self._reactor.until_consistent()
            seen = self._reactor.engine
            text = await written(self.families(seen.state, per_agent=request.agents))
            await self._reactor.flushed()
            if self._reactor.engine is seen:
                return details({"text": text})

    @handler
    async def reported(self, request: GetReportedMetrics) -> Listed:
        """The reported metrics of each group; decisions are made while they are aggregated."""
        aggregates, reactor = self._agents.metrics.aggregates, self._reactor

        def look() -> list[metric_groups.MetricGroup]:
            return metric_groups.groups(reactor.state, aggregates.agents(), request)

        rows: list[ReportedMetric] = []
        now = reactor.now()
        until = time.perf_counter() + PIECE_S
        for group in await reactor.read(look):
            for row in aggregates.rows(group.agents, now, request.names):
                if row is not None:  # None is only a place to pause
                    rows.append({**group.fields, **row})
                if time.perf_counter() > until:
                    await asyncio.sleep(PAUSE_S)
                    until = time.perf_counter() + PIECE_S
        return listed(rows)

    def families(self, state: MeshState, *, per_agent: bool = False) -> Iterator[Family]:
        """All metrics; each is computed when its samples are read. ``per_agent``: also what each agent
        uses.
        """
        now = self._reactor.now()
        yield from gauges.families(state)
        yield from recent.families(state, now, self._settings.alerts.recent_s)
        yield from usage_families(state, self._agents.usage, now, per_agent=per_agent)
        self._reactor.observers.catch_up()
        yield from self._recorder.families()
        yield from self._reactor.times.families()
        warm = list(self._executor.warm_pool.warm_starts.items())
        yield c.WARM_STARTS, (Sample((pool,), n) for pool, n in warm)
        yield c.JOBS_BEYOND, jobs_beyond_claim(state, self._monitor.claims.beyond)
        yield c.HEARTBEAT, self._heartbeats(state)
        orphans = (("actor", self._agents.orphans), ("placement_group", self._groups.orphans))
        yield c.REPORTED_DROPPED, [Sample((), self._agents.metrics.aggregates.dropped)]
        yield (
            c.ORPHANS,
            [Sample((kind,), len(orphans_of_kind)) for kind, orphans_of_kind in orphans],
        )
        yield from self._plugin_families()
        yield from self._alerts.families()
        yield from self._loops.families()
        failures = self._authentication.failures.items()
        yield c.AUTHENTICATION_FAILURES, [Sample((way,), count) for way, count in failures]
        yield c.STARTED_AT, [Sample((), self._started_at)]
        yield recent.restart_age(state.epoch, now - self._started_at)

    def _heartbeats(self, state: MeshState) -> Iterator[Sample | None]:
        for name, agent in list(state.agents.items()):
            age = self._agents.commands.silent_s(name, agent.incarnation)
            if agent.process is not None and age < float("inf"):
                yield Sample((agent.spec.pool_name, name), round(age, 3))
            else:
                yield None

    def _plugin_families(self) -> Iterator[Family]:
        rows = self._plugins.status()
        yield c.PLUGIN_CALLS, [Sample((row["name"],), row["calls"]) for row in rows]
        yield c.PLUGIN_FAILURES, [Sample((row["name"],), row["failures"]) for row in rows]
        yield c.PLUGIN_SLOW, [Sample((row["name"],), row["slow_calls"]) for row in rows]
        yield c.PLUGIN_DISABLED, [Sample((row["name"],), bool(row["disabled"])) for row in rows]
