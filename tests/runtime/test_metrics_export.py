"""What the cluster's exporter gets."""

from __future__ import annotations

import asyncio

from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.metrics import catalogue as c
from schedulemesh.protocol import requests as r
from schedulemesh.protocol.answers import Details, decode_answer
from schedulemesh.protocol.metric_requests import GetMetrics
from schedulemesh.runtime.metrics_export import EXPORTED, export
from tests.metrics.metered import parsed
from tests.runtime.composition import supervisor
from tests.runtime.fake_backend import FakeBackend


def with_supervisor(tmp_path, story):
    """The result of a story about a supervisor with one pool."""

    async def whole():
        backend = FakeBackend()
        service = supervisor(backend, tmp_path / "mesh.sqlite")
        spec = PoolSpec(name="池", resources=parse_resources({"cpu": 4}))
        await service.ask(r.encode_request(r.CreatePool(spec=spec)))
        running = (await service.ready()).running
        try:
            return await story(backend, service, running)
        finally:
            running.executor.stop_all()
            await running.reactor.close(destroy=False)

    return asyncio.run(asyncio.wait_for(whole(), 30.0))


def test_pools_are_exported_and_each_observation_once(tmp_path):
    async def story(backend, service, running):
        await export(running)
        assert (c.POOL_QUOTA.name, ("池", "cpu"), 4.0) in backend.exported
        assert {name for name, *_ in backend.exported} <= {metric.name for metric in EXPORTED}
        running.recorder._schedule_ms.observe(("池",), 12.5)
        observed = []
        for _ in range(2):
            backend.exported.clear()
            await export(running)
            observed += [entry for entry in backend.exported if entry[0] == c.SCHEDULE_MS.name]
        assert observed == [(c.SCHEDULE_MS.name, ("池",), 12.5)]

    with_supervisor(tmp_path, story)


def test_every_metric_of_the_catalogue_is_written(tmp_path):
    """Of those without values there is at least the family, which the text leaves out."""

    async def story(backend, service, running):
        requests = await service.ready()
        metrics = requests._metrics
        families = metrics.families(running.reactor.state, per_agent=True)
        found = [metric.name for metric, _ in families]
        assert sorted(found) == sorted(c.CATALOGUE)
        data = await service.ask(r.encode_request(GetMetrics()))
        text = decode_answer(data, Details).facts["text"]
        values = parsed(text)
        assert values["schedulemesh_pool_quota", "池", "cpu"] == 4
        assert values[("schedulemesh_journal_writable",)] == 1
        assert values[("schedulemesh_decision_seconds_count",)] > 0
        assert values[("schedulemesh_journal_write_seconds_count",)] > 0
        assert values[("schedulemesh_supervisor_epoch",)] == running.reactor.epoch

    with_supervisor(tmp_path, story)
