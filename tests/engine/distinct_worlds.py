"""Random worlds of the queue in which hardly any two tasks ask for the same.

    python -m tests.engine.distinct_worlds --worlds 1000 --seed 7

The same world is lived through twice: as it is, where a pass over the queue leaves out many classes of tasks
at once (``engine.state.need_index``), and with each class tried by itself. Every decision must be the same.
Pools are of all kinds, nodes come and go, and tasks differ in priority, labels, duration and the nodes that
they ask for; some are held, moved, cancelled or changed, some are arrays.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from hashlib import sha256

import msgspec

from schedulemesh.config.queueing import ORDERS
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.admission import sure_refusals
from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state import need_index
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.queue_classes import PoolQueue
from tests.engine.builders import Mesh, node, pool
from tests.engine.seeded_worlds import run_worlds

#: Steps of a world after the first tasks.
STEPS = 150


class Digested(Mesh):
    """A mesh that remembers a digest of every step."""

    check_every = 20

    def __init__(self, **how):
        self.digests = []
        super().__init__(**how)

    def handle(self, stimulus):
        """One step."""
        step = super().handle(stimulus)
        told = encode_facts(step.facts) + repr((step.instructions, step.outcome)).encode()
        self.digests.append((self.now, type(stimulus).__name__, sha256(told).hexdigest()))
        return step


class Life:
    """One of the two lives of a world; equal as long as the same is decided."""

    mesh_type = Digested

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        names = [f"n{number}" for number in range(dice.randint(1, 5))]
        self.nodes = {
            name: node(
                name,
                gpu=dice.choice((4, 8)),
                cpu=dice.choice((32, 64)),
                memory=1_000,
                labels={"model": dice.choice("xy")},
            )
            for name in names
        }
        self.lost = {}
        self.mesh = self.mesh_type(nodes=self.nodes.values())
        self.mesh.handle(s.ClassProbed(class_key="c"))
        self.order()
        if dice.random() < 0.3:
            self.mesh.policy(same_pool_priority_threshold=dice.choice((0.5, 2.0)))
        self.name_labels()
        self.pools = ["p", "q", "r"][: dice.choice((1, 1, 2, 3))]
        for name in self.pools:
            self.define(name)
        #: What the tasks of the world differ in: needs alone, or more.
        self.plain = dice.random() < 0.4
        self.has_durations = dice.random() < 0.7
        self.count = 0
        for _ in range(dice.randint(40, 120)):
            self.submit()

    def order(self):
        """Serve the queue in some order."""
        dice = self.dice
        self.mesh.order_by(
            order=dice.choice(ORDERS),
            backfill_limit_s=dice.choice((10.0, 600.0)),
            ageing_per_hour=dice.choice((0.0, 0.0, 5.0)),
            promote_after_s=dice.choice((0.0, 0.0, 200.0)),
            las_preempts=dice.random() < 0.2,
            shortest_preempts=dice.random() < 0.2,
            estimates=dice.random() < 0.15,
        )

    def name_labels(self):
        """Have rules of preemption name other labels, or none."""
        rules = self.dice.choice(({}, {}, {"team": {"a": ["b"]}}, {"user": {"0": ["1"]}}))
        self.mesh.policy(label_preemption_rules=rules)

    def define(self, name):
        """Define a pool of some kind, mostly of one whose classes are indexed."""
        dice = self.dice
        lending = {"cohort": "c"} if dice.random() < 0.2 else {"cohort": None}
        flavors = {"fx": {"model": "x"}, "fy": {"model": "y"}} if dice.random() < 0.1 else {}
        gpus = {f"gpu@{each}": dice.randint(2, 12) for each in flavors} or {
            "gpu": dice.randint(4, 24)
        }
        spec = pool(
            name, cpu=dice.choice((64, 200)), memory=5_000, flavors=flavors, lending=lending, **gpus
        )
        spec = msgspec.structs.replace(
            spec,
            queueing=dice.choice(("best_effort", "best_effort", "best_effort", "greedy", "strict")),
            max_run_s=dice.choice((None, None, 400.0)),
        )
        if dice.random() < 0.15:
            limits = parse_owner_limits({"default": {"gpu": dice.randint(2, 6)}})
            spec = msgspec.structs.replace(
                spec, owner_limits=limits, owner_order=dice.choice(("none", "fair"))
            )
        self.mesh.resize(spec)

    def submit(self):
        """Submit a task."""
        dice = self.dice
        self.count += 1
        how = {}
        if not self.plain:
            labels = {"team": "ab", "user": "0123456789"}
            how["labels"] = {k: dice.choice(v) for k, v in labels.items() if dice.random() < 0.3}
            how["node_labels"] = {"model": dice.choice("xy")} if dice.random() < 0.2 else None
            if dice.random() < 0.1:
                how["fallbacks"] = [{"model": "y", "takes": {"cpu": dice.randint(1, 8), "gpu": 1}}]
            limits = {}
            if dice.random() < 0.1:
                limits["max_run_s"] = dice.uniform(10, 500)
            if dice.random() < 0.05:
                limits["array"] = f"0-{dice.randint(1, 5)}%2"
            how["limits"] = limits
        if self.has_durations and dice.random() < 0.9:
            how["duration"] = dice.uniform(5, 600)
        self.mesh.queue(
            f"t{self.count}",
            dice.choice(self.pools),
            dice.choice((5.0, 5.0, 5.0, 1.0, 9.0)),
            cpu=dice.randint(1, 24),
            memory=dice.randint(1, 900),
            gpu=dice.choice((0.5, 1, 1, 2, 4)),
            class_key="c",
            run="go",
            owner=dice.choice("uvw"),
            on_preempted="requeue",
            more={"wait_s": dice.uniform(100, 900)} if dice.random() < 0.1 else {},
            **how,
        )

    def steps(self):
        """What may happen, as often as it is likely."""
        return (
            [self.submit] * 3
            + [self.report] * 5
            + [self.end] * 5
            + [self.tick] * 6
            + [self.leave] * 3
            + [self.change] * 2
            + [self.cancel, self.node_change, self.redefine, self.window, self.fail]
        )

    def live(self):
        """Let it happen."""
        steps = self.steps()
        for _ in range(STEPS):
            self.mesh.now += self.dice.uniform(0, 3)
            self.dice.choice(steps)()
        return self.mesh.digests

    def report(self):
        """An agent has started."""
        for name in sorted(self.mesh.starts)[:2]:
            self.mesh.report(name, capabilities=("save_state",))

    def fail(self):
        """One could not be started."""
        if self.mesh.starts:
            self.mesh.fail(self.dice.choice(sorted(self.mesh.starts)))

    def end(self):
        """A task is done."""
        agents = self.mesh.state.agents
        running = [
            task_id
            for task_id, task in sorted(self.mesh.state.running.by_id.items())
            if task.agent_name in agents and isinstance(agents[task.agent_name].phase, Running)
        ]
        if running:
            self.mesh.complete(self.dice.choice(running))

    def leave(self):
        """An agent that was told to end is gone."""
        if self.mesh.ends:
            self.mesh.leave(self.dice.choice(sorted(self.mesh.ends)), saved=True)

    def tick(self):
        """Time goes by."""
        self.mesh.tick(self.dice.choice((0.5, 1.0, 1.0, 30.0)))

    def waiting(self):
        """A task that waits; None: none does."""
        tasks = sorted(self.mesh.state.queue.by_id)
        return self.dice.choice(tasks) if tasks else None

    def change(self):
        """A task is held, released, moved or changed."""
        if task_id := self.waiting():
            how = self.dice.choice(
                ({"held": True}, {"held": False}, {"priority": 7.0}, {"to_front": True})
            )
            self.mesh.change(task_id, **how)

    def cancel(self):
        """A task is cancelled."""
        if task_id := self.waiting():
            self.mesh.cancel(task_id)

    def node_change(self):
        """A node is lost, is there again, or closed."""
        name = self.dice.choice(sorted({*self.nodes, *self.lost}))
        if name in self.lost:
            self.nodes[name] = self.lost.pop(name)
        elif self.dice.random() < 0.5 and len(self.nodes) > 1:
            self.lost[name] = self.nodes.pop(name)
        else:
            self.mesh.cordon(name, self.dice.random() < 0.5)
            return
        self.mesh.observe(*self.nodes.values())

    def redefine(self):
        """A pool, the labels that matter, or the order of the queue changes."""
        if self.dice.random() < 0.6:
            self.define(self.dice.choice(self.pools))
        elif self.dice.random() < 0.4:
            self.name_labels()
        else:
            self.order()

    def window(self):
        """Nodes are to be empty for a while."""
        if self.dice.random() < 0.3:
            start = self.mesh.now + self.dice.uniform(10, 300)
            node_ids = (self.dice.choice(sorted(self.nodes)),)
            window = MaintenanceWindow(
                name="w", start=start, duration_s=100.0, notice_s=10.0, node_ids=node_ids
            )
            self.mesh.handle(s.WindowRequested(window=window, replace=True))


@contextmanager
def indexed_from(many, block=32):
    """Have classes of pools indexed from this number on, in blocks of this size, however many groups they
    have.
    """
    before = PoolQueue.many, need_index.BLOCK, sure_refusals.LEAST_ALIKE
    PoolQueue.many, need_index.BLOCK, sure_refusals.LEAST_ALIKE = many, block, 1
    try:
        yield
    finally:
        PoolQueue.many, need_index.BLOCK, sure_refusals.LEAST_ALIKE = before


class World:
    """A world that is lived through twice."""

    def __init__(self, seed):
        self.seed = seed

    def run(self):
        """Raises AssertionError where the two lives differ."""
        with indexed_from(10**9):
            one_by_one = Life(self.seed).live()
        many, block = random.Random(self.seed).choice(((1, 2), (8, 4), (32, 32)))
        with indexed_from(many, block):
            at_once = Life(self.seed).live()
        for number, pair in enumerate(zip(one_by_one, at_once, strict=True)):
            assert pair[0] == pair[1], f"step {number}: {pair}"


if __name__ == "__main__":
    run_worlds(World)
