"""Refusals in words."""

from __future__ import annotations

from tests.engine.builders import Mesh, amount, node, on, pool


def test_a_refusal_says_what_is_short_in_quota_by_how_much_and_who_holds_it():
    mesh = Mesh(pool("p", cpu=4, memory=100), pool("q", cpu=9))
    mesh.run("small", cpu=1)
    mesh.run("big", cpu=3, memory=90)
    mesh.run("other", "q", cpu=9)
    refused = mesh.submit("t", cpu=2, memory=20)
    assert refused.short_quota == amount(cpu=2, memory=10)
    assert [h.agent_name for h in refused.holders] == ["big", "small"]


def test_a_refusal_says_what_the_closest_node_lacks_and_who_stands_there():
    mesh = Mesh(pool("p", cpu=99), nodes=[node("a", cpu=4), node("b", cpu=4)])
    mesh.run("on-a", cpu=4, node_id="a")
    mesh.run("on-b", cpu=3, node_id="b")
    refused = mesh.submit("t", cpu=3)
    assert refused.short_node == amount(cpu=2)
    assert [h.agent_name for h in refused.holders] == ["on-b"]


def test_at_most_ten_holders_are_named():
    mesh = Mesh(pool("p", cpu=12))
    for number in range(12):
        mesh.run(f"t{number:02}", cpu=1)
    assert len(mesh.submit("t", cpu=1).holders) == 10


def test_devices_may_be_short_where_no_sum_is():
    mesh = Mesh(pool("p", gpu=9), nodes=[node("a", gpu=2)])
    mesh.run("x", gpu=0.5, devices=on((0, 0.5)))
    mesh.run("y", gpu=0.5, devices=on((1, 0.5)))
    refused = mesh.submit("t", gpu=1)
    assert refused.reason == "preemption_failed"
    assert [h.agent_name for h in refused.holders] == ["y", "x"]


def test_with_every_node_cordoned_nobody_is_blamed():
    mesh = Mesh(pool("p", cpu=9), nodes=[node("a", cpu=4)])
    mesh.cordon("a")
    refused = mesh.submit("t", cpu=1)
    assert (refused.reason, refused.holders) == ("preemption_failed", ())


def test_the_closest_node_is_named_for_what_no_node_could_ever_have():
    mesh = Mesh(pool("p", cpu=99, gpu=9), nodes=[node("a", cpu=8), node("b", cpu=4, gpu=1)])
    refused = mesh.submit("t", cpu=9, gpu=1)
    assert refused.short_node == amount(cpu=5)
    assert "could ever hold cpu 9, gpu 1" in refused.error


def test_without_any_pool_the_refusals_say_so():
    mesh = Mesh()
    assert "none yet" in mesh.submit("t", "p", cpu=1).error
    assert "none yet" in mesh.submit("t", "", cpu=1).error
    assert "none yet" in mesh.cordon("a").error
