"""What a claim on a node lacks, and when it is whole."""

from __future__ import annotations

import pytest

from schedulemesh.engine.admission.claims import gained, is_whole
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.nodes import Allocation
from tests.engine.builders import Mesh, amount, node, on, pool


def noded(*taken, cpu=8, gpu=2):
    """A node on which others hold this: (name, amounts, devices)."""
    cluster = Cluster()
    cluster.see(node("a", cpu=cpu, gpu=gpu))
    for name, held, devices in taken:
        cluster.take("a", name, held, devices)
    return cluster, cluster.nodes["a"]


def grown(cluster, name, need, *, waits):
    """Take what is free, as the engine does."""
    held, devices = gained(cluster.nodes["a"], name, need, waits=waits)
    cluster.take("a", name, held, devices)
    return held, devices


def test_a_new_claim_gains_what_is_free_of_it():
    cluster, found = noded(("x", amount(cpu=6), Devices()))
    assert grown(cluster, "n", amount(cpu=3), waits=True)[0] == amount(cpu=2)
    assert not is_whole(found, "n", amount(cpu=3))
    cluster.leave("a", "x")
    assert grown(cluster, "n", amount(cpu=3), waits=False)[0] == amount(cpu=1)
    assert is_whole(found, "n", amount(cpu=3))


def test_a_whole_claim_gains_nothing_more():
    cluster, found = noded()
    need = amount(cpu=3, gpu=1)
    grown(cluster, "n", need, waits=False)
    assert is_whole(found, "n", need)
    assert grown(cluster, "n", need, waits=False) == (amount(), Devices())


def test_devices_are_taken_once_nobody_is_waited_for():
    cluster, found = noded(("x", amount(), on((0, 1))))
    need = amount(cpu=1, gpu=1)
    assert grown(cluster, "n", need, waits=True) == (amount(cpu=1), Devices())
    assert not is_whole(found, "n", need)
    assert grown(cluster, "n", need, waits=False) == (amount(), on((1, 1)))
    assert is_whole(found, "n", need)


@pytest.mark.parametrize(
    ("held", "devices", "whole"),
    [
        (amount(cpu=2), on((0, 1)), True),
        (amount(cpu=1), on((0, 1)), False),
        (amount(cpu=2), on((0, 0.5)), False),
        (amount(cpu=2), Devices(), False),
    ],
)
def test_a_claim_is_whole_with_all_amounts_and_one_piece_of_device(held, devices, whole):
    _, found = noded()
    found.allocations["n"] = Allocation(held=held, devices=devices)
    assert is_whole(found, "n", amount(cpu=2, gpu=1)) is whole


def test_a_device_that_somebody_else_took_is_not_held():
    cluster, found = noded(("n", amount(), on((0, 1))))
    assert is_whole(found, "n", amount(gpu=1))
    cluster.take("a", "thief", amount(), on((0, 1)))
    assert not is_whole(found, "n", amount(gpu=1))


def test_whoever_needs_nothing_is_whole():
    _, found = noded()
    assert is_whole(found, "nobody", amount())
    assert not is_whole(found, "nobody", amount(cpu=1))


def test_an_incoming_agent_grows_as_its_victims_leave():
    mesh = Mesh(pool("p", cpu=8), nodes=[node("a", cpu=4)])
    for name in ("x", "y"):
        mesh.run(name, priority=0.0, cpu=2)
    mesh.submit("high", priority=9.0, cpu=4)
    mesh.leave("x")
    held = mesh.state.cluster.nodes["a"].allocations["high"].held
    assert held == amount(cpu=2)
    mesh.leave("y")
    mesh.report("high")
