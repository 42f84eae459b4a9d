"""A scheduler on a fake backend that commands in processes of their own reach over its HTTP API."""

from __future__ import annotations

from contextlib import contextmanager

from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsurePool
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView
from tests.runtime.composition import InThread
from tests.server.local import Api
from tests.server.work import ask


@contextmanager
def named_by_environment(folder, monkeypatch):
    """Within, the API of a scheduler with a pool of 2 CPUs, which the environment names."""
    service = InThread(folder / "j.sqlite")
    size = parse_resources({"cpu": 2})
    service.backend.free = [NodeView(node_id="node-1", total=size, free=size, labels={})]
    service.do(service.running.monitor.observe())
    ask(service, EnsurePool(name="p", resources=size))
    # No process hears a cancel here, so the end of each task would wait for all of that time.
    ask(service, ChangePolicy(changes={"cancel_timeout": 0.05}, client="test"))
    served = Api(service, folder / "home")
    monkeypatch.setenv("SCHEDULEMESH_HOME", "/nowhere")
    monkeypatch.setenv("SCHEDULEMESH_TOKEN", served.token)
    monkeypatch.setenv("RAY_ADDRESS", served.url)
    yield served
    served.close()
    service.close()
