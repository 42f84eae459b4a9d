"""A supervisor without Ray that dies between journal writes: engine, journal, virtual executor, and a world
that lives on.

Everything that a caller was told, and every fact that became durable, is remembered outside.
"""

from __future__ import annotations

import random

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import StateSaved
from schedulemesh.engine.messages.outcomes import Done, Pending, ProbeNeeded
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import referenced
from schedulemesh.protocol.agents import key_of
from tests.engine.builders import amount, differences, gpu_ids, node, pool
from tests.store.builders import written

POOLS = ("p", "q")
NEEDS = ({"cpu": 1}, {"cpu": 2}, {"cpu": 3}, {"cpu": 1, "gpu": 0.5}, {"gpu": 1})


class Crash(Exception):
    """The supervisor died here."""


class Lives:
    """One history. ``open_journal`` gives the journal as a new process finds it."""

    def __init__(self, seed, open_journal, *, snapshot_every=12):
        self.rng = random.Random(seed)
        self._open_journal = open_journal
        self._snapshot_every = snapshot_every
        self.now = 1000.0
        #: Agents that really live: (name, incarnation) to resources.
        self.world = {}
        #: All that ever became durable, folded.
        self.durable = MeshState()
        #: What callers were told: answers by request, and the bytes of saved states.
        self.answered, self.saved = {}, {}
        #: The pools and the policy as last acknowledged, then those asked for since without an answer.
        self.pools, self.policies = {name: [None] for name in POOLS}, []
        #: Submissions whose caller still waits.
        self.asked = {}
        self.orders = []
        self.crashes = self.snapshots = 0
        #: The chance of dying just before, and just after, a write.
        self.risk = 0.0
        self._fresh = self._numbers = 0
        self.init()

    # -- lives and deaths ---------------------------------------------------------------------------

    def run(self, crashes, risk=0.1):
        """Go on until it died so often."""
        self.risk = risk
        while self.crashes < crashes:
            try:
                self.act()
            except Crash:
                self.recover()

    def recover(self):
        """Come back, perhaps dying on the way again; then finish all that was under way, and compare."""
        while True:
            try:
                self.init()
                while self.orders:
                    self.carry_out()
            except Crash:
                continue
            self.compare_with_world()
            return

    def init(self):
        """A new process: what it finds is what was durable, and nothing that was told is missing."""
        self.orders = []
        self.journal = self._open_journal()
        epoch = self.journal.begin(take_over=True)
        stored = self.journal.load()
        self._fresh = len(list(stored.facts()))
        state = stored.fold()
        check(state)
        assert differences(state, self.durable) == []
        self.check_told(state)
        self.engine = Engine(state)
        self.step(s.SupervisorBegan(epoch=epoch))
        self.step(s.ClusterObserved(nodes=(node("n", cpu=8, gpu=2), node("m", cpu=4))))
        claimed = {(name, agent.incarnation) for name, agent in state.agents.items()}
        for orphan in set(self.world) - claimed:
            del self.world[orphan]
        self.step(s.RecoveryObserved(living=frozenset(self.world)))
        for stimulus in list(self.asked.values()):
            self.ask(stimulus)

    def check_told(self, state):
        """Nothing acknowledged is missing."""
        for request_id, outcome in self.answered.items():
            assert state.answers[request_id].outcome == outcome
        for name, specs in self.pools.items():
            account = state.ledger.accounts.get(name)
            assert (None if account is None else account.spec) in specs
        assert state.policy in self.policies or not self.policies
        kept = referenced(state)
        for key, data in self.saved.items():
            assert key not in kept or self.journal.blob(key) == data

    def compare_with_world(self):
        """Nothing is under way: the books are what lives."""
        state = self.engine.state
        check(state)
        running = {
            (name, agent.incarnation)
            for name, agent in state.agents.items()
            if agent.phase is AgentPhase.RUNNING
        }
        assert running == set(self.world)
        assert len(state.agents) == len(running)
        used = sum((a.used for a in state.ledger.accounts.values()), NOTHING)
        assert used == sum(self.world.values(), NOTHING)
        held = sum(
            (share.amount for h in state.ledger.holds.values() for share in h.shares), NOTHING
        )
        assert sum((a.reserved for a in state.ledger.accounts.values()), NOTHING) == held
        assert self.asked == {}

    # -- one step -----------------------------------------------------------------------------------

    def step(self, stimulus, blobs=None):
        """As the supervisor does it: decide, write, then act and tell."""
        done = self.engine.handle(stimulus, self.now)
        if done.facts:
            self.perhaps_die()
            self.journal.append(encode_facts(done.facts), blobs or {})
            for fact in done.facts:
                self.durable.evolve(fact)
                if isinstance(fact, StateSaved):
                    self.saved.update(blobs or {})
            self._fresh += len(done.facts)
            self.perhaps_die()
        for order in done.instructions:
            if isinstance(order, i.AnswerRequest):
                self.tell(order.request_id, self.engine.state.answers[order.request_id].outcome)
            else:
                self.orders.append(order)
        if self._fresh >= self._snapshot_every:
            self.take_snapshot()
        return done.outcome

    def take_snapshot(self):
        state = self.engine.state
        self.perhaps_die()
        self.journal.compact(written(state, 3), self.journal.last, referenced(state))
        self._fresh = 0
        self.snapshots += 1
        self.perhaps_die()

    def perhaps_die(self):
        if self.rng.random() < self.risk:
            self.crashes += 1
            raise Crash

    def tell(self, request_id, outcome):
        self.asked.pop(request_id, None)
        first = self.answered.setdefault(request_id, outcome)
        assert first == outcome, "a repeated request was answered otherwise"

    # -- the executor ----------------------------------------------------------------------------------

    def carry_out(self):
        """One order, whichever; the world changes before the supervisor hears of it."""
        order = self.orders.pop(self.rng.randrange(len(self.orders)))
        if isinstance(order, i.StartAgent):
            self.start(order)
        elif isinstance(order, i.EvictTask):
            self.save(order.task_id)
            self.step(s.CancelAnswered(task_id=order.task_id, cancel_success=True))
        else:
            for task_id in getattr(order, "task_ids", ()):
                self.save(task_id)
            self.world.pop((order.agent_name, order.incarnation), None)
            self.gone(order.agent_name, order.incarnation)

    def start(self, order):
        agent = self.engine.state.agents.get(order.agent.name)
        if agent is None or agent.incarnation != order.incarnation:
            return
        key = (order.agent.name, order.incarnation)
        if not order.adopt:
            assert order.agent.name not in {name for name, _ in self.world}, "it would run twice"
            if self.rng.random() < 0.15:
                self.step(
                    s.AgentStartFailed(
                        agent_name=order.agent.name,
                        incarnation=order.incarnation,
                        reason=Reason.AGENT_START_FAILED,
                        error="the class raised",
                    )
                )
                return
            self.world[key] = order.agent.resources
        if agent.phase is not AgentPhase.STARTING:
            return
        standing = None
        if order.node_id is not None:
            found = self.engine.state.cluster.nodes.get(order.node_id)
            standing = None if found is None else found.allocations.get(order.agent.name)
        self.step(
            s.AgentReported(
                agent_name=order.agent.name,
                incarnation=order.incarnation,
                node_id=order.node_id,
                **({} if standing is None else {"gpu_ids": gpu_ids(standing.devices)}),
            )
        )

    def save(self, task_id):
        if task_id not in self.engine.state.running.by_id:
            return
        self._numbers += 1
        data = f"work of {task_id}, {self._numbers}".encode()
        key = key_of(data)
        self.step(
            s.StateStored(task_id=task_id, state_key=key, consistent=True, source="save_state"),
            {key: data},
        )

    def gone(self, name, incarnation):
        self.step(s.AgentGone(agent_name=name, incarnation=incarnation))

    # -- the users ----------------------------------------------------------------------------------

    def act(self):
        """Something happens."""
        self.now += self.rng.random()
        if self.orders and self.rng.random() < 0.5:
            self.carry_out()
            return
        acts = (self.submit, self.submit, self.submit, self.finish, self.delete, self.preempt)
        self.rng.choice(
            (*acts, self.make_pool, self.change_policy, self.announce, self.die, self.tick)
        )()

    def pick(self, names):
        found = sorted(names)
        return self.rng.choice(found) if found else "nobody"

    def make_pool(self):
        name = self.rng.choice(POOLS)
        spec = pool(name, cpu=self.rng.choice([6, 8, 10]), gpu=2)
        self.pools[name].append(spec)
        outcome = self.step(s.PoolRequested(spec=spec))
        if isinstance(outcome, Done):
            self.pools[name] = [spec]
        else:
            self.pools[name].pop()

    def change_policy(self):
        weight = self.rng.choice([0.0, 0.1, 1.0])
        policy = PreemptionPolicy(remaining_time_weight=weight, cross_pool_priority_threshold=2.0)
        self.policies = [*(self.policies or [PreemptionPolicy()]), policy]
        self.step(
            s.PolicyChangeRequested(policy=policy, client="me", changes=("remaining_time_weight",))
        )
        self.policies = [policy]

    def submit(self):
        self._numbers += 1
        name = f"a{self.rng.randrange(8)}"
        request_id = f"r{self._numbers}"
        self.ask(self.submission(name, request_id))

    def submission(self, name, request_id):
        labels = {
            "pool_name": self.rng.choice(POOLS),
            "resources": amount(**self.rng.choice(NEEDS)),
        }
        task = s.TaskSpec(
            task_id=name,
            pool_name=labels["pool_name"],
            priority=float(self.rng.randrange(10)),
            estimated_duration=self.rng.choice([None, 5.0, 50.0]),
        )
        return s.TaskSubmitted(
            agent=s.AgentSpec(name=name, class_key="class", **labels),
            task=task,
            request_id=request_id,
        )

    def ask(self, stimulus):
        """A caller asks, and asks again whenever the supervisor died before it answered."""
        self.asked[stimulus.request_id] = stimulus
        outcome = self.step(stimulus, {"class": b"code"})
        if isinstance(outcome, ProbeNeeded):
            self.step(s.ClassProbed(class_key="class"))
            outcome = self.step(stimulus, {"class": b"code"})
        if not isinstance(outcome, Pending):
            self.tell(stimulus.request_id, outcome)

    def finish(self):
        task_id = self.pick(self.engine.state.running.by_id)
        self.step(s.TaskFinished(task_id=task_id, end_agent=self.rng.random() < 0.8))

    def delete(self):
        self.step(s.AgentDeletionRequested(agent_name=self.pick(self.engine.state.agents)))

    def preempt(self):
        state = self.engine.state
        if self.rng.random() < 0.5:
            self.step(s.PreemptionRequested(task_id=self.pick(state.running.by_id)))
        else:
            name, hold = self.pick(state.agents), self.rng.choice([None, *POOLS])
            self.step(s.PreemptionRequested(agent_name=name, end_agent=True, for_pool=hold))

    def announce(self):
        task = s.TaskSpec(task_id=f"x{self.rng.randrange(3)}", pool_name="p")
        agent_name = self.rng.choice(["elsewhere", self.pick(self.engine.state.agents)])
        self.step(s.TaskAnnounced(task=task, agent_name=agent_name))

    def die(self):
        """A process dies by itself; the supervisor may hear of it before its own death, or after."""
        if self.world:
            name, incarnation = self.rng.choice(sorted(self.world))
            del self.world[name, incarnation]
            self.gone(name, incarnation)

    def tick(self):
        self.now += 30
        self.step(s.ClockTicked())
