"""A year of a mixed cluster in virtual time, beside an oracle that is written from the documentation.

Three models of GPU, four pools, 40 owners, arrays, dependencies, alternatives, gangs, budgets, limits of
owners and of times, windows, failures, lost nodes and saves that take minutes. People work by day and less at
weekends, so queues grow and empty again. ``mixed_year_checks`` says what must hold after every step.

    python -m tests.sim.mixed_year --days 365 --seed 7
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from schedulemesh.config.pools import parse_lending
from schedulemesh.domain.budgets import parse_budget, parse_owner_budgets
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.flavors import parse_flavors
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.agents import Starting
from schedulemesh.sim.deadlines import next_deadline
from tests.engine.builders import Mesh, differences, node
from tests.sim.mixed_year_checks import Before, Checks, Violation

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
#: Seconds after which a tick happens that nothing asks for.
REGULARLY_S = 10 * MINUTE
#: 2026-01-01 00:00 UTC, a Thursday.
BEGIN = 1_767_225_600.0
GRACE_S, SAVE_TIMEOUT_S, CANCEL_TIMEOUT_S = 30.0, 600.0, 20.0
LEAVING_S = GRACE_S + SAVE_TIMEOUT_S + CANCEL_TIMEOUT_S
MODELS = {"H100": 3, "A100": 4, "L40S": 3}
GPUS = {"H100": 8, "A100": 8, "L40S": 4}
OWNERS = [f"u{number}" for number in range(40)]
#: The pool in which each owner works.
HOMES = ["research"] * 14 + ["vision"] * 12 + ["speech"] * 8 + ["notes"] * 6


def pool_of(owner: str) -> str:
    """The pool in which an owner works."""
    return HOMES[OWNERS.index(owner)]


def nodes() -> dict[str, Any]:
    """Ten nodes of three models in two racks each."""
    return {
        f"{model[0].lower()}{number}": node(
            f"{model[0].lower()}{number}",
            gpu=GPUS[model],
            cpu=64,
            labels={"model": model, "rack": f"{model}-{number % 2}"},
        )
        for model, count in MODELS.items()
        for number in range(1, count + 1)
    }


def _flavors(*models: str) -> Any:
    return parse_flavors([{"name": m.lower(), "label_selector": {"model": m}} for m in models])


def _quota(cpu: float, **gpus: float) -> Any:
    return parse_resources(
        {"cpu": cpu, "custom": {f"gpu@{model}": amount for model, amount in gpus.items()}}
    )


def pools(dice: random.Random) -> list[PoolSpec]:
    """Three pools of a cohort with flavors, and one of notebooks without any."""
    limits = parse_lending({"lending_limit": {"custom": {"gpu@a100": 4}}, "cohort": "lab"})
    return [
        PoolSpec(
            name="research",
            resources=_quota(240, h100=16, a100=8),
            flavors=_flavors("H100", "A100"),
            on_preempted="requeue",
            owner_order="fair",
            owner_limits=parse_owner_limits(
                {"default": {"gpu": 8, "queued": 60}, "u0": {"gpu": 16}}
            ),
            owner_budgets=parse_owner_budgets(
                {"default": {"gpu_hours": 700, "period": "month", "then": "hold"}}
            ),
            max_run_s=5 * DAY,
            **parse_lending({"cohort": "lab"}),
        ),
        PoolSpec(
            name="vision",
            resources=_quota(200, h100=8, a100=16),
            flavors=_flavors("A100", "H100"),
            on_preempted="requeue",
            budget=parse_budget(
                {"gpu_hours": dice.choice((1500, 2500)), "period": "week", "then": "lower_priority"}
            ),
            **parse_lending({"cohort": "lab", "weight": 2.0}),
        ),
        PoolSpec(
            name="speech",
            resources=_quota(100, a100=8),
            flavors=_flavors("A100", "H100"),
            on_preempted="requeue",
            queueing="strict",
            default_max_run_s=12 * HOUR,
            max_run_s=DAY,
            owner_limits=parse_owner_limits({"default": {"running": 4}}),
            **limits,
        ),
        PoolSpec(
            name="notes",
            resources=parse_resources({"cpu": 60, "gpu": 12}),
            queueing="greedy",
            on_preempted="requeue",
            max_run_s=8 * HOUR,
            owner_limits=parse_owner_limits({"default": {"gpu": 2}}),
            budget=parse_budget(
                {"gpu_hours": 150, "period": "day", "then": "hold", "utc_offset": "+08:00"}
            ),
        ),
    ]


def windows() -> list[MaintenanceWindow]:
    """Maintenance of a rack each week, and reservations that come again: of nodes and of an amount."""
    sunday = BEGIN + 3 * DAY
    return [
        MaintenanceWindow(
            name="rack",
            start=sunday + 2 * HOUR,
            duration_s=2 * HOUR,
            repeat="weekly",
            node_labels=(("rack", "A100-1"),),
        ),
        MaintenanceWindow(
            name="demo",
            start=sunday + DAY + 9 * HOUR,
            duration_s=3 * HOUR,
            repeat="weekly",
            node_ids=("h1",),
            pools=("vision",),
            notice_s=30 * MINUTE,
        ),
        MaintenanceWindow(
            name="night",
            start=BEGIN + 20 * HOUR,
            duration_s=8 * HOUR,
            repeat="daily",
            node_ids=("l2",),
            owners=("u39",),
            labels={"team": "night"},
        ),
        MaintenanceWindow(
            name="course",
            start=sunday + 2 * DAY + 13 * HOUR,
            duration_s=4 * HOUR,
            repeat="weekly",
            resources=parse_resources({"gpu": 12}),
            node_labels=(("model", "in(A100, L40S)"),),
            pools=("speech",),
        ),
    ]


#: The methods of every class.
_CAPABLE = ("save_state", "restore_state", "cancel")


class Work(msgspec.Struct, kw_only=True):
    """A task, or a member of an array, as its owner knows it."""

    duration: float
    save_s: float
    savable: bool
    #: How often a run of it fails before one does not.
    failures: int = 0
    #: Seconds of its work that are done and saved, and when it last began to run.
    done: float = 0.0
    began: float | None = None
    #: The number of its run, so that the end of an earlier one is not taken for its own.
    run: int = 0


class YearMesh(Mesh):
    """An engine each of whose steps a year checks."""

    def __init__(self, year: Year, **how: Any) -> None:
        self.observed = False
        super().__init__(**how)
        self._year = year

    def handle(self, stimulus: s.AnyStimulus) -> Any:
        """One step."""
        if not self.observed:
            return super().handle(stimulus)
        if isinstance(stimulus, s.ClockTicked):
            self._year.checks.note_budgets()
        before = self._year.checks.before()
        step = super().handle(stimulus)
        self._year.follow(before, step)
        return step


class Year:
    """The cluster, those who use it, and what they do."""

    def __init__(self, seed: str, load: float = 1.0, check_every: int = 1) -> None:
        """``load``: how much more is submitted than usual; ``check_every``: of how many steps one has the
        invariants of the state checked.
        """
        self.seed, self.load = seed, load
        self.dice = random.Random(seed)
        self.nodes = nodes()
        self.mesh = YearMesh(self, nodes=self.nodes.values())
        self.mesh.now, self.mesh.check_every = BEGIN, check_every
        self.works: dict[str, Work] = {}
        self.counts: Counter[str] = Counter()
        self.specs = {spec.name: spec for spec in pools(self.dice)}
        self.checks = Checks(self, BEGIN)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ordered: set[tuple[str, int]] = set()
        self._tick_at = float("inf")
        self._lost: dict[str, Any] = {}
        #: Windows that were announced too late for what runs to leave in time, with their first openings.
        self.late_windows: set[tuple[str, float]] = set()
        self._recent: list[str] = []
        self.mesh.observed = True
        self._define()

    @property
    def now(self) -> float:
        """The time in seconds since 1970."""
        return self.mesh.now

    @property
    def violations(self) -> list[Violation]:
        """What has not held so far."""
        return self.checks.violations

    def _define(self) -> None:
        for spec in self.specs.values():
            self.handle(s.PoolRequested(spec=spec))
        self.mesh.policy(
            preemption_grace_s=GRACE_S,
            save_timeout=SAVE_TIMEOUT_S,
            cancel_timeout=CANCEL_TIMEOUT_S,
            cross_pool_priority_threshold=4.0,
        )
        self.mesh.order_by(promote_after_s=self.dice.choice((0.0, 2 * DAY)))
        for window in windows():
            self.announce(window)
        self.handle(s.ClassProbed(class_key="c"))

    def announce(self, window: MaintenanceWindow) -> None:
        """Create a window."""
        self.checks.pending = window
        step = self.handle(s.WindowRequested(window=window))
        self.checks.pending = None
        if not isinstance(step.outcome, Refused):
            self.checks.calendar.windows[window.name] = window
            if window.start - self.now <= LEAVING_S + MINUTE:
                self.late_windows.add((window.name, window.start))

    # -- time

    def at(self, delay: float, happen: Callable[[], None]) -> None:
        """Have something happen after so many seconds."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), happen))

    def run(self, days: float, report: Callable[[], None] | None = None) -> None:
        """Let days pass."""
        end = BEGIN + days * DAY
        self.at(1.0, self._regularly)
        self.at(1.0, self._arrive)
        self.at(self.dice.expovariate(1 / (4 * DAY)), self._disturb)
        next_report = BEGIN
        while self._events[0][0] <= end:
            self.mesh.now, _, happen = heapq.heappop(self._events)
            happen()
            if report is not None and self.now >= next_report:
                report()
                next_report += 7 * DAY

    def handle(self, stimulus: s.AnyStimulus) -> Any:
        """One step, checked, whose instructions are carried out."""
        return self.mesh.handle(stimulus)

    def follow(self, before: Before, step: Any) -> None:
        """Check a step, and carry out its instructions."""
        self.checks.after(before, step)
        if isinstance(step.stimulus, s.ClockTicked):
            self.checks.each_tick()
        self._execute()
        if step.facts:
            self._tick_by(self.now + 1.0)

    def _regularly(self) -> None:
        """The supervisor ticks now and then although nothing has happened, and no time is due."""
        self._tick_by(self.now)
        self._tick(self.now)
        if (self.now - BEGIN) % HOUR < REGULARLY_S:
            self.checks.each_hour()
        if (self.now - BEGIN) % DAY < REGULARLY_S:
            self._each_day()
        self.at(REGULARLY_S, self._regularly)

    def _each_day(self) -> None:
        state = self.mesh.state
        twin = self.mesh.rewritten()
        for each in (state, twin):
            each.queue.advance(self.now)
        if different := differences(state, twin):
            self.checks.violated("snapshot", str(different)[:500])
        self.mesh.facts.clear()
        self.mesh.told.clear()
        self.mesh.runs.clear()
        ended = [t for t in self.works if not self._is_alive(t)]
        for task_id in ended:
            del self.works[task_id]

    def _is_alive(self, task_id: str) -> bool:
        state = self.mesh.state
        array_id = task_id.partition("[")[0]
        return (
            task_id in state.queue.by_id
            or task_id in state.running.by_id
            or (array_id in state.arrays.by_id and array_id not in state.ended)
        )

    def _tick_by(self, at: float) -> None:
        if at < self._tick_at:
            self._tick_at = at
            self.at(max(at - self.now, 0.0), lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if at != self._tick_at:
            return
        self._tick_at = float("inf")
        self.handle(s.ClockTicked())
        due = next_deadline(self.mesh.state, self.now)
        if due is not None:
            self._tick_by(max(due, self.now + 1.0))

    # -- people

    def _arrive(self) -> None:
        """Somebody submits something, sooner by day than at weekends."""
        hour = (self.now - BEGIN) % DAY / HOUR
        weekend = (self.now - BEGIN) // DAY % 7 in (2.0, 3.0)
        busy = 0.25 if weekend else 1.8 if 8 <= hour < 18 else 0.6
        self.at(self.dice.expovariate(busy * self.load * 3.4 / HOUR), self._arrive)
        self._submit(self.dice.choice(OWNERS))

    def _submit(self, owner: str) -> None:
        roll, pool_name = self.dice, pool_of(owner)
        number = next(self._numbers)
        name, duration = f"t{number}", min(roll.lognormvariate(8.9, 1.4), 4 * DAY)
        how: dict[str, Any] = {
            "owner": owner,
            "duration": roll.choice((None, duration, duration, duration * roll.choice((0.4, 3.0)))),
            "class_key": "c",
            "run": "run",
            "retries": roll.choice((0, 0, 2)),
            "labels": {"team": "night"} if roll.random() < 0.1 else {},
        }
        how["on_preempted"] = roll.choice(("", "", "", "drop"))
        work = self._new_work(duration)
        how["limits"] = self._limits(pool_name, work)
        how |= self._shape(pool_name)
        kind = roll.random()
        if kind < 0.08 and "bundles" not in how:
            how["limits"]["array"] = f"0-{roll.randint(3, 15)}%{roll.randint(1, 4)}"
        elif kind < 0.2 and self._recent:
            others = {roll.choice(self._recent[-30:]) for _ in range(roll.randint(1, 2))}
            words = ("ok", "any", "any", "fail")
            how["limits"]["after"] = tuple(f"{roll.choice(words)}:{t}" for t in sorted(others))
        priority = roll.choice((1.0, 3.0, 3.0, 5.0, 5.0, 9.0))
        self.works[name] = work
        self.checks.submits(name, priority, how["limits"].get("after", ()))
        how["more"] = {"queue": True}
        outcome = self.handle(self.mesh.submission(name, pool_name, priority, **how)).outcome
        self.counts["submitted"] += 1
        self.checks.submitted(name, owner, pool_name, how, outcome)
        if not isinstance(outcome, Refused):
            self._recent = [*self._recent[-50:], name]

    def _new_work(self, duration: float) -> Work:
        roll = self.dice
        return Work(
            duration=duration,
            save_s=roll.choice((1.0, 20.0, 200.0, 580.0)),
            savable=roll.random() < 0.85,
            failures=roll.choice((0, 0, 0, 0, 0, 1)),
        )

    def _limits(self, pool_name: str, work: Work) -> dict[str, Any]:
        """How long it may run. What cannot be saved would begin again for ever, if it returned."""
        most = self.specs[pool_name].max_run_s or 10 * DAY
        roll = self.dice
        if roll.random() >= 0.4:
            return {}
        limit_s = min(work.duration * roll.choice((0.5, 1.5, 3.0)) + MINUTE, most)
        end = roll.choice(("end", "requeue", "requeue")) if work.savable else "end"
        return {"max_run_s": limit_s, "on_time_limit": end}

    def _shape(self, pool_name: str) -> dict[str, Any]:
        """What it asks for, where, and in which ways."""
        roll = self.dice
        if pool_name == "notes":
            gpu = roll.choice((1, 1, 2))
            return {"gpu": gpu, "cpu": 2, "node_labels": roll.choice(({}, {"model": "L40S"}))}
        gpu = roll.choice((0, 1, 1, 2, 2, 4, 8))
        shape: dict[str, Any] = {"cpu": max(gpu, 1) * 2} | ({"gpu": gpu} if gpu else {})
        kind = roll.random()
        if kind < 0.12:
            bundle = {"gpu": roll.choice((1, 2, 4)), "cpu": 2}
            strategy = roll.choice(("PACK", "STRICT_SPREAD"))
            return {"bundles": [bundle] * 2, "payload": GangPayload(strategy=strategy)}
        if kind < 0.18:
            return {"bundles": [{"gpu": 1, "cpu": 1}] * 2, "payload": GangPayload(replicas=4)}
        if kind < 0.4 and gpu:
            shape["node_labels"] = {"model": roll.choice(("H100", "A100", "in(H100, A100)"))}
        elif kind < 0.6 and 0 < gpu < 8:
            shape["node_labels"] = {"model": "H100"}
            shape["fallbacks"] = [
                {"model": "A100", "takes": {"gpu": gpu * roll.choice((1, 2)), "cpu": 2 * gpu}}
            ]
            shape["fallbacks"][0]["takes"] |= {"gpu": min(8, shape["fallbacks"][0]["takes"]["gpu"])}
        return shape

    def _disturb(self) -> None:
        """A node is lost for hours, a drain, a window, an order by somebody."""
        self.at(self.dice.expovariate(1 / (3 * DAY)), self._disturb)
        act = self.dice.choice(
            (self._lose_node, self._drain, self._maintain, self._change, self._cancel, self._change)
        )
        act()

    def _lose_node(self) -> None:
        name = self.dice.choice(sorted(self.nodes))
        if self._lost or name in self.mesh.state.drains.nodes:
            return
        self._lost[name] = self.nodes.pop(name)
        dead = [
            n for n, agent in self.mesh.state.agents.items() if name in self.checks.places(agent)
        ]
        self.handle(s.ClusterObserved(nodes=tuple(self.nodes.values())))
        self.at(5.0, lambda: self._die(dead))
        self.at(self.dice.uniform(HOUR, 30 * HOUR), self._return_node)

    def _die(self, names: list[str]) -> None:
        for name in names:
            agent = self.mesh.state.agents.get(name)
            if agent is not None and agent.phase.value != "waiting":
                self.mesh.starts.pop(name, None)
                self.mesh.ends.pop(name, None)
                self._gone(name, agent.incarnation)

    def _return_node(self) -> None:
        name, report = self._lost.popitem()
        self.nodes[name] = report
        self.handle(s.ClusterObserved(nodes=tuple(self.nodes.values())))

    def _drain(self) -> None:
        node_id = self.dice.choice(sorted(self.nodes))
        if node_id in self.mesh.state.drains.nodes:
            return
        self.handle(s.DrainRequested(node_id=node_id, drained=True))
        self.at(6 * HOUR, lambda: self._undrain(node_id))

    def _undrain(self, node_id: str) -> None:
        if node_id in self.mesh.state.drains.nodes:
            self.handle(s.DrainRequested(node_id=node_id, drained=False))

    def _maintain(self) -> None:
        """A window that comes once."""
        roll = self.dice
        whose: dict[str, Any] = roll.choice(
            ({}, {"pools": ("speech",)}, {"owners": (roll.choice(OWNERS),)})
        )
        where: dict[str, Any] = roll.choice(
            (
                {"node_ids": (roll.choice(sorted(self.nodes)),)},
                {"node_labels": (("model", "L40S"),)},
            )
        )
        if whose and roll.random() < 0.5:
            gpus = roll.choice((2, 8, 20))
            where = {
                "resources": parse_resources({"gpu": gpus}),
                "node_labels": (("model", "A100"),),
            }
        window = MaintenanceWindow(
            name=f"w{next(self._numbers)}",
            start=self.now + roll.choice((0.5, 5.0, 40.0)) * HOUR,
            duration_s=roll.choice((1.0, 6.0)) * HOUR,
            **whose,
            **where,
        )
        self.announce(window)

    def _change(self) -> None:
        waiting = sorted(self.mesh.state.queue.by_id)
        if not waiting:
            return
        task_id = self.dice.choice(waiting)
        if self.dice.random() < 0.5:
            self.handle(s.QueuedTaskChanged(task_id=task_id, to_front=True))
        else:
            self.handle(s.QueuedTaskChanged(task_id=task_id, held=True))
            self.at(5 * HOUR, lambda: self._release(task_id))

    def _release(self, task_id: str) -> None:
        if task_id in self.mesh.state.queue.by_id:
            self.handle(s.QueuedTaskChanged(task_id=task_id, held=False))

    def _cancel(self) -> None:
        tasks = sorted({*self.mesh.state.queue.by_id, *self.mesh.state.running.by_id})
        if tasks:
            self.handle(s.TaskCancellationRequested(task_id=self.dice.choice(tasks)))

    # -- the executor

    def _execute(self) -> None:
        mesh = self.mesh
        for name, start in list(mesh.starts.items()):
            self._once(name, start.incarnation, 8.0, lambda name=name: self._begin(name))  # type: ignore[misc]
        for name, end in list(mesh.ends.items()):
            self._once_ends(name, end)
        for group_id in list(mesh.makes):
            self._once(f"make {group_id}", 0, 0.5, lambda g=group_id: self._made(g))  # type: ignore[misc]
        for group_id in sorted(mesh.removes):
            self._once(f"remove {group_id}", 0, 0.5, lambda g=group_id: self._removed(g))  # type: ignore[misc]
        for task_id in list(mesh.probes):
            mesh.probes.pop(task_id)
            self.at(0.2, lambda: self.handle(s.ClassProbed(class_key="c")))

    def _once(self, what: str, number: int, delay: float, act: Callable[[], None]) -> None:
        if (what, number) not in self._ordered:
            self._ordered.add((what, number))
            self.at(delay, act)

    def _once_ends(self, name: str, end: i.EvictAgent | i.StopAgent) -> None:
        number = end.incarnation
        if isinstance(end, i.StopAgent):
            self._once(f"stop {name}", number, 2.0, lambda: self._left(name, number))
            return
        works = [self.works[t] for t in end.task_ids if t in self.works]
        save_s = max((work.save_s for work in works if work.savable), default=0.0)
        delay = end.grace_s + save_s + 1.0
        self._once(f"evict {name}", number, delay, lambda: self._evicted(name, number))

    def _begin(self, name: str) -> None:
        agent = self.mesh.state.agents.get(name)
        order = self.mesh.starts.get(name)
        if order is None or agent is None or not isinstance(agent.phase, Starting):
            return
        if agent.incarnation != order.incarnation:
            return
        self.mesh.report(name, capabilities=_CAPABLE)
        for task_id in self.mesh.state.running.on_agent(name):
            self._runs(task_id)

    def _runs(self, task_id: str) -> None:
        array_id, bracket, _ = task_id.partition("[")
        work = self.works.get(task_id)
        if work is None and bracket and array_id in self.works:
            work = self.works[task_id] = msgspec.structs.replace(
                self.works[array_id], done=0.0, began=None, run=0
            )
        if work is None:  # an extra member of an elastic gang: it ends with its core
            return
        work.began, work.run = self.now, work.run + 1
        run = work.run
        self.at(max(work.duration - work.done, 1.0), lambda: self._finish(task_id, run))

    def _finish(self, task_id: str, run: int) -> None:
        work, task = self.works.get(task_id), self.mesh.state.running.by_id.get(task_id)
        if work is None or work.run != run or task is None or task.phase != "running":
            return
        fails = work.failures > 0
        work.failures -= fails
        work.run += 1
        agent = self.mesh.state.agents[task.agent_name]
        stimulus = s.RunEnded(
            task_id=task_id,
            agent_name=task.agent_name,
            incarnation=agent.incarnation,
            reason=TaskEndReason.RUN_RAISED if fails else None,
            error="it raised" if fails else "",
        )
        self.counts["failed runs" if fails else "completed"] += 1
        self.handle(stimulus)

    def _evicted(self, name: str, incarnation: int) -> None:
        order = self.mesh.ends.get(name)
        if order is None or order.incarnation != incarnation:
            return
        for task_id in getattr(order, "task_ids", ()):
            self._save(task_id)
        self._left(name, incarnation)

    def _save(self, task_id: str) -> None:
        work = self.works.get(task_id)
        if work is None or work.began is None:
            return
        work.run += 1
        if work.savable:
            work.done = min(work.done + self.now - work.began, work.duration - 1.0)
            self.handle(s.StateStored(task_id=task_id, state_key=f"state-{task_id}"))
        else:
            self.handle(s.StateNotSaved(task_id=task_id, error="it has no save_state"))

    def _left(self, name: str, incarnation: int) -> None:
        order = self.mesh.ends.get(name)
        if order is not None and order.incarnation == incarnation:
            self.mesh.ends.pop(name)
            self._gone(name, incarnation)

    def _gone(self, name: str, incarnation: int) -> None:
        for task_id in self.mesh.state.running.on_agent(name):
            work = self.works.get(task_id)
            if work is not None:
                work.run += 1
        self.handle(s.AgentGone(agent_name=name, incarnation=incarnation))

    def _made(self, group_id: str) -> None:
        if self.mesh.makes.pop(group_id, None) is not None:
            self.handle(s.GroupCreated(group_id=group_id))

    def _removed(self, group_id: str) -> None:
        self._ordered.discard((f"remove {group_id}", 0))
        if group_id in self.mesh.removes:
            self.mesh.removes.discard(group_id)
            self.handle(s.GroupGone(group_id=group_id))


def main() -> None:
    """Let a year pass, and print what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=float, default=365.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--check-every", type=int, default=20)
    options = parser.parse_args()
    year, begin, shown = Year(options.seed, options.load, options.check_every), time.monotonic(), 0

    def report() -> None:
        nonlocal shown
        state, passed = year.mesh.state, (year.now - BEGIN) / DAY
        print(
            f"day {passed:.0f}: {time.monotonic() - begin:.0f} s, {len(state.queue.by_id)} wait, "
            f"{len(state.running.by_id)} run, {dict(year.counts)}",
            flush=True,
        )
        for violation in year.violations[shown : shown + 20]:
            day = (violation.at - BEGIN) / DAY
            print(f"  day {day:.4f} {violation.rule}: {violation.text}", flush=True)
        shown = len(year.violations)

    year.run(options.days, report)
    report()
    print(year.checks.summary())
    print(f"{options.days:g} days, {len(year.violations)} violations")
    sys.exit(bool(year.violations))


if __name__ == "__main__":
    main()
