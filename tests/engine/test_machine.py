"""One state machine drives the whole engine and compares it with plain walks after every step.

HYPOTHESIS_EXAMPLES sets how many stories it tells; 500 where it is not set.
"""

from __future__ import annotations

import os

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import Devices
from schedulemesh.engine.messages.instructions import EvictAgent
from schedulemesh.engine.messages.outcomes import Accepted, Pending, ProbeNeeded, Refused
from schedulemesh.engine.state.agents import Waiting
from tests.engine import walk
from tests.engine.builders import Mesh, amount, as_submitted, differences, leaving_for, node, pool

POOLS = ("p", "q", "r")
NODES = {
    "n1": {"cpu": 4, "memory": 400},
    "n2": {"cpu": 4, "memory": 400, "gpu": 2},
    "n3": {"cpu": 8, "memory": 200, "gpu": 1, "custom": {"x": 2}},
}
NEEDS = (
    {"cpu": 1},
    {"cpu": 2},
    {"cpu": 2},
    {"cpu": 4},
    {"cpu": 0.5, "gpu": 0.5},
    {"gpu": 0.4},
    {"gpu": 0.6, "cpu": 1},
    {"gpu": 1},
    {"cpu": 1, "gpu": 2},
    {"cpu": 1, "memory": 200},
    {"memory": 300},
    {"cpu": 1, "custom": {"x": 1}},
    {"cpu": 9},
    {"cpu": 30},
    {},
)
LABELS = (
    {},
    {"tier": "premium"},
    {"tier": "standard"},
    {"tier": "batch"},
    {"tier": "premium", "team": "b"},
    {"tier": "batch", "team": "a"},
    {"team": "a", "job_id": "j7"},
)
RULES = (
    {},
    {"tier": {"premium": ["standard", "batch"], "standard": ["batch"]}},
    {"tier": {"premium": ["batch"]}, "team": {"a": ["b"]}},
)
OTHERS = ({}, {"cpu": 1}, {"cpu": 3}, {"gpu": 0.5}, {"gpu": 1, "cpu": 1})
PRIORITIES = (0.0, 1.0, 1.5, 4.0, 5.0, 9.0, 20.0)
AGENTS = tuple(f"a{number}" for number in range(12))

picks = st.integers(0, 999)
submissions = st.fixed_dictionaries(
    {
        "which": picks,
        "where": st.sampled_from([*POOLS, *POOLS, ""]),
        "priority": st.sampled_from(PRIORITIES),
        "need": st.sampled_from(NEEDS),
        "labels": st.sampled_from(LABELS),
        "duration": st.sampled_from([None, 0.0, 8.0, 40.0]),
        "kind": st.sampled_from(["plain"] * 6 + ["agent", "default", "own place", "no preemption"]),
        "class_key": st.sampled_from(["", "c1", "c2"]),
        "asks": st.booleans(),
    }
)
#: What the cluster is filled with before a story begins: small tasks that may go.
crowds = st.lists(
    st.fixed_dictionaries(
        {
            "which": st.integers(0, 15),
            "where": st.sampled_from(POOLS),
            "priority": st.sampled_from([0.0, 1.0, 1.5, 4.0]),
            "need": st.sampled_from(
                [
                    {"cpu": 1},
                    {"cpu": 2},
                    {"cpu": 1, "memory": 100},
                    {"cpu": 0.5, "gpu": 0.5},
                    {"gpu": 0.4},
                    {"gpu": 1},
                ]
            ),
            "labels": st.sampled_from(LABELS),
            "duration": st.sampled_from([None, 8.0, 40.0]),
            "kind": st.just("plain"),
            "class_key": st.sampled_from(["", "c1"]),
            "asks": st.just(False),
        }
    ),
    min_size=3,
    max_size=10,
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "same_pool_priority_threshold": st.sampled_from([0.5, 1.0, 3.0]),
        "cross_pool_priority_threshold": st.sampled_from([0.5, 1.0, 5.0]),
        "label_priority_threshold": st.sampled_from([0.1, 0.5, 1.5, 2.0]),
        "remaining_time_weight": st.sampled_from([0.0, 0.125, 1.0]),
        "min_preempt_score": st.sampled_from([-20.0, 0.5, 4.0]),
        "enable_cross_pool_preemption": st.booleans(),
        "enable_label_preemption": st.booleans(),
        "label_dominance_protects": st.booleans(),
        "protected_pools": st.sampled_from([(), ("q",)]),
        "label_preemption_rules": st.sampled_from(RULES),
        "min_runtime": st.sampled_from([0.0, 4.0, 25.0]),
        "preemption_cooldown": st.sampled_from([0.0, 6.0]),
    },
)


def pick(options, number):
    """One of the options, whichever the number says."""
    ordered = sorted(options)
    return ordered[number % len(ordered)]


class MeshMachine(RuleBasedStateMachine):
    """The engine with executor, a cluster and users that do anything that could really happen."""

    def __init__(self):
        super().__init__()
        self.mesh = Mesh()
        #: Where living agents really are: (node id, devices). The engine learns it from reports.
        self.lives: dict[str, tuple[str | None, Devices]] = {}
        self.up: set[str] = set()
        self.others: dict[str, Resources] = {}
        self.requests = 0
        self.steps = 0

    @property
    def state(self):
        return self.mesh.state

    @initialize(
        quotas=st.lists(st.sampled_from([2, 4, 8]), min_size=3, max_size=3),
        up=st.sets(st.sampled_from(sorted(NODES)), max_size=3),
        policy=policies,
        strategy=st.sampled_from(["bin_pack", "spread"]),
        crowd=crowds,
    )
    def begin(self, quotas, up, policy, strategy, crowd):
        specs = [
            self.spec(name, quota, index)
            for index, (name, quota) in enumerate(zip(POOLS, quotas, strict=True))
        ]
        self.mesh = Mesh(*specs, strategy=strategy, **policy)
        self.up = set(up)
        if up:
            self.observe()
        for number, given in enumerate(crowd):
            name = self.submit(given)
            if name in self.mesh.starts:
                self.come_up(name, number, number)
            self.mesh.now += given["which"]

    def spec(self, name, cpu, agents=0):
        """A pool with this quota of CPUs."""
        return pool(
            name, labels={"name": name}, agents=agents, cpu=cpu, memory=500, gpu=2, custom={"x": 2}
        )

    def observe(self):
        self.mesh.observe(
            *(node(n, others=self.others.get(n, NOTHING), **NODES[n]) for n in sorted(self.up))
        )

    # -- submissions --------------------------------------------------------------------------------

    @rule(given=submissions, device=picks, where=picks)
    def run(self, given, device, where):
        name = self.submit(given)
        if name in self.mesh.starts:
            self.come_up(name, device, where)

    @rule(given=submissions)
    def evict_and_run(self, given):
        name = self.submit(given)
        waiting = self.state.agents.get(name)
        if waiting is None:
            return
        for victim in leaving_for(waiting):
            self.gone(victim, saved=True)
        if name in self.mesh.starts:
            self.come_up(name, 0, 0)

    @rule(given=submissions)
    def submit_only(self, given):
        self.submit(given)

    def submit(self, given):
        """Submit under a free name, now and then under any; and give the name."""
        which = given["which"]
        queue = self.state.queue
        free = [n for n in AGENTS if n not in self.state.agents and n not in queue.agent_names]
        name = pick(free if free and which % 20 else AGENTS, which)
        self.submit_as(name, **{key: value for key, value in given.items() if key != "which"})
        return name

    def submit_as(self, name, where, priority, need, labels, duration, kind, class_key, asks):
        self.requests += 1
        more = {
            "request_id": f"r{self.requests}" if asks else None,
            "default_resources": kind == "default",
            "choose_node": kind != "own place",
            "may_preempt": kind != "no preemption",
        }
        stimulus = self.mesh.submission(
            name,
            where,
            priority,
            task=kind != "agent",
            labels=labels,
            duration=duration,
            selector=None if where else {"name": ["p", "q"]},
            class_key=class_key,
            more=more,
            **({} if kind == "default" else need),
        )
        dry = self.dry(stimulus)
        seen = len(self.mesh.facts)
        outcome = self.mesh.handle(stimulus).outcome
        if isinstance(outcome, ProbeNeeded):
            assert len(self.mesh.facts) == seen
            assert isinstance(dry, Accepted)
            assert dry.preempted
            self.mesh.handle(s.ClassProbed(class_key=outcome.class_key))
            dry = self.dry(stimulus)
            outcome = self.mesh.handle(stimulus).outcome
        if isinstance(outcome, Refused):
            assert as_submitted(dry) == outcome
        else:
            assert isinstance(outcome, Pending)
            assert isinstance(dry, Accepted)
            agent = self.state.agents[name]
            assert (agent.submission.evicting, agent.node_id) == (dry.preempted, dry.node_id)
            assert isinstance(agent.phase, Waiting) or not dry.preempted
            if isinstance(agent.phase, Waiting) and not dry.preempted:
                assert all(n in self.mesh.ends for n in agent.phase.for_agents)
        if asks:
            assert self.mesh.handle(stimulus).outcome == outcome

    def dry(self, stimulus):
        """The outcome of a dry run, which is as the contract says, and changes nothing."""
        expected = self.expect(stimulus)
        seen = len(self.mesh.facts)
        outcome = self.mesh.handle(msgspec.structs.replace(stimulus, dry_run=True)).outcome
        assert len(self.mesh.facts) == seen
        expected(outcome)
        return outcome

    def expect(self, stimulus):
        """What the contract says of a submission in the present state, as a check of its outcome."""
        state, now = self.state, self.mesh.now
        agent, task = stimulus.agent, stimulus.task
        ids = (*state.running.by_id, *state.queue.by_id)
        taken = agent.name in state.agents or agent.name in state.queue.agent_names
        if taken or (task is not None and task.task_id in ids):
            return lambda outcome: _refused(
                outcome, "duplicate_task", "duplicate_agent", "no_matching_pool"
            )
        pool_name = agent.pool_name
        if not pool_name:
            fitting = [
                name
                for name in ("p", "q")
                if self.need_of(stimulus, name).fits(state.ledger.accounts[name].spec.resources)
            ]
            if not fitting:
                return lambda outcome: _refused(outcome, "no_matching_pool")
            chosen = self.mesh.handle(msgspec.structs.replace(stimulus, dry_run=True)).outcome
            if isinstance(chosen, Refused):
                return lambda outcome: _refused(
                    outcome,
                    "preemption_failed",
                    "insufficient_quota",
                    "cluster_out_of_resources",
                    "held_for_queue",
                )
            pool_name = chosen.pool_name
            assert pool_name in fitting
        need = self.need_of(stimulus, pool_name)
        account = state.ledger.accounts[pool_name]
        if not need.fits(account.spec.resources):
            return lambda outcome: _refused(outcome, "exceeds_pool_capacity")
        anywhere = not stimulus.choose_node or not state.cluster.nodes
        totals = [found.total for found in state.cluster.nodes.values()]
        if not anywhere and not any(need.fits(total) for total in totals):
            return lambda outcome: _refused(outcome, "cluster_out_of_resources")
        group_request = walk.GroupRequest(
            5.0 if task is None else task.priority,
            pool_name,
            agent.labels if task is None else task.labels,
        )
        seats = walk.Seats(state, pool_name, need, anywhere=anywhere)
        if seats.enough(()):
            if self.is_held_back(stimulus, pool_name, seats):
                return lambda outcome: _refused(outcome, "held_for_queue")
            return _nobody_leaves
        found = walk.leavers(state, group_request, now) if stimulus.may_preempt else []
        alone = self.expect_evictions(stimulus, seats, found)
        if not stimulus.may_preempt:
            return alone
        leaving = walk.in_flight(state, group_request)
        with_leaving = walk.Seats(state, pool_name, need, anywhere=anywhere, leaving=leaving)
        entry = state.queue.entry_now(stimulus, now)
        waits = entry is not None and state.queue.any_before(entry)
        if with_leaving.enough(()):
            expected = _nobody_leaves
            if waits and not seats.enough([one.name for one in found]):
                return lambda outcome: _refused(outcome, "preemption_failed")
        else:
            nodes = seats.open_nodes()
            with_leaving.by_node = not anywhere and not any(seats.room(n, ()) for n in nodes)
            expected = self.expect_evictions(stimulus, with_leaving, found)
        # What is leaving may be kept for a task that comes before, also while it waits for its next attempt.
        queued = state.queue.by_id.values()
        before = entry is not None and any(state.queue.entry(task) < entry for task in queued)
        if not before:
            return expected
        beside_starts = _either(alone, self.expect_beside_starts(with_leaving, found))
        return _either(expected, beside_starts)

    def expect_beside_starts(self, seats, found):
        """Nobody is evicted where that would delay a reserved start: others elsewhere, or nobody."""
        reserved = {
            node_id
            for task in self.state.queue.by_id.values()
            if task.reservation is not None
            for node_id in task.reservation.node_ids
        }
        names = {one.name for one in found}

        def check(outcome):
            if isinstance(outcome, Refused):
                _refused(outcome, "held_for_queue")
                return
            chosen = {candidate.agent_name for candidate in outcome.preempted}
            assert chosen
            assert chosen <= names
            assert outcome.node_id not in reserved
            assert seats.enough(chosen, outcome.node_id)

        return check

    def expect_evictions(self, stimulus, seats, found):
        """Victims that make room, or a refusal."""
        if not seats.enough([one.name for one in found]):
            short = bool(seats.short) and not stimulus.may_preempt
            reason = "insufficient_quota" if short else "preemption_failed"
            return lambda outcome: _refused(outcome, reason)
        return self.expect_victims(seats, found)

    def is_held_back(self, stimulus, pool_name, seats):
        """Whether tasks that wait in the queue come before a submission that fits."""
        entry = self.state.queue.entry_now(stimulus, self.mesh.now)
        if entry is None:
            return False
        places = [
            self.state.queue.entry(task)
            for task in self.state.queue.of_pool(pool_name)
            if task.queue_class is not None and not walk.is_ruled_out(self.state, task)
        ]
        strict = self.state.ledger.accounts[pool_name].spec.queueing == "strict"
        if strict and min(places, default=entry) < entry:
            return True
        need = self.need_of(stimulus, pool_name)
        later = walk.Later(pool_name, need, stimulus.task.estimated_duration, entry)
        return walk.held_back(self.state, later, seats, self.mesh.now)

    def expect_victims(self, seats, found):
        """They are eligible, enough, minimal, and the ones that the contract names."""
        by_name = {one.name: one for one in found}
        singles = [one for one in found if seats.enough([one.name])]
        full = not seats.anywhere and not any(seats.room(n, ()) for n in seats.open_nodes())
        best = None if singles else walk.best_set(seats, found)
        every = [one.name for one in found]
        enough = {
            frozenset(gone): seats.enough(gone)
            for gone in ([n for n in every if n != out] for out in every)
        }
        simple = all(len(one.tasks) == 1 for one in found)
        free = {n: seats.room(n, ()) for n in seats.open_nodes()}

        def check(outcome):
            assert isinstance(outcome, Accepted), outcome
            chosen = {candidate.agent_name for candidate in outcome.preempted}
            assert chosen
            assert chosen <= set(by_name)
            listed = [candidate.task_id for candidate in outcome.preempted]
            assert sorted(listed) == sorted(t.task_id for n in chosen for t in by_name[n].tasks)
            scores = [candidate.preempt_score for candidate in outcome.preempted]
            assert scores == sorted(scores, reverse=True)
            if singles:
                assert len(chosen) == 1
                (single,) = chosen
                need = walk.as_resources(seats.need if seats.by_node else seats.short)
                first = walk.least_idle(self.state, singles, need)[0]
                assert not simple or single == first.name
            else:
                assert len(chosen) > 1
                if simple:
                    assert best is not None
                    assert chosen == best[0]
                    # Elsewhere only where these victims make room without what is leaving.
                    node_id = outcome.node_id
                    assert (
                        not full
                        or node_id == best[1]
                        or seats.room_without_leaving(node_id, chosen)
                    )
            if not seats.anywhere and not full:
                assert free[outcome.node_id] or seats.room(outcome.node_id, chosen)
            for out in chosen:
                rest = frozenset(chosen - {out})
                assert not enough.get(rest, False)

        return check

    def need_of(self, stimulus, pool_name):
        if stimulus.default_resources:
            return self.state.ledger.accounts[pool_name].spec.default_agent()
        return stimulus.agent.resources

    # -- the executor ------------------------------------------------------------------------------------

    @precondition(lambda self: self.mesh.starts)
    @rule(which=picks, device=picks, where=picks)
    def report(self, which, device, where):
        self.come_up(pick(self.mesh.starts, which), device, where)

    def come_up(self, name, device, where):
        """The agent starts on its node, or where its own options lead, if there is room."""
        order = self.mesh.starts[name]
        nodes = sorted(self.up) if order.node_id is None else [order.node_id]
        for node_id in nodes[where % max(1, len(nodes)) :] + nodes[: where % max(1, len(nodes))]:
            devices = self.place(node_id, order.agent.resources, device)
            if devices is not None:
                self.lives[name] = (node_id, devices)
                self.mesh.report(name, node_id, devices)
                return
        if not nodes:
            self.lives[name] = (None, Devices())
            self.mesh.report(name)
            return
        self.mesh.fail(name, "agent_start_timeout")

    def place(self, node_id, need, number):
        """Devices where Ray could really put this; None: there is no room."""
        if node_id not in self.up:
            return None
        total = amount(**NODES[node_id])
        used = NOTHING
        free = dict.fromkeys(range(total.gpu // UNIT), UNIT)
        for name, (where, devices) in self.lives.items():
            if where == node_id:
                used = used + self.state.agents[name].spec.resources
                for index, units in devices.units:
                    free[index] -= units
        if not (used + need).fits(total):
            return None
        if need.gpu == 0:
            return Devices()
        if need.gpu < UNIT:
            fitting = [index for index, units in free.items() if units >= need.gpu]
            return Devices(units=((pick(fitting, number), need.gpu),)) if fitting else None
        whole = [index for index, units in free.items() if units == UNIT]
        count = need.gpu // UNIT
        if len(whole) < count:
            return None
        turned = whole[number % len(whole) :] + whole[: number % len(whole)]
        return Devices(units=tuple((index, UNIT) for index in sorted(turned[:count])))

    @precondition(lambda self: self.mesh.starts)
    @rule(which=picks)
    def fail_to_start(self, which):
        self.mesh.fail(pick(self.mesh.starts, which))

    @precondition(lambda self: self.mesh.ends)
    @rule(which=picks, saved=st.booleans())
    def end(self, which, saved):
        self.gone(pick(self.mesh.ends, which), saved=saved)

    def gone(self, name, *, saved):
        self.lives.pop(name, None)
        self.mesh.starts.pop(name, None)
        waiting = set(self.mesh.starts)
        self.mesh.leave(name, saved=saved)
        for incoming in set(self.mesh.starts) - waiting:
            self.the_eviction_was_of_use(incoming)

    def the_eviction_was_of_use(self, name):
        """An incoming agent whose victims have left finds its devices, wherever others really are."""
        order = self.mesh.starts[name]
        here = [other for other, (where, _) in self.lives.items() if where == order.node_id]
        if order.node_id in self.up and all(self.state.agents[other].committed for other in here):
            gpu_only = Resources(gpu=order.agent.resources.gpu)
            assert self.place(order.node_id, gpu_only, 0) is not None

    @precondition(lambda self: any(isinstance(o, EvictAgent) for o in self.mesh.ends.values()))
    @rule(which=picks)
    def save(self, which):
        orders = {n: o for n, o in self.mesh.ends.items() if isinstance(o, EvictAgent)}
        for task_id in orders[pick(orders, which)].task_ids:
            self.mesh.save(task_id)

    @precondition(lambda self: self.mesh.task_evictions)
    @rule(which=picks, went_well=st.booleans())
    def answer_cancel(self, which, went_well):
        task_id = pick(self.mesh.task_evictions, which)
        del self.mesh.task_evictions[task_id]
        self.mesh.handle(s.CancelAnswered(task_id=task_id, cancel_success=went_well))

    @precondition(lambda self: self.state.agents)
    @rule(which=picks)
    def lose_agent(self, which):
        name = pick(self.state.agents, which)
        self.mesh.starts.pop(name, None)
        self.mesh.ends.pop(name, None)
        self.lives.pop(name, None)
        self.mesh.die(name)

    @precondition(lambda self: self.state.agents)
    @rule(which=picks, kind=st.sampled_from([s.AgentReported, s.AgentGone, s.AgentStartFailed]))
    def report_late(self, which, kind):
        self.mesh.tick()
        name = pick(self.state.agents, which)
        more = {"reason": "late", "error": "late"} if kind is s.AgentStartFailed else {}
        step = self.mesh.handle(
            kind(
                agent_name=name,
                incarnation=self.state.agents[name].incarnation - 1,
                **more,
            )
        )
        assert step.facts == ()

    # -- the users ------------------------------------------------------------------------------------

    @precondition(lambda self: self.state.running.by_id)
    @rule(which=picks, end_agent=st.booleans())
    def finish(self, which, end_agent):
        task_id = pick(self.state.running.by_id, which)
        self.mesh.handle(s.TaskFinished(task_id=task_id, end_agent=end_agent))

    @rule(name=st.sampled_from(AGENTS))
    def delete(self, name):
        self.mesh.delete(name)

    @rule(
        task_id=st.sampled_from(["x0", "x1", "x2", "x3"]),
        agent_name=st.sampled_from([*AGENTS, "elsewhere"]),
        pool_name=st.sampled_from([*POOLS, "unknown"]),
        priority=st.sampled_from(PRIORITIES),
        labels=st.sampled_from(LABELS),
        duration=st.sampled_from([None, 16.0]),
    )
    def announce(self, task_id, agent_name, pool_name, priority, labels, duration):
        self.mesh.announce(
            task_id, agent_name, pool_name, priority, labels=labels, duration=duration
        )

    @precondition(lambda self: self.state.running.by_id)
    @rule(which=picks, end_agent=st.booleans(), for_pool=st.sampled_from([None, *POOLS, "unknown"]))
    def preempt_task(self, which, end_agent, for_pool):
        self.mesh.preempt(
            task_id=pick(self.state.running.by_id, which), end_agent=end_agent, for_pool=for_pool
        )

    @rule(name=st.sampled_from(AGENTS), for_pool=st.sampled_from([None, *POOLS]))
    def preempt_agent(self, name, for_pool):
        self.mesh.preempt(agent_name=name, end_agent=True, for_pool=for_pool)

    # -- operators, the cluster and the clock -----------------------------------------------------------

    @rule(
        group_request=st.one_of(
            st.tuples(st.just("policy"), policies),
            st.tuples(st.just("resize"), st.sampled_from(POOLS), st.sampled_from([1, 2, 4, 8])),
            st.tuples(st.just("node"), st.sampled_from(sorted(NODES)), st.booleans()),
            st.tuples(st.just("others"), st.sampled_from(sorted(NODES)), st.sampled_from(OTHERS)),
            st.tuples(st.just("cordon"), st.sampled_from(sorted(NODES)), st.booleans()),
            st.tuples(st.just("tick"), st.sampled_from([0.0, 0.25, 5.0, 30.0, 61.0])),
        )
    )
    def operate(self, group_request):
        kind, *how = group_request
        getattr(self, f"do_{kind}")(*how)

    def do_policy(self, changes):
        self.mesh.policy(**changes)

    def do_resize(self, name, cpu):
        account = self.state.ledger.accounts[name]
        held = account.reserved + account.used
        self.mesh.resize(self.spec(name, cpu))
        assert (name in self.state.ledger.over_quota) == (held.cpu > cpu * UNIT)

    def do_node(self, node_id, up):
        (self.up.add if up else self.up.discard)(node_id)
        self.observe()

    def do_others(self, node_id, use):
        self.others[node_id] = amount(**use).within(amount(**NODES[node_id]))
        before, waited = (set(self.mesh.ends), set(self.mesh.starts)), set(self.state.queue.by_id)
        self.observe()
        # What others leave is for those that wait.
        assert (set(self.mesh.ends), set(self.mesh.starts) - waited) == before

    def do_cordon(self, node_id, cordoned):
        known = node_id in self.state.cluster.nodes
        assert isinstance(self.mesh.cordon(node_id, cordoned), Refused) is not known

    def do_tick(self, seconds):
        self.mesh.tick(seconds)
        assert all(hold.until > self.mesh.now for hold in self.state.ledger.holds.values())

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def time_passes(self, seconds):
        self.mesh.now += seconds

    # -- what always holds --------------------------------------------------------------------------------

    @invariant()
    def evaluation_is_the_walk(self):
        self.steps += 1
        labels = LABELS[self.steps % len(LABELS)]
        priority = PRIORITIES[self.steps * 3 % len(PRIORITIES)]
        group_request = walk.GroupRequest(priority, (*POOLS, "unknown")[self.steps % 4], labels)
        ahead = 20.0 if self.steps % 5 == 0 else 0.0
        self.mesh.now += ahead
        answer = self.mesh.evaluate(
            group_request.priority, group_request.pool_name, labels=dict(labels)
        )
        found, turned = walk.candidates(self.state, group_request, self.mesh.now)
        self.mesh.now -= ahead
        assert [
            (
                c.task_id,
                c.preempt_score,
                c.reason,
                c.priority_delta,
                c.effective_delta,
                c.remaining_time,
                c.lost_work,
            )
            for c in answer.candidates
        ] == [(*one[:6], one.lost_work) for one in found]
        assert answer.should_preempt is bool(found)
        if not found:
            assert answer.turned_away == turned
            most = max(turned.values(), default=0)
            assert turned.get(answer.reason, 0) == most

    @invariant()
    def a_dry_run_is_the_walk(self):
        for tx in (self.steps, self.steps + 5):
            stimulus = self.mesh.submission(
                "incoming",
                POOLS[tx % 3],
                PRIORITIES[-1 - tx % 3],
                labels=LABELS[tx % len(LABELS)],
                more={"choose_node": tx % 4 != 0},
                **NEEDS[tx % len(NEEDS)],
            )
            self.dry(stimulus)

    @invariant()
    def the_book_knows_where_agents_are(self):
        for name, (node_id, devices) in self.lives.items():
            found = self.state.cluster.nodes.get(node_id)
            if found is not None and self.state.agents[name].committed:
                assert found.allocations[name].devices == devices

    def teardown(self):
        if not self.state.ledger.accounts:
            return
        self.check_stored()
        self.finish_everything()
        for name, account in self.state.ledger.accounts.items():
            told = (account.reserved, account.used, account.lent, account.borrowed)
            assert told == (NOTHING,) * 4, name
        for found in self.state.cluster.nodes.values():
            assert found.free == found.total - found.external_usage
            assert found.allocations == {}
        assert self.state.running.by_id == {}
        assert self.state.requests == {}
        self.check_stored()

    def check_stored(self):
        """The state is the same after its facts, and a snapshot of it, were written and read."""
        for stored in (self.mesh.refolded(), self.mesh.rewritten()):
            assert differences(self.state, stored) == []

    def finish_everything(self):
        """Every agent is deleted and gone, every task done, every hold over. Victims may wait in the queue,
        where there was no room for them once the task that evicted them had failed.
        """
        while self.state.agents or self.state.queue.by_id:
            for task_id in sorted(self.state.queue.by_id):
                self.mesh.cancel(task_id)
            for name in sorted(self.state.agents):
                self.mesh.delete(name)
            for name in sorted(self.mesh.ends):
                self.mesh.starts.pop(name, None)
                self.mesh.leave(name)
        for task_id in sorted(self.state.running.by_id):
            self.mesh.handle(s.CancelAnswered(task_id=task_id, cancel_success=True))
            if task_id in self.state.running.by_id:
                self.mesh.complete(task_id)
        self.mesh.tick(100)


def _either(expected, other):
    """One of two expectations."""

    def check(outcome):
        try:
            expected(outcome)
        except AssertionError:
            other(outcome)

    return check


def _nobody_leaves(outcome):
    assert isinstance(outcome, Accepted), outcome
    assert outcome.preempted == ()


def _refused(outcome, *reasons):
    assert isinstance(outcome, Refused), outcome
    assert outcome.reason in reasons


TestMesh = MeshMachine.TestCase
TestMesh.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "500")),
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
