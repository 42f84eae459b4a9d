"""Rankings of nodes: kept and brought up to date, they are what a ranking made afresh is."""

from __future__ import annotations

import random

import pytest

from schedulemesh.domain.placement import GroupShape
from schedulemesh.engine.placement.strategies import NODE_STRATEGIES
from schedulemesh.engine.state import node_ranking as ranking
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.devices import devices_for
from tests.engine.builders import amount, node, shape

NEEDS = [amount(cpu=1), amount(cpu=2, gpu=0.5), amount(gpu=1), amount(cpu=1, gpu=2)]


def fresh_order(book, need, strategy):
    """The order over a book that holds the same and has never been asked."""
    other = Cluster()
    other._rankings = ranking.Rankings(other.nodes, book.workload)
    for found in book.nodes.values():
        other.adopt(found)
    return [found.node_id for found in other.with_room(GroupShape(bundles=(need,)), strategy)]


@pytest.mark.parametrize("strategy", NODE_STRATEGIES)
@pytest.mark.parametrize("kept", [1, 256])
def test_what_is_kept_is_what_would_be_made_afresh(strategy, kept, monkeypatch):
    monkeypatch.setattr(ranking, "KEPT", kept)
    dice = random.Random(5)
    book = Cluster()
    for i in range(12):
        book.see(node(f"n{i}", cpu=dice.randrange(1, 9), gpu=dice.randrange(0, 5)))
    for turn in range(300):
        need = dice.choice(NEEDS)
        act = dice.random()
        node_id = dice.choice(sorted(book.nodes))
        if act < 0.4:
            found = book.choose(GroupShape(bundles=(need,)), strategy)
            if found is not None:
                devices = devices_for(found.devices, need.gpu)
                held = amount(cpu=need.public().get("cpu", 0.0))
                book.take(found.node_id, f"agent-{turn}", held, devices)
                book.workload.note(need)
        elif act < 0.6:
            allocations = sorted(book.nodes[node_id].allocations)
            if allocations:
                book.leave(node_id, dice.choice(allocations))
        elif act < 0.65:
            book.cordon(node_id, not book.nodes[node_id].cordoned)
        elif act < 0.68 and len(book.nodes) > 5:
            book.lose(node_id)
        elif act < 0.72:
            book.see(node(f"n{dice.randrange(15)}", cpu=dice.randrange(1, 12), gpu=4))
        order = [found.node_id for found in book.with_room(GroupShape(bundles=(need,)), strategy)]
        assert sorted(order) == sorted(
            n for n, f in book.nodes.items() if not f.cordoned and has_room(f, need)
        )
        assert order == fresh_order(book, need, strategy)


@pytest.mark.parametrize(
    ("strategy", "expected"), [("best_fit", "tight"), ("dominant_share", "roomy")]
)
def test_the_other_strategies_choose_nodes(strategy, expected):
    book = Cluster()
    book.see(node("roomy", cpu=16))
    book.see(node("tight", cpu=2))
    assert book.choose(shape({"cpu": 1}), strategy).node_id == expected
