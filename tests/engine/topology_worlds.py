"""Random worlds of gangs, leases and jobs with topologies, beside the rules of docs/topology.md.

    python -m tests.engine.topology_worlds --worlds 1000 --seed 7

Tasks come and go in one pool on nodes in racks and blocks; some nodes lack a label. Nodes are lost and join,
tasks are evicted by others, and the supervisor restarts from facts and from snapshots. It checks by brute
force that every group is where its topology allows it, that a dry run says what the submission then gets,
and that the first task of the queue starts where a placement for it is free.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import msgspec

from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import EvictAgent
from schedulemesh.engine.messages.outcomes import Accepted, Pending, Refused
from schedulemesh.engine.state.agents import Running
from tests.engine.builders import Mesh, differences, node, pool
from tests.engine.seeded_worlds import run_worlds

LEVELS = ("block", "rack")
TOPOLOGIES = (
    "",
    "rack",
    "rack",
    "block",
    "preferred:rack",
    "block,preferred:rack",
    "block,slice:2:rack",
    "slice:2:rack",
    "preferred:block,slice:1:rack",
)


def domain_of(labels, node_id, level):
    """The domain of a node, in the words of the document."""
    if level == "block" and "block" in labels:
        return labels["block"]
    if "rack" in labels:
        return (labels.get("block", ""), labels["rack"])
    return node_id


class World:
    """One pool on a few nodes."""

    def __init__(self, seed, steps=60):
        self.random, self.steps = random.Random(seed), steps
        self.labels, self.number = {}, 0
        self.reports = [self.new_node() for _ in range(5)]
        quota = pool("p", cpu=1000, gpu=self.random.choice((8, 16, 100)))
        self.mesh = Mesh(quota, nodes=self.reports, topology_levels=LEVELS, min_preempt_score=0.0)
        self.mesh.handle(s.ClassProbed(class_key="k"))

    def new_node(self):
        choose = self.random.choice
        self.number += 1
        labels = {"block": choose(("b1", "b2", "")), "rack": choose(("r1", "r2", "r3", ""))}
        node_id = f"n{self.number}"
        self.labels[node_id] = {key: value for key, value in labels.items() if value}
        return node(node_id, cpu=100, gpu=choose((2, 2, 4)), labels=self.labels[node_id])

    # what must hold

    def is_allowed(self, topology, node_ids):
        """Whether nodes are where a topology allows them."""
        for level, at_once in self.together(topology, len(node_ids)):
            for first in range(0, len(node_ids), at_once):
                some = node_ids[first : first + at_once]
                if len({domain_of(self.labels[n], n, level) for n in some}) > 1:
                    return False
        return True

    def together(self, topology, count):
        """The levels of which one domain must hold so many members in their order."""
        for term in filter(None, topology.split(",")):
            kind, *rest = term.split(":")
            if kind == "slice":
                yield rest[1], int(rest[0])
            elif kind != "preferred":
                yield kind, count

    def follow(self, seen):
        state = self.mesh.state
        for fact in self.mesh.facts[seen:]:
            if isinstance(fact, f.GroupPlanned) and fact.shape.topology is not None:
                text = str(fact.shape.topology)
                assert self.is_allowed(text, fact.node_ids), (text, fact.node_ids, self.labels)
        for task in state.queue.by_id.values():
            start = task.reservation
            node_ids = () if start is None else start.node_ids
            if len(node_ids) > 1 and state.cluster.nodes.keys() >= set(node_ids):
                assert self.is_allowed(task.spec.topology, node_ids), task

    def is_free(self, task):
        """Whether bundles of a task have a placement now, by trying all."""
        nodes = self.mesh.state.cluster.nodes
        able = [n for n, each in nodes.items() if not each.cordoned and each.free.gpu >= UNIT]
        agent = task.submission.agent
        for node_ids in product(able, repeat=len(agent.bundles)):
            taken = Counter(node_ids)
            if all(count * UNIT <= nodes[n].free.gpu for n, count in taken.items()):
                if agent.payload.strategy == "STRICT_SPREAD" and max(taken.values()) > 1:
                    continue
                if self.is_allowed(task.spec.topology, node_ids):
                    return True
        return False

    def check_live(self):
        """The first task of the queue starts where it can."""
        state = self.mesh.state
        first = next(iter(state.queue.of_pool("p")), None)
        if first is None or first.not_before > self.mesh.now or self.mesh.ends:
            return
        if any(task.not_before for task in state.queue.by_id.values()):
            return  # one that was lost with its node keeps its place until its next attempt
        if not first.submission.agent.bundles or len(first.submission.agent.bundles) < 2:
            return
        has_quota = first.submission.agent.resources.fits(state.ledger.accounts["p"].free)
        if has_quota and not self.mesh.removes:
            assert not self.is_free(first), (first.task_id, first.spec.topology)

    def check_twins(self):
        for twin in (self.mesh.refolded(), self.mesh.rewritten()):
            for each in (twin, self.mesh.state):
                each.queue.advance(self.mesh.now)
            assert differences(self.mesh.state, twin) == []

    # what happens

    def run(self):
        steps = [self.submit] * 6 + [self.report] * 5 + [self.finish] * 4 + [self.leave] * 4
        steps += [self.lose_node, self.join_node, self.explain, self.tick]
        for number in range(self.steps):
            self.mesh.now += self.random.choice((0.0, 1.0, 30.0))
            seen = len(self.mesh.facts)
            self.random.choice(steps)()
            self.clean()
            self.follow(seen)
            if number % 3 == 0:
                seen = len(self.mesh.facts)
                self.mesh.tick(1.0)
                self.clean()
                self.follow(seen)
                self.check_live()
            if number % 20 == 7:
                self.check_twins()
        self.check_twins()

    def clean(self):
        for group_id in sorted(self.mesh.removes):
            self.mesh.remove(group_id)

    def submit(self):
        choose = self.random.choice
        self.number += 1
        name, topology = f"t{self.number}", choose(TOPOLOGIES)
        count = choose((2, 2, 4))
        strategy = choose(("PACK", "SPREAD", "STRICT_SPREAD"))
        kind = choose((GangPayload, LeasePayload, JobPayload))
        how = {
            "bundles": [{"gpu": 1}] * count,
            "payload": kind(strategy=strategy),
            "priority": choose((1.0, 5.0, 9.0)),
            "on_preempted": "requeue",
            "duration": choose((None, 10.0, 100.0)),
            "topology": topology,
        }
        if kind is not LeasePayload:
            how |= {"class_key": "k", "run": "go"}
        dry = self.mesh.dry(name, **how)
        queue = choose((True, True, False))
        outcome = (self.mesh.queue if queue else self.mesh.submit)(name, **how)
        if not queue:
            assert isinstance(outcome, Pending) == isinstance(dry, Accepted), (dry, outcome)
        elif isinstance(outcome, Refused):
            assert isinstance(dry, Refused)

    def pick(self, names):
        names = sorted(names)
        return self.random.choice(names) if names else None

    def report(self):
        self.mesh.make_all()
        if name := self.pick(self.mesh.starts):
            self.mesh.report(name)

    def finish(self):
        agents = self.mesh.state.agents
        running = {
            task_id: task
            for task_id, task in self.mesh.state.running.by_id.items()
            if task.agent_name in agents and isinstance(agents[task.agent_name].phase, Running)
        }
        if name := self.pick(running):
            if running[name].spec.run:
                self.mesh.run_ends(name)
            else:
                self.mesh.handle(s.TaskFinished(task_id=name, end_agent=True))

    def leave(self):
        if name := self.pick(self.mesh.ends):
            self.mesh.leave(name, saved=isinstance(self.mesh.ends[name], EvictAgent))

    def lose_node(self):
        if len(self.reports) > 2:
            self.reports.remove(self.random.choice(self.reports))
            self.mesh.observe(*self.reports)

    def join_node(self):
        if len(self.reports) < 6:
            self.reports.append(self.new_node())
            self.mesh.observe(*self.reports)

    def explain(self):
        for task_id in [*self.mesh.state.queue.by_id, *self.mesh.state.running.by_id]:
            msgspec.json.encode(self.mesh.engine.explain(task_id, self.mesh.now))

    def tick(self):
        self.mesh.tick(5.0)


if __name__ == "__main__":
    run_worlds(World)
