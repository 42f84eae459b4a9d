"""What pools and owners use, as listed, and by which shares they are compared."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.engine.explanation.shares import shares_of
from tests.engine.builders import Mesh, node, pool


def rows_of(mesh):
    return {(row.pool_name, row.owner): row for row in shares_of(mesh.state, mesh.now)}


def test_owners_of_a_fair_pool_have_their_decayed_share():
    spec = msgspec.structs.replace(pool("p", cpu=4), owner_order="fair")
    mesh = Mesh(spec, nodes=[node("n", cpu=4)], usage_half_life_s=100.0)
    mesh.run("a1", cpu=4, owner="ada")
    mesh.queue("b1", cpu=1, owner="ben")
    mesh.now += 100.0
    mesh.complete("a1")
    rows = rows_of(mesh)
    assert list(rows) == [("p", None), ("p", "ben"), ("p", "ada")]
    assert rows["p", "ada"].usage == 0.0
    assert rows["p", "ada"].share == pytest.approx(0.5)
    assert (rows["p", "ben"].share, rows["p", "ben"].running) == (0.25, 1)
    mesh.now += 100.0
    assert rows_of(mesh)["p", "ada"].share == pytest.approx(0.25)


def test_in_other_pools_the_share_is_what_is_held_now():
    mesh = Mesh(pool("p", cpu=4), pool("q", cpu=4), nodes=[node("n", cpu=8)])
    mesh.run("a1", cpu=2, owner="ada")
    mesh.run("agent", "q", cpu=1, task=False)
    mesh.queue("b1", cpu=4, owner="ben")
    rows = rows_of(mesh)
    assert (rows["p", "ada"].share, rows["p", "ben"].queued) == (0.5, 1)
    assert (rows["p", None].usage, rows["p", None].running, rows["p", None].queued) == (0.25, 1, 1)
    assert list(rows) == [("p", None), ("p", "ben"), ("p", "ada"), ("q", None)]


def test_each_member_of_an_array_waits_as_it_counts_for_its_owners_limit():
    mesh = Mesh(pool("p", cpu=2), nodes=[node("n", cpu=2)])
    mesh.queue("a", cpu=1, owner="ada", class_key="c", run="go", limits={"array": "0-9"})
    rows = rows_of(mesh)
    assert (rows["p", "ada"].running, rows["p", "ada"].queued) == (2, 8)
    assert rows["p", None].queued == 8


def test_a_pools_share_is_what_it_has_borrowed_by_its_weight():
    lending = {"cohort": "c", "weight": 2.0}
    mesh = Mesh(
        pool("p", cpu=2, lending=lending),
        pool("q", cpu=2, lending={"cohort": "c"}),
        nodes=[node("n", cpu=4)],
    )
    mesh.run("a", cpu=4, owner="ada")
    rows = rows_of(mesh)
    assert (rows["p", None].share, rows["p", None].weight) == (0.25, 2.0)
    assert rows["p", "ada"].usage == 2.0
    assert rows["q", None].share == 0.0
