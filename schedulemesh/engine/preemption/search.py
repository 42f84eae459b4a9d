"""The victim search: the fewest tasks whose leaving seats the newcomer, or none at all.

First one victim that is enough, highest score first. Only if there is none: candidates in order until the
newcomer fits, then everyone it turns out not to need is given back, lowest score first; so no single
victim can be removed from the set. What is short decides who helps. For quota any victim that frees some of
it; for nodes victims that make room on one node. Among nodes: lowest top priority of a victim, fewest
victims, least lost work, node id.

An agent leaves with all its tasks, so it is a victim only if every one of them may be evicted; it counts
with the lowest of their scores.

Nodes are looked at by a lower bound of that order, summed up per node and kept until something changes
there, so that of a thousand full nodes only the few that can still win are worked out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

import msgspec

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.resources import NOTHING, Resources, least, most
from schedulemesh.engine.messages.outcomes import Candidate
from schedulemesh.engine.placement.minimise import minimise
from schedulemesh.engine.preemption.rules import Incoming, PluginVeto, Verdict
from schedulemesh.engine.preemption.scenario import Scenario
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.groups import Group
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.tasks import RunningTask, TaskClass

#: Top priority, victims, lost work, node id: ascending is better.
Bound = tuple[float, int, float, str]
Keep = Callable[[TaskClass], bool]


class VictimAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An agent that may leave, with its tasks."""

    agent: Agent
    candidates: tuple[Candidate, ...]
    #: Its place among the others by the policy's order of victims: ascending is first.
    order: tuple[float, float, float, str]

    @property
    def top_priority(self) -> float:
        """The highest priority of its tasks."""
        return max(c.priority for c in self.candidates)

    @property
    def lost_work(self) -> float:
        """Seconds of work lost with it."""
        return sum(c.lost_work for c in self.candidates)


def order_of(unit: VictimAgent) -> tuple[float, float, float, str]:
    """Its place in the policy's order of victims."""
    return unit.order


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who leaves, and where the newcomer goes."""

    units: tuple[VictimAgent, ...]
    node_id: str | None
    #: Placement groups that leave too: of victims, and such as nobody uses.
    groups: tuple[Group, ...] = ()

    @property
    def evicting(self) -> tuple[Candidate, ...]:
        """Every task that leaves, highest score first."""
        return evicted(self.units)


def evicted(units: Iterable[VictimAgent]) -> tuple[Candidate, ...]:
    """Every task of these agents, highest score first."""
    every = [c for unit in units for c in unit.candidates]
    return tuple(sorted(every, key=lambda c: -c.preempt_score))


class Search(msgspec.Struct, kw_only=True):
    """One search: the newcomer, what it needs, and the books it looks at."""

    state: MeshState
    incoming: Incoming
    need: Resources
    short_quota: Resources
    #: A node with room as things are; None with ``by_node``: there is none.
    node: Node | None
    #: Whether room on a node is short.
    by_node: bool
    now: float
    #: What strategies say of single candidates; None: they have no say.
    veto: PluginVeto | None = None

    def plan(self) -> Plan | None:
        """Who leaves; None: no eviction that the policy allows would make room for the newcomer."""
        return self._plan_by_node() if self.by_node else self._plan_by_quota()

    def _plan_by_quota(self) -> Plan | None:
        """The node is chosen already; any victim that frees what is short will do."""
        single = self.first_for_quota()
        if single is not None:
            return self._plan_of((single,), self.node)
        taken = self.fill_quota(Scenario(self.need, self.short_quota, None), ())
        return None if taken is None else self._plan_of(taken, self.node)

    def first_for_quota(self) -> VictimAgent | None:
        """The first victim that frees all the quota that is short."""

        def enough(task_class: TaskClass) -> bool:
            return len(task_class) > 0 and self.short_quota.fits(task_class.resources)

        return next(self.units(enough), None)

    def quota_scenario(self) -> Scenario:
        """Quota with nobody released."""
        return Scenario(self.need, self.short_quota, None)

    def fill_quota(
        self, scenario: Scenario, taken: tuple[VictimAgent, ...]
    ) -> tuple[VictimAgent, ...] | None:
        """These, and more until quota suffices; None: it does not. All are released in the scenario."""
        found = list(taken)
        for unit in self.filling_quota(scenario, taken):
            scenario.release(unit)
            found.append(unit)
        return None if scenario.short_quota else tuple(found)

    def filling_quota(
        self, scenario: Scenario, taken: Iterable[VictimAgent]
    ) -> Iterator[VictimAgent]:
        """Candidates in order until quota suffices, passing over those that free nothing still short; each is
        to be released before the next one is asked for.
        """
        have = {unit.agent.spec.name for unit in taken}

        def helps(task_class: TaskClass) -> bool:
            return len(task_class) > 0 and task_class.resources.helps(scenario.short_quota)

        for unit in self.units(helps):
            if not scenario.short_quota:
                return
            if unit.agent.spec.name not in have:
                yield unit

    def _plan_by_node(self) -> Plan | None:
        """One node must come to have all the room."""
        allowed = self.allowed()
        nodes = self._reachable_nodes(set(allowed))
        return self._single_on_a_node(nodes) or self._best_node(nodes, allowed)

    def allowed(self) -> dict[TaskClass, Verdict]:
        """The classes of tasks that may go, by the rules."""
        verdicts = self.state.preemption.verdicts(self.state.running, self.incoming, self.veto)
        return {task_class: verdict for task_class, verdict in verdicts if verdict.rule}

    def _reachable_nodes(self, allowed: set[TaskClass]) -> list[tuple[Bound, Node, _Summary]]:
        """The nodes that could have room if all went who may, with a lower bound of their place."""
        found = []
        for node in self.state.cluster.open_nodes():
            if not self.need.fits(node.total):
                continue
            summary = _summary(self.state, node)
            lack = self.need.beyond(node.free)
            if not lack.fits(summary.freed) or summary.classes.isdisjoint(allowed):
                continue
            found.append((summary.bound(lack, node.node_id, self.now), node, summary))
        return found

    def _single_on_a_node(self, nodes: list[tuple[Bound, Node, _Summary]]) -> Plan | None:
        """The best single victim whose leaving is enough for its node, and for quota."""
        lacks = {}
        for _, node, summary in nodes:
            lack = self.need.beyond(node.free)
            if lack.fits(summary.largest):
                lacks[node.node_id] = lack
        if not lacks:
            return None
        smallest = least(lacks.values())

        def could(task_class: TaskClass) -> bool:
            frees = task_class.resources
            return len(task_class) > 0 and smallest.fits(frees) and self.short_quota.fits(frees)

        for unit in self.units(could):
            node_id = unit.agent.node_id
            if node_id not in lacks or not lacks[node_id].fits(unit.agent.spec.resources):
                continue
            node = self.state.cluster.nodes[node_id]
            scenario = Scenario(self.need, self.short_quota, node)
            scenario.release(unit)
            if scenario.fits():
                return Plan(units=(unit,), node_id=node_id)
        return None

    def _best_node(
        self,
        nodes: list[tuple[Bound, Node, _Summary]],
        allowed: dict[TaskClass, Verdict],
    ) -> Plan | None:
        """Work nodes out in the order of their bounds, until none that is left can do better."""
        heap = [(bound, node.node_id, node) for bound, node, _ in nodes]
        heapq.heapify(heap)
        best: tuple[Bound, Plan] | None = None
        while heap:
            bound, _, node = heapq.heappop(heap)
            if best is not None and best[0] <= bound:
                break
            plan = self._plan_on(node, allowed)
            if plan is None:
                continue
            place = place_of(plan.units, node.node_id)
            if best is None or place < best[0]:
                best = (place, plan)
        return None if best is None else best[1]

    def _plan_on(self, node: Node, allowed: dict[TaskClass, Verdict]) -> Plan | None:
        """The victims for this node: its own candidates until it has room, then others for quota."""
        scenario = Scenario(self.need, self.short_quota, node)
        taken: list[VictimAgent] = []
        for unit in sorted(self._units_on(node, allowed), key=order_of):
            if scenario.has_room:
                break
            if self._helps_room(scenario, unit):
                scenario.release(unit)
                taken.append(unit)
        if not scenario.has_room:
            return None
        units: tuple[VictimAgent, ...] | None = tuple(taken)
        if scenario.short_quota:
            units = self.fill_quota(scenario, tuple(taken))
        return None if units is None else self._plan_of(units, node)

    def _helps_room(self, scenario: Scenario, unit: VictimAgent) -> bool:
        """Whether it frees an amount that is short, or a part of a device while none is whole enough."""
        frees = unit.agent.spec.resources
        return frees.helps(scenario.short_room) or (frees.gpu > 0 and scenario.short_device)

    def _units_on(self, node: Node, allowed: dict[TaskClass, Verdict]) -> Iterator[VictimAgent]:
        for agent_name in node.allocations:
            unit = self.unit_of(agent_name, allowed)
            if unit is not None:
                yield unit

    def unit_of(self, agent_name: str, allowed: dict[TaskClass, Verdict]) -> VictimAgent | None:
        """The agent with its tasks; None: it does not run, or some task of its may not go."""
        running, preemption = self.state.running, self.state.preemption
        candidates = []
        newest = 0.0
        for task_id in running.on_agent(agent_name):
            task = running.by_id[task_id]
            verdict = None if task.task_class is None else allowed.get(task.task_class)
            if verdict is None:
                return None
            found = preemption.candidate(task, verdict, self.incoming, self.now)
            if found is None or not self._agreed(task, verdict):
                return None
            candidates.append(found)
            newest = max(newest, task.started_at)
        if not candidates or not _runs(self.state, agent_name):
            return None
        return self._unit(agent_name, candidates, newest)

    def _plan_of(self, units: tuple[VictimAgent, ...], node: Node | None) -> Plan:
        """The plan with these victims, less those that are not needed: lowest score first they stay."""
        scenario = Scenario(self.need, self.short_quota, node if self.by_node else None)
        for unit in units:
            scenario.release(unit)
        last_first = sorted(units, key=order_of, reverse=True)
        kept = minimise(scenario, last_first, scenario.fits)
        return Plan(units=tuple(reversed(kept)), node_id=None if node is None else node.node_id)

    def units(self, keep: Keep) -> Iterator[VictimAgent]:
        """Agents that may leave with tasks of classes that ``keep`` says yes to, in the order of victims."""
        return self._units(self._ordered(keep))

    def _ordered(self, keep: Keep) -> Iterator[Candidate]:
        return self.state.preemption.ordered(
            self.state.running, self.incoming, self.now, keep, veto=self.veto
        )

    def _agreed(self, task: RunningTask, verdict: Verdict) -> bool:
        return self.veto is None or self.veto.gives(task, verdict)

    def _units(self, candidates: Iterable[Candidate]) -> Iterator[VictimAgent]:
        """Agents of these candidates, each when the last (lowest) of its tasks has come by."""
        seen: dict[str, list[Candidate]] = {}
        running = self.state.running
        for candidate in candidates:
            if not _runs(self.state, candidate.agent_name):
                continue
            mine = seen.setdefault(candidate.agent_name, [])
            mine.append(candidate)
            if len(mine) == len(running.on_agent(candidate.agent_name)):
                newest = max(running.by_id[c.task_id].started_at for c in mine)
                yield self._unit(candidate.agent_name, mine, newest)

    def _unit(self, agent_name: str, candidates: list[Candidate], newest: float) -> VictimAgent:
        ordered = tuple(sorted(candidates, key=lambda c: (-c.preempt_score, c.task_id)))
        return VictimAgent(
            agent=self.state.agents[agent_name],
            candidates=ordered,
            order=(
                self._first_by(ordered),
                -ordered[-1].preempt_score,
                -newest,
                ordered[0].task_id,
            ),
        )

    def _first_by(self, candidates: tuple[Candidate, ...]) -> float:
        """What the policy's order of victims looks at before the lowest score; of several tasks on one
        agent the one that is to leave last counts.
        """
        order = self.state.policy.victim_order
        if order == "priority_first":
            return max(c.priority for c in candidates)
        if order == "least_lost_work":
            return max(c.lost_work for c in candidates)
        return 0.0


class _Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's agents with running tasks would free, summed up once per change of the node."""

    version: int
    classes: frozenset[TaskClass]
    #: The sum over all, and kind by kind the most and least that one of them frees.
    freed: Resources
    largest: Resources
    smallest: Resources
    #: (priority, what agents of at most that priority free together), ascending.
    levels: tuple[tuple[float, Resources], ...]
    count: int
    #: Sum over tasks of the time from which work would be lost.
    since: float
    tasks: int

    def bound(self, lack: Resources, node_id: str, now: float) -> Bound:
        """No set of victims on this node that makes up for ``lack`` comes before this."""
        top = next(priority for priority, freed in self.levels if lack.fits(freed))
        if self._all_must_go(lack):
            return (top, self.count, self.tasks * now - self.since, node_id)
        fewest = (
            max(-(-units // self._largest_of(kind)) for kind, units in lack.items()) if lack else 1
        )
        return (top, fewest, 0.0, "")

    def _largest_of(self, kind: str) -> int:
        amounts = dict(self.largest.items())
        return amounts.get(kind, 1)

    def _all_must_go(self, lack: Resources) -> bool:
        """Whether every agent frees more of some kind than could be spared."""
        slack = self.freed - lack
        return (
            (lack.gpu > 0 and self.smallest.gpu > slack.gpu)
            or (lack.cpu > 0 and self.smallest.cpu > slack.cpu)
            or (lack.memory > 0 and self.smallest.memory > slack.memory)
        )


def _summary(state: MeshState, node: Node) -> _Summary:
    """The node's summary, made anew only when something changed there."""
    kept = node.summary
    if isinstance(kept, _Summary) and kept.version == node.version:
        return kept
    node.summary = made = _summarise(state, node)
    return made


def _summarise(state: MeshState, node: Node) -> _Summary:
    running = state.running
    classes: set[TaskClass] = set()
    by_priority: dict[float, Resources] = {}
    each: list[Resources] = []
    since, tasks = 0.0, 0
    for agent_name in node.allocations:
        found = [running.by_id[task_id] for task_id in running.on_agent(agent_name)]
        its_classes = {task.task_class for task in found if task.task_class is not None}
        if not found or any(task.task_class is None for task in found):
            continue
        if not _runs(state, agent_name):
            continue
        classes |= its_classes
        frees = state.agents[agent_name].spec.resources
        each.append(frees)
        top = max(task.spec.priority for task in found)
        by_priority[top] = by_priority.get(top, NOTHING) + frees
        since += sum(max(task.started_at, task.saved_at or 0.0) for task in found)
        tasks += len(found)
    levels, freed = [], NOTHING
    for priority in sorted(by_priority):
        freed = freed + by_priority[priority]
        levels.append((priority, freed))
    return _Summary(
        version=node.version,
        classes=frozenset(classes),
        freed=freed,
        largest=most(each),
        smallest=least(each),
        levels=tuple(levels),
        count=len(each),
        since=since,
        tasks=tasks,
    )


def _runs(state: MeshState, agent_name: str) -> bool:
    """Whether the agent is ours and runs: only such a one frees what it holds by leaving."""
    agent = state.agents.get(agent_name)
    return agent is not None and agent.phase is AgentPhase.RUNNING


def place_of(units: tuple[VictimAgent, ...], node_id: str) -> Bound:
    """Where these victims stand among those of all nodes; ascending is better."""
    return (
        max((unit.top_priority for unit in units), default=float("-inf")),
        len(units),
        sum(unit.lost_work for unit in units),
        node_id,
    )
