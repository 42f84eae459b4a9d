"""What Ray's private interfaces say of a node that has just died; a real Ray is asked elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest

from schedulemesh.core.backend import ray_internals
from schedulemesh.core.backend.ray_errors import translated
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.runtime.backend import BackendError

TWO, FOUR = Resources(cpu=2 * UNIT), Resources(cpu=4 * UNIT)


@pytest.fixture
def nodes(monkeypatch):
    """Ray's nodes; each has 4 CPUs, of which something has 2 that is in none of Ray's tables."""
    listed = [
        {"NodeID": name, "NodeManagerAddress": name, "NodeManagerPort": 1, "Alive": True}
        for name in ("lives", "dead")
    ]

    def stats(address, *_, **_more):
        if address == "dead":
            raise grpc.RpcError("failed to connect to all addresses")
        return SimpleNamespace(core_workers_stats=[])

    monkeypatch.setattr(ray_internals.ray, "nodes", lambda: listed)
    monkeypatch.setattr(ray_internals, "node_stats", stats)
    monkeypatch.setattr(ray_internals, "free_by_node", lambda: {"dead": TWO, "lives": TWO})
    monkeypatch.setattr(ray_internals, "_unallocated", lambda _node_id: FOUR)
    return listed


@pytest.mark.parametrize("how", ["does not answer", "is marked as dead", "is gone"])
def test_a_node_that_has_just_died_says_nothing_of_the_others(nodes, how):
    if how == "is marked as dead":
        nodes[1]["Alive"] = False
    elif how == "is gone":
        del nodes[1]
    assert ray_internals.lost_by_node() == {"lives": TWO}


@pytest.mark.parametrize("gone", [False, True])
def test_an_actor_on_a_node_that_has_just_died_is_not_said_to_wait_for_room(
    nodes, monkeypatch, gone
):
    if gone:
        nodes.clear()
    data = SimpleNamespace(
        address=SimpleNamespace(worker_id=b"", node_id=b"\0"), required_resources={"CPU": 3.0}
    )
    monkeypatch.setattr(ray_internals, "actor_data", lambda _handle: data)
    monkeypatch.setattr(ray_internals, "free_by_node", lambda: {"00": NOTHING})
    monkeypatch.setattr(ray_internals, "queued_requests", dict)
    for node in nodes:
        node["NodeID"], node["NodeManagerAddress"] = "00", "dead"
    assert ray_internals.waits_for_room(object()) is False


def test_an_error_of_grpc_is_one_of_the_backend():
    with pytest.raises(BackendError, match="failed to connect"), translated():
        raise grpc.RpcError("failed to connect")
