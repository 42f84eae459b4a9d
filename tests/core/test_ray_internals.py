"""What Ray's private interfaces say of a node that has just died; a real Ray is asked elsewhere."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import grpc
import pytest
from ray.core.generated.gcs_pb2 import ActorTableData

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


class OneActor:
    """The access to a table with one actor. ``states``: its states while one question after the other is
    answered; it keeps the last one.
    """

    def __init__(self, states):
        self._states, self._turn = list(states), threading.Lock()

    def get_actor_table(self, _job_id, asked):
        with self._turn:
            state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        entry = ActorTableData(
            state=ActorTableData.ActorState.Value(state), placement_group_id=b"group", actor_id=b"a"
        )
        return [entry.SerializeToString()] if state == asked else []


def lives(*states):
    """All ways in which an actor passes through these states during up to six questions, as a text each."""
    for passed_at in itertools.combinations_with_replacement(range(7), len(states) - 1):
        counts = [end - begin for begin, end in itertools.pairwise((0, *passed_at))]
        earlier = itertools.chain.from_iterable(map(itertools.repeat, states, counts))
        yield " ".join((*earlier, states[-1]))


@pytest.mark.parametrize(
    "life",
    [
        *lives("DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE"),
        *lives("ALIVE", "RESTARTING"),
        *lives("RESTARTING", "ALIVE"),
    ],
)
def test_a_member_is_not_missed_that_passes_to_its_next_state_between_two_questions(
    monkeypatch, life
):
    actor = OneActor(life.split())
    monkeypatch.setattr(ray_internals, "_accessor", lambda: actor)
    assert len(ray_internals.group_members(b"group".hex())) == 1


def test_an_error_of_grpc_is_one_of_the_backend():
    with pytest.raises(BackendError, match="failed to connect"), translated():
        raise grpc.RpcError("failed to connect")


def test_errors_in_the_cluster_are_printed_on_stderr_within_a_command(capsys):
    """Among the data of a command they would be no JSON."""
    worker = ray_internals.ray._private.worker
    message = {"lines": ["A worker died"], "pid": "raylet", "is_err": False}
    with ray_internals.errors_on_stderr():
        worker.print_to_stdstream(dict(message), ignore_prefix=False)
    printed = capsys.readouterr()
    assert (printed.out, "A worker died" in printed.err) == ("", True)
    worker.print_to_stdstream({**message, "lines": ["another one"]}, ignore_prefix=False)
    assert "another one" in capsys.readouterr().out
