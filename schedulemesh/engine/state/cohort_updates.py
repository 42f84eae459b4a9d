"""What the facts about cohorts, and about loans in them, change in the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.cohort_facts import (
    CohortDeleted,
    CohortEnsured,
    CohortRenamed,
    LoansExchanged,
)
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.facts import Share
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.quota import Ledger
from schedulemesh.engine.state.tasks import RunningTasks


def all_loans(ledger: Ledger) -> dict[tuple[str, str], Resources]:
    """What is on loan, or promised to agents that wait for it, by owner and borrower."""
    loans = dict(ledger.loans)
    for borrower, shares in ledger.promises.values():
        for share in shares:
            pair = share.pool_name, borrower
            loans[pair] = loans.get(pair, NOTHING) + share.amount
    return loans


def loans_within_trees(ledger: Ledger) -> set[tuple[str, str]]:
    """The pairs of owner and borrower with a loan that are in the same tree of cohorts."""
    cohorts = ledger.cohorts
    return {
        (owner, borrower)
        for owner, borrower in all_loans(ledger)
        if borrower in cohorts.neighbours(owner).names
    }


def note_separated(
    ledger: Ledger, agents: Mapping[str, Agent], before: set[tuple[str, str]]
) -> None:
    """Note which agents hold, or wait for, loans of pools that have left their tree of cohorts; ``before``:
    the loans that were within one.
    """
    separated = before - loans_within_trees(ledger)
    for agent in agents.values() if separated else ():
        pool_name = agent.spec.pool_name
        shares = (*agent.shares, *agent.promised)
        lenders = {s.pool_name for s in shares if (s.pool_name, pool_name) in separated}
        agent.former_lenders = tuple(sorted(lenders.union(agent.former_lenders)))


class CohortFacts:
    """Applies the facts about cohorts to the state."""

    def __init__(
        self,
        ledger: Ledger,
        agents: Mapping[str, Agent],
        running: RunningTasks,
        cluster: Cluster,
    ) -> None:
        self._ledger = ledger
        self._agents = agents
        self._running = running
        self._cluster = cluster

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """By the class of a fact, what applies it."""
        return {
            CohortEnsured: self._ensured,
            CohortDeleted: lambda fact: self._ledger.cohorts.remove(fact.name),
            CohortRenamed: self._renamed,
            LoansExchanged: self._exchanged,
        }

    def _ensured(self, fact: CohortEnsured) -> None:
        before = loans_within_trees(self._ledger)
        self._ledger.ensure_cohort(fact.spec)
        note_separated(self._ledger, self._agents, before)

    def _renamed(self, fact: CohortRenamed) -> None:
        self._ledger.rename_cohort(fact.name, fact.new_name)

    def _exchanged(self, fact: LoansExchanged) -> None:
        """No account changes: what one claim has less of a pool's quota, another has more."""
        for name, amounts in fact.claims:
            agent = self._agents[name]
            agent.shares = tuple(Share(pool_name=pool, amount=amount) for pool, amount in amounts)
            for task_id in self._running.on_agent(name):
                self._running.adopt(task_id, agent.spec, agent.payers)
            self._cluster.touch(agent.node_id)
