"""Random worlds of the queue, in virtual time, with an oracle written from the documentation.

A world has pools in a tree of cohorts, nodes, tasks, gangs and elastic gangs of all priorities, which take
seconds or minutes to be saved, and operators who drain nodes, change quotas and limits. The oracle knows
what docs/queueing.md, docs/lending.md, docs/gangs.md and docs/preemption_guide.md promise:

- *capacity*: no pool, tree of cohorts or node ever holds more than it has;
- *labels*: a task that asks for a model of GPU is on nodes of that model alone;
- *own_quota*: a task that its pool's own quota covers, with what borrowers hold of it or are to get, does not
  stay in the queue, whoever stands before it, and whether the borrowers run, start or wait for their victims;
- *revoked*: no start of a borrower is cancelled but for a task that is admitted in the same step;
- *starts*: what fits starts, and no node is kept for a task whose quota comes nobody knows when;
- *in_vain*: nobody is evicted while what is leaving, and is neither promised to anybody nor needed for a
  reserved start or by a task that comes before, would be enough;
- *came_first*: nobody is evicted by the rules for a task of its pool that it has passed in the queue;
- *restless*: evictions stop when nothing changes any more;
- *promises*: what ``explain`` announces for the next seconds happens, and a start reserved by exact durations
  comes in time.

    python -m tests.engine.queue_worlds --worlds 1000 --seed 7
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from schedulemesh.config.pools import parse_lending
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, sum_of
from schedulemesh.engine.admission.revocations import WHY
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.state.agents import Agent, Ending, Starting, Waiting
from schedulemesh.engine.state.lending import clipped
from schedulemesh.engine.state.queued_tasks import QueuedTask
from tests.engine.builders import Mesh, node, pool
from tests.engine.walk import is_ruled_out

#: What a task may ask of the model of a node, and the models that will do.
MODELS = {"x": {"x"}, "!x": {"y"}, "in(x, y)": {"x", "y"}, "!in(x, z)": {"y"}}
#: Seconds for which what must not be may last: the queue is served once a second.
TICKS = 2.5
#: Seconds after a change by an operator in which nothing is asked for.
UNSETTLED_S = 3.0
#: Seconds of a world with arrivals, and at least without any change after them.
BUSY_S, STILL_S = 400.0, 400.0
#: Seconds of the end in which nobody may be evicted any more.
QUIET_S = 120.0
#: How often the end may be put off: a task that runs longer than it declared changes what is reserved late,
#: but less and less often.
ROUNDS = 3


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept."""

    rule: str
    at: float
    text: str


class Work(msgspec.Struct):
    """A task as its owner knows it."""

    task_id: str
    duration: float
    savable: bool
    #: Seconds of its work that are done and saved, and when it last began to run.
    done: float = 0.0
    began: float | None = None
    #: The number of its run, so that the end of an earlier one is not taken for its own.
    run: int = 0


class World:
    """One world, and all that happens in it."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)
        self.violations: list[Violation] = []
        self.evictions: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._works: dict[str, Work] = {}
        self._ordered: set[tuple[str, int]] = set()
        #: Who waited behind each task when it started from the queue, and waits since.
        self._passed: dict[str, set[str]] = {}
        #: Agents that are being stopped because their starts were cancelled.
        self._stopped: set[str] = set()
        #: Since when a condition holds that may not last.
        self._since: dict[tuple[str, str], float] = {}
        self._settled_at = 0.0
        #: Whether from now on nothing arrives and nothing ends by itself.
        self._still = False
        #: What decides about models alone, so that the rest of a world does not depend on them.
        self.models = random.Random(f"models of {seed}")
        self.with_models = self.models.random() < 0.5
        self.nodes = {
            name: node(
                name,
                gpu=self.dice.choice((4, 8, 8)),
                cpu=64,
                labels={"model": self.models.choice("xy")},
            )
            for name in ("n1", "n2", "n3", "n4")[: self.dice.randint(1, 4)]
        }
        self.lost: dict[str, Any] = {}
        self.save_s = self.dice.choice((0.3, 3.0, 20.0))
        #: How long starts take; it changes nothing else of a world.
        self.start_s = random.Random(f"starts of {seed}").choice((0.5, 0.5, 20.0))
        #: Whether owners say how long their tasks run, and whether it is true.
        self.declared = self.dice.choice(("none", "exact", "wrong"))
        self.disturbed = self.dice.random() < 0.5
        self.mesh = Mesh(nodes=self.nodes.values())
        self._define()

    @property
    def now(self) -> float:
        """The time of the world in seconds."""
        return self.mesh.now

    # -- the beginning

    def _define(self) -> None:
        roll = self.dice
        gpus = sum(report.total.gpu for report in self.nodes.values()) // UNIT
        self.pools = ["a", "b", "c", "d", "e"][: roll.randint(1, 5)]
        cohorts = []
        if roll.random() < 0.7:
            cohorts = ["top", "left", "right"][: roll.randint(1, 3)]
            for name in cohorts:
                self.mesh.cohort(name, None if name == "top" else "top", roll.choice((1.0, 2.0)))
        for name in self.pools:
            cohort = roll.choice([*cohorts, *cohorts, None])
            lending: dict[str, Any] = {} if cohort is None else {"cohort": cohort}
            if cohort is not None and roll.random() < 0.2:
                lending["lending_limit"] = {"gpu": roll.randint(0, 4)}
            if cohort is not None and roll.random() < 0.2:
                lending["borrowing_limit"] = {"gpu": roll.randint(0, 4)}
            if cohort is not None and roll.random() < 0.3:
                lending["weight"] = roll.choice((0.5, 2.0))
            quota = max(1, round(gpus / len(self.pools) * roll.choice((0.5, 1.0, 1.0, 1.5))))
            # Some pools own GPUs and take their CPUs from the cohort.
            cpu = 0 if cohort is not None and roll.random() < 0.2 else 64
            spec = pool(name, gpu=quota, cpu=cpu, lending=lending)
            queueing = roll.choice(("best_effort", "best_effort", "strict", "greedy"))
            self.mesh.resize(msgspec.structs.replace(spec, queueing=queueing))
        order = roll.choice(("priority", "priority", "fifo", "dominant_share"))
        self.mesh.order_by(
            order=order,
            backfill_limit_s=roll.choice((30.0, 3600.0)),
            promote_after_s=roll.choice((0.0, 0.0, 100.0)),
        )

    # -- the life of a world

    def run(self) -> list[Violation]:
        """All that did not hold."""
        start = self.now
        self._at(1.0, self._tick)
        for _ in range(self.dice.randint(10, 45)):
            self._at(self.dice.uniform(0.0, BUSY_S), self._arrive)
        if self.disturbed:
            for _ in range(self.dice.randint(1, 6)):
                self._at(self.dice.uniform(0.0, BUSY_S), self._disturb)
        self._until(start + BUSY_S)
        self._still = True
        late = 0
        for _ in range(ROUNDS):
            self._until_nothing_changes(self.now + STILL_S)
            late = sum(at > self.now - QUIET_S for at in self.evictions)
            if not late:
                break
        if late:
            self._violated("restless", f"{late} evictions although nothing changes")
        return self.violations

    def _until_nothing_changes(self, end: float) -> None:
        """Until nothing has been decided for longer than any time that the policy counts, or the end."""
        seen, since = len(self.mesh.facts), self.now
        while self.now < end and self.now - since <= QUIET_S + UNSETTLED_S:
            self._until(self.now + 1.0)
            if len(self.mesh.facts) != seen:
                seen, since = len(self.mesh.facts), self.now

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.mesh.now, _, happen = heapq.heappop(self._events)
            happen()
        self.mesh.now = end

    def _at(self, delay: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), happen))

    def _tell(self, act: Callable[[], Any]) -> Any:
        """Something happens: check what follows, and let the executor begin what it is told."""
        leaving = Leaving(self)
        orders = {name: self._order_of(name) for name in self.pools}
        seen = len(self.mesh.facts)
        result = act()
        new = self.mesh.facts[seen:]
        self._check_evictions(leaving, new)
        self._check_order(orders, new)
        self._check_revocations(new)
        self._check_capacity()
        self._execute()
        return result

    def _tick(self) -> None:
        self._tell(self.mesh.tick)
        if self.now >= self._settled_at:
            self._check_waiting()
        else:
            self._since.clear()
        self._at(1.0, self._tick)

    def _arrive(self) -> None:
        roll, number = self.dice, len(self._works)
        name = f"t{number}"
        duration = roll.choice((5.0, 30.0, 120.0, 1000.0))
        declared = {"none": None, "exact": duration, "wrong": duration * roll.choice((0.3, 3.0))}
        priority = roll.choice((1.0, 3.0, 5.0, 5.0, 9.0, 20.0))
        how: dict[str, Any] = {
            "duration": declared[self.declared],
            "on_preempted": roll.choice(("requeue", "requeue", "requeue", "drop")),
            "class_key": "c",
        }
        gpu = roll.choice((1, 1, 1, 2, 4, 8))
        kind = roll.random()
        if kind < 0.12:
            members = roll.randint(2, 4)
            how["bundles"] = [{"gpu": min(gpu, 4), "cpu": 1}] * members
            how["payload"] = GangPayload(strategy=roll.choice(("PACK", "STRICT_SPREAD")))
        elif kind < 0.2:
            how["bundles"] = [{"gpu": 1, "cpu": 1}] * 2
            how["payload"] = GangPayload(replicas=roll.randint(3, 6))
        else:
            how |= {"gpu": gpu, "cpu": gpu}
        if self.with_models and self.models.random() < 0.4:
            how["node_labels"] = {"model": self.models.choice(sorted(MODELS))}
        self._works[name] = Work(task_id=name, duration=duration, savable=roll.random() < 0.8)
        self._tell(lambda: self.mesh.queue(name, roll.choice(self.pools), priority, **how))

    def _disturb(self) -> None:
        self._settled_at = self.now + UNSETTLED_S
        roll, mesh = self.dice, self.mesh
        kind = roll.choice(("drain", "quota", "limit", "cancel", "hold", "front", "front", "node"))
        if kind == "drain":
            node_id = roll.choice(sorted(self.nodes))
            drained = node_id not in mesh.state.drains.nodes
            self._tell(
                lambda: mesh.handle(s.DrainRequested(node_id=node_id, drained=drained, client="me"))
            )
        elif kind in ("quota", "limit"):
            self._tell(lambda: self._redefine(kind))
        elif kind == "node":
            self._tell(self._lose_or_return)
        elif waiting := sorted(mesh.state.queue.by_id):
            task_id = roll.choice(waiting)
            if kind == "cancel":
                self._tell(lambda: mesh.cancel(task_id))
            elif kind == "front":
                self._tell(lambda: mesh.change(task_id, to_front=True))
            else:
                self._tell(lambda: mesh.change(task_id, held=True))
                self._at(30.0, lambda: self._release(task_id))

    def _release(self, task_id: str) -> None:
        if task_id in self.mesh.state.queue.by_id:
            self._settled_at = max(self._settled_at, self.now + UNSETTLED_S)
            self._tell(lambda: self.mesh.change(task_id, held=False))

    def _redefine(self, kind: str) -> None:
        name = self.dice.choice(self.pools)
        spec = self.mesh.state.ledger.accounts[name].spec
        if kind == "quota":
            quota = msgspec.structs.replace(
                spec.resources, gpu=spec.resources.gpu + self.dice.choice((UNIT, 2 * UNIT))
            )
            spec = msgspec.structs.replace(spec, resources=quota)
        elif spec.cohort is not None:
            limit = self.dice.choice((None, {"gpu": self.dice.randint(0, 4)}))
            spec = msgspec.structs.replace(spec, **parse_lending({"lending_limit": limit}))
        self.mesh.resize(spec)

    def _lose_or_return(self) -> None:
        """A node is lost with all that runs there, or one that was lost is there again."""
        mesh = self.mesh
        if self.lost:
            name, report = self.lost.popitem()
            self.nodes[name] = report
            mesh.observe(*self.nodes.values())
        elif len(self.nodes) > 1:
            name = self.dice.choice(sorted(self.nodes))
            self.lost[name] = self.nodes.pop(name)
            on_it = [each for each, agent in mesh.state.agents.items() if _is_on(self, agent, name)]
            mesh.observe(*self.nodes.values())
            self._at(0.5, lambda: self._die(on_it))

    def _die(self, names: Iterable[str]) -> None:
        for name in names:
            agent = self.mesh.state.agents.get(name)
            if agent is not None and not isinstance(agent.phase, Waiting):
                self.mesh.starts.pop(name, None)
                self.mesh.ends.pop(name, None)
                self._tell(lambda name=name: self.mesh.die(name))  # type: ignore[misc]

    # -- the executor

    def _execute(self) -> None:
        mesh = self.mesh
        for name, start in list(mesh.starts.items()):
            self._once(name, start.incarnation, self.start_s, lambda name=name: self._begin(name))  # type: ignore[misc]
        for name, end in list(mesh.ends.items()):
            evicted = isinstance(end, i.EvictAgent)
            delay = self.save_s if evicted else 0.3
            self._once(f"end {name}", end.incarnation, delay, lambda name=name: self._end(name))  # type: ignore[misc]
        for group_id in list(mesh.makes):
            self._once(f"make {group_id}", 0, 0.1, lambda g=group_id: self._made(g))  # type: ignore[misc]
        for group_id in sorted(mesh.removes):
            self._once(f"remove {group_id}", 0, 0.1, lambda g=group_id: self._removed(g))  # type: ignore[misc]
        for task_id in list(mesh.probes):
            mesh.probes.pop(task_id)
            self._at(0.2, lambda: self._tell(lambda: mesh.handle(s.ClassProbed(class_key="c"))))

    def _once(self, what: str, number: int, delay: float, act: Callable[[], None]) -> None:
        if (what, number) not in self._ordered:
            self._ordered.add((what, number))
            self._at(delay, act)

    def _begin(self, name: str) -> None:
        agent = self.mesh.state.agents.get(name)
        if name in self.mesh.starts and agent is not None and isinstance(agent.phase, Starting):
            capable = ("save_state", "restore_state", "cancel")
            self._tell(lambda: self.mesh.report(name, capabilities=capable))
            for task_id in self.mesh.state.running.on_agent(name):
                self._runs(task_id)

    def _runs(self, task_id: str) -> None:
        work = self._works.get(task_id)
        if work is None:  # an extra member of an elastic gang: it ends with its core
            return
        work.began, work.run = self.now, work.run + 1
        run = work.run
        self._at(work.duration - work.done, lambda: self._finish(work, run))

    def _finish(self, work: Work, run: int) -> None:
        task = self.mesh.state.running.by_id.get(work.task_id)
        if not self._still and work.run == run and task is not None:
            stimulus = s.TaskFinished(task_id=work.task_id, end_agent=True)
            self._tell(lambda: self.mesh.handle(stimulus))

    def _end(self, name: str) -> None:
        order = self.mesh.ends.get(name)
        if order is None:
            return
        for task_id in getattr(order, "task_ids", ()):
            work = self._works.get(task_id)
            if work is not None and work.began is not None:
                work.run += 1
                work.done = min(work.done + self.now - work.began, work.duration - 0.1)
                work.done = work.done if work.savable else 0.0
                if work.savable:
                    self._tell(lambda task_id=task_id: self.mesh.save(task_id))  # type: ignore[misc]
        self._tell(lambda: self.mesh.leave(name))

    def _made(self, group_id: str) -> None:
        if group_id in self.mesh.makes:
            self._tell(lambda: self.mesh.make(group_id))

    def _removed(self, group_id: str) -> None:
        self._ordered.discard((f"remove {group_id}", 0))
        if group_id in self.mesh.removes:
            self._tell(lambda: self.mesh.remove(group_id))

    # -- the oracle

    def _violated(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, self.now, text))

    def _lasts(self, rule: str, task_id: str, holds: bool, text: str) -> None:
        """What holds for longer than it may is a violation."""
        key = rule, task_id
        if not holds:
            self._since.pop(key, None)
        elif self.now - self._since.setdefault(key, self.now) > TICKS:
            self._violated(rule, f"{task_id}: {text}")
            self._since[key] = float("inf")

    def _check_capacity(self) -> None:
        """Of what has a process, or may have one: no node and no pool is used beyond what it has, and all
        together hold no more than all pools own.
        """
        state = self.mesh.state
        on_node: dict[str, Resources] = {}
        of_owner: dict[str, Resources] = {}
        for agent in state.agents.values():
            for share in agent.shares:
                owned = of_owner.get(share.pool_name, NOTHING)
                of_owner[share.pool_name] = owned + share.amount
            if isinstance(agent.phase, Waiting):
                continue
            if not agent.spec.resources.fits(sum_of(share.amount for share in agent.shares)):
                self._violated("capacity", f"{agent.spec.name} runs without all its quota")
            for node_id, need in _places(self, agent):
                on_node[node_id] = on_node.get(node_id, NOTHING) + need
                if node_id in self.nodes and not self._suits(node_id, agent.spec):
                    self._violated("labels", f"{agent.spec.name} is on {node_id}")
        for node_id, used in on_node.items():
            report = self.nodes.get(node_id)
            if report is not None and not used.fits(report.total):
                self._violated("capacity", f"node {node_id} holds {used} of {report.total}")
        for owner, used in of_owner.items():
            total = state.ledger.accounts[owner].spec.resources
            if not used.fits(total):
                self._violated("capacity", f"of pool {owner} {used} are held of {total}")

    def _check_evictions(self, leaving: Leaving, facts: Iterable[Any]) -> None:
        facts = list(facts)
        evicted = [fact for fact in facts if isinstance(fact, f.EvictionStarted)]
        self.evictions += [self.now] * len(evicted)
        # Who is admitted after another one in the same step finds less.
        first = next((fact for fact in facts if isinstance(fact, f.AgentAdmitted)), None)
        if first is None or not first.evicting:
            return
        reclaims = all(v.reason is PreemptionReason.RECLAIM for v in first.evicting)
        if leaving.is_enough_for(first.agent.pool_name, first.agent, spares_quota=not reclaims):
            victims = ", ".join(victim.task_id for victim in first.evicting)
            text = f"{first.agent.name} evicts {victims}; what leaves is enough"
            self._violated("in_vain", text)

    def _order_of(self, pool_name: str) -> list[str]:
        """The tasks of a pool that may start, in their order."""
        tasks = self.mesh.state.queue.of_pool(pool_name)
        return [task.task_id for task in tasks if task.queue_class and not task.spec.extra_of]

    def _check_order(self, orders: dict[str, list[str]], facts: Iterable[Any]) -> None:
        """Who starts from the queue has passed those behind it, until they start or are put before it."""
        rules = ("same_pool_preemption", "label_based_preemption")
        started: set[str] = set()
        for fact in facts:
            if isinstance(fact, f.AgentAdmitted) and fact.task is not None:
                task_id, order = fact.task.task_id, orders[fact.task.pool_name]
                for victim in fact.evicting:
                    passed = task_id in self._passed.get(victim.task_id, ())
                    if passed and victim.reason.value in rules:
                        text = f"{victim.task_id} is evicted for {task_id}, which it has passed"
                        self._violated("came_first", text)
                self._has_turn(task_id)
                behind = order[order.index(task_id) + 1 :] if task_id in order else ()
                self._passed[task_id] = set(behind) - started
                started.add(task_id)
            elif isinstance(fact, q.QueuePlaceChanged):
                self._has_turn(fact.task_id)

    def _check_revocations(self, facts: Iterable[Any]) -> None:
        """For each cancelled start somebody is admitted after it in the same step."""
        cancelled: list[str] = []
        for fact in facts:
            if isinstance(fact, f.AgentAdmitted):
                cancelled.clear()
            elif isinstance(fact, f.AgentEnding) and fact.reason is EndReason.START_FAILED:
                self._stopped.add(fact.agent_name)
                cancelled.append(fact.agent_name)
            elif isinstance(fact, f.AgentEnded) and fact.error == WHY:
                if fact.agent_name not in self._stopped:
                    cancelled.append(fact.agent_name)
                self._stopped.discard(fact.agent_name)
        for name in cancelled:
            self._violated("revoked", f"the start of {name} is cancelled, and nobody is admitted")

    def _has_turn(self, task_id: str) -> None:
        for passed in self._passed.values():
            passed.discard(task_id)

    def _check_waiting(self) -> None:
        state = self.mesh.state
        for task_id, task in list(state.queue.by_id.items()):
            ready = self._is_ready(task)
            covered = ready and self._is_covered_by_own(task)
            self._lasts("own_quota", task_id, covered, "its pool's own quota is on loan")
            starts = ready and self._should_start(task)
            self._lasts(
                "starts", task_id, starts, "it fits, and nothing that is known is before it"
            )
            if int(self.now) % 5 == 0:
                told = msgspec.json.encode(self.mesh.engine.explain(task_id, self.now)).decode()
                soon = "within seconds" in told and not task.held
                self._lasts("promises", task_id, soon, "explain says that it starts within seconds")

    def _is_ready(self, task: QueuedTask) -> bool:
        """Whether a task may start now, as far as it depends on itself and its pool."""
        return (
            not task.held
            and task.not_before <= self.now
            and task.pool_name not in self.mesh.state.drains.pools
            and task.task_id in self._works  # no extra member of an elastic gang
        )

    def _is_covered_by_own(self, task: QueuedTask) -> bool:
        """Whether its pool's own quota covers it with what running borrowers hold of it, and nodes have room
        without these.
        """
        state, pool_name = self.mesh.state, task.pool_name
        account, need = state.ledger.accounts[pool_name], task.submission.agent.resources
        first = next(
            (t for t in state.queue.of_pool(pool_name) if not is_ruled_out(state, t)), task
        )
        if first is not task and (account.spec.queueing == "strict" or self._is_kept_for(first)):
            return False
        if account.spec.cohort is None:
            return False
        own = [agent for agent in state.agents.values() if agent.spec.pool_name == pool_name]
        if not (need + sum_of(agent.spec.resources for agent in own)).fits(account.spec.resources):
            return False
        short = need.beyond(clipped(account.free))
        # Loans between pools that share nothing come from evictions across pools, and last.
        borrowers = [
            agent
            for agent in state.agents.values()
            if agent not in own
            and not isinstance(agent.phase, Ending)
            and state.ledger.accounts[agent.spec.pool_name].spec.cohort is not None
            and any(
                s.pool_name == pool_name and s.amount.helps(short)
                for s in (*agent.shares, *agent.promised)
            )
        ]
        lent = sum_of(
            share.amount
            for agent in borrowers
            for share in (*agent.shares, *agent.promised)
            if share.pool_name == pool_name
        )
        if need.fits(account.free) or not need.fits(account.free + lent):
            return False
        leave_for_them = [
            state.agents[name]
            for agent in borrowers
            if isinstance(agent.phase, Waiting)
            for name in agent.phase.for_agents
        ]
        gone = (*borrowers, *{agent.spec.name: agent for agent in leave_for_them}.values())
        rooms = {n: self._unpromised_on(n) + sum_of(_on(self, gone, n)) for n in self._open_nodes()}
        return self._fits_on(rooms, task.submission.agent)

    def _is_kept_for(self, first: QueuedTask) -> bool:
        """Whether what the first task of a pool needs is kept free for it, which has waited for that long."""
        passed_s = self.now - first.queued_at
        return (
            first.reservation is not None
            and passed_s > self.mesh.state.queue.policy.backfill_limit_s
        )

    def _should_start(self, task: QueuedTask) -> bool:
        """Whether it fits, and every other task waits for quota that comes nobody knows when."""
        state, need = self.mesh.state, task.submission.agent.resources
        if not need.fits(state.ledger.accounts[task.pool_name].free):
            return False
        rooms = {n: self._unpromised_on(n) for n in self._open_nodes()}
        if not self._fits_on(rooms, task.submission.agent):
            return False
        return all(
            other is task or self._waits_for_unknown_quota(other, task)
            for other in state.queue.by_id.values()
        )

    def _waits_for_unknown_quota(self, other: QueuedTask, task: QueuedTask) -> bool:
        if other.held:
            return True
        if other.pool_name == task.pool_name or self.declared != "none":
            return False
        account = self.mesh.state.ledger.accounts[other.pool_name]
        need = other.submission.agent.resources
        comes = sum_of(
            share.amount
            for agent in self.mesh.state.agents.values()
            for share in agent.shares
            if isinstance(agent.phase, Ending) and share.pool_name == other.pool_name
        )
        return account.spec.cohort is None and not need.fits(account.free + comes)

    def _unpromised_on(self, node_id: str) -> Resources:
        """What of a node is free and not promised to an agent that waits for the rest of its claim."""
        known = self.mesh.state.cluster.nodes[node_id]
        room = known.free
        for agent in self.mesh.state.agents.values():
            if isinstance(agent.phase, Waiting):
                room = room - sum_of(_missing(self, agent, known))
        return room

    def _fits_on(self, rooms: dict[str, Resources], agent: AgentSpec) -> bool:
        """Whether all processes of an agent have room at once. Members of a gang are alike in these worlds,
        so that the numbers of them for which each node has room say it.
        """
        member, size = (agent.bundles or (agent.resources,))[0], max(len(agent.bundles), 1)
        own_group = agent.own_group
        at_once = 1 if own_group is not None and own_group.strategy == "STRICT_SPREAD" else size
        hosted = (
            next(
                (count for count in range(at_once, 0, -1) if sum_of([member] * count).fits(room)), 0
            )
            for node_id, room in rooms.items()
            if self._suits(node_id, agent)
        )
        return sum(hosted) >= size

    def _suits(self, node_id: str, agent: AgentSpec) -> bool:
        """Whether a node has the model that an agent asks for."""
        model = self.nodes[node_id].labels.get("model")
        return all(model in MODELS[condition] for _, condition in agent.node_labels)

    def _open_nodes(self) -> Iterator[str]:
        state = self.mesh.state
        for node_id, known in state.cluster.nodes.items():
            if node_id in self.nodes and not known.cordoned and node_id not in state.drains.nodes:
                yield node_id


class Leaving:
    """What is free, or is leaving and promised to nobody, at one moment."""

    def __init__(self, world: World) -> None:
        state = world.mesh.state
        self._world = world
        self._rooms: dict[str, Resources] = {}
        ending = [a for a in state.agents.values() if isinstance(a.phase, Ending)]
        # A group that is given to the next agent as it is frees no room.
        claimed = {a.group_id for a in state.agents.values() if isinstance(a.phase, Waiting)} - {
            None
        }
        freeing = [agent for agent in ending if agent.group_id not in claimed]
        for node_id in world._open_nodes():
            self._rooms[node_id] = world._unpromised_on(node_id) + sum_of(
                _on(world, freeing, node_id)
            )
        # A claim does not overtake a task for which a start is reserved there.
        for task in state.queue.by_id.values():
            node_ids = () if task.reservation is None else task.reservation.node_ids
            agent = task.submission.agent
            for node_id, need in zip(node_ids, agent.bundles or (agent.resources,), strict=False):
                if node_id in self._rooms:
                    self._rooms[node_id] = self._rooms[node_id] - need
        self._quota: dict[str, Resources] = {}
        waiting = [share for agent in state.agents.values() for share in agent.promised]
        for name, account in state.ledger.accounts.items():
            shares = (share for a in ending for share in a.shares if share.pool_name == name)
            comes = sum_of(share.amount for share in shares)
            promised = sum_of(share.amount for share in waiting if share.pool_name == name)
            self._quota[name] = account.free + comes - promised
        #: The quota kept for tasks before it: by the name of an agent that waits, or by the pool of what is
        #: submitted now.
        self._kept: dict[str, Resources] = {}
        for name in state.queue.pools:
            kept = NOTHING
            for task in state.queue.of_pool(name):
                agent = task.submission.agent
                self._kept[agent.name] = kept
                if task.reservation is not None:
                    kept = kept + agent.resources
            self._kept[name] = kept
        #: What waits without a reserved start, because what is leaving is enough for it.
        self._first = [
            task.submission.agent
            for task in sorted(state.queue.by_id.values(), key=state.queue.entry)
            if task.reservation is None and world._is_ready(task)
        ]

    def is_enough_for(self, pool_name: str, agent: Any, *, spares_quota: bool) -> bool:
        """Whether an agent would fit without any further eviction. ``spares_quota``: it leaves the quota for
        reserved starts before it, as whoever evicts others than borrowers of its pool does: that of its
        victims is enough for it.
        """
        kept = self._kept.get(agent.name, self._kept.get(pool_name, NOTHING))
        kept = kept if spares_quota else NOTHING
        if not (agent.resources + kept).fits(self._quota.get(pool_name, NOTHING)):
            return False
        fits = self._world._fits_on(self._rooms, agent)
        return fits and not self._is_needed_before(agent)

    def _is_needed_before(self, agent: Any) -> bool:
        """Whether a task that comes before an agent has room here, and might leave too little for it. Of what
        is submitted now it is not known which tasks come before it.
        """
        names = [first.name for first in self._first]
        count = names.index(agent.name) if agent.name in names else len(names)
        return any(self._leaves_too_little(first, agent) for first in self._first[:count])

    def _leaves_too_little(self, first: Any, agent: Any) -> bool:
        if not self._world._fits_on(self._rooms, first):
            return False
        if first.bundles:
            return True
        nodes = [n for n in self._rooms if self._world._fits_on({n: self._rooms[n]}, first)]
        return not all(
            self._world._fits_on({**self._rooms, n: self._rooms[n] - first.resources}, agent)
            for n in nodes
        )


def _amount_of(allocation: Any) -> Resources:
    gpu = sum(units for _, units in allocation.devices.units)
    return allocation.held + Resources(gpu=gpu)


def _places(world: World, agent: Agent) -> Iterator[tuple[str, Resources]]:
    """The nodes of an agent's processes, with what each takes."""
    group = world.mesh.state.groups.by_id.get(agent.group_id or "")
    if group is not None:
        yield from zip(group.node_ids, group.shape.bundles, strict=True)
    elif agent.node_id is not None and agent.group_id is None:
        yield agent.node_id, agent.spec.resources


def _missing(world: World, agent: Agent, known: Any) -> Iterator[Resources]:
    """What the processes of a waiting agent still lack on a node."""
    group = world.mesh.state.groups.by_id.get(agent.group_id or "")
    keys = (
        [agent.spec.name] if group is None else [group.key(n) for n in range(len(group.node_ids))]
    )
    for key, (where, need) in zip(keys, _places(world, agent), strict=False):
        if where == known.node_id:
            allocation = known.allocations.get(key)
            yield need if allocation is None else need.beyond(_amount_of(allocation))


def _on(world: World, agents: Iterable[Agent], node_id: str) -> Iterator[Resources]:
    return (need for agent in agents for where, need in _places(world, agent) if where == node_id)


def _is_on(world: World, agent: Agent, node_id: str) -> bool:
    return any(where == node_id for where, _ in _places(world, agent))


def violations_of(seed: str) -> list[Violation]:
    """What did not hold in the world of a seed."""
    return World(seed).run()


def main() -> None:
    """Run many worlds, and print the seed and the violations of each that has some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    violated = 0
    for number in range(options.worlds):
        seed = f"{options.seed}-{number}"
        if violations := violations_of(seed):
            violated += 1
            print(f"world {seed}: {len(violations)} violations")
            for violation in violations[:3]:
                print(f"  {violation.at - 1000:.1f} s {violation.rule}: {violation.text}")
    print(f"{options.worlds} worlds, {violated} with violations")
    sys.exit(bool(violated))


if __name__ == "__main__":
    main()
