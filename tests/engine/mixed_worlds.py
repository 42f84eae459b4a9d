"""Random worlds of owners, dependencies, arrays and topologies, beside what their pages promise.

    python -m tests.engine.mixed_worlds --worlds 1000 --seed 7

In a world the tasks, gangs, elastic gangs, leases and arrays of some owners come and go in two pools. These
may lend to each other; their limits, order and names change meanwhile. Nodes and processes are lost, tasks
are evicted, held and cancelled, and the supervisor restarts from facts and from snapshots. It checks that
nobody starts beyond its owner's limits, before what it starts after, or in two racks where it requires one,
that what may start does, that what can never start is cancelled, that nothing is reserved for a task that may
not start, and what rows and explanations say.
"""

from __future__ import annotations

import argparse
import random

import msgspec

from schedulemesh.domain.arrays import array_form
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import GangPayload, LeasePayload
from schedulemesh.domain.resources import UNIT
from schedulemesh.domain.task import EndState
from schedulemesh.engine.explanation.shares import shares_of
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.instructions import EvictAgent
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Running
from tests.engine.builders import Mesh, differences, node, pool

OWNERS = ("ada", "", "default", "b c,[3]", "ü.x=1")
KINDS = ("cpu", "gpu")
TOPOLOGIES = ("", "", "rack", "preferred:rack", "rack,slice:1:rack")


class World:
    """Two pools, and what is known of each task and each agent."""

    def __init__(self, seed, steps=80):
        self.seed, self.steps = seed, steps
        self.r = r = random.Random(seed)
        self.cohort = r.random() < 0.6
        self.pools = ["p", "q"]
        self.limits = {}
        self.fair = {}
        self.queueing = {}
        self.quota = {}
        for name in self.pools:
            self.randomise(name)
        self.nodes = {
            name: node(name, cpu=cpu, gpu=cpu // 4, labels={"rack": rack})
            for name, cpu, rack in (("n1", 4, "r1"), ("n2", 8, "r2"), ("n3", 4, "r1"))
        }
        self.levels = ("rack",)
        self.mesh = Mesh(
            *[self.spec(n) for n in self.pools],
            nodes=self.nodes.values(),
            min_preempt_score=0.0,
            topology_levels=self.levels,
        )
        self.mesh.handle(s.ClassProbed(class_key="k"))
        self.hold = {}  # agent -> (owner or None, amounts, extra, task)
        self.gen = {}  # task id -> number of lives
        self.alive = {}  # (id, gen) -> None; ended: state
        self.ended = {}
        self.deps = {}  # id -> [(cond, (id, gen))]
        self.number = 0
        self.trace = []
        self.unmet, self.ticked = {}, False

    def randomise(self, name):
        r = self.r
        limits = {}
        for who in r.sample(("default", "ada", "", "b c,[3]", "ü.x=1"), r.randrange(4)):
            if who == "":
                continue
            limits[who] = dict(
                r.sample(
                    [
                        ("cpu", r.choice((1, 2, 4, 6, None))),
                        ("gpu", r.choice((0, 1, 2, None))),
                        ("running", r.choice((0, 1, 2, 3, None))),
                        ("queued", r.choice((1, 2, 4, None))),
                    ],
                    r.randrange(1, 4),
                )
            )
        self.limits[name] = limits
        self.fair[name] = r.random() < 0.4
        self.queueing[name] = r.choice(("greedy", "strict", "backfill", ""))
        self.quota[name] = {"cpu": r.choice((4, 6, 8)), "gpu": r.choice((1, 2, 4))}

    def spec(self, name):
        more = {"queueing": self.queueing[name]} if self.queueing[name] else {}
        return msgspec.structs.replace(
            pool(name, lending={"cohort": "c"} if self.cohort else None, **self.quota[name]),
            owner_limits=parse_owner_limits(self.limits[name]),
            owner_order="fair" if self.fair[name] else "none",
            **more,
        )

    # -- oracle
    def limit(self, pool_name, owner, what):
        """A limit of an owner: of its entry, where that names it, else of the default."""
        for entry in (self.limits[pool_name].get(owner), self.limits[pool_name].get("default")):
            if entry is not None and what in entry:
                return entry[what]
        return None

    def holds(self, pool_name, owner):
        """What the tasks of an owner hold in a pool, and how many agents do."""
        mine = [(a, x) for n, (o, a, x, p) in self.hold.items() if o == owner and p == pool_name]
        return {k: sum(a[k] for a, _ in mine) for k in KINDS}, len(mine)

    def permits(self, pool_name, owner, amounts, extra=False, alone=False):
        """Whether the limits of an owner permit a task to start; ``alone``: if it held nothing."""
        has, count = (dict.fromkeys(KINDS, 0), 0) if alone else self.holds(pool_name, owner)
        for k in KINDS:
            most = self.limit(pool_name, owner, k)
            if amounts[k] and most is not None and has[k] + amounts[k] > most + 1e-9:
                return False
        most = self.limit(pool_name, owner, "running")
        return most is None or count < most

    def amounts(self, resources):
        return {"cpu": resources.cpu / UNIT, "gpu": resources.gpu / UNIT}

    def with_agent(self, array):
        """How many members of an array have an agent, which may have no task any more."""
        begin = f"{array.agent_name}["
        return sum(name.startswith(begin) for name in self.mesh.state.agents)

    def is_alive(self, task_id):
        st = self.mesh.state
        if task_id in st.running.by_id or task_id in st.queue.by_id:
            return True
        if task_id in st.arrays.by_id and task_id not in st.ended:
            return True
        name, _, rest = task_id.partition("[")
        if rest and name in st.arrays.by_id:
            return int(rest[:-1]) in st.arrays.by_id[name].remaining
        return False

    def follow(self, seen):
        """Note who was admitted and who has ended, and check what must hold after each step."""
        st = self.mesh.state
        for fact in self.mesh.facts[seen:]:
            if isinstance(fact, f.AgentAdmitted):
                self.admitted(fact)
            elif isinstance(fact, f.AgentEnded):
                self.hold.pop(fact.agent_name, None)
        assert set(self.hold) == set(st.agents), set(self.hold) ^ set(st.agents)
        for name, agent in st.agents.items():
            assert self.hold[name][3] == agent.spec.pool_name, name
        for key in [k for k, v in self.alive.items()]:
            if not self.is_alive(key[0]):
                past = st.ended.get(key[0])
                if past is not None:
                    state = past.state
                else:
                    name, _, rest = key[0].partition("[")
                    state = st.arrays.by_id[name].end_of(int(rest[:-1]))
                self.ended[key] = state
                del self.alive[key]
        self.check_dependencies()
        self.check_queue()
        self.check_racks()

    def admitted(self, fact):
        task = fact.task
        owner = None if task is None else task.owner
        amounts = self.amounts(fact.agent.resources)
        extra = task is not None and bool(task.extra_of)
        pool_name = fact.agent.pool_name
        if task is not None:
            limits = self.limits[pool_name]
            text = f"{task.task_id} of {owner!r} starts beyond {limits}: {amounts}"
            assert self.permits(pool_name, owner, amounts), text
        self.hold[fact.agent.name] = (owner, amounts, extra, pool_name)

    def met(self, cond, key):
        """Whether a dependency is met; None: the other task has not ended."""
        state = self.ended.get(key)
        if state is None:
            return None
        done = state is EndState.COMPLETED
        return {"ok": done, "any": True, "fail": not done}[cond]

    def check_dependencies(self):
        st = self.mesh.state
        for (task_id, g), after in self.deps.items():
            if self.gen.get(task_id) != g:
                continue
            mets = [self.met(c, k) for c, k in after]
            ids = (
                [task_id]
                if task_id not in st.arrays.by_id
                else [task_id, *[t for t in st.running.by_id if t.startswith(task_id + "[")]]
            )
            for one in ids:
                if one in st.running.by_id:
                    assert all(mets), f"{one} runs: {after} {mets}"
            if False in mets and (task_id, g) in self.alive and task_id not in st.running.by_id:
                self.unmet[(task_id, g)] = self.unmet.get((task_id, g), 0) + 1
                assert self.unmet[(task_id, g)] < 6, (
                    f"{task_id} can never start and is not cancelled: {after} {mets}"
                )
            if task_id in st.queue.by_id:
                waits = bool(st.queue.by_id[task_id].depends)
                assert waits == (not all(mets)), (task_id, waits, after, mets)
            if all(mets) and (task_id, g) in self.ended and st.ended.get(task_id):
                assert st.ended[task_id].reason != "dependency_not_met", (task_id, after)

    def check_queue(self):
        st = self.mesh.state
        for name in st.queue.pools:
            tasks = list(st.queue.of_pool(name))
            dep = [bool(t.depends) for t in tasks if t.depends or t.queue_class is not None]
            assert dep == sorted(dep), [(t.task_id, bool(t.depends)) for t in tasks]
            for t in tasks:
                assert t.pool_name == name
                if t.reservation is not None:
                    a = self.amounts(t.submission.agent.resources)
                    assert not t.depends, f"{t.task_id} depends and has a reserved start"
                    if self.permits(name, t.spec.owner, a, bool(t.spec.extra_of)) is False:
                        assert not self.ticked, f"{t.task_id} reserved beyond its owner's limit"
        for array in st.arrays.by_id.values():
            if array.most:
                assert self.with_agent(array) <= array.most

    def check_racks(self):
        st = self.mesh.state
        for task in st.running.by_id.values():
            agent = st.agents.get(task.agent_name)
            group = None if agent is None else st.groups.by_id.get(agent.group_id or "")
            if task.spec.topology.startswith("rack") and group is not None:
                racks = {self.nodes[n].labels["rack"] for n in group.node_ids}
                assert len(racks) == 1, (task.spec.task_id, group.node_ids)

    def check_shares(self):
        st = self.mesh.state
        rows = shares_of(st, self.mesh.now)
        by = {(r.pool_name, r.owner): r for r in rows}
        for name in self.pools:
            for owner in OWNERS:
                has, count = self.holds(name, owner)
                row = by.get((name, owner))
                if row is None:
                    assert not count, (name, owner, has)
                    continue
                assert self.amounts(row.resources) == has, (name, owner, row, has)
                assert row.running == count, (name, owner, row, count)
                waits = sum(
                    len(st.arrays.by_id[t.task_id].remaining) if t.spec.array else 1
                    for t in st.queue.by_id.values()
                    if t.pool_name == name and t.spec.owner == owner
                )
                assert row.queued == waits, (name, owner, row.queued, waits)

    def check_explain(self):
        st = self.mesh.state
        for task_id in [*st.queue.by_id, *list(st.running.by_id)[:2], *list(st.arrays.by_id)]:
            told = self.mesh.engine.explain(task_id, self.mesh.now)
            msgspec.json.encode(told)
            t = st.queue.by_id.get(task_id)
            if t is None or isinstance(told, Refused):
                continue
            codes = {told.reason, *(o.reason.value for o in told.others)}
            a = self.amounts(t.submission.agent.resources)
            if t.depends:
                assert "dependency" in codes, (task_id, codes)
            limited = not self.permits(t.pool_name, t.spec.owner, a, bool(t.spec.extra_of))
            has = bool(codes & {"owner_limit", "exceeds_owner_limit"})
            # Of a gang whose former members are still ending nothing else is looked at.
            others = {"pool_draining", "members_ending"} & codes
            if limited != has and not t.depends and not t.held and not others:
                raise AssertionError((task_id, "limited", limited, codes))

    def check_live(self):
        st = self.mesh.state
        if any(t.reservation is not None for t in st.queue.by_id.values()):
            return
        if any(
            not isinstance(a.phase, Running) and n in self.mesh.ends for n, a in st.agents.items()
        ):
            return
        for name in self.pools:
            if (
                self.cohort
                or self.queueing[name] == "strict"
                or name in st.drains.pools
                or name not in st.ledger.accounts
            ):
                continue
            for t in st.queue.of_pool(name):
                if t.held or t.depends or t.not_before > self.mesh.now or t.spec.extra_of:
                    continue
                agent = t.submission.agent
                if agent.bundles:
                    continue
                a = self.amounts(agent.resources)
                array = st.arrays.by_id.get(t.spec.array_id or t.task_id)
                if array is not None and array.most and self.with_agent(array) >= array.most:
                    continue
                if not self.permits(name, t.spec.owner, a):
                    continue
                if not agent.resources.fits(st.ledger.accounts[name].free):
                    continue
                if any(
                    agent.resources.fits(n.free) and not n.cordoned and k not in st.drains.nodes
                    for k, n in st.cluster.nodes.items()
                ):
                    raise AssertionError(f"{t.task_id} could start in {name}")

    def check_twins(self):
        for which, twin in (("facts", self.mesh.refolded()), ("snapshot", self.mesh.rewritten())):
            for e in (twin, self.mesh.state):
                e.queue.advance(self.mesh.now)
            assert differences(self.mesh.state, twin) == [], which

    # -- steps
    def run(self):
        r = self.r
        ops = (
            [self.submit] * 8
            + [self.report] * 6
            + [self.finish] * 4
            + [self.leave] * 5
            + [
                self.fail,
                self.lose,
                self.evict,
                self.cancel,
                self.cancel_some,
                self.hold_,
                self.priority,
                self.define,
                self.rename,
                self.tick,
                self.tick,
                self.restart,
                self.drain_node,
                self.drain_pool,
                self.delete_agent,
                self.front,
                self.node_lost,
                self.delete_pool,
                self.declare_levels,
            ]
        )
        for number in range(self.steps):
            self.mesh.now += r.choice((0.0, 0.0, 1.0, 7.0, 100.0))
            op = r.choice(ops)
            seen = len(self.mesh.facts)
            self.trace.append(op.__name__)
            op()
            self.follow(seen)
            if number % 4 == 0:
                seen = len(self.mesh.facts)
                self.mesh.tick(1.0)
                self.mesh.tick(0.0)
                self.ticked = True
                self.follow(seen)
                self.ticked = False
                self.check_live()
                self.check_shares()
                self.check_explain()
            if number % 20 == 7:
                self.check_twins()
        self.check_twins()

    def note(self, *what):
        self.trace.append(what)

    def some_pool(self):
        return self.r.choice(self.pools)

    def submit(self):
        r = self.r
        st = self.mesh.state
        kind = r.choice(
            ("single", "single", "single", "gang", "elastic", "lease", "array", "array")
        )
        pool_name, owner = self.some_pool(), r.choice(OWNERS)
        if self.ended and r.random() < 0.15:
            task_id = r.choice(sorted(k[0] for k in self.ended if "[" not in k[0]) or ["x"])
        else:
            self.number += 1
            task_id = f"t{self.number}"
        if self.is_alive(task_id):
            return
        how = {
            "priority": float(r.choice((1, 5, 5, 9))),
            "owner": owner,
            "class_key": "k",
            "retries": r.choice((0, 0, 1, 2)),
            "on_preempted": r.choice(("", "requeue", "drop")),
        }
        limits, topology = {}, ""
        if kind in ("single", "array"):
            how |= {"cpu": r.choice((1, 1, 2, 3))} if r.random() < 0.7 else {"cpu": 1, "gpu": 1}
            how["run"] = "go" if kind == "array" or r.random() < 0.5 else ""
            if kind == "array":
                limits["array"] = r.choice(("0-3", "0-9%2", "1,5-7%1", "0-99999%3", "0-8:4"))
        else:
            how["bundles"] = [{"cpu": 1}] * 2
            how["payload"] = {
                "gang": GangPayload(strategy=r.choice(("", "STRICT_SPREAD"))),
                "elastic": GangPayload(replicas=4),
                "lease": LeasePayload(parts=1),
            }[kind]
            topology = how["topology"] = r.choice(TOPOLOGIES)
            if kind == "lease":
                del how["class_key"]
                how["retries"] = 0
                how["on_preempted"] = ""
        if r.random() < 0.5:
            how["duration"] = float(r.choice((5, 50, 500)))
        queue = kind == "array" or r.random() < 0.85
        after = []
        if queue and r.random() < 0.4:
            names = [
                k for k in [*self.alive, *self.ended] if self.gen[k[0]] == k[1] and k[0] != task_id
            ]
            chosen = r.sample(sorted(names), min(len(names), r.choice((1, 1, 2, 3))))
            after = [(r.choice(("ok", "any", "fail")), key) for key in chosen]
        limits["after"] = tuple(f"{c}:{k[0]}" for c, k in after)
        how["limits"] = limits
        if r.random() < 0.3:
            how["more"] = {"may_preempt": False}
        self.note(
            task_id,
            kind,
            pool_name,
            owner,
            queue,
            limits,
            how.get("cpu"),
            how.get("gpu"),
            how["priority"],
        )
        waiting = sum(
            len(st.arrays.by_id[t.task_id].remaining) if t.spec.array else 1
            for t in st.queue.by_id.values()
            if t.pool_name == pool_name and t.spec.owner == owner and not t.spec.extra_of
        )
        amounts = {"cpu": how.get("cpu", 2), "gpu": how.get("gpu", 0)}
        members = array_form(limits["array"]).size if kind == "array" else 1
        alone = self.permits(pool_name, owner, amounts, alone=True)
        fits_now = self.permits(pool_name, owner, amounts)
        mets = [self.met(c, k) for c, k in after]
        forgotten = any(k in self.ended and k[0] not in st.ended for c, k in after)
        outcome = (self.mesh.queue if queue else self.mesh.submit)(task_id, pool_name, **how)
        self.note(type(outcome).__name__, getattr(outcome, "reason", ""))
        reason = getattr(outcome, "reason", None) if isinstance(outcome, Refused) else None
        if reason is None or reason == "":
            assert alone, "admitted beyond its owner's limit"
            assert not topology or (self.levels and kind != "elastic"), topology
            if queue:
                most = self.limit(pool_name, owner, "queued")
                assert most is None or waiting + members <= most, "queued beyond"
            else:
                assert fits_now
            assert False not in mets, "accepted although it can never start"
            g = self.gen[task_id] = self.gen.get(task_id, 0) + 1
            self.alive[(task_id, g)] = None
            if after:
                self.deps[(task_id, g)] = after
        else:
            most = self.limit(pool_name, owner, "queued")
            if reason == "invalid_topology":
                assert topology
                assert kind == "elastic" or not self.levels, topology
            if reason == "exceeds_owner_limit":
                assert not alone
            if reason == "owner_queue_full":
                assert most is not None
                assert waiting + members > most
            if reason == "owner_limit":
                assert not fits_now
                assert not queue
            if reason == "dependency_not_met":
                assert False in mets
            if reason == "invalid_dependency":
                assert forgotten or task_id in [k[0] for _, k in after], (after, forgotten)

    def pick(self, names):
        names = sorted(names)
        return self.r.choice(names) if names else None

    def report(self):
        self.mesh.make_all()
        if n := self.pick(self.mesh.starts):
            self.mesh.report(n)

    def running(self):
        return [
            t
            for t in self.mesh.state.running.by_id.values()
            if t.agent_name in self.mesh.state.agents
            and isinstance(self.mesh.state.agents[t.agent_name].phase, Running)
        ]

    def finish(self):
        ts = {t.spec.task_id: t for t in self.running() if not t.spec.extra_of}
        if n := self.pick(ts):
            self.note(n)
            if ts[n].spec.run:
                self.mesh.run_ends(n)
            else:
                self.mesh.handle(s.TaskFinished(task_id=n, end_agent=self.r.random() < 0.7))

    def fail(self):
        ts = {t.spec.task_id: t for t in self.running() if t.spec.run}
        if n := self.pick(ts):
            self.note(n)
            self.mesh.run_ends(n, reason=TaskEndReason.RUN_RAISED, error="raised")

    def lose(self):
        if n := self.pick(self.mesh.state.agents):
            self.note(n)
            self.mesh.die(n)

    def leave(self):
        if n := self.pick(self.mesh.ends):
            self.note(n)
            self.mesh.leave(
                n, saved=isinstance(self.mesh.ends[n], EvictAgent) and self.r.random() < 0.8
            )

    def evict(self):
        if n := self.pick(self.mesh.state.agents):
            self.note(n)
            self.mesh.preempt(agent_name=n)

    def delete_agent(self):
        if n := self.pick(self.mesh.state.agents):
            self.note(n)
            self.mesh.delete(n)

    def cancel(self):
        if n := self.pick([*self.mesh.state.running.by_id, *self.mesh.state.queue.by_id]):
            self.note(n)
            self.mesh.cancel(n)

    def array_word(self):
        if n := self.pick(self.mesh.state.arrays.by_id):
            return self.r.choice((n, f"{n}[0-3]", f"{n}[1]", f"{n}[4-8:4]", f"{n}[5,7]"))
        return None

    def cancel_some(self):
        if w := self.array_word():
            self.note(w)
            self.mesh.cancel(w)

    def hold_(self):
        w = self.array_word() if self.r.random() < 0.3 else self.pick(self.mesh.state.queue.by_id)
        if w:
            self.note(w)
            self.mesh.change(w, held=self.r.random() < 0.5)

    def priority(self):
        w = (
            self.array_word()
            if self.r.random() < 0.3
            else self.pick([*self.mesh.state.queue.by_id, *self.mesh.state.running.by_id])
        )
        if w:
            self.note(w)
            self.mesh.change(w, priority=float(self.r.choice((0, 3, 9))))

    def front(self):
        w = self.array_word() if self.r.random() < 0.3 else self.pick(self.mesh.state.queue.by_id)
        if w:
            self.note(w)
            self.mesh.change(w, to_front=True)

    def define(self):
        name = self.some_pool()
        old = (self.limits[name], self.fair[name], self.queueing[name], self.quota[name])
        self.randomise(name)
        if self.r.random() < 0.6:
            self.quota[name] = old[3]
        out = self.mesh.resize(self.spec(name))
        self.note(name, self.limits[name], type(out).__name__)
        if isinstance(out, Refused):
            self.limits[name], self.fair[name], self.queueing[name], self.quota[name] = old

    def rename(self):
        name = self.some_pool()
        new = f"{name[0]}{self.number}_{len(self.trace)}"
        self.move(name, new)
        out = self.mesh.rename_pool(name, new)
        assert not isinstance(out, Refused), out
        self.pools[self.pools.index(name)] = new
        for n, (o, a, x, p) in list(self.hold.items()):
            if p == name:
                self.hold[n] = (o, a, x, new)

    def move(self, name, new):
        for table in (self.limits, self.fair, self.queueing, self.quota):
            table[new] = table[name]

    def delete_pool(self):
        if self.r.random() < 0.5:
            return
        name = self.some_pool()
        out = self.mesh.delete_pool(name, drain=False)
        if not isinstance(out, Refused):
            self.mesh.resize(self.spec(name))

    def declare_levels(self):
        self.levels = self.r.choice((("rack",), ("rack",), ("block", "rack"), ()))
        self.mesh.policy(topology_levels=self.levels)

    def drain_node(self):
        node_id = self.r.choice(sorted(self.nodes))
        self.mesh.handle(s.DrainRequested(node_id=node_id, drained=self.r.random() < 0.4))

    def drain_pool(self):
        self.mesh.handle(
            s.DrainRequested(pool_name=self.some_pool(), drained=self.r.random() < 0.4)
        )

    def node_lost(self):
        if self.r.random() < 0.3:
            lost = self.r.choice(sorted(self.nodes))
            self.mesh.observe(*[n for k, n in self.nodes.items() if k != lost])
        else:
            self.mesh.observe(*self.nodes.values())

    def tick(self):
        self.mesh.tick(float(self.r.choice((1, 5, 60))))

    def restart(self):
        self.mesh.engine.state = (
            self.mesh.rewritten() if self.r.random() < 0.5 else self.mesh.refolded()
        )


def main():
    """Run worlds until one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.worlds):
        world = World(seed)
        try:
            world.run()
        except Exception:
            print(f"world {seed}", *world.trace[-20:], sep="\n")
            raise
    print(f"{arguments.worlds} worlds")


if __name__ == "__main__":
    main()
