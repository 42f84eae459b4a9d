"""Random worlds of owners, beside an oracle that is written from ``docs/owners.md``, not from the engine.

    python -m tests.engine.owner_worlds --worlds 1000 --seed 7

In a world the tasks of some owners come and go in one ``greedy`` or ``strict`` pool, whose limits, order and
name change meanwhile. The oracle keeps for each owner what it has held when, and says after each step which
tasks have started: by trying each that waits, one after the other, in the order of the page.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec

from schedulemesh.domain.owner_limits import OwnerLimits, parse_owner_limits
from schedulemesh.engine.messages.facts import AgentAdmitted
from schedulemesh.engine.messages.outcomes import Refused
from tests.engine.builders import Mesh, differences, node, pool
from tests.engine.seeded_worlds import run_worlds

OWNERS = ("ada", "ben", "cid", "")
QUOTA = 8
HALF_LIFE_S = 100.0
#: Steps of a world.
STEPS = 60


class Waits(msgspec.Struct, kw_only=True):
    """A task that waits."""

    name: str
    owner: str
    cpu: int
    priority: float
    number: int
    held: bool = False


class Oracle:
    """What the page says: who holds what, and who starts next."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.limits: dict[str, dict[str, Any]] = {}
        self.fair = False
        self.waiting: dict[str, Waits] = {}
        #: By name: the owner and the CPUs.
        self.running: dict[str, tuple[str, int]] = {}
        #: By owner: (since when, how much it has held), oldest first, since owners count.
        self.past: dict[str, list[tuple[float, int]]] = {}
        self.changed_at = 0.0
        self.number = 0

    def amount(self, owner: str) -> tuple[int, int]:
        """How many CPUs the tasks of an owner hold, and how many run."""
        amounts = [cpu for other, cpu in self.running.values() if other == owner]
        return sum(amounts), len(amounts)

    def limit(self, owner: str, what: str) -> int | None:
        """A limit of an owner: of its entry, where that names it, else of the default."""
        for entry in (self.limits.get(owner), self.limits.get("default")):
            if entry is not None and what in entry:
                limit: int | None = entry[what]
                return limit
        return None

    def permits(self, owner: str, cpu: int, *, alone: bool = False) -> bool:
        """Whether the limits of an owner permit a task to start; ``alone``: if it held nothing."""
        amount, count = (0, 0) if alone else self.amount(owner)
        most_cpu, most = self.limit(owner, "cpu"), self.limit(owner, "running")
        within = most_cpu is None or amount + cpu <= most_cpu
        return within and (most is None or count < most)

    def share(self, owner: str) -> float:
        """The share of an owner when what owners hold changed last: by integrating over its past."""
        now = self.changed_at
        spans = pairwise([*self.past.get(owner, []), (now, 0)])
        mean = sum(
            cpu * (0.5 ** ((now - end) / HALF_LIFE_S) - 0.5 ** ((now - since) / HALF_LIFE_S))
            for (since, cpu), (end, _) in spans
        )
        return max(mean, self.amount(owner)[0]) / QUOTA

    def order(self) -> list[Waits]:
        """What waits and is not held, in the order of the queue."""
        ready = [task for task in self.waiting.values() if not task.held]

        def place(task: Waits) -> tuple[float, float, int]:
            share = round(self.share(task.owner), 13) if self.fair else 0.0
            return share, -task.priority, task.number

        return sorted(ready, key=place)

    def note(self, owner: str, now: float) -> None:
        """What an owner holds has changed."""
        if self.fair:
            self.past.setdefault(owner, []).append((now, self.amount(owner)[0]))
            self.changed_at = now

    def start(self, task: Waits, now: float) -> None:
        """A task starts."""
        del self.waiting[task.name]
        self.running[task.name] = (task.owner, task.cpu)
        self.note(task.owner, now)

    def end(self, name: str, now: float) -> None:
        """Its process is gone."""
        owner, _ = self.running.pop(name)
        self.note(owner, now)

    def define(self, limits: dict[str, dict[str, Any]], *, fair: bool, now: float) -> None:
        """The pool has other limits, or another order."""
        was_fair = self.fair
        self.limits, self.fair = limits, fair
        if not fair:
            self.past, self.changed_at = {}, 0.0
        elif not was_fair:
            for owner in {owner for owner, _ in self.running.values()}:
                self.note(owner, now)

    def next_to_start(self) -> Waits | None:
        """The task that starts next as things are; None: none does."""
        free = QUOTA - sum(cpu for _, cpu in self.running.values())
        for task in self.order():
            if not self.permits(task.owner, task.cpu):
                continue
            if task.cpu <= free:
                return task
            if self.strict:
                return None
        return None


class World:
    """A pool with its oracle."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        strict = self.random.random() < 0.5
        self.name = "p"
        self.queueing = "strict" if strict else "greedy"
        self.oracle = Oracle(strict=strict)
        self.mesh = Mesh(
            self.definition(), nodes=[node("n", cpu=QUOTA)], usage_half_life_s=HALF_LIFE_S
        )

    def definition(self) -> Any:
        """The pool as the oracle knows it."""
        limits: OwnerLimits = parse_owner_limits(self.oracle.limits)
        return msgspec.structs.replace(
            pool(self.name, cpu=QUOTA),
            queueing=self.queueing,
            owner_limits=limits,
            owner_order="fair" if self.oracle.fair else "none",
        )

    def run(self) -> None:
        """Make random steps, and compare after each."""
        steps = (self.submit, self.submit, self.submit, self.finish, self.finish, self.define)
        for number in range(STEPS):
            self.mesh.now += self.random.choice((0.0, 1.0, 30.0, 200.0))
            seen = len(self.mesh.facts)
            self.random.choice((*steps, self.hold, self.rename, self.tick))()
            self.compare(seen)
            if number % 20 == 0:
                self.check_twins()
        self.check_twins()

    def check_twins(self) -> None:
        """The state is the one that its facts, and its snapshot, make."""
        state = self.mesh.state
        for twin in (self.mesh.refolded(), self.mesh.rewritten()):
            assert differences(state, twin) == []

    def submit(self) -> None:
        """A task is submitted."""
        oracle, number = self.oracle, self.oracle.number
        owner, cpu = self.random.choice(OWNERS), self.random.choice((1, 1, 2, 3, 5))
        priority = float(self.random.choice((1, 5, 5, 9)))
        outcome = self.mesh.queue(
            f"t{number}",
            self.name,
            owner=owner,
            cpu=cpu,
            priority=priority,
            more={"may_preempt": False},
        )
        oracle.number += 1
        most = oracle.limit(owner, "queued")
        waiting = sum(task.owner == owner for task in oracle.waiting.values())
        if not oracle.permits(owner, cpu, alone=True):
            assert isinstance(outcome, Refused)
            assert outcome.reason == "exceeds_owner_limit"
        elif most is not None and waiting >= most:
            assert isinstance(outcome, Refused)
            assert outcome.reason == "owner_queue_full"
        else:
            assert not isinstance(outcome, Refused), outcome
            oracle.waiting[f"t{number}"] = Waits(
                name=f"t{number}", owner=owner, cpu=cpu, priority=priority, number=number
            )

    def finish(self) -> None:
        """A task that runs is over."""
        if self.oracle.running:
            name = self.random.choice(sorted(self.oracle.running))
            if name in self.mesh.starts:
                self.mesh.report(name)
            self.mesh.complete(name)
            self.oracle.end(name, self.mesh.now)

    def define(self) -> None:
        """The pool's limits or order are changed."""
        limits: dict[str, dict[str, Any]] = {}
        for owner in self.random.sample(("default", "ada", "ben"), self.random.randrange(4)):
            limits[owner] = dict(
                self.random.sample(
                    [
                        ("cpu", self.random.choice((1, 2, 3, 4, 6, None))),
                        ("running", self.random.choice((0, 1, 2, 3, None))),
                        ("queued", self.random.choice((1, 2, 4, None))),
                    ],
                    self.random.randrange(1, 4),
                )
            )
        fair = self.random.random() < 0.5
        self.oracle.define(limits, fair=fair, now=self.mesh.now)
        self.mesh.resize(self.definition())

    def hold(self) -> None:
        """A task that waits is held, or released."""
        if self.oracle.waiting:
            task = self.oracle.waiting[self.random.choice(sorted(self.oracle.waiting))]
            task.held = not task.held
            self.mesh.change(task.name, held=task.held)

    def rename(self) -> None:
        """The pool gets another name."""
        new_name = "q" if self.name == "p" else "p"
        self.mesh.rename_pool(self.name, new_name)
        self.name = new_name

    def tick(self) -> None:
        """Time passes."""
        self.mesh.tick()

    def compare(self, seen: int) -> None:
        """Those have started that the oracle says, in its order, and what waits has its order."""
        started = [
            fact.agent.name for fact in self.mesh.facts[seen:] if isinstance(fact, AgentAdmitted)
        ]
        expected = []
        while (task := self.oracle.next_to_start()) is not None:
            self.oracle.start(task, self.mesh.now)
            expected.append(task.name)
        assert started == expected, (started, expected)
        order = [task.name for task in self.oracle.order()]
        waiting = [t for t in self.mesh.waiting(self.name) if not self.oracle.waiting[t].held]
        assert waiting == order, (waiting, order)
        for name, waits in self.oracle.waiting.items():
            explained = self.mesh.engine.explain(name, self.mesh.now)
            codes = {explained.reason, *(other.reason.value for other in explained.others)}
            is_limited = not self.oracle.permits(waits.owner, waits.cpu)
            assert is_limited == bool(codes & {"owner_limit", "exceeds_owner_limit"}), codes


if __name__ == "__main__":
    run_worlds(World)
