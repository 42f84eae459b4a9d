"""Random worlds with budgets keep what ``docs/budgets.md`` says.

The expected use is summed up from when each process ran; there is room for everything, so what waits are
exactly the tasks that a spent budget holds. Each world is followed by a twin that is restored from a snapshot
after every step, and its history has to sum up the same use.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from schedulemesh.domain.budgets import parse_budget, parse_owner_budgets
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.pool_facts import BudgetLevelChanged
from schedulemesh.store.history.fold import Fold
from schedulemesh.store.history.usage import Dimension
from tests.engine.builders import Mesh, differences, node, pool

HOUR = 3600.0
OWNERS = ("", "ada", "ben", "cid")
#: 2026-10-28 10:00 UTC, a Wednesday: days, a week and a month turn while a world lasts.
BEGIN = datetime(2026, 10, 28, 10, tzinfo=timezone.utc).timestamp()


def period_of(budget, at):
    """When the period begins and ends in which a time is, by the calendar of the standard library."""
    zone = timezone(timedelta(minutes=budget.utc_offset))
    day = datetime.fromtimestamp(at, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period == "month":
        begin = day.replace(day=1)
        return begin.timestamp(), (begin + timedelta(days=32)).replace(day=1).timestamp()
    begin = day - timedelta(days=day.weekday() if budget.period == "week" else 0)
    return begin.timestamp(), (begin + timedelta(7 if budget.period == "week" else 1)).timestamp()


class World:
    """A pool with budgets, its tasks, and what their processes have used."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.mesh = Mesh(nodes=[node("n", cpu=1000, gpu=1000)])
        self.mesh.now = BEGIN
        #: Of each process that ran: when it began, when it was gone (None: it runs), owner and GPUs.
        self.ran = []
        self.running = {}
        #: Since when each budget counts: of the pool (None) and of owners.
        self.since = {}
        self.calendars = {}
        self.levels = defaultdict(int)
        self.numbers = 0
        #: By task, as it was submitted or set last.
        self.priorities = {}
        self.define()

    def random_budget(self):
        return {
            "gpu_hours": self.rng.choice([3, 20, 60, 300]),
            "period": self.rng.choice(["day", "week", "month"]),
            "then": self.rng.choice(["hold", "hold", "lower_priority", "warn"]),
            "utc_offset": self.rng.choice(["+00:00", "+08:00", "-07:00"]),
        }

    def define(self):
        """Set other budgets, or sometimes none."""
        rng = self.rng
        budget = rng.choice([None, self.random_budget()])
        owners = {
            owner: rng.choice([self.random_budget(), {"gpu_hours": rng.choice([5, 50, None])}])
            for owner in rng.sample(("default", "ada", "ben"), rng.randrange(3))
        }
        spec = pool("p", cpu=1000, gpu=1000)
        self.spec = msgspec.structs.replace(
            spec, budget=parse_budget(budget), owner_budgets=parse_owner_budgets(owners)
        )
        self.mesh.resize(self.spec)
        for owner in (None, *OWNERS):
            now_budget = self.budget(owner)
            calendar = now_budget and now_budget.calendar
            if calendar != self.calendars.get(owner):
                self.since[owner] = self.mesh.now
                self.calendars[owner] = calendar
                self.levels[owner] = 0
        self.note_levels()

    def budget(self, owner):
        if owner is None:
            return self.spec.budget
        whole = parse_owner_budgets({})
        whole.update(self.spec.owner_budgets)
        default, entry = whole.get("default"), whole.get(owner)
        entries = [entry for entry in (default, entry) if entry is not None]
        if not entries or (entry is None and default.gpu_hours is None):
            return None
        if entry is not None and entry.lifted:
            return None
        values = [
            {
                name: value
                for name, value in msgspec.structs.asdict(each).items()
                if value not in (None, "")
            }
            for each in entries
        ]
        merged = {k: v for fields in values for k, v in fields.items() if k != "lifted"}
        if "gpu_hours" not in merged:
            return None
        merged["utc_offset"] = merged.get("utc_offset", 0)
        return parse_budget(merged)

    def used(self, owner, now):
        """GPU-hours in the present period, since the budget counts."""
        begin, _ = period_of(self.budget(owner), now)
        begin = max(begin, self.since[owner])
        return sum(
            gpus * max(0.0, (now if end is None else end) - max(start, begin)) / HOUR
            for start, end, whose, gpus in self.ran
            if owner in (None, whose)
        )

    def note_levels(self):
        """As the scheduler looks at budgets now."""
        for owner in (None, *OWNERS):
            budget = self.budget(owner)
            percent = (
                0 if budget is None else self.used(owner, self.mesh.now) * 100 / budget.gpu_hours
            )
            self.levels[owner] = max((x for x in (80, 100) if percent >= x - 1e-6), default=0)

    def is_held(self, owner, gpus):
        spent = [one for one in (None, owner) if self.budget(one) and self.levels[one] == 100]
        return bool(gpus) and any(self.budget(one).then == "hold" for one in spent)

    def priority_of(self, owner, gpus, submitted):
        """The priority that a task has that was submitted with this one."""
        spent = [one for one in (None, owner) if self.budget(one) and self.levels[one] == 100]
        lowered = gpus and any(self.budget(one).then == "lower_priority" for one in spent)
        return min(0.1, submitted) if lowered else submitted

    def check_priorities(self):
        state = self.mesh.state
        waiting = [(t.spec, t.submission.agent.resources.gpus) for t in state.queue.by_id.values()]
        running = [(t.spec, t.resources.gpus) for t in state.running.by_id.values()]
        for spec, gpus in (*waiting, *running):
            submitted = self.priorities[spec.task_id]
            assert spec.priority == self.priority_of(spec.owner, gpus, submitted)
            assert spec.as_asked().priority == submitted

    def change_priority(self):
        state = self.mesh.state
        task_ids = sorted({*state.queue.by_id, *state.running.by_id})
        if task_ids:
            task_id, priority = self.rng.choice(task_ids), self.rng.choice([0.05, 3.0])
            self.mesh.change(task_id, priority=priority)
            self.priorities[task_id] = priority

    def submit(self):
        self.numbers += 1
        owner, gpus = self.rng.choice(OWNERS), self.rng.choice([0, 1, 1, 2, 4])
        how = {"cpu": 1, "gpu": gpus} if gpus else {"cpu": 1}
        task_id, priority = f"t{self.numbers}", self.rng.choice([1.0, 5.0])
        self.priorities[task_id] = priority
        how["more"] = {"queue": self.rng.random() < 0.8}
        self.mesh.submit(task_id, owner=owner, priority=priority, **how)

    def start_agent(self):
        """An agent without a task; the first one that is registered on it is charged from then on."""
        self.numbers += 1
        name = f"a{self.numbers}"
        self.mesh.submit(name, task=False, cpu=1, gpu=1)

    def register(self):
        free = [
            name
            for name in self.running
            if name.startswith("a") and not self.mesh.state.running.on_agent(name)
        ]
        if free:
            self.numbers += 1
            name, owner = self.rng.choice(free), self.rng.choice(OWNERS)
            self.mesh.announce(f"r{self.numbers}", name, owner=owner)
            self.priorities[f"r{self.numbers}"] = 5.0
            index = self.running[name]
            start, _, whose, gpus = self.ran[index]
            if self.mesh.state.agents[name].first_owner == owner and whose == "":
                self.ran[index] = (start, self.mesh.now, whose, gpus)
                self.running[name] = len(self.ran)
                self.ran.append((self.mesh.now, None, owner, gpus))

    def report(self):
        for name in list(self.mesh.starts):
            if self.rng.random() < 0.7:
                agent = self.mesh.state.agents[name]
                self.mesh.report(name)
                self.running[name] = len(self.ran)
                gpus = agent.spec.resources.gpus
                self.ran.append((self.mesh.now, None, agent.owner or "", gpus))

    def end(self):
        if self.running:
            name = self.rng.choice(sorted(self.running))
            self.mesh.delete(name)
            if self.rng.random() < 0.5:
                self.wait()
            self.mesh.leave(name)
            self.note_gone(name)

    def die(self):
        if self.running:
            name = self.rng.choice(sorted(self.running))
            self.mesh.die(name)
            self.note_gone(name)

    def note_gone(self, name):
        index = self.running.pop(name)
        start, _, whose, gpus = self.ran[index]
        self.ran[index] = (start, self.mesh.now, whose, gpus)

    def wait(self):
        self.mesh.now += self.rng.choice([0.5, 60.0, HOUR, 7 * HOUR, 40 * HOUR])
        if self.rng.random() < 0.8:
            self.mesh.tick()
            self.note_levels()

    def check(self):
        mesh, budgets = self.mesh, self.mesh.state.budgets.by_pool.get("p")
        waiting = set(mesh.waiting())
        for task_id, task in mesh.state.queue.by_id.items():
            held = self.is_held(task.spec.owner, task.submission.agent.resources.gpus)
            assert held == (task_id in waiting)
        for owner in (None, *OWNERS):
            budget = self.budget(owner)
            meter = None
            if budgets is not None:
                meter = budgets.total if owner is None else budgets.owners.get(owner)
            assert meter is None or budget is not None
            if budget is not None:
                used = 0.0 if meter is None else meter.used(budget, mesh.now) / HOUR
                assert used == pytest.approx(self.used(owner, mesh.now), abs=1e-6)
        self.check_priorities()
        assert differences(mesh.state, mesh.rewritten()) == []

    def check_history(self):
        """What the history sums up is what the processes used, by pool and by owner."""
        for name in sorted(self.running):
            self.mesh.die(name)
            self.note_gone(name)
        fold, sums = Fold(), defaultdict(float)
        for fact in self.mesh.facts:
            fold.add(fact)
        for (dimension, hour, name), one in fold.booking.sums.items():
            sums[dimension, name, hour] += one.gpu_s / HOUR
        pool_hours = {h: v for (dim, _, h), v in sums.items() if dim == Dimension.POOL}
        for owner in (None, *OWNERS):
            budget, now = self.budget(owner), self.mesh.now
            if budget is None:
                continue
            begin, _ = period_of(budget, now)
            if self.since[owner] > begin:
                continue  # hours before it counted are in the history
            of = pool_hours
            if owner is not None:
                of = {h: v for (d, n, h), v in sums.items() if (d, n) == (Dimension.OWNER, owner)}
            in_period = sum(hours for hour, hours in of.items() if hour * HOUR >= begin)
            assert in_period == pytest.approx(self.used(owner, now), abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_budgets_are_charged_and_hold_as_the_page_says(seed):
    world = World(seed)
    steps = [world.submit] * 5 + [world.report] * 4 + [world.wait] * 4 + [world.end] * 2
    steps += [world.die, world.define, world.start_agent, world.register]
    steps += [world.change_priority] * 2
    for _ in range(120):
        world.rng.choice(steps)()
        world.check()
    assert differences(world.mesh.state, world.mesh.refolded()) == []
    world.check_history()


@pytest.mark.parametrize("seed", range(5))
def test_a_twin_that_is_restored_decides_the_same(seed):
    world = World(seed)
    steps = [world.submit] * 5 + [world.report] * 4 + [world.wait] * 5 + [world.end] * 2
    for _ in range(80):
        world.rng.choice(steps)()
        twin = Engine(world.mesh.rewritten())
        now = world.mesh.now + 3 * HOUR
        step = twin.handle(s.ClockTicked(), now)
        live = Engine(world.mesh.rewritten())
        live.state.budgets.due_at = world.mesh.state.budgets.due_at
        assert live.handle(s.ClockTicked(), now).facts == step.facts


def test_levels_are_told_once_in_each_period():
    world = World(3)
    for _ in range(200):
        world.rng.choice([world.submit, world.report, world.wait, world.wait, world.end])()
    seen = {}
    for fact in world.mesh.facts:
        if type(fact) is BudgetLevelChanged:
            assert seen.get(fact.owner) != (fact.level, fact.until) or not fact.level
            seen[fact.owner] = (fact.level, fact.until)
