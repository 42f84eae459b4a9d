"""An owner gets its quota back from any tasks of the pool that borrows it: these take over the loans."""

import pytest

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.cohort_facts import LoansExchanged
from schedulemesh.engine.state.mesh_state import MeshState
from tests.engine.builders import Mesh, amount, node, pool
from tests.engine.test_service import run

COHORT = {"cohort": "c"}


def loans_of(m):
    return {name for name, agent in m.state.agents.items() if "p" in agent.payers}


@pytest.fixture
def spread():
    """Tasks of 4 GPUs on two nodes, beside tasks of p, hold q's loans; a whole node is on its own quota."""
    nodes = [node(name, gpu=8) for name in "abc"]
    m = Mesh(pool("p", gpu=16, lending=COHORT), pool("q", gpu=8, lending=COHORT), nodes=nodes)
    run(m, "own", "q", gpu=8)
    for name in ("x", "y"):
        run(m, f"p-{name}", "p", gpu=4)
        run(m, f"q-{name}", "q", gpu=4)
    assert m.state.ledger.loans == {("p", "q"): amount(gpu=8)}
    assert loans_of(m) == {"q-x", "q-y"}
    return m


def test_the_task_on_the_whole_node_takes_over_the_loans_and_is_evicted(spread):
    m = spread
    m.queue("whole", "p", gpu=8)
    assert set(m.ends) == {"own"}
    assert loans_of(m) == {"own"}
    assert m.state.ledger.loans == {("p", "q"): amount(gpu=8)}
    started = [fact for fact in m.facts if isinstance(fact, f.EvictionStarted)]
    assert [fact.reason for fact in started] == [PreemptionReason.RECLAIM]
    m.leave("own", saved=True)
    assert m.starts["whole"].node_id == "a"
    assert m.state.ledger.loans == {}
    assert {s.pool_name for s in m.state.agents["whole"].shares} == {"p"}


def test_the_exchange_is_the_same_from_the_facts(spread):
    spread.queue("whole", "p", gpu=8)
    again = MeshState.fold(spread.facts)
    shares = {name: agent.shares for name, agent in spread.state.agents.items()}
    assert {name: agent.shares for name, agent in again.agents.items()} == shares


def test_a_pool_that_uses_more_than_its_quota_itself_takes_no_more(spread):
    m = spread
    m.complete("p-x")
    m.complete("q-x")
    run(m, "p-z", "p", gpu=8)
    before = len(m.facts)
    m.queue("whole", "p", gpu=8)
    assert not any(isinstance(fact, LoansExchanged) for fact in m.facts[before:])
    assert m.ends == {}


def test_tasks_of_a_protected_pool_stay(spread):
    spread.policy(protected_pools=("q",))
    spread.queue("whole", "p", gpu=8)
    assert spread.ends == {}


def test_what_would_lose_its_work_keeps_the_quota_of_its_pool():
    nodes = [node(name, gpu=8) for name in "abc"]
    m = Mesh(pool("p", gpu=16, lending=COHORT), pool("q", gpu=8, lending=COHORT), nodes=nodes)
    run(m, "own", "q", gpu=8, savable=False)
    for name in ("x", "y"):
        run(m, f"p-{name}", "p", gpu=4)
        run(m, f"q-{name}", "q", gpu=4)
    m.queue("whole", "p", gpu=8)
    assert m.ends == {}


def test_no_more_is_taken_than_the_pool_uses_beyond_its_quota():
    nodes = [node(name, gpu=8) for name in "abc"]
    m = Mesh(pool("p", gpu=16, lending=COHORT), pool("q", gpu=12, lending=COHORT), nodes=nodes)
    run(m, "own", "q", gpu=8)
    for name in ("x", "y"):
        run(m, f"p-{name}", "p", gpu=4)
        run(m, f"q-{name}", "q", gpu=4)
    assert m.state.ledger.loans == {("p", "q"): amount(gpu=4)}
    m.queue("whole", "p", gpu=8)
    assert m.ends == {}


def test_only_the_kinds_that_are_exchanged_have_to_be_within_the_own_quota():
    """p and q own GPUs and take their CPUs from r, which has enough of them idle."""
    nodes = [node(name, gpu=8, cpu=32) for name in "abc"]
    pools = [pool("p", gpu=16, lending=COHORT), pool("q", gpu=8, lending=COHORT)]
    m = Mesh(*pools, pool("r", cpu=96, lending=COHORT), nodes=nodes)
    run(m, "own", "q", gpu=8, cpu=8)
    for name in ("x", "y"):
        run(m, f"p-{name}", "p", gpu=4, cpu=4)
        run(m, f"q-{name}", "q", gpu=4, cpu=4)
    m.queue("whole", "p", gpu=8, cpu=8)
    assert set(m.ends) == {"own"}
    m.leave("own", saved=True)
    shares = {s.pool_name: s.amount for s in m.state.agents["whole"].shares}
    assert shares == {"p": amount(gpu=8), "r": amount(cpu=8)}
    for _ in range(5):
        m.tick(60)
    assert m.ends == {}
    assert m.state.past.preemption_counts == {"reclaim": 1}
