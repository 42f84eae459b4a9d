"""The checks that every other test ends with must be able to fail."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.state.agents import Starting, Submission
from schedulemesh.engine.state.invariants import BrokenInvariant, check
from tests.engine.builders import Mesh, amount, node, on, pool


def mesh_in_use():
    mesh = Mesh(pool("p", cpu=4, gpu=2), pool("q", cpu=4), nodes=[node("a", cpu=8, gpu=2)])
    mesh.run("x", priority=0.0, cpu=2, gpu=1)
    mesh.run("y", "q", priority=9.0, cpu=4)
    mesh.submit("z", priority=9.0, cpu=4)
    return mesh


def used_too_much(state):
    state.ledger.accounts["p"].used = amount(cpu=1)


def pool_too_small(state):
    account = state.ledger.accounts["p"]
    account.spec = pool("p", cpu=1)


def one_sided_loan(state):
    state.ledger.accounts["q"].lent = amount(cpu=1)


def loan_of_nobody(state):
    state.ledger.loans["p", "q"] = amount(cpu=1)


def stands_without_agent(state):
    state.cluster.take("a", "ghost", amount(cpu=1), on())


def wrong_free(state):
    found = state.cluster.nodes["a"]
    state.cluster._unindex(found)
    found.free = amount(cpu=1)
    state.cluster._reindex(found)


def device_twice(state):
    found = state.cluster.nodes["a"]
    found.allocations["x"].devices = on((0, 1))
    found.allocations["y"].devices = on((0, 1))
    found.allocations["y"].reported = True
    state.cluster._unindex(found)
    state.cluster._recount(found)
    state.cluster._reindex(found)


def index_stale(state):
    state.cluster._index.clear()


def class_without_task(state):
    state.running.by_id["y"].phase = "other"


def waits_for_nobody(state):
    waiting = state.agents["z"].phase
    state.agents["z"].phase = msgspec.structs.replace(waiting, for_agents=frozenset())


def waits_for_an_unknown_agent(state):
    waiting = state.agents["z"].phase
    state.agents["z"].phase = msgspec.structs.replace(waiting, for_agents=frozenset({"y"}))


def claim_not_whole(state):
    agent = state.agents["y"]
    agent.spec = msgspec.structs.replace(agent.spec, resources=amount(cpu=1))


def commit_without_start(state):
    state.agents["y"].phase = Starting(submission=Submission())


def not_in_its_pool(state):
    state.agents_of["q"].clear()


@pytest.mark.parametrize(
    "harm",
    [
        used_too_much,
        pool_too_small,
        one_sided_loan,
        loan_of_nobody,
        stands_without_agent,
        wrong_free,
        device_twice,
        index_stale,
        class_without_task,
        waits_for_nobody,
        waits_for_an_unknown_agent,
        claim_not_whole,
        commit_without_start,
        not_in_its_pool,
    ],
    ids=lambda harm: harm.__name__,
)
def test_each_contradiction_is_found(harm):
    mesh = mesh_in_use()
    check(mesh.state)
    harm(mesh.state)
    with pytest.raises((BrokenInvariant, AssertionError)):
        check(mesh.state)


def test_nothing_at_all_is_in_order():
    mesh = Mesh()
    check(mesh.state)
    assert mesh.state.ledger.accounts == {}


def test_what_is_over_leaves_nothing():
    mesh = mesh_in_use()
    mesh.slot("z")
    for name in ("y", "z"):
        mesh.complete(name)
    assert all(account.used == NOTHING for account in mesh.state.ledger.accounts.values())
    assert mesh.state.cluster.nodes["a"].free == amount(cpu=8, gpu=2)
    assert not any(agent.committed for agent in mesh.state.agents.values())
