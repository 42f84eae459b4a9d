"""The state machine of a cluster whose pools lend and reclaim: with gangs, tasks that run by themselves,
limits on evictions, holds, drains and restarts.

What is idle, what may be lent, and whose eviction would be enough is worked out anew from the accounts, loans
and agents (``LoanWalk``), not by the engine's search.

HYPOTHESIS_EXAMPLES sets how many examples are run; 60 where it is not set.
"""

from __future__ import annotations

import os
from itertools import combinations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from schedulemesh.config.policy import VICTIM_ORDERS
from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload
from schedulemesh.domain.pool import QUEUEING
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Pending, ProbeNeeded, Queued, Refused
from schedulemesh.engine.state.agents import Running, Starting, Waiting
from tests.engine import walk
from tests.engine.builders import as_submitted, differences, node, pool
from tests.engine.loan_walk import LoanWalk, within
from tests.engine.test_machine import pick, picks
from tests.engine.test_queue_machine import QueueMesh

POOLS = ("p", "q", "r")
COHORTS = ("left", "right", "root")
NODES = {"a": {"cpu": 4, "gpu": 2}, "b": {"cpu": 4}, "c": {"cpu": 2, "gpu": 1}}
NAMES = tuple(f"t{number}" for number in range(12))
NEEDS = ({"cpu": 1}, {"cpu": 1}, {"cpu": 2}, {"cpu": 3}, {"cpu": 1, "gpu": 1}, {"gpu": 0.5}, {})
LABELS = ({}, {}, {"tier": "gold"}, {"tier": "iron"})
RULES = {"tier": {"gold": ["iron"]}}
LIMITS = (None, None, None, 0, {"cpu": 1}, {"cpu": 3, "gpu": 1})

jobs = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "where": st.sampled_from(POOLS),
        "priority": st.sampled_from([0.0, 1.0, 5.0, 9.0, 20.0]),
        "need": st.sampled_from(NEEDS),
        "labels": st.sampled_from(LABELS),
        "duration": st.sampled_from([None, 5.0, 60.0]),
        "members": st.sampled_from([1, 1, 1, 1, 2, 3]),
        "elastic": st.booleans(),
        "on_preempted": st.sampled_from(["", "requeue", "requeue", "drop"]),
        "most": st.sampled_from([None, None, None, 0, 1]),
        "run": st.sampled_from(["", "train", "train"]),
        "class_key": st.sampled_from(["loaded", "loaded", "c1", "c2"]),
        "retries": st.sampled_from([0, 1]),
    }
)
lending = st.fixed_dictionaries(
    {
        "cohort": st.sampled_from([None, *COHORTS, *COHORTS]),
        "lending_limit": st.sampled_from(LIMITS),
        "borrowing_limit": st.sampled_from(LIMITS),
        "weight": st.sampled_from([1.0, 3.0]),
    }
)
kinds = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from([0.5, 2, 4, 12]),
        "gpu": st.sampled_from([0, 1, 2]),
        "lending": lending,
        "queueing": st.sampled_from(["best_effort", *QUEUEING]),
        "on_preempted": st.sampled_from(["drop", "requeue"]),
    }
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "cross_pool_priority_threshold": st.sampled_from([0.5, 5.0]),
        "enable_cross_pool_preemption": st.booleans(),
        "label_preemption_rules": st.just(RULES),
        "label_dominance_protects": st.booleans(),
        "protected_pools": st.sampled_from([(), ("q",)]),
        "victim_order": st.sampled_from(VICTIM_ORDERS),
        "min_runtime": st.sampled_from([0.0, 10.0]),
        "max_preemptions": st.sampled_from([1, 2, 5]),
        "preemption_cooldown": st.sampled_from([0.0, 15.0]),
        "lost_work_budget": st.sampled_from([0.0, 30.0]),
        "usage_half_life_s": st.sampled_from([0.0, 60.0, 86400.0]),
    },
)


class LendingMesh(QueueMesh):
    """A mesh that checks each step: no limit on loans is exceeded, and only rules that apply evict."""

    ENDS = (*QueueMesh.ENDS, s.RunEnded)

    def handle(self, stimulus):
        lent = {name: (a.lent, a.borrowed) for name, a in self.state.ledger.accounts.items()}
        attempts = {t: task.attempts.preemptions for t, task in self.state.running.by_id.items()}
        lasts = dict(self.state.evictions.last_for)
        left = {
            name: max(0.0, self.state.policy.lost_work_budget - self.lost_in(name))
            for name in self.state.ledger.accounts
        }
        step = super().handle(stimulus)
        for name, account in self.state.ledger.accounts.items():
            before = lent.get(name, (NOTHING, NOTHING))
            self.iswithin(account.spec.lending_limit, before[0], account.lent)
            self.iswithin(account.spec.borrowing_limit, before[1], account.borrowed)
        evictions = [
            fact
            for fact in step.facts
            if isinstance(fact, f.EvictionStarted) and fact.for_agent is not None
        ]
        for fact in evictions:
            self.may_be_evicted(fact, attempts[fact.task_id])
        self.are_after_cooldown(evictions, lasts)
        self.are_within_budget(evictions, left)
        return step

    def are_after_cooldown(self, evictions, lasts):
        """Between evictions for two tasks of a pool passes the cooldown, unless the second is a reclaim."""
        since = {}
        for fact in evictions:
            pool_name = self.state.agents[fact.for_agent].spec.pool_name
            since.setdefault(fact.for_agent, lasts.get(pool_name, float("-inf")))
            lasts[pool_name] = self.now
            if fact.reason is not PreemptionReason.RECLAIM:
                cooldown = self.state.policy.preemption_cooldown
                assert self.now - since[fact.for_agent] >= cooldown, fact

    def are_within_budget(self, evictions, left):
        """Evictions that are no reclaims lose no more work of a pool than its budget leaves."""
        for fact in evictions:
            if self.state.policy.lost_work_budget and fact.reason is not PreemptionReason.RECLAIM:
                record = self.state.evictions.of_task(fact.task_id)
                left[record.task.pool_name] -= record.lost_gpu_s
        assert all(gpu_s >= -1e-6 for gpu_s in left.values()), left

    def lost_in(self, pool_name):
        """GPU-seconds of work lost by evictions from a pool within an hour."""
        return self.state.evictions.lost_work_in(pool_name, self.now)

    def iswithin(self, limit, before, after):
        """No loan is made beyond the limit; one that exists may be."""
        grown = [kind for kind, units in after.items() if units > dict(before.items()).get(kind, 0)]
        for kind in grown:
            units = dict(after.items())[kind]
            assert within(limit, kind, units, NOTHING) == units, (limit, kind, after)

    def may_be_evicted(self, fact, preemptions):
        """Only owners evict what was evicted as often as it may be, and during a cooldown."""
        state = self.state
        if fact.reason is PreemptionReason.RECLAIM:
            return
        task = state.running.by_id[fact.task_id]
        most = task.spec.max_preemptions
        assert preemptions < (state.policy.max_preemptions if most is None else most)
        assert self.now >= task.started_at + state.policy.min_runtime

    def is_explained(self, task_id, task, stimulus, step):
        """As everywhere; extra members end with their gangs, and what is deleted is not started again."""
        if task.spec.extra_of:
            core = self.state.agents.get(task.spec.extra_of)
            asked = isinstance(stimulus, self.ENDS)
            is_over = not self.state.running.on_agent(task.spec.extra_of)
            assert asked or is_over or core is None or not isinstance(core.phase, Running)
        elif getattr(task, "agent_name", "") not in self.deleted:
            super().is_explained(task_id, task, stimulus, step)

    def returns(self, task):
        phase = task.phase
        if getattr(phase, "reason", None) is PreemptionReason.DRAINED:
            agent, _ = self.admitted.get(task.spec.task_id, (None, False))
            mine = agent is not None and agent.name == task.agent_name
            return mine and bool(agent.class_key) and task.spec.on_preempted != "drop"
        return super().returns(task)


class LendingMachine(RuleBasedStateMachine):
    """Three pools in cohorts that nest, on three nodes."""

    def __init__(self):
        super().__init__()
        self.mesh = LendingMesh()
        self.up = set(NODES)

    @property
    def state(self):
        return self.mesh.state

    @initialize(
        kinds=st.tuples(kinds, kinds, kinds),
        policy=policies,
        parents=st.tuples(st.sampled_from([None, "root"]), st.sampled_from([None, "root"])),
        strict_limit=st.sampled_from([0.0, 3600.0]),
        known=st.sampled_from([True, True, True, False]),
        crowd=st.lists(jobs, max_size=6),
    )
    def begin(self, kinds, policy, parents, strict_limit, known, crowd):
        self.mesh = LendingMesh(**policy)
        self.kinds = dict(zip(POOLS, kinds, strict=True))
        if known:
            self.observe()
        self.mesh.cohort("root")
        for name, parent in zip(COHORTS, parents, strict=False):
            self.mesh.cohort(name, parent)
        for name in POOLS:
            self.define(name)
        order = QueuePolicy(
            backfill_limit_s=strict_limit,
            waiting_weight=2.0 if known else 0.0,
            waiting_weight_s=60.0,
        )
        self.mesh.handle(s.QueuePolicyChangeRequested(policy=order, client="me", changes=("x",)))
        self.mesh.handle(s.ClassProbed(class_key="loaded"))
        for job in crowd:
            self.join(job)
            self.carry_out()

    def define(self, name):
        kind = self.kinds[name]
        spec = pool(
            name, cpu=kind["cpu"], gpu=kind["gpu"], memory=100, lending=dict(kind["lending"])
        )
        kept = {"queueing": kind["queueing"], "on_preempted": kind["on_preempted"]}
        return self.mesh.resize(msgspec.structs.replace(spec, **kept))

    def observe(self):
        self.mesh.observe(*(node(n, **NODES[n]) for n in sorted(self.up)))

    # -- users ------------------------------------------------------------------------------------

    def stimulus(self, job, **more):
        many = job["members"] > 1 and bool(job["need"])
        replicas = job["members"] + 1 if job["elastic"] and many else 0
        payload = GangPayload(replicas=replicas) if many else SINGLE_PROCESS
        stimulus = self.mesh.submission(
            job["name"],
            job["where"],
            job["priority"],
            labels=job["labels"],
            duration=job["duration"],
            on_preempted=job["on_preempted"],
            class_key=job["class_key"],
            run=job["run"],
            retries=job["retries"],
            bundles=[job["need"]] * job["members"] if many else (),
            payload=payload,
            more=more,
            **({} if many else job["need"]),
        )
        task = msgspec.structs.replace(stimulus.task, max_preemptions=job["most"])
        return msgspec.structs.replace(stimulus, task=task)

    def join(self, job):
        outcome = self.mesh.handle(self.stimulus(job, queue=True)).outcome
        assert isinstance(outcome, Queued | Refused)
        if isinstance(outcome, Queued):
            assert (outcome.position > 0) is (job["name"] in self.state.queue.by_id)

    @rule(job=jobs)
    def queue(self, job):
        self.join(job)

    @rule(job=jobs)
    def submit(self, job):
        """A dry run, which is compared with the walk, and then the same in earnest."""
        stimulus = self.stimulus(job)
        seen = len(self.mesh.facts)
        dry = self.mesh.handle(msgspec.structs.replace(stimulus, dry_run=True)).outcome
        assert len(self.mesh.facts) == seen
        if not isinstance(stimulus.agent.payload, GangPayload):
            self.is_right(stimulus, dry)
        outcome = self.mesh.handle(stimulus).outcome
        if isinstance(outcome, ProbeNeeded):
            assert dry.preempted
            self.mesh.handle(s.ClassProbed(class_key=outcome.class_key))
            return
        if isinstance(outcome, Refused):
            assert as_submitted(dry) == outcome
            return
        assert isinstance(outcome, Pending)
        assert self.state.agents[job["name"]].submission.evicting == dry.preempted

    @rule(
        crowd=jobs,
        need=st.sampled_from([{"cpu": 1}, {"cpu": 1, "gpu": 1}, {"gpu": 0.5}]),
        where=st.lists(st.sampled_from(POOLS), min_size=1, max_size=2),
        job=jobs,
        more=jobs,
        seconds=st.sampled_from([0.0, 5.0, 20.0]),
    )
    def contend(self, crowd, need, where, job, more, seconds):
        """Running tasks fill the cluster, or their pools, before two tasks of higher priorities come."""
        known = {"members": 1, "run": "", "class_key": "loaded"}
        low = {**known, "need": need, "priority": min(crowd["priority"], 1.0)}
        for number, name in enumerate(NAMES[2:]):
            self.join({**crowd, **low, "name": name, "where": where[number % len(where)]})
        self.carry_out()
        self.mesh.tick(seconds)
        for name, each in zip(NAMES, (job, more), strict=False):
            self.delete(name)
            self.carry_out()
            self.submit({**each, **known, "name": name, "priority": 20.0})

    def starts_with_loans(self):
        """Whether a borrower does not run yet: its start may be cancelled, and that is no eviction."""
        return any(
            isinstance(agent.phase, (Waiting, Starting))
            and any(s.pool_name != agent.spec.pool_name for s in (*agent.shares, *agent.promised))
            for agent in self.state.agents.values()
        )

    def is_extra(self, task_id):
        """Whether a task is an extra member of an elastic gang: those go first, by whatever means."""
        return bool(self.state.running.by_id[task_id].spec.extra_of)

    def is_right(self, stimulus, outcome):
        """Idle quota before evictions; no victim too many; an owner is not refused what it may reclaim."""
        loans = LoanWalk(self.state, stimulus.agent.pool_name, stimulus.agent.resources)
        borrowers = loans.gives_back(stimulus.task.labels)
        near = self.state.ledger.cohorts.neighbours(loans.pool_name).names
        if isinstance(outcome, Refused):
            if outcome.reason == "preemption_failed":
                assert not loans.fits()
                assert not (near and loans.is_enough(borrowers))
            return
        assert isinstance(outcome, Accepted)
        assert not outcome.preempted or not loans.fits()
        waits = self.state.leaving or self.starts_with_loans()
        assert outcome.preempted or loans.fits() or waits, "it waits for nothing"
        chosen = {victim.agent_name for victim in outcome.preempted}
        if {victim.reason for victim in outcome.preempted} == {PreemptionReason.RECLAIM}:
            if not (chosen <= set(borrowers) and loans.is_enough(chosen, loans.lacking())):
                # Others of the borrowing pools, which take over loans before they are evicted.
                assert near
                assert not loans.is_enough(borrowers), "borrowers would have been enough"
                assert loans.may_exchange(chosen)
                assert loans.has_room(chosen)
                return
            assert not any(loans.is_enough(chosen - {one}) for one in chosen)
            assert len(chosen) == 1 or not any(loans.is_enough({one}) for one in borrowers)
        elif chosen:
            extras = all(self.is_extra(victim.task_id) for victim in outcome.preempted)
            reclaimable = near and loans.is_enough(borrowers)
            assert extras or not reclaimable, "its owner could have reclaimed"
            reclaims = PreemptionReason.RECLAIM in {victim.reason for victim in outcome.preempted}
            enough = loans.is_enough if reclaims else loans.is_surely_enough
            assert not any(enough(chosen - {one}) for one in chosen), "a victim too many"

    @precondition(lambda self: self.state.queue.by_id)
    @rule(
        which=picks,
        how=st.sampled_from(
            [{"held": True}, {"held": False}, {"to_front": True}, {"priority": 9.0}]
        ),
    )
    def change_queued(self, which, how):
        self.mesh.change(pick(self.state.queue.by_id, which), **how)

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name):
        self.mesh.cancel(name)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name):
        self.mesh.delete(name)

    @precondition(lambda self: self.state.running.by_id)
    @rule(which=picks, end_agent=st.booleans())
    def finish(self, which, end_agent):
        task_id = pick(self.state.running.by_id, which)
        self.mesh.handle(s.TaskFinished(task_id=task_id, end_agent=end_agent))

    # -- the executor ---------------------------------------------------------------------------------

    @rule()
    def carry_out(self):
        """All that was ordered comes about, and what follows from it."""
        mesh = self.mesh
        while mesh.starts or mesh.ends or mesh.makes or mesh.removes:
            for name in sorted(mesh.ends):
                self.leave(name, saved=True)
            for group_id in sorted(mesh.removes):
                mesh.remove(group_id)
            mesh.make_all()
            for name in sorted(mesh.starts):
                if name in mesh.starts:
                    mesh.report(name)

    @precondition(lambda self: self.mesh.starts)
    @rule(which=picks, fails=st.sampled_from([False, False, True]))
    def start(self, which, fails):
        name = pick(self.mesh.starts, which)
        if fails:
            self.mesh.fail(name)
        else:
            self.mesh.report(name)

    @precondition(lambda self: self.mesh.ends)
    @rule(which=picks, saved=st.booleans())
    def end(self, which, saved):
        self.leave(pick(self.mesh.ends, which), saved=saved)

    def leave(self, name, *, saved):
        self.mesh.starts.pop(name, None)
        self.mesh.leave(name, saved=saved)

    @rule()
    def load_classes(self):
        """The classes that were to be loaded have been."""
        for task_id in sorted(self.mesh.probes):
            self.mesh.handle(s.ClassProbed(class_key=self.mesh.probes.pop(task_id).class_key))

    @precondition(lambda self: self.mesh.makes)
    @rule(which=picks, fails=st.sampled_from([False, False, True]))
    def make(self, which, fails):
        group_id = pick(self.mesh.makes, which)
        (self.mesh.unmake if fails else self.mesh.make)(group_id)

    @precondition(lambda self: self.mesh.runs)
    @rule(which=picks, raises=st.booleans(), cancelled=st.sampled_from([False, False, True]))
    def run_ends(self, which, raises, cancelled):
        reason = TaskEndReason.RUN_RAISED if raises else None
        self.mesh.run_ends(pick(self.mesh.runs, which), reason=reason, cancelled=cancelled)

    @precondition(lambda self: self.state.agents)
    @rule(which=picks)
    def lose_agent(self, which):
        name = pick(self.state.agents, which)
        self.mesh.starts.pop(name, None)
        self.mesh.ends.pop(name, None)
        self.mesh.die(name)

    # -- operators, and the clock -----------------------------------------------------------------------

    @rule(name=st.sampled_from(POOLS), kind=kinds)
    def change_pool(self, name, kind):
        before = self.kinds[name]
        self.kinds[name] = kind
        if isinstance(self.define(name), Refused):
            self.kinds[name] = before

    @rule(name=st.sampled_from(COHORTS), parent=st.sampled_from([None, *COHORTS]))
    def change_cohort(self, name, parent):
        self.mesh.cohort(name, parent)

    @rule(policy=policies)
    def change_policy(self, policy):
        self.mesh.policy(**policy)

    @rule(
        what=st.sampled_from(
            [{"node_id": "a"}, {"node_id": "b"}, {"pool_name": "p"}, {"pool_name": "q"}]
        ),
        drained=st.booleans(),
        deadline_s=st.sampled_from([None, 60.0]),
    )
    def drain(self, what, drained, deadline_s):
        self.mesh.handle(s.DrainRequested(drained=drained, deadline_s=deadline_s, **what))

    @rule(node_id=st.sampled_from(sorted(NODES)), up=st.sampled_from([True, True, False]))
    def change_node(self, node_id, up):
        (self.up.add if up else self.up.discard)(node_id)
        self.observe()

    @rule(seconds=st.sampled_from([1.0, 5.0, 30.0, 400.0]))
    def time_passes(self, seconds):
        self.mesh.tick(seconds)

    @rule(snapshot=st.booleans())
    def restart(self, snapshot):
        """The supervisor is killed; the next one goes on with what is stored and what is alive."""
        mesh = self.mesh
        found = mesh.rewritten() if snapshot else mesh.refolded()
        assert differences(self.advanced(mesh.state), self.advanced(found)) == []
        living = frozenset(
            (name, agent.incarnation)
            for name, agent in found.agents.items()
            if agent.committed or name in mesh.ends
        )
        groups = frozenset(g for g in found.groups.by_id if g not in mesh.makes)
        mesh.tell_twin(mesh.rewritten() if snapshot else mesh.refolded())
        mesh.engine = Engine(found, strategies=mesh.engine.strategies)
        mesh.starts, mesh.ends, mesh.probes, mesh.makes = {}, {}, {}, {}
        mesh.removes.clear()
        mesh.handle(s.SupervisorBegan(epoch=found.epoch + 1, gap=100))
        mesh.handle(s.RecoveryObserved(living=living, groups=groups))

    def advanced(self, state):
        state.queue.advance(self.mesh.now)
        return state

    # -- what always holds --------------------------------------------------------------------------

    @rule()
    def serve(self):
        """When everything ordered has come about, nobody waits for quota of its own that is idle or lent, and
        nothing waits that fits, unless it would delay a reserved start.
        """
        for _ in range(3):
            self.mesh.tick()
            self.load_classes()
            self.carry_out()
        if self.mesh.starts or self.mesh.ends:
            return
        self.mesh.tick()
        if self.mesh.ends or self.mesh.starts:
            return
        for name in POOLS:
            if name in self.state.drains.pools:
                continue
            for number, task in enumerate(self.first_ones(name)):
                self.waits_with_reason(task, is_head=number == 0)

    def first_ones(self, pool_name):
        """The first task of each class in a pool; of a strict pool only the first that it can hold."""
        passed = set()
        for task in self.state.queue.of_pool(pool_name):
            if task.queue_class is None or task.queue_class.key in passed:
                continue
            passed.add(task.queue_class.key)
            yield task
            if self.mesh.is_strict(pool_name) and not walk.is_ruled_out(self.state, task):
                return

    def waits_with_reason(self, task, *, is_head):
        if isinstance(task.submission.agent.payload, GangPayload):
            return
        total = self.state.ledger.accounts[task.pool_name].spec.resources
        need = task.submission.agent.resources
        loans = LoanWalk(self.state, task.pool_name, need)
        if loans.fits():
            assert self.state.queue.reserved.keys() - {task.task_id}, f"{task.task_id} fits"
        elif is_head and need.fits(total) and task.submission.may_preempt:
            near = self.state.ledger.cohorts.neighbours(task.pool_name).names
            borrowers = loans.gives_back(task.spec.labels)
            assert not (near and loans.is_enough(borrowers)), f"{task.task_id} owns its quota"

    @invariant()
    def no_half_agent_runs(self):
        """What starts or runs has its whole claim, and what waits in the queue holds nothing."""
        for name, agent in self.state.agents.items():
            if isinstance(agent.phase, Running | Starting):
                assert agent.paid == agent.spec.resources, name
        for task in self.state.queue.by_id.values():
            names = task.submission.agent.process_names
            assert not set(names) & self.state.agents.keys()
        for one, other in combinations(self.state.groups.by_id.values(), 2):
            assert one.agent is None or one.agent != other.agent

    def teardown(self):
        if not self.state.ledger.accounts:
            return
        for stored in (self.mesh.refolded(), self.mesh.rewritten()):
            assert differences(self.advanced(self.state), self.advanced(stored)) == []
        while self.state.queue.by_id or self.state.agents:
            for task_id in list(self.state.queue.by_id):
                self.mesh.cancel(task_id)
            for name in sorted(self.state.agents):
                self.mesh.delete(name)
            self.carry_out()
        for account in self.state.ledger.accounts.values():
            assert (account.reserved, account.used, account.lent, account.borrowed) == (
                NOTHING,
            ) * 4
        assert self.state.ledger.loans == {}


TestLending = LendingMachine.TestCase
TestLending.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
