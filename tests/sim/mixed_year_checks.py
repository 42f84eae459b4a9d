"""What docs/ promises about a mixed cluster, checked after every step of ``mixed_year``.

- *capacity*: no node, pool or cohort gives away more than it has, nor lends more than its limit;
- *labels*: a task is on nodes that it asks for, all of one alternative and one flavor of its pool;
- *owner*: nobody starts beyond the limits of its owner, and refusals for these are right;
- *budget*: nobody starts whose budget was spent, and priorities are lowered exactly while it is;
- *time*: nobody runs longer than its limit and what its end takes;
- *window*: nobody starts who would reach into a window, and nodes are empty when it opens;
- *array*, *after*: as many members run as may, and nothing starts before what it starts after;
- *in_vain*: nobody is evicted for a task that fits without that, or that then does not start;
- *starts*: what fits, and has nothing before it, starts;
- *reason*: what ``explain`` names as the reason is so;
- *starves*: nothing waits for weeks but for a reason that lies with itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from schedulemesh.domain.budgets import Budget
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, sum_of
from schedulemesh.domain.task import EndState
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.window_facts import WindowNodesChosen
from schedulemesh.engine.state.agents import Agent, Waiting
from schedulemesh.engine.state.queued_tasks import QueuedTask
from tests.engine.calendar_oracle import Calendar, Whose, is_free_for, openings, satisfies

if TYPE_CHECKING:
    from tests.sim.mixed_year import Year

HOUR, DAY = 3600.0, 86_400.0
#: Seconds that the end of an agent takes at most: grace, saving and cancelling.
LEAVING_S = 650.0
#: Seconds that a start takes, and a tick may be late.
SLACK_S = 15.0
#: Seconds after which a wait has to have a reason that lies with the task.
STARVES_S = 21 * DAY
#: Reasons that lie with a task, its owner or its budget, whatever else happens.
OF_ITSELF = {
    "budget_spent",
    "dependency",
    "owner_limit",
    "exceeds_owner_limit",
    "array_limit",
    "held_by_user",
}


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept."""

    rule: str
    at: float
    text: str


class Before(msgspec.Struct, frozen=True):
    """What was free before a step."""

    #: By node: what is free and promised to nobody; only nodes that are open.
    rooms: dict[str, Resources]
    #: By pool: its free quota.
    quota: dict[str, Resources]
    #: Whether a start was reserved, or an agent waited for what others free.
    is_promised: bool


class Holding(msgspec.Struct):
    """What an agent holds, as was noted when it was admitted."""

    pool_name: str
    owner: str | None
    amount: Resources
    victims: tuple[str, ...] = ()
    started_at: float | None = None
    limit_s: float | None = None
    task_id: str = ""


class Meter:
    """What is used of one budget: the GPU-seconds of its period."""

    def __init__(self, budget: Budget, since: float) -> None:
        self.budget = budget
        self.begin, self.end = period_of(budget, since)
        self.begin = max(self.begin, since)
        self.closed = 0.0
        #: By agent: since when it counts in this period, and its GPUs.
        self.open: dict[str, tuple[float, float]] = {}
        self.level = 0

    def turn(self, now: float) -> None:
        """Begin the next period where one is over."""
        while now >= self.end:
            self.begin, self.closed = self.end, 0.0
            self.open = {n: (max(at, self.begin), gpus) for n, (at, gpus) in self.open.items()}
            _, self.end = period_of(self.budget, self.begin)

    def used(self, now: float) -> float:
        """GPU-hours that are used."""
        running = sum(gpus * (now - at) for at, gpus in self.open.values())
        return (self.closed + running) / HOUR

    def close(self, name: str, now: float) -> None:
        """A process is gone."""
        self.turn(now)
        at, gpus = self.open.pop(name, (now, 0.0))
        self.closed += gpus * (now - at)

    def note(self, now: float) -> None:
        """The scheduler looks at it."""
        self.turn(now)
        percent = self.used(now) * 100 / (self.budget.gpu_hours or 1.0)
        self.level = 100 if percent >= 100 - 1e-9 else 80 if percent >= 80 - 1e-9 else 0


def period_of(budget: Budget, at: float) -> tuple[float, float]:
    """When the period begins and ends in which a time is, by the calendar of the standard library."""
    zone = timezone(timedelta(minutes=budget.utc_offset or 0))
    day = datetime.fromtimestamp(at, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period in ("month", ""):
        begin = day.replace(day=1)
        return begin.timestamp(), (begin + timedelta(days=32)).replace(day=1).timestamp()
    begin = day - timedelta(days=day.weekday() if budget.period == "week" else 0)
    return begin.timestamp(), (begin + timedelta(7 if budget.period == "week" else 1)).timestamp()


class Checks:
    """All that is checked, and what has to be known for it."""

    def __init__(self, year: Year, begin: float) -> None:
        self.year, self._begin = year, begin
        self.calendar = Calendar()
        #: The window that is being announced.
        self.pending: MaintenanceWindow | None = None
        #: Since when a node is one of those that were chosen for a window of an amount: where another one is
        #: closed while it is open, what runs on the new one leaves from then on.
        self.chosen_at: dict[tuple[str, str], float] = {}
        self.violations: list[Violation] = []
        self.holdings: dict[str, Holding] = {}
        self.priorities: dict[str, float] = {}
        self.after_of: dict[str, tuple[str, ...]] = {}
        #: How tasks have ended that others may start after.
        self.ends: dict[str, EndState] = {}
        self.meters: dict[tuple[str, str | None], Meter] = {}
        self.reasons: Counter[str] = Counter()
        self.evictions: Counter[str] = Counter()
        self.evicted: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.longest: dict[str, float] = defaultdict(float)
        self._since: dict[tuple[str, str], float] = {}
        #: When a task that waits last had a reason that lies with itself.
        self._own_reason_at: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()

    @property
    def state(self) -> Any:
        """The engine's state."""
        return self.year.mesh.state

    @property
    def now(self) -> float:
        """The time in seconds since 1970."""
        return self.year.now

    def violated(self, rule: str, text: str, key: str = "") -> None:
        """Something did not hold; one with a key is noted once."""
        if key and (rule, key) in self._told:
            return
        self._told.add((rule, key))
        self.violations.append(Violation(rule, self.now, text))

    def lasts(self, rule: str, key: str, holds: bool, text: str, seconds: float = 2.5) -> None:
        """What holds for longer than it may is a violation."""
        if not holds:
            self._since.pop((rule, key), None)
        elif self.now - self._since.setdefault((rule, key), self.now) > seconds:
            self.violated(rule, f"{key}: {text}", key)

    def summary(self) -> str:
        """What happened, in a few lines."""
        longest = {code: f"{seconds / DAY:.1f} d" for code, seconds in sorted(self.longest.items())}
        most = self.evicted.most_common(3)
        return (
            f"evictions {dict(self.evictions)}, most of one task {most}\n"
            f"refusals {dict(self.refusals)}\nreasons {dict(self.reasons)}\nlongest waits {longest}"
        )

    # -- what is submitted

    def submits(self, task_id: str, priority: float, after: tuple[str, ...]) -> None:
        """A task will be submitted."""
        self.priorities[task_id] = priority
        self.after_of[task_id] = after

    def submitted(
        self, task_id: str, owner: str, pool_name: str, how: dict[str, Any], outcome: Any
    ) -> None:
        """A task was submitted: a refusal for its owner is right."""
        if not isinstance(outcome, Refused):
            return
        self.refusals[str(outcome.reason)] += 1
        if outcome.reason == "owner_queue_full":
            most = self.limit(pool_name, owner, "queued")
            array = how["limits"].get("array")
            waits = self.queued(pool_name, owner)
            if most is None or (waits < most and not array):
                self.violated("owner", f"{task_id} is refused: {waits} of {most} wait")
        elif outcome.reason == "invalid_dependency":
            pass
        elif outcome.reason == "exceeds_owner_limit":
            if self.permits_alone(pool_name, owner, how):
                self.violated("owner", f"{task_id} is refused: {outcome.error}")
        elif outcome.reason not in ("exceeds_quota", "no_flavor", "dependency_not_met"):
            self.violated(
                "refused", f"{task_id}: {outcome.reason}: {outcome.error}", str(outcome.reason)
            )

    def queued(self, pool_name: str, owner: str) -> int:
        """How many tasks and members of an owner wait."""
        state = self.state
        return sum(
            len(state.arrays.by_id[task.task_id].remaining) if task.spec.array else 1
            for task in state.queue.of_pool(pool_name)
            if task.spec.owner == owner
        )

    def limit(self, pool_name: str, owner: str, what: str) -> float | None:
        """A limit of an owner: of its entry, where that names it, else of the default."""
        limits = {n: entry.public() for n, entry in self.year.specs[pool_name].owner_limits.items()}
        for entry in (limits.get(owner), limits.get("default")):
            if entry is not None and what in entry:
                return entry[what]  # type: ignore[return-value]
        return None

    def permits_alone(self, pool_name: str, owner: str, how: dict[str, Any]) -> bool:
        """Whether an owner may have one task of this size."""
        gpu = float(how.get("gpu", 0)) or sum(b["gpu"] for b in how.get("bundles", ()))
        most = self.limit(pool_name, owner, "gpu")
        return most is None or gpu <= most

    def permits(self, pool_name: str, owner: str, amount: Resources) -> bool:
        """Whether the limits of an owner permit one more agent of this size."""
        holdings = [
            h for h in self.holdings.values() if (h.pool_name, h.owner) == (pool_name, owner)
        ]
        running, most = self.limit(pool_name, owner, "running"), self.limit(pool_name, owner, "gpu")
        if running is not None and len(holdings) >= running:
            return False
        gpus = sum(h.amount.gpu for h in holdings) + amount.gpu
        return most is None or not amount.gpu or gpus <= most * UNIT

    # -- what happens

    def before(self) -> Before:
        """What is free before a step."""
        state = self.state
        waiting = any(isinstance(agent.phase, Waiting) for agent in state.agents.values())
        return Before(
            rooms={n: state.cluster.nodes[n].free for n in self.open_nodes()},
            quota={name: account.free for name, account in state.ledger.accounts.items()},
            is_promised=waiting or bool(state.queue.reserved),
        )

    def open_nodes(self) -> Iterator[str]:
        """The nodes on which something may start, but for reservations."""
        for node_id, known in self.state.cluster.nodes.items():
            if not known.cordoned and node_id not in self.state.drains.nodes:
                yield node_id

    def after(self, before: Before, step: Any) -> None:
        """Check a step."""
        if step.facts:
            self._note_ends()
        for fact in step.facts:
            if isinstance(fact, f.AgentAdmitted):
                self._admitted(fact, before, step.facts)
            elif isinstance(fact, f.AgentStarted):
                self._started(fact)
            elif isinstance(fact, f.AgentEnded):
                self._ended(fact)
            elif isinstance(fact, WindowNodesChosen):
                self._nodes_chosen(fact)
            elif isinstance(fact, f.EvictionStarted):
                self.evictions[str(fact.reason)] += 1
                self.evicted[fact.task_id] += 1
        if step.facts:
            self._check_capacity()

    def _nodes_chosen(self, fact: WindowNodesChosen) -> None:
        """A window of an amount has whole nodes that are free for it, and enough of them if there are."""
        if isinstance(self.pending, MaintenanceWindow) and self.pending.name == fact.name:
            window = self.calendar.windows[fact.name] = self.pending
        else:
            window = self.calendar.windows[fact.name]
        opening = next(openings(window, self.now))
        self.calendar.chosen[fact.name] = (fact.start, frozenset(fact.node_ids))
        self.chosen_at = {
            (fact.name, node_id): self.chosen_at.get((fact.name, node_id), self.now)
            for node_id in fact.node_ids
        } | {key: at for key, at in self.chosen_at.items() if key[0] != fact.name}
        free = {
            node_id: report.total.gpu
            for node_id, report in self.year.nodes.items()
            if is_free_for(self.calendar, window, opening, node_id, self.labels(node_id))
        }
        for node_id in fact.node_ids:
            if node_id not in free:
                self.violated("window", f"{fact.name} has {node_id}, which is not free for it")
        has = sum(free.get(node_id, 0) for node_id in fact.node_ids)
        drained = self.state.drains.nodes.keys()
        more = [n for n in free if n not in fact.node_ids and n not in drained]
        if has < window.resources.gpu and more:
            self.violated("window", f"{fact.name} has {fact.node_ids}, and could have {more}")

    def _note_ends(self) -> None:
        for task_id in [t for t in self.priorities if t not in self.ends]:
            past = self.state.ended.get(task_id)
            if past is not None:
                self.ends[task_id] = past.state
                del self.priorities[task_id]

    def _admitted(self, fact: f.AgentAdmitted, before: Before, facts: Iterable[Any]) -> None:
        agent, task = fact.agent, fact.task
        if task is None:
            self.violated("unknown", f"agent {agent.name} without a task")
            return
        if not self.permits(agent.pool_name, task.owner, agent.resources):
            self.violated("owner", f"{task.task_id} of {task.owner} starts beyond its limits")
        if agent.resources.gpu and self.is_held(agent.pool_name, task.owner):
            self.violated("budget", f"{task.task_id} starts, and its budget is spent")
        self._check_window(fact)
        self._check_after(task.task_id, task.array_id)
        if task.array_id:
            self._check_array(task.array_id)
        first = next(each for each in facts if isinstance(each, f.AgentAdmitted))
        if fact.evicting and fact is first:
            self._check_needed(fact, before)
        self.holdings[agent.name] = Holding(
            pool_name=agent.pool_name,
            owner=task.owner,
            amount=agent.resources,
            victims=tuple(victim.task_id for victim in fact.evicting),
            limit_s=self.run_limit(agent.pool_name, task),
            task_id=task.task_id,
        )

    def run_limit(self, pool_name: str, task: Any) -> float | None:
        """Seconds that an attempt of a task may run."""
        spec = self.year.specs[pool_name]
        limit = task.max_run_s
        if limit is None:
            limit = spec.default_max_run_s
        limits = [each for each in (limit, spec.max_run_s) if each is not None]
        return min(limits, default=None)

    def over_after(self, pool_name: str, task: Any) -> float | None:
        """Seconds after which a task that starts is over, its end included; None: nobody knows."""
        times = (self.run_limit(pool_name, task), task.estimated_duration)
        known = [each for each in times if each is not None]
        return min(known) + LEAVING_S if known else None

    def places(self, agent: Agent) -> tuple[str, ...]:
        """The nodes of an agent's processes."""
        group = self.state.groups.by_id.get(agent.group_id or "")
        if group is not None:
            return tuple(group.node_ids)
        return () if agent.node_id is None else (agent.node_id,)

    def _check_window(self, fact: f.AgentAdmitted) -> None:
        task, agent = fact.task, self.state.agents.get(fact.agent.name)
        if agent is None or task is None:
            return
        whose = Whose(fact.agent.pool_name, task.owner, task.labels)
        run_s = self.over_after(fact.agent.pool_name, task)
        over_at = None if run_s is None else fact.at + run_s
        for node_id in self.places(agent):
            labels = self.labels(node_id)
            if not self.calendar.may_start(labels, node_id, fact.at, over_at, whose):
                self.violated("window", f"{task.task_id} starts on {node_id} and reaches into one")

    def labels(self, node_id: str) -> dict[str, str]:
        """The labels of a node."""
        report = self.year.nodes.get(node_id)
        return {} if report is None else dict(report.labels)

    def _check_after(self, task_id: str, array_id: str) -> None:
        for condition in self.after_of.get(array_id or task_id, ()):
            word, _, other = condition.partition(":")
            state = self.ends.get(other)
            completed = state is EndState.COMPLETED
            met = {"ok": completed, "any": True, "fail": not completed}[word]
            if state is None or not met:
                self.violated("after", f"{task_id} starts after {condition}, which is {state}")

    def _check_array(self, array_id: str) -> None:
        array = self.state.arrays.by_id[array_id]
        count = sum(name.startswith(f"{array.agent_name}[") for name in self.state.agents)
        if array.most and count > array.most:
            self.violated("array", f"{count} members of {array_id} run, and {array.most} may")

    def _check_needed(self, fact: f.AgentAdmitted, before: Before) -> None:
        """Nobody is evicted for a task that fits as things are."""
        if before.is_promised:
            return
        task, agent = fact.task, fact.agent
        assert task is not None
        if self._fits(agent, task, before.rooms, before.quota[agent.pool_name]):
            victims = ", ".join(victim.task_id for victim in fact.evicting)
            self.violated("in_vain", f"{task.task_id} evicts {victims}, and it fits")

    def ways(self, agent: Any) -> Iterator[Any]:
        """The ways in which an agent may run: alternatives, and in each the flavors of its pool."""
        spec = self.year.specs[agent.pool_name]
        for one in agent.each_alternative:
            plain = one
            if plain.flavor is not None:
                plain = msgspec.structs.replace(
                    plain, flavor=None, node_labels=plain.flavor.asked_labels
                )
            if not spec.flavors or not plain.resources.gpu:
                yield plain
                continue
            for flavor in spec.flavors:
                yield plain.with_flavor(flavor)

    def _fits(self, agent: Any, task: Any, rooms: dict[str, Resources], quota: Resources) -> bool:
        """Whether an agent has room and quota of its pool in one of its ways."""
        whose = Whose(agent.pool_name, task.owner, task.labels)
        run_s = self.over_after(agent.pool_name, task)
        over_at = None if run_s is None else self.now + run_s
        usable = {
            node_id: room
            for node_id, room in rooms.items()
            if self.calendar.may_start(self.labels(node_id), node_id, self.now, over_at, whose)
        }
        return any(
            way.quota.fits(quota) and self._has_room(way, usable) for way in self.ways(agent)
        )

    def _has_room(self, way: Any, rooms: dict[str, Resources]) -> bool:
        """Whether all processes of an agent have room at once; members of a gang are alike here."""
        member, size = (way.bundles or (way.resources,))[0], max(len(way.bundles), 1)
        spreads = way.own_group is not None and way.own_group.strategy == "STRICT_SPREAD"
        most = 1 if spreads else size
        return size <= sum(
            next((n for n in range(most, 0, -1) if sum_of([member] * n).fits(room)), 0)
            for node_id, room in rooms.items()
            if self._suits(node_id, way)
        )

    def _suits(self, node_id: str, way: Any) -> bool:
        labels = self.labels(node_id)
        return satisfies(labels, way.node_labels)

    def _started(self, fact: f.AgentStarted) -> None:
        holding = self.holdings.get(fact.agent_name)
        if holding is None:
            return
        holding.started_at = self.now
        agent = self.state.agents.get(fact.agent_name)
        if agent is not None:
            self._check_labels(agent)
        for key in ((holding.pool_name, None), (holding.pool_name, holding.owner)):
            meter = self.meter(*key)
            if meter is not None and holding.amount.gpu:
                meter.turn(self.now)
                meter.open[fact.agent_name] = (self.now, holding.amount.gpu / UNIT)

    def _check_labels(self, agent: Agent) -> None:
        for node_id in self.places(agent):
            if node_id in self.year.nodes and not self._suits(node_id, agent.spec):
                self.violated(
                    "labels", f"{agent.spec.name} is on {node_id}: {agent.spec.node_labels}"
                )

    def _ended(self, fact: f.AgentEnded) -> None:
        holding = self.holdings.pop(fact.agent_name, None)
        if holding is None:
            return
        for key in ((holding.pool_name, None), (holding.pool_name, holding.owner)):
            meter = self.meter(*key)
            if meter is not None:
                meter.close(fact.agent_name, self.now)
        returned = None if fact.returned is None else str(fact.returned.reason)
        if holding.victims and holding.started_at is None and returned is not None:
            self.year.counts[f"evicted, then {returned}"] += 1

    # -- budgets

    def meter(self, pool_name: str, owner: str | None) -> Meter | None:
        """What a pool, or an owner in it, has used of its budget; None: it has none."""
        key = pool_name, owner
        if key not in self.meters:
            budget = self._budget(pool_name, owner)
            if budget is None:
                return None
            self.meters[key] = Meter(budget, self._begin)
        return self.meters[key]

    def _budget(self, pool_name: str, owner: str | None) -> Budget | None:
        spec = self.year.specs[pool_name]
        if owner is None:
            return spec.budget
        return spec.owner_budgets.get("default")

    def _spent(self, pool_name: str, owner: str | None) -> Iterator[Meter]:
        for one in (None, owner):
            meter = self.meters.get((pool_name, one))
            if meter is not None and meter.level == 100:
                yield meter

    def is_held(self, pool_name: str, owner: str) -> bool:
        """Whether a spent budget holds the tasks of an owner."""
        return any(meter.budget.then in ("hold", "") for meter in self._spent(pool_name, owner))

    def _check_priorities(self) -> None:
        state = self.state
        waiting = [(t.spec, t.submission.agent.resources) for t in state.queue.by_id.values()]
        running = [(t.spec, t.resources) for t in state.running.by_id.values()]
        for spec, resources in (*waiting, *running):
            submitted = self.priorities.get(spec.array_id or spec.extra_of or spec.task_id)
            if submitted is None:
                continue
            spent = self._spent(spec.pool_name, spec.owner)
            lowers = resources.gpu and any(m.budget.then == "lower_priority" for m in spent)
            expected = min(0.1, submitted) if lowers else submitted
            if spec.priority != expected:
                text = f"{spec.task_id} has priority {spec.priority:g} for {expected:g}"
                self.lasts("budget", f"priority of {spec.task_id}", True, text, HOUR + 1)

    # -- what has to hold all the time

    def _check_capacity(self) -> None:
        state = self.state
        on_node: dict[str, Resources] = {}
        of_pool: dict[str, Resources] = {}
        lent: dict[str, Resources] = {}
        for agent in state.agents.values():
            for share in agent.shares:
                name = share.pool_name
                of_pool[name] = of_pool.get(name, NOTHING) + share.amount
                if name != agent.spec.pool_name:
                    lent[name] = lent.get(name, NOTHING) + share.amount
            if isinstance(agent.phase, Waiting):
                continue
            if not agent.spec.quota.fits(sum_of(share.amount for share in agent.shares)):
                self.violated("capacity", f"{agent.spec.name} runs without all its quota")
            needs = agent.spec.bundles or (agent.spec.resources,)
            for node_id, need in zip(self.places(agent), needs, strict=False):
                on_node[node_id] = on_node.get(node_id, NOTHING) + need
        for node_id, used in on_node.items():
            report = self.year.nodes.get(node_id)
            if report is not None and not used.fits(report.total):
                self.violated("capacity", f"node {node_id} holds {used} of {report.total}")
        for name, used in of_pool.items():
            if not used.fits(self.year.specs[name].resources):
                self.violated("capacity", f"of pool {name} {used} are held")
        if (gpus := dict(lent.get("speech", NOTHING).custom).get("gpu@a100", 0)) > 4 * UNIT:
            self.violated("capacity", f"speech lends {gpus / UNIT} GPUs, and may lend 4", "speech")

    def note_budgets(self) -> None:
        """The scheduler looks at budgets, once a second, before it decides anything."""
        for meter in self.meters.values():
            meter.note(self.now)

    def each_tick(self) -> None:
        """What has to hold whenever the scheduler has looked at everything."""
        self._check_times()
        self._check_windows()

    def each_hour(self) -> None:
        """What takes longer to check."""
        self._check_priorities()
        self._check_waiting()

    def _check_times(self) -> None:
        for name, holding in self.holdings.items():
            if holding.started_at is None or holding.limit_s is None:
                continue
            ran_s = self.now - holding.started_at
            if ran_s > holding.limit_s + LEAVING_S + SLACK_S:
                self.violated(
                    "time", f"{name} runs for {ran_s:.0f} of {holding.limit_s:.0f} s", name
                )

    def _check_windows(self) -> None:
        self.calendar.forget_past(self.now)
        for window in self.calendar.windows.values():
            start, _ = next(openings(window, self.now))
            if start <= self.now:
                self._check_open(window, start)

    def _check_open(self, window: Any, start: float) -> None:
        state = self.state
        for agent in state.agents.values():
            holding = self.holdings.get(agent.spec.name)
            if holding is None or isinstance(agent.phase, Waiting):
                continue
            task = state.running.by_id.get(holding.task_id)
            labels = agent.spec.labels if task is None else task.spec.labels
            whose = Whose(holding.pool_name, holding.owner or "", labels)
            for node_id in self.places(agent):
                windows = self.calendar.of_node(self.labels(node_id), node_id, whose)
                began, since = holding.started_at, self.chosen_at.get((window.name, node_id), 0.0)
                known_early = since < start - LEAVING_S - SLACK_S
                in_time = known_early and began is not None and began < start - LEAVING_S - SLACK_S
                late = self.now > max(start, since) + LEAVING_S + 2 * SLACK_S
                announced_late = (window.name, start) in self.year.late_windows
                if window in windows and (late or (in_time and not announced_late)):
                    self.violated(
                        "window",
                        f"{agent.spec.name} is on {node_id}, where {window.name} opened "
                        f"{self.now - start:.0f} s ago",
                        agent.spec.name,
                    )

    def _check_waiting(self) -> None:
        state = self.state
        promised = bool(state.queue.reserved) or any(
            isinstance(agent.phase, Waiting) for agent in state.agents.values()
        )
        before = self.before()
        for task_id, task in list(state.queue.by_id.items()):
            self._check_reason(task, before)
            ready = not promised and self._is_ready(task) and self._is_first(task)
            starts = ready and self._fits(
                task.submission.agent, task.spec, before.rooms, before.quota[task.pool_name]
            )
            self.lasts("starts", task_id, starts, "it fits, and nothing is before it", HOUR + 1)

    def _is_ready(self, task: QueuedTask) -> bool:
        agent, spec = task.submission.agent, task.spec
        array = self.state.arrays.by_id.get(spec.array_id or task.task_id)
        if array is not None and array.most:
            count = sum(name.startswith(f"{array.agent_name}[") for name in self.state.agents)
            if count >= array.most:
                return False
        return (
            not task.held
            and not task.depends
            and not spec.extra_of
            and task.not_before <= self.now
            and self.permits(agent.pool_name, spec.owner, agent.resources)
            and not (agent.resources.gpu and self.is_held(agent.pool_name, spec.owner))
        )

    def _is_first(self, task: QueuedTask) -> bool:
        """Whether nothing is before it that may start, where its pool is strict."""
        if self.year.specs[task.pool_name].queueing != "strict":
            return True
        for other in self.state.queue.of_pool(task.pool_name):
            if other is task:
                return True
            if self._is_ready(other):
                return False
        return True

    def _check_reason(self, task: QueuedTask, before: Before) -> None:
        """The reason that ``explain`` names is there, and is so."""
        told = self.year.mesh.engine.explain(task.task_id, self.now)
        reason = str(getattr(told, "reason", None))
        codes = {reason, *(str(other.reason) for other in getattr(told, "others", ()))}
        self.reasons[reason] += 1
        waited = self.now - task.queued_at
        self.longest[reason] = max(self.longest[reason], waited)
        if reason in ("None", ""):
            self.violated(
                "reason", f"{task.task_id} waits, and explain gives no reason", task.task_id
            )
        agent, spec = task.submission.agent, task.spec
        expected = {
            "budget_spent": bool(agent.resources.gpu) and self.is_held(agent.pool_name, spec.owner),
            "owner_limit": not self.permits(agent.pool_name, spec.owner, agent.resources),
            "dependency": bool(task.depends),
            "held_by_user": task.held,
        }
        for code, holds in expected.items():
            differs = holds != (code in codes) and not (task.depends or task.held or spec.extra_of)
            text = f"explain says {sorted(codes)}, and {code} is {holds}"
            self.lasts("reason", f"{code} of {task.task_id}", differs, text, HOUR + 1)
        if codes & OF_ITSELF:
            self._own_reason_at[task.task_id] = self.now
        waited = min(waited, self.now - self._own_reason_at.get(task.task_id, 0.0))
        if waited > STARVES_S:
            self.violated(
                "starves", f"{task.task_id} for {waited / DAY:.0f} days: {codes}", task.task_id
            )
