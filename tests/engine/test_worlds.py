"""Random worlds of the queue: what the documentation promises holds in all of them.

A world is a tree of cohorts with limits and weights, nodes, and users whose tasks, gangs and elastic gangs
arrive for a while with any priority; saving is slow or fast, nodes are drained and opened again, and half-way
a twin goes on from a snapshot. Then nothing arrives any more, and nothing ends. What must hold is worked out
here from docs/queueing.md and docs/lending.md, by plain walks over quotas, nodes and agents.

HYPOTHESIS_EXAMPLES sets how many worlds there are, 12 where it is not set; SCHEDULEMESH_SEED the first seed.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import sum_of
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state import invariants
from schedulemesh.engine.state.agents import Ending, Running, Starting, Waiting
from tests.engine import builders
from tests.engine.builders import Mesh, node, pool

WORLDS = int(os.environ.get("HYPOTHESIS_EXAMPLES", "12"))
SEED = int(os.environ.get("SCHEDULEMESH_SEED", "1"))
#: GPUs of each node.
GPUS = 8
#: Seconds in which tasks arrive; those without an eviction until all has come to its end, in which all
#: declared ends have passed, too; and at most until then.
BUSY_S, QUIET_S, SETTLED_S = 60, 31, 600
#: Ticks that may pass beside the time of saving: the one that evicts, and the one that starts.
TICKS = 3


class World(Mesh):
    """One of them."""

    def __init__(self, seed: int) -> None:
        self.twin: Engine | None = None
        self.chance = chance = random.Random(seed)
        names = [f"p{i}" for i in range(chance.randint(2, 4))]
        self.names = names
        quotas = {name: chance.choice([4, 8, 8, 16]) for name in names}
        count = -(-sum(quotas.values()) // GPUS)
        super().__init__(nodes=[node(f"n{i}", cpu=100, gpu=GPUS) for i in range(count)])
        self.cohort("root")
        self.cohort("left", "root", chance.choice([1.0, 2.0]))
        for name in names:
            limits = {
                key: chance.choice([None, None, {"gpu": 4}, {"gpu": 8}])
                for key in ("lending_limit", "borrowing_limit")
            }
            lending = {"cohort": chance.choice(["root", "left", "left"]), **limits}
            lending["weight"] = chance.choice([1.0, 3.0])
            self.resize(pool(name, cpu=100, gpu=quotas[name], lending=lending))
        #: Seconds that each agent takes to save its state and end.
        self.save_s = chance.choice([0, 2, 12])
        #: When agents that are told to end are gone, and when those that run have run.
        self.gone_at: dict[str, float] = {}
        self.over_at: dict[str, float] = {}
        #: Since when the quota of a task's pool has covered it, with a node that borrowers could leave.
        self.owed_since: dict[str, float] = {}
        self.made = 0
        self.drained = ""

    def handle(self, stimulus):
        step = super().handle(stimulus)
        if self.twin is not None:
            assert self.twin.handle(stimulus, self.now) == step, "a restart changes a decision"
        return step

    def live(self) -> None:
        """Everything that happens."""
        for second in range(BUSY_S):
            if second == BUSY_S // 2:
                self.twin = Engine(self.rewritten())
            if self.chance.random() < 0.5:
                self.arrive()
            if self.chance.random() < 0.05:
                self.drain()
            self.pass_second(ends=True)
        if self.drained:
            self.cordon(self.drained, cordoned=False)
        self.settle()
        self.is_explained()

    def settle(self) -> None:
        """Evictions stop when nothing changes: every chain of them comes to its end."""
        still = 0
        for _ in range(SETTLED_S):
            seen = len(self.facts)
            self.pass_second(ends=False)
            evicts = any(isinstance(x, f.EvictionStarted) for x in self.facts[seen:])
            still = 0 if evicts or self.ends or self.starts else still + 1
            if still > QUIET_S:
                return
        raise AssertionError("evictions go on though nothing changes")

    def arrive(self) -> None:
        """A user submits something."""
        chance, name = self.chance, f"t{self.made}"
        self.made += 1
        how = {"on_preempted": "requeue", "class_key": "c", "run": "train"}
        how["duration"] = chance.choice([None, None, 10.0, 30.0])
        kind = chance.choice(["one", "one", "one", "gang", "elastic"])
        if kind == "one":
            how |= {"cpu": 1, "gpu": chance.choice([1, 2, 4, 8])}
        else:
            how["bundles"] = [{"cpu": 1, "gpu": chance.choice([1, 4])}] * 2
            how["payload"] = GangPayload(replicas=3 if kind == "elastic" else 0)
        self.queue(name, chance.choice(self.names), float(chance.randint(0, 9)), **how)
        self.handle(s.ClassProbed(class_key="c"))
        self.probes.clear()

    def drain(self) -> None:
        """A node is closed, or opened again."""
        if self.drained:
            self.cordon(self.drained, cordoned=False)
            self.drained = ""
        else:
            self.drained = self.chance.choice(sorted(self.state.cluster.nodes))
            self.cordon(self.drained)

    def pass_second(self, *, ends: bool) -> None:
        """What starts runs, what ends is gone when it has saved, and the queue is served."""
        self.now += 1
        self.make_all()
        for name in list(self.starts):
            if name not in self.starts:
                continue
            self.report(name, capabilities=("save_state",))
            self.over_at[name] = self.now + self.chance.randint(5, 40)
        for name in sorted(self.ends):
            if self.now >= self.gone_at.setdefault(name, self.now + self.save_s):
                del self.gone_at[name]
                self.leave(name, saved=True)
        for group_id in sorted(self.removes):
            self.remove(group_id)
        for name, at in sorted(self.over_at.items()) if ends else ():
            task = self.state.running.by_id.get(name)
            if at <= self.now and task is not None and task.phase.value == "running":
                del self.over_at[name]
                self.handle(s.TaskFinished(task_id=name, end_agent=True))
        self.tick()
        self.is_within_quotas()
        self.starts_what_fits()
        self.owes_nobody()

    # what must hold

    def is_within_quotas(self) -> None:
        """No pool's quota and no node is exceeded."""
        shares = [share for agent in self.state.agents.values() for share in agent.shares]
        for name, account in self.state.ledger.accounts.items():
            held = sum_of(share.amount for share in shares if share.pool_name == name)
            assert held.fits(account.spec.resources), f"{name} has given {held}"
        for each in self.state.cluster.nodes.values():
            assert not each.free.negative(), each.node_id

    def single(self):
        """The tasks that wait and need one node, by id."""
        waiting = self.state.queue.by_id.items()
        return {
            task_id: task
            for task_id, task in waiting
            if not isinstance(task.submission.agent.payload, GangPayload)
            and not task.spec.extra_of
            and task.queue_class
        }

    def open_nodes(self):
        return [each for each in self.state.cluster.nodes.values() if not each.cordoned]

    def starts_what_fits(self) -> None:
        """Where no start is reserved, a task that its pool's free quota covers and a node has room for does
        not wait.
        """
        if self.state.queue.reserved:
            return
        for task_id, task in self.single().items():
            need = task.submission.agent.resources
            if need.fits(self.state.ledger.accounts[task.pool_name].free):
                room = [n.node_id for n in self.open_nodes() if need.fits(n.free)]
                assert not room, f"{task_id} waits though {room} have room"

    def owes_nobody(self) -> None:
        """Own quota comes back within the time of saving and a tick, whoever stands first."""
        owed = {task_id for task_id, task in self.single().items() if self.is_owed(task)}
        for task_id in list(self.owed_since):
            if task_id not in owed:
                del self.owed_since[task_id]
        for task_id in owed:
            since = self.owed_since.setdefault(task_id, self.now)
            assert self.now - since <= self.save_s + TICKS, f"{task_id} waits for borrowers"

    def is_owed(self, task) -> bool:
        """Whether what its pool has free or on loan to running agents covers the task, claims of its pool's
        agents that wait taken off, and on some node these borrowers would make room.
        """
        state, owner = self.state, task.pool_name
        need = task.submission.agent.resources
        agents = state.agents.values()
        waiting = [a for a in agents if isinstance(a.phase, Waiting)]
        if waiting or any(isinstance(a.phase, Ending | Starting) for a in agents):
            return (
                False  # who gets what they free is decided already, or they cannot be evicted yet
            )
        lenders = [
            a
            for a in agents
            if isinstance(a.phase, Running)
            and a.spec.pool_name != owner
            and any(share.pool_name == owner for share in a.shares)
            and a.group_id is None
        ]
        lent = sum_of(x.amount for a in lenders for x in a.shares if x.pool_name == owner)
        free = state.ledger.accounts[owner].free
        if not need.fits(free + lent):
            return False
        if need.fits(free) and any(need.fits(each.free) for each in self.open_nodes()):
            return False  # it waits for nobody that runs, but for a reserved start
        for each in self.open_nodes():
            left = [a for a in lenders if a.node_id == each.node_id]
            back = sum_of(x.amount for a in left for x in a.shares if x.pool_name == owner)
            room = sum_of(a.spec.resources for a in left)
            if need.fits(free + back) and need.fits(each.free + room):
                return True
        return False

    def is_explained(self) -> None:
        """Nobody is promised to start who does not."""
        for task_id in sorted(self.state.queue.by_id):
            answer = self.engine.explain(task_id, self.now)
            assert answer.reason != Reason.NEXT_SCHEDULING_PASS.value, (task_id, answer.error)
            assert answer.position <= answer.queue_length


@pytest.fixture(autouse=True)
def seldom_checked(monkeypatch):
    """The books are checked every 20 steps: what is decided is looked at here after every one."""
    steps = itertools.count()
    monkeypatch.setattr(
        builders, "check", lambda state: next(steps) % 20 or invariants.check(state)
    )


def test_random_worlds_keep_what_the_documentation_promises():
    for seed in range(SEED, SEED + WORLDS):
        try:
            World(seed).live()
        except AssertionError as error:
            raise AssertionError(f"world {seed}: {error}") from error
