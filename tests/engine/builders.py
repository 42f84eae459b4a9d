"""Builders for engine tests: short words for stimuli, and a mesh whose executor is virtual."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.pools import parse_lending
from schedulemesh.domain.agent import (
    AgentSpec,
    Alternative,
    MemberProcess,
    with_alternatives,
)
from schedulemesh.domain.cohort import CohortSpec
from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.flavors import parse_flavors
from schedulemesh.domain.labels import parse_selector
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload, Payload
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, parse_resources, sum_of
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.codec import decode_chunk, decode_facts, encode_chunk, encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import instructions as i
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentEnded, AnyFact, Devices, merged
from schedulemesh.engine.messages.job_stimuli import JobWorkObserved
from schedulemesh.engine.messages.outcomes import Evaluation, Refused
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.messages.queue_facts import TaskQueued
from schedulemesh.engine.placement.leaving import all_leaving
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.agents import Agent, Waiting
from schedulemesh.engine.state.invariants import check
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import held_by
from schedulemesh.engine.state.queued_tasks import Reservation
from schedulemesh.engine.state.snapshot import parts, restored, take_snapshot
from schedulemesh.engine.state.spared_work import SparedWork
from schedulemesh.engine.transaction import Step
from schedulemesh.plugins.guard import Guarded
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin


def amount(**given: Any) -> Resources:
    """Resources in the words of the documents: cpu, memory, gpu, custom."""
    return parse_resources(given)


def pool(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    agents: int = 0,
    groups: GroupsSpec | None = None,
    lending: dict[str, Any] | None = None,
    flavors: dict[str, dict[str, str]] | None = None,
    **given: Any,
) -> PoolSpec:
    """A pool with this quota, with placement groups where it says how it keeps them, with the arguments of
    ``ensure_pool`` about lending, and with flavors of GPUs on nodes with these labels.
    """
    return PoolSpec(
        name=name,
        labels=labels or {},
        resources=amount(**given),
        target_agents=agents,
        groups=groups,
        flavors=parse_flavors(
            [{"name": each, "label_selector": nodes} for each, nodes in (flavors or {}).items()]
        ),
        **parse_lending(lending or {}),
    )


def shape(*bundles: dict[str, Any], strategy: str = "STRICT_PACK", **labels: str) -> GroupShape:
    """A group of these bundles, on nodes with these labels."""
    return GroupShape(
        bundles=tuple(amount(**bundle) for bundle in bundles),
        strategy=strategy,
        node_labels=tuple(sorted(labels.items())),
    )


def node(
    node_id: str,
    *,
    others: Resources | None = NOTHING,
    labels: dict[str, str] | None = None,
    **given: Any,
) -> NodeReport:
    """A node with these totals."""
    total = amount(**given)
    return NodeReport(node_id=node_id, total=total, external_usage=others, labels=labels or {})


def on(*units: tuple[int, float]) -> Devices:
    """GPU devices: ``on((0, 0.5))`` is half of device 0."""
    return Devices(units=tuple((index, round(part * UNIT)) for index, part in units))


def gpu_ids(devices: Devices) -> tuple[str, ...]:
    """The names of devices that are called by their numbers."""
    return tuple(str(i) for i, _ in devices.units)


def in_portions(
    engine: Engine,
    stimulus: s.AnyStimulus,
    now: float,
    between: Callable[[], object] = lambda: None,
) -> Step:
    """What an engine decides; on a tick class by class, where ``between`` comes in between."""
    if not isinstance(stimulus, s.ClockTicked):
        return engine.handle(stimulus, now)
    steps = [engine.handle(s.ClockTicked(portion=1), now)]
    while steps[-1].is_unfinished:
        between()
        steps.append(engine.handle(s.TickContinued(), now))
    return Step(
        facts=tuple(fact for step in steps for fact in step.facts),
        instructions=tuple(order for step in steps for order in step.instructions),
        stimulus=stimulus,
        at=now,
    )


class NothingSpared(SparedWork):
    """Forgets at once what was found out, so that everything is searched again."""

    def is_in_vain(self, task_id: str, now: float) -> bool:
        """Never known."""
        return False

    def is_start_of(self, task_id: str, start: Reservation | None) -> bool:
        """Never known."""
        return False


def _alternative(fallback: dict[str, Any]) -> Alternative:
    """A further way in which an agent may run: labels of nodes, with ``bundles`` or amounts of its own under
    ``takes``.
    """
    labels = {key: value for key, value in fallback.items() if key not in ("takes", "bundles")}
    bundles = tuple(amount(**bundle) for bundle in fallback.get("bundles", ()))
    takes = sum_of(bundles) if bundles else fallback.get("takes") and amount(**fallback["takes"])
    return Alternative(
        node_labels=parse_node_labels(labels, "fallback"), resources=takes, bundles=bundles
    )


class Mesh:
    """An engine whose every step is checked and remembered, and whose executor is these methods."""

    #: Of how many steps the invariants of one are checked.
    check_every = 1

    def __init__(
        self,
        *pools: PoolSpec,
        nodes: Iterable[NodeReport] = (),
        strategy: str = "bin_pack",
        plugins: Iterable[SchedulingStrategyPlugin] = (),
        **policy: Any,
    ) -> None:
        self.guarded = tuple(Guarded(type(plugin).__name__, plugin) for plugin in plugins)
        self.engine = Engine(strategies=Strategies(strategy, plugins=self.guarded))
        self.now = 1000.0
        self.facts: list[AnyFact] = []
        #: What the executor still has to do, by agent name and by task id.
        self.starts: dict[str, i.StartAgent] = {}
        self.ends: dict[str, i.EvictAgent | i.StopAgent] = {}
        self.task_evictions: dict[str, i.EvictTask] = {}
        #: Classes of queued tasks that are to be loaded, by task id.
        self.probes: dict[str, i.ProbeClass] = {}
        #: By task id, as often as it was ordered.
        self.runs: dict[str, list[i.RunTask]] = {}
        #: Groups that Ray still has to make, and those that it has to remove.
        self.makes: dict[str, i.CreateGroup] = {}
        self.removes: set[str] = set()
        #: Requests whose final outcome was told.
        self.told: list[str] = []
        self.steps = 0
        if nodes:
            self.observe(*nodes)
        for spec in pools:
            self.handle(s.PoolRequested(spec=spec))
        if policy:
            self.policy(**policy)

    @property
    def state(self) -> MeshState:
        """The live state."""
        return self.engine.state

    def handle(self, stimulus: s.AnyStimulus) -> Step:
        """One step, checked: invariants, and what the executor is told."""
        over = _overfull(self.state)
        step = self.engine.handle(stimulus, self.now)
        self.facts += step.facts
        self.steps += 1
        if step.facts and self.steps % self.check_every == 0:
            check(self.state)
            check_claims(self.state)
            check_returns(step)
        if not isinstance(stimulus, s.AgentReported | s.AgentRestarted | s.ClusterObserved):
            assert _overfull(self.state) <= over, "the engine gave away more than there is"
        for order in step.instructions:
            self._take_order(order)
        self.starts = {n: o for n, o in self.starts.items() if self._lives(n, o.incarnation)}
        self.ends = {n: o for n, o in self.ends.items() if self._lives(n, o.incarnation)}
        return step

    def _take_order(self, order: i.AnyInstruction) -> None:
        if isinstance(order, i.StartAgent):
            self.starts[order.agent.name] = order
        elif isinstance(order, i.EvictAgent | i.StopAgent):
            self.ends[order.agent_name] = order
        elif isinstance(order, i.RunTask):
            self.runs.setdefault(order.task_id, []).append(order)
        elif isinstance(order, i.EvictTask):
            self.task_evictions[order.task_id] = order
        elif isinstance(order, i.ProbeClass):
            self.probes[order.task_id] = order
        elif isinstance(order, i.CreateGroup):
            self.makes[order.group_id] = order
        elif isinstance(order, i.RemoveGroup):
            self.makes.pop(order.group_id, None)
            self.removes.add(order.group_id)
        else:
            self.told.append(order.request_id)

    def _lives(self, name: str, incarnation: int) -> bool:
        agent = self.state.agents.get(name)
        return agent is not None and agent.incarnation == incarnation

    def policy(self, **changes: Any) -> None:
        """Put a changed policy in force."""
        policy = msgspec.structs.replace(self.state.policy, **changes)
        self.handle(s.PolicyChangeRequested(policy=policy, client="me", changes=tuple(changes)))

    def observe(self, *nodes: NodeReport) -> Step:
        """These are the living nodes, all of them."""
        return self.handle(s.ClusterObserved(nodes=nodes))

    def see_demand(self, *demand: ExternalDemand) -> Step:
        """This is all that external work waits for; the nodes are as before."""
        nodes = tuple(
            NodeReport(node_id=n.node_id, total=n.total, labels=n.labels, external_usage=None)
            for n in self.state.cluster.nodes.values()
        )
        return self.handle(s.ClusterObserved(nodes=nodes, external_demand=demand))

    def cohort(self, name: str, parent: str | None = None, weight: float = 1.0) -> Any:
        """Ask for a cohort like this."""
        spec = CohortSpec(name=name, parent=parent, weight=weight)
        return self.handle(s.CohortRequested(spec=spec)).outcome

    def resize(self, spec: PoolSpec, **more: Any) -> Any:
        """Ask for a pool like this."""
        return self.handle(s.PoolRequested(spec=spec, **more)).outcome

    def delete_pool(self, name: str = "p", **how: Any) -> Any:
        """Delete a pool."""
        return self.handle(s.PoolDeletionRequested(pool_name=name, **how)).outcome

    def rename_pool(self, name: str, new_name: str) -> Any:
        """Give a pool another name."""
        return self.handle(s.PoolRenameRequested(pool_name=name, new_name=new_name)).outcome

    def submission(
        self,
        name: str,
        pool_name: str = "p",
        priority: float = 5.0,
        *,
        task: bool = True,
        labels: dict[str, str] | None = None,
        duration: float | None = None,
        selector: object = None,
        class_key: str = "",
        restartable: bool = True,
        run: str = "",
        retries: int = 0,
        bundles: Iterable[dict[str, Any]] = (),
        payload: Payload = SINGLE_PROCESS,
        on_preempted: str = "",
        on_restore_failure: str = "",
        on_oom: str = "",
        oom_max_memory: float | None = None,
        parent: str = "",
        owner: str = "",
        node_labels: dict[str, str] | None = None,
        fallbacks: Iterable[dict[str, Any]] = (),
        limits: dict[str, Any] | None = None,
        topology: str = "",
        more: dict[str, Any] | None = None,
        **given: Any,
    ) -> s.TaskSubmitted:
        """A submission of task ``name`` on an agent of the same name. ``limits``: in time, by the names of
        the fields.
        """
        return s.TaskSubmitted(
            agent=with_alternatives(
                AgentSpec(
                    name=name,
                    pool_name=pool_name,
                    resources=amount(**given) if given or not bundles else shape(*bundles).total,
                    labels=labels or {},
                    class_key=class_key,
                    restartable=restartable,
                    bundles=tuple(amount(**bundle) for bundle in bundles),
                    payload=payload,
                    node_labels=parse_node_labels(node_labels, "label_selector"),
                ),
                tuple(map(_alternative, fallbacks)),
            ),
            task=(
                TaskSpec(
                    task_id=name,
                    pool_name=pool_name,
                    priority=priority,
                    labels=labels or {},
                    estimated_duration=duration,
                    on_preempted=on_preempted,
                    on_restore_failure=on_restore_failure,
                    on_oom=on_oom,
                    oom_max_memory=oom_max_memory,
                    run=run,
                    max_retries=retries,
                    parent=parent,
                    owner=owner,
                    topology=topology,
                    **(limits or {}),
                )
                if task
                else None
            ),
            selector=() if selector is None else parse_selector(selector),
            **(more or {}),
        )

    def submit(self, name: str, pool_name: str = "p", priority: float = 5.0, **how: Any) -> Any:
        """Submit, and give the outcome."""
        return self.handle(self.submission(name, pool_name, priority, **how)).outcome

    def dry(self, name: str, pool_name: str = "p", priority: float = 5.0, **how: Any) -> Any:
        """The outcome of a dry run, which must change nothing."""
        seen = len(self.facts)
        how["more"] = {**how.get("more", {}), "dry_run": True}
        outcome = self.submit(name, pool_name, priority, **how)
        assert len(self.facts) == seen, "a dry run made facts"
        return outcome

    def queue(self, name: str, pool_name: str = "p", priority: float = 5.0, **how: Any) -> Any:
        """Submit a task that waits where it does not fit; the outcome."""
        how["more"] = {**how.get("more", {}), "queue": True}
        return self.submit(name, pool_name, priority, **how)

    def change(self, task_id: str, **how: Any) -> Any:
        """Change how a task waits."""
        return self.handle(s.QueuedTaskChanged(task_id=task_id, **how)).outcome

    def cancel(self, task_id: str, **how: Any) -> Any:
        """Cancel a task."""
        return self.handle(s.TaskCancellationRequested(task_id=task_id, **how)).outcome

    def find_work(self, name: str, claims: dict[str, Resources]) -> None:
        """The work of a job is found on other nodes, so that its claim is to be there."""
        self.handle(
            JobWorkObserved(
                agent_name=name,
                incarnation=self.state.agents[name].incarnation,
                claims=tuple(sorted(claims.items())),
            )
        )

    def order_by(self, **changes: Any) -> None:
        """Put a changed policy of the queue in force."""
        policy = msgspec.structs.replace(self.state.queue.policy, **changes)
        self.handle(
            s.QueuePolicyChangeRequested(policy=policy, client="me", changes=tuple(changes))
        )

    def waiting(self, pool_name: str = "p") -> list[str]:
        """The ids of the tasks in a pool's queue, in their order."""
        return [task.task_id for task in self.state.queue.of_pool(pool_name)]

    def report(
        self,
        name: str,
        node_id: str | None = None,
        devices: Devices | None = None,
        room: str = "",
        capabilities: tuple[str, ...] = (),
        state_restored: bool | None = None,
    ) -> Any:
        """The agent runs: where the state assumes, unless said otherwise."""
        order = self.starts.pop(name)
        node_id = node_id or order.node_id
        members = self._members(order)
        if members and devices is None:
            devices = self._devices(
                node_id or "", self.state.groups.by_id[order.group_id or ""].key(0)
            )
        if devices is None:
            devices = self._devices(node_id or "", name)
        return self.handle(
            s.AgentReported(
                agent_name=name,
                incarnation=order.incarnation,
                node_id=node_id,
                gpu_ids=gpu_ids(devices),
                members=members,
                room=room,
                capabilities=capabilities,
                state_restored=state_restored,
            )
        ).outcome

    def _members(self, order: i.StartAgent) -> tuple[MemberProcess, ...]:
        """The members of a gang, where the state assumes them; none for a single process."""
        group = self.state.groups.by_id.get(order.group_id or "")
        if not isinstance(order.agent.payload, GangPayload) or group is None:
            return ()
        return tuple(
            MemberProcess(node_id=n, gpu_ids=gpu_ids(self._devices(n, group.key(rank))))
            for rank, n in enumerate(group.node_ids)
        )

    def _devices(self, node_id: str, key: str) -> Devices:
        """The devices that the state assumes for an allocation."""
        stands = self.state.cluster.nodes.get(node_id)
        mine = None if stands is None else stands.allocations.get(key)
        return Devices() if mine is None else mine.devices

    def make(self, group_id: str) -> Step:
        """Ray has placed the group."""
        del self.makes[group_id]
        return self.handle(s.GroupCreated(group_id=group_id))

    def make_all(self) -> None:
        """Ray places all groups that it was asked for."""
        for group_id in list(self.makes):
            self.make(group_id)

    def unmake(self, group_id: str, error: str = "not placed") -> Step:
        """Ray has not placed the group in time."""
        del self.makes[group_id]
        return self.handle(s.GroupCreateFailed(group_id=group_id, error=error))

    def remove(self, group_id: str) -> Step:
        """A group is gone from Ray, told or not."""
        self.removes.discard(group_id)
        self.makes.pop(group_id, None)
        return self.handle(s.GroupGone(group_id=group_id))

    def fail(
        self,
        name: str,
        reason: str = "agent_start_failed",
        *,
        restore_failed: bool = False,
        room_lost: bool = False,
    ) -> Any:
        """The agent could not be made."""
        order = self.starts.pop(name)
        return self.handle(
            s.AgentStartFailed(
                agent_name=name,
                incarnation=order.incarnation,
                reason=reason,
                error="the class raised",
                restore_failed=restore_failed,
                room_lost=room_lost,
            )
        ).outcome

    def run(self, name: str, pool_name: str = "p", priority: float = 5.0, **how: Any) -> Any:
        """Submit a task for which there is room, and let its agent report."""
        where = {key: how.pop(key) for key in ("node_id", "devices") if key in how}
        self.submit(name, pool_name, priority, **how)
        return self.report(name, **where)

    def slot(self, name: str) -> Any:
        """Let all its victims leave, then let it start."""
        for victim in leaving_for(self.state.agents[name]):
            self.leave(victim)
        return self.report(name)

    def leave(self, name: str, *, saved: bool = False) -> Any:
        """An agent that was told to end is gone."""
        order = self.ends.pop(name)
        if saved and isinstance(order, i.EvictAgent):
            for task_id in order.task_ids:
                self.save(task_id)
        return self.die(name, order.incarnation)

    def die(self, name: str, incarnation: int | None = None) -> Any:
        """An agent's process is gone, told or not."""
        if incarnation is None:
            incarnation = self.state.agents[name].incarnation
        return self.handle(s.AgentGone(agent_name=name, incarnation=incarnation)).outcome

    def save(self, task_id: str) -> Step:
        """A task's state lies in the store."""
        return self.handle(
            s.StateStored(
                task_id=task_id,
                state_key=f"state-{task_id}",
            )
        )

    def run_ends(self, task_id: str, **how: Any) -> Step:
        """The agent reports the end of the run that was ordered last."""
        order = self.runs[task_id][-1]
        given = {"agent_name": order.agent_name, "incarnation": order.incarnation, **how}
        return self.handle(s.RunEnded(task_id=task_id, **given))

    def announce(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str = "p",
        priority: float = 5.0,
        *,
        labels: dict[str, str] | None = None,
        duration: float | None = None,
        owner: str = "",
    ) -> Any:
        """Register a running task."""
        task = TaskSpec(
            task_id=task_id,
            pool_name=pool_name,
            priority=priority,
            labels=labels or {},
            estimated_duration=duration,
            owner=owner,
        )
        return self.handle(s.TaskAnnounced(task=task, agent_name=agent_name)).outcome

    def complete(self, task_id: str, *, end_agent: bool = True) -> Any:
        """The task is done; its agent, if it ends, is gone at once."""
        agent_name = self.state.running.by_id[task_id].agent_name
        outcome = self.handle(s.TaskFinished(task_id=task_id, end_agent=end_agent)).outcome
        if agent_name in self.ends:
            self.leave(agent_name)
        return outcome

    def delete(self, name: str, destroy_group: bool | None = None) -> Any:
        """Ask for an agent's end."""
        group_request = s.AgentDeletionRequested(agent_name=name, destroy_group=destroy_group)
        return self.handle(group_request).outcome

    def preempt(self, **how: Any) -> Any:
        """Evict manually."""
        return self.handle(s.PreemptionRequested(**how)).outcome

    def cordon(self, node_id: str, cordoned: bool = True) -> Any:
        """Close a node to new agents, or open it again."""
        return self.handle(s.CordonRequested(node_id=node_id, cordoned=cordoned)).outcome

    def tick(self, seconds: float = 0.0) -> Step:
        """Time goes by."""
        self.now += seconds
        return self.handle(s.ClockTicked())

    def evaluate(
        self, priority: float = 5.0, pool_name: str = "p", *, limit: int = 100, **how: Any
    ) -> Evaluation:
        """The dry run of the decision; with amounts, of the victim search too."""
        labels = how.pop("labels", {})
        resources = amount(**how) if how else None
        return self.engine.evaluate(
            PreemptionQuery(
                priority=priority,
                pool_name=pool_name,
                labels=labels,
                resources=resources,
                limit=limit,
            ),
            self.now,
        )

    def free(self, pool_name: str = "p") -> Resources:
        """The pool's free quota."""
        return self.state.ledger.accounts[pool_name].free

    def refolded(self) -> MeshState:
        """The state that all facts so far lead to, after they were written and read."""
        return MeshState.fold(decode_facts(encode_facts(self.facts)))

    def rewritten(self) -> MeshState:
        """The state after it was written as a snapshot and read."""
        written = [encode_chunk(part) for part in parts(take_snapshot(self.state), 2)]
        return restored(decode_chunk(part) for part in written)

    def told_facts(self, *names: str) -> list[str]:
        """The names of all facts so far, or of those of these names."""
        seen = [type(fact).__name__ for fact in self.facts]
        return [name for name in seen if name in names] if names else seen


def names(victims: Iterable[Any]) -> list[str]:
    """The task ids of candidates."""
    return [victim.task_id for victim in victims]


def as_submitted(dry: Refused) -> Refused:
    """The refusal of a dry run as a submission is answered: without a start in the queue."""
    return msgspec.structs.replace(dry, earliest_start=None)


def differences(left: MeshState, right: MeshState) -> list[str]:
    """Where two states differ, field by field; caches and what only tells versions are left out."""
    mine, other = pictures(left), pictures(right)
    return [
        f"{field}: {mine[field]!r} is not {other[field]!r}"
        for field in mine
        if mine[field] != other[field]
    ]


def pictures(state: MeshState) -> dict[str, object]:
    """Every field of a state as plain comparable data."""
    left_out = {
        "_apply",
        "past",
        "arrays",
        "evictions",
        "drains",
        "windows",
        "pool_names",
        "external_demands",
        "_group_facts",
        "spared",
        "preemption",
        "ledger",
        "cluster",
        "running",
        "groups",
        "queue",
        "owners",
        "budgets",
    }
    shown: dict[str, object] = {
        field: value for field, value in vars(state).items() if field not in left_out
    }
    shown["owners"] = state.owners.uses
    shown["budgets"] = {
        name: (pool.spec, pool.total, pool.owners) for name, pool in state.budgets.by_pool.items()
    }
    shown["pools that count owners"] = [
        (spec.name, spec.owner_limits, spec.owner_order, spec.default_agent())
        for _, spec in sorted(state.owners.pools.items())
    ]
    shown["drains"] = list(state.drains)
    shown["ending"] = state.drains.ending
    shown["windows"] = (state.windows.by_name, state.windows.chosen)
    shown["pool names"] = state.pool_names.next_of
    shown["external demand"] = (state.external_demands.waiting, state.external_demands.lost)
    shown["evictions"] = vars(state.evictions)
    shown["lost with"] = state.past._lost_with
    shown["durations"] = list(state.past.estimates.items())
    shown["groups"] = {
        field: (
            {kind: list(entries) for kind, entries in value.items()}
            if field in ("_free", "_coming")
            else value
        )
        for field, value in vars(state.groups).items()
        if field != "changed"
    }
    shown["pools with groups"] = list(state.groups.of_pool)
    shown["accounts"] = list(state.ledger.accounts.items())
    shown["holds"] = state.ledger.holds
    shown["loans"] = state.ledger.loans
    shown["promises"] = state.ledger.promises
    shown["tokens"] = state.tokens
    shown["cohorts"] = (state.ledger.cohorts.specs, state.ledger.cohorts._cohort_of)
    shown["nodes"] = {
        name: [
            getattr(found, field)
            for field in found.__struct_fields__
            if field not in ("version", "summary", "gpu_tasks")
        ]
        for name, found in state.cluster.nodes.items()
    }
    shown["allocations order"] = {
        name: list(found.allocations) for name, found in state.cluster.nodes.items()
    }
    workload = state.cluster.workload
    shown["workload"] = (workload.counts, workload.sampled, workload.renew_at)
    shown["index"] = list(state.cluster._index)
    shown["tasks"] = {
        task_id: [getattr(task, field) for field in task.__struct_fields__ if field != "task_class"]
        for task_id, task in state.running.by_id.items()
    }
    shown["queue"] = {
        task_id: [
            getattr(task, field) for field in task.__struct_fields__ if field != "queue_class"
        ]
        for task_id, task in state.queue.by_id.items()
    }
    shown["next task number"] = state.queue.next_number
    shown["turns"] = state.queue.turns
    shown["queue policy"] = state.queue.policy
    shown["order in the queue"] = {
        name: [task.task_id for task in state.queue.of_pool(name)] for name in state.queue.pools
    }
    shown["firsts"] = {name: list(pool.firsts) for name, pool in state.queue.pools.items()}
    shown["class of"] = {
        task_id: None if task.task_class is None else task.task_class.key
        for task_id, task in state.running.by_id.items()
    }
    shown["by agent"] = state.running._by_agent
    shown["arrays"] = {
        array_id: (one.stored(), sorted(one.running), sorted(one.leaving), sorted(one.waiting))
        for array_id, one in state.arrays.by_id.items()
    }
    shown["dependents"] = {
        field: {
            key: sorted(value) if isinstance(value, dict) else value for key, value in found.items()
        }
        for field, found in vars(state.queue.dependents).items()
    }
    shown["children"] = (state.running.children.by_parent, state.running.children.orphans)
    shown["classes"] = {key: len(found) for key, found in state.running.classes.items() if found}
    shown["named"] = state.running._named
    shown["ranks"] = state.preemption.ranks.ranks
    return shown


def shuffled(items: Iterable[Any], seed: int) -> list[Any]:
    """The items in an order that a number decides."""
    found = list(items)
    random.Random(seed).shuffle(found)
    return found


def check_claims(state: MeshState) -> None:
    """Claims on what is leaving never exceed what it frees, of no pool's quota and on no node."""
    for item in all_leaving(state):
        names = [leaver.name for leaver in item.leavers]
        waiting = {name for leaver in item.leavers for name in leaver.waiters}
        promised = [share for name in sorted(waiting) for share in state.agents[name].promised]
        shares = [share for agent in item.agents for share in agent.shares]
        for share in merged(promised):
            freed = {other.pool_name: other.amount for other in merged(shares)}
            assert share.amount.fits(freed.get(share.pool_name, NOTHING)), (names, promised)
        for node_id in {node_id for node_id, _ in item.claimed} & state.cluster.nodes.keys():
            there = state.cluster.nodes[node_id].allocations
            keys = [key for at, key in item.allocations if at == node_id and key in there]
            freed_there = sum_of(held_by(there[key]) for key in keys)
            claimed = sum_of(amount for at, amount in item.claimed if at == node_id)
            assert claimed.fits(freed_there), (names, claimed, freed_there)


def check_returns(step: Step) -> None:
    """A task that joins the queue again without an eviction or a failure is named by the end of its agent,
    and nobody else is.
    """
    queued = {
        fact.submission.task.task_id: fact.attempts
        for fact in step.facts
        if isinstance(fact, TaskQueued) and fact.submission.task is not None
    }
    ends = [fact for fact in step.facts if isinstance(fact, AgentEnded)]
    returned = {fact.returned.task_id for fact in ends if fact.returned is not None}
    assert returned <= queued.keys(), (returned, queued)
    for task_id, attempts in queued.items():
        moved = attempts.preemptions or attempts.drains
        counted = attempts.failures or moved or attempts.time_limits
        assert attempts.arrived_at is None or counted or task_id in returned, task_id


def leaving_for(agent: Agent) -> list[str]:
    """The names of the victims that have not ended yet."""
    return sorted(agent.phase.for_agents) if isinstance(agent.phase, Waiting) else []


def _overfull(state: MeshState) -> set[str]:
    """Nodes of which more is given away than there is; only what others report may bring that about."""
    return {
        node_id
        for node_id, found in state.cluster.nodes.items()
        if found.free.negative() or min(found.devices, default=0) < 0
    }


DEFAULT_POLICY = PreemptionPolicy()
