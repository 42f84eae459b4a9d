"""Pools that come, shrink, get other names and go, while tasks of all of them wait, run and borrow.

A twin gets the same stories without a rename. Names keep their order, so both decide the same.

HYPOTHESIS_EXAMPLES sets how many stories it tells; 200 where it is not set.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schedulemesh.domain.reasons import Change
from schedulemesh.domain.resources import NOTHING, UNIT
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Pending, Queued, Refused
from tests.engine.builders import Mesh, differences, node, pool

NODES = (node("a", cpu=4, gpu=4), node("b", cpu=4, gpu=4))
LETTERS = "pqrs"
picks = st.integers(0, 999)
sizes = st.sampled_from([0, 1, 2, 4, 8])
letters = st.sampled_from(LETTERS)


class PoolsMachine(RuleBasedStateMachine):
    """Users and operators of a few pools, beside a twin whose pools keep their names."""

    def __init__(self):
        super().__init__()
        self.mesh, self.twin = Mesh(nodes=NODES), Mesh(nodes=NODES)
        #: The present name of the pool of each letter.
        self.names = {letter: letter for letter in LETTERS}
        self.count = 0

    @initialize(quota=st.lists(sizes, min_size=4, max_size=4), unsavable=st.booleans())
    def begin(self, quota, unsavable):
        for letter, gpus in zip(LETTERS, quota, strict=True):
            self.define(letter, gpus, "all")
        for mesh in (self.mesh, self.twin):
            mesh.policy(reclaim_unsavable=unsavable)

    def both(self, act):
        """Do the same to both, and give both outcomes."""
        assert self.mesh.now == self.twin.now
        outcome = act(self.mesh, self.names.__getitem__)
        other = act(self.twin, str)
        assert type(outcome) is type(other)
        return outcome

    @property
    def state(self):
        return self.mesh.state

    # -- operators ------------------------------------------------------------------------------------

    @rule(letter=letters, gpus=sizes, cohort=st.sampled_from(["all", "all", None]))
    def define(self, letter, gpus, cohort):
        lending = {"cohort": cohort, "lending_limit": {"gpu": 3}}

        def act(mesh, name):
            spec = pool(name(letter), cpu=4, gpu=gpus, lending=lending)
            return mesh.resize(spec, must_last=gpus == 8)

        ends, exists = self.ends(letter), self.names[letter] in self.state.ledger.accounts
        outcome = self.both(act)
        assert isinstance(outcome, Refused) == (ends and gpus == 8)
        if not exists:
            assert outcome.change is Change.CREATED

    @rule(letter=letters)
    def rename(self, letter):
        self.count += 1
        new_name = f"{letter}{self.count}"
        outcome = self.mesh.rename_pool(self.names[letter], new_name)
        self.both(lambda mesh, _: mesh.tick(0.0))
        if not isinstance(outcome, Refused):
            self.names[letter] = new_name

    @precondition(lambda self: len(self.state.ledger.accounts) > 2)
    @rule(letter=letters, drain=st.booleans(), deadline=st.sampled_from([None, 60.0]))
    def delete(self, letter, drain, deadline):
        def act(mesh, name):
            return mesh.delete_pool(
                name(letter), drain=drain, deadline_s=deadline if drain else None
            )

        outcome = self.both(act)
        if isinstance(outcome, Refused):
            assert outcome.reason in ("pool_not_found", "pool_in_use")
            assert outcome.reason == "pool_not_found" or not drain

    @rule(letter=letters, drained=st.booleans())
    def drain(self, letter, drained):
        self.both(
            lambda mesh, name: (
                mesh.handle(
                    s.DrainRequested(pool_name=name(letter), drained=drained, client="me")
                ).outcome
            )
        )

    # -- users ----------------------------------------------------------------------------------------

    @rule(
        letter=letters,
        gpus=st.sampled_from([0, 1, 1, 2, 3]),
        priority=st.sampled_from([0.0, 5.0, 9.0]),
        queue=st.sampled_from([True, True, False]),
        returns=st.sampled_from(["", "requeue"]),
        duration=st.sampled_from([None, 30.0]),
    )
    def submit(self, letter, gpus, priority, queue, returns, duration):
        self.count += 1
        task_id = f"t{self.count}"
        outcome = self.both(
            lambda mesh, name: mesh.submit(
                task_id,
                name(letter),
                priority,
                cpu=1,
                gpu=gpus,
                class_key="c",
                on_preempted=returns,
                duration=duration,
                more={"queue": queue},
            )
        )
        if isinstance(outcome, Pending | Queued):
            assert not self.ends(letter)
        for mesh in (self.mesh, self.twin):
            for probe in list(mesh.probes.values()):
                mesh.handle(s.ClassProbed(class_key=probe.class_key))

    @precondition(lambda self: self.mesh.starts)
    @rule(which=picks)
    def report(self, which):
        name = sorted(self.mesh.starts)[which % len(self.mesh.starts)]
        self.both(lambda mesh, _: mesh.report(name))

    @precondition(lambda self: self.mesh.ends)
    @rule(which=picks, saved=st.booleans())
    def leave(self, which, saved):
        name = sorted(self.mesh.ends)[which % len(self.mesh.ends)]

        def act(mesh, _):
            mesh.starts.pop(name, None)
            return mesh.leave(name, saved=saved and hasattr(mesh.ends[name], "task_ids"))

        self.both(act)

    @precondition(lambda self: self.state.running.by_id)
    @rule(which=picks)
    def complete(self, which):
        task_ids = sorted(self.state.running.by_id)
        task_id = task_ids[which % len(task_ids)]
        self.both(
            lambda mesh, _: mesh.handle(s.TaskFinished(task_id=task_id, end_agent=True)).outcome
        )

    @precondition(lambda self: self.state.running.by_id)
    @rule(which=picks, letter=letters)
    def preempt_for(self, which, letter):
        task_ids = sorted(self.state.running.by_id)
        task_id = task_ids[which % len(task_ids)]
        self.both(
            lambda mesh, name: mesh.preempt(task_id=task_id, end_agent=True, for_pool=name(letter))
        )

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 70.0]))
    def tick(self, seconds):
        self.both(lambda mesh, _: mesh.tick(seconds))

    # -- what always holds ----------------------------------------------------------------------------

    def ends(self, letter):
        return self.names[letter] in self.state.drains.ending

    @invariant()
    def the_twin_decides_the_same(self):
        for field in ("starts", "ends"):
            assert sorted(getattr(self.mesh, field)) == sorted(getattr(self.twin, field))
        for name, agent in self.state.agents.items():
            other = self.twin.state.agents[name]
            assert (type(agent.phase), agent.node_id) == (type(other.phase), other.node_id)
            assert [share.amount for share in agent.shares] == [
                share.amount for share in other.shares
            ]
        accounts, others = self.state.ledger.accounts, self.twin.state.ledger.accounts
        assert {self.names[letter] for letter in others} == set(accounts)
        for letter, account in others.items():
            assert accounts[self.names[letter]].used == account.used
            assert self.mesh.waiting(self.names[letter]) == self.twin.waiting(letter)

    @invariant()
    def a_pool_above_its_quota_has_not_grown(self):
        held = {
            letter: account.reserved + account.used
            for letter, account in self.twin.state.ledger.accounts.items()
        }
        before, self.held = getattr(self, "held", {}), held
        for letter, in_use in held.items():
            above = in_use.beyond(self.twin.state.ledger.accounts[letter].spec.resources)
            grown = in_use.beyond(before.get(letter, NOTHING))
            assert not above.gpu or grown.gpu < UNIT, letter

    @invariant()
    def nothing_waits_in_a_pool_that_is_being_deleted(self):
        for name in self.state.drains.ending:
            assert self.mesh.waiting(name) == []

    def teardown(self):
        if not self.names or not self.state.ledger.accounts:
            return
        for stored in (self.mesh.refolded(), self.mesh.rewritten()):
            assert differences(self.state, stored) == []
        for letter in LETTERS:
            self.mesh.delete_pool(self.names[letter], drain=True)
        for _ in range(60):
            if not self.state.ledger.accounts:
                break
            for name in sorted(self.mesh.starts):
                self.mesh.report(name)
            for name in sorted(self.mesh.ends):
                self.mesh.leave(name)
            self.mesh.tick(1.0)
        assert self.state.ledger.accounts == {}
        assert self.state.agents == {}
        assert self.state.queue.by_id == {}
        assert self.state.drains.pools == {}


TestPools = PoolsMachine.TestCase
TestPools.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "200")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
