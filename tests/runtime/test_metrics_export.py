"""What the cluster's exporter gets."""

from __future__ import annotations

import asyncio
import math
import re

from schedulemesh.api.metrics import GetMetrics
from schedulemesh.api.pools import CreatePool
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.alert_rules import RULES
from schedulemesh.metrics.dashboard import metric_names
from schedulemesh.metrics.values import Sample
from schedulemesh.protocol.answers import Details, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.services.metrics_export import EXPORTED, MetricsExport, _values
from tests.metrics.metered import parsed
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend


def with_supervisor(tmp_path, story):
    """The result of a story about a supervisor with one pool."""

    async def whole():
        backend = FakeBackend()
        service = supervisor(backend, tmp_path / "mesh.sqlite")
        spec = PoolSpec(name="池", resources=parse_resources({"cpu": 4}))
        await service.ask(encode_request(CreatePool(spec=spec)))
        running = (await service.ready()).running
        try:
            return await story(backend, service, running)
        finally:
            running.executor.stop_all()
            await running.reactor.close(destroy=False)

    return asyncio.run(asyncio.wait_for(whole(), 30.0))


def test_pools_are_exported_and_each_observation_once(tmp_path):
    async def story(backend, service, running):
        exporter = MetricsExport(running, (await service.ready()).metric_families)
        await exporter.export()
        assert (c.POOL_QUOTA.name, ("池", "cpu"), 4.0) in backend.exported
        running.recorder._schedule_ms.observe(("池",), 12.5)
        observed = []
        for _ in range(2):
            backend.exported.clear()
            await exporter.export()
            observed += [entry for entry in backend.exported if entry[0] == c.SCHEDULE_MS.name]
        assert observed == [(c.SCHEDULE_MS.name, ("池",), 12.5)]

    with_supervisor(tmp_path, story)


def test_what_rules_and_panels_ask_for_is_exported(tmp_path):
    asked = metric_names().union(
        *(rule.condition.expression.metrics for rule in RULES.values()), {"schedulemesh_orphans"}
    )
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in asked} - {
        "schedulemesh_preemption"
    } <= EXPORTED

    async def story(backend, service, running):
        await MetricsExport(running, (await service.ready()).metric_families).export()
        exported = {name for name, *_ in backend.exported}
        for name in ("pool_quota_reserved", "recent_journal_errors", "orphans", "nodes"):
            assert f"schedulemesh_{name}" in exported
        written = "schedulemesh_decision_seconds"
        bounds = [labels[-1] for name, labels, _ in backend.exported if name == f"{written}_bucket"]
        assert bounds[-1] == "+Inf"
        assert {f"{written}_sum", f"{written}_count"} <= exported

    with_supervisor(tmp_path, story)


def test_a_series_that_has_ended_has_no_value_any_more(tmp_path):
    async def story(backend, service, running):
        families = [[(c.ORPHANS, [Sample(("actor",), 2.0)])], [(c.ORPHANS, [])], [(c.ORPHANS, [])]]
        exporter = MetricsExport(running, lambda: families.pop(0))
        exported = []
        for _ in range(3):
            backend.exported.clear()
            await exporter.export()
            exported.append([v for name, _, v in backend.exported if name == c.ORPHANS.name])
        first, second, third = exported
        assert first == [2.0]
        assert [math.isnan(value) for value in second] == [True]
        assert third == []

    with_supervisor(tmp_path, story)


def test_nodes_are_summed_up_and_only_silent_agents_are_exported():
    nodes = [Sample((node, "gpu"), 8.0) for node in ("a", "b")]
    assert list(_values([(c.NODE_TOTAL, nodes)])) == [(c.NODE_TOTAL, ("all", "gpu"), 16.0)]
    ages = [Sample(("p", f"a{n}"), float(n)) for n in range(1, 400)]
    exported = list(_values([(c.HEARTBEAT, ages)]))
    assert len(exported) == 100
    assert exported[0] == (c.HEARTBEAT, ("p", "a399"), 399.0)
    assert list(_values([(c.HEARTBEAT, ages[:80])])) == []


def test_every_metric_of_the_catalogue_is_written(tmp_path):
    """Of those without values there is at least the family, which the text leaves out."""

    async def story(backend, service, running):
        requests = await service.ready()
        metrics = requests._metrics
        families = metrics.families(running.reactor.state, per_agent=True)
        found = [metric.name for metric, _ in families]
        assert sorted(found) == sorted(c.CATALOGUE)
        data = await service.ask(encode_request(GetMetrics()))
        text = decode_answer(data, Details).facts["text"]
        values = parsed(text)
        assert values["schedulemesh_pool_quota", "池", "cpu"] == 4
        assert values[("schedulemesh_journal_writable",)] == 1
        assert values[("schedulemesh_decision_seconds_count",)] > 0
        assert values[("schedulemesh_journal_write_seconds_count",)] > 0
        assert values[("schedulemesh_supervisor_epoch",)] == running.reactor.epoch

    with_supervisor(tmp_path, story)
