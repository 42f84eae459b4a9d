"""Random histories: everything that can reach the engine, in any order, with a twin in lockstep.

Users, operators, nodes and Ray do what they like: reports come late, twice, of agents and groups that are no
more, and contradict each other; supervisors die, agents are lost and made again. After every step the books
agree (``Mesh.handle``), what was written is read as it was, and a twin that was rebuilt from a snapshot or
from the facts at a random moment has made the same step.

    python -m tests.engine.histories --stimuli 500000 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import msgspec

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.agent import MemberProcess
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.codec import decode_facts, encode_facts
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import ProbeNeeded
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.placement.strategies import NODE_STRATEGIES, Strategies
from schedulemesh.engine.transaction import Step
from tests.engine.builders import Mesh, NothingSpared, amount, differences, in_portions
from tests.engine.random_specs import (
    AGENTS,
    BUNDLES,
    DURATIONS,
    GPU_IDS,
    KEYS,
    LABELS,
    NODES,
    POOLS,
    PRIORITIES,
    TASKS,
    TOPOLOGIES,
    Dice,
)

#: Stimuli in one history, after which another mesh begins.
LENGTH = 400


class Diverged(AssertionError):
    """A twin that was rebuilt does something else than the original."""


def unlike(step: Step, told: Step) -> list[str]:
    """What two steps do not have in common, one message a line."""
    pairs = (
        *zip_longest(step.facts, told.facts),
        *zip_longest(step.instructions, told.instructions),
    )
    return [
        f"  original: {one}\n  twin:     {other}"
        for one, other in (*pairs, (step.outcome, told.outcome))
        if one != other
    ]


class TwinMesh(Mesh):
    """A mesh with a twin, whose ticks are divided, that is told the same and must do the same."""

    twin: Engine | None = None

    def __init__(self, strategy: str) -> None:
        #: Of all that was decided.
        self.digest = sha256()
        #: The latest time at which a step was made.
        self.latest = 0.0
        super().__init__(strategy=strategy)

    def handle(self, stimulus: s.AnyStimulus) -> Step:
        """One step of both."""
        step = super().handle(stimulus)
        self.latest = max(self.latest, self.now)
        self.digest.update(encode_facts(step.facts))
        self.digest.update(repr(step.instructions).encode())
        if list(decode_facts(encode_facts(step.facts))) != list(step.facts):
            raise Diverged(f"what was written is not what is read: {step.facts}")
        if self.twin is not None:
            told = in_portions(self.twin, stimulus, self.now)
            if told != step:
                raise Diverged("\n".join(unlike(step, told)))
        return step

    def rebuild_twin(self, *, from_facts: bool) -> None:
        """A new twin, as a supervisor that begins has it."""
        state = self.refolded() if from_facts else self.rewritten()
        for either in (self.state, state):
            # Tasks whose time has come join the order at the next pass: no fact, the same for both. The clock
            # may have been set back since.
            either.queue.advance(self.latest)
        if found := differences(self.state, state):
            raise Diverged("; ".join(found))
        # It also searches again where the mesh knows that it would be in vain.
        state.spared = NothingSpared()
        strategies = self.engine.strategies
        self.twin = Engine(state, strategies=Strategies(strategies.node, strategies.pool))


class History:
    """One mesh, and the dice that decide what happens to it."""

    def __init__(self, seed: str) -> None:
        self.dice = Dice(seed)
        self.mesh = TwinMesh(strategy=self.dice.choice(NODE_STRATEGIES))
        self.epoch = 0
        self.requests = 0
        self.stimuli = 0
        self.log: list[s.AnyStimulus] = []
        #: Whether faults and changes of definitions are rare, so that more tasks run and evict each other.
        self.calm = self.chance(0.5)
        self.up = {name for name in NODES if self.calm or self.chance(0.8)}
        self._events: tuple[tuple[float, Callable[[], None]], ...] = (
            (28, self.submit),
            (14, self.queue),
            (3, self.change_queued),
            (3, self.cancel),
            (5, self.run_ends),
            (2, self.probe),
            (2, self.explain),
            (24, self.executor),
            (4, self.dry_run),
            (3, self.query),
            (6, self.finish),
            (4, self.announce),
            (5, self.preempt),
            (1, self.handlers),
            (3, self.new_twin),
            (6 if self.calm else 3, self.tick),
            *((weight / 10 if self.calm else weight, event) for weight, event in self._faults()),
        )

    def _faults(self) -> tuple[tuple[float, Callable[[], None]], ...]:
        """Faults, and what operators change."""
        return (
            (4, self.delete),
            (1, self.queue_policy),
            (1, self.cohort),
            (3, self.drain),
            (4, self.late_report),
            (2, self.lose_agent),
            (4, self.rebuild),
            (2, self.late_group_report),
            (2, self.late_task_report),
            (3, self.nodes),
            (2, self.define_pool),
            (2, self.policy),
            (1, self.cordon),
            (1, self.world),
        )

    def run(self, length: int = LENGTH) -> None:
        """Let so many stimuli happen."""
        for name in POOLS[:3]:
            self.tell(s.PoolRequested(spec=self.dice.pool(name)))
        policy = PreemptionPolicy(topology_levels=("rack",))
        self.tell(s.PolicyChangeRequested(policy=policy, client="me", changes=("topology_levels",)))
        self.nodes()
        events = [event for _, event in self._events]
        weights = [weight for weight, _ in self._events]
        while self.stimuli < length:
            self.dice.choices(events, weights)[0]()
        self.new_twin()

    @property
    def now(self) -> float:
        """The time of the next stimulus."""
        return self.mesh.now

    def tell(self, stimulus: s.AnyStimulus) -> Step:
        """The next stimulus."""
        self.stimuli += 1
        self.log.append(stimulus)
        return self.mesh.handle(stimulus)

    def any(self, options: Sequence[Any]) -> Any:
        """One of them."""
        return self.dice.any(options)

    def chance(self, part: float) -> bool:
        """Whether it happens this time."""
        return self.dice.chance(part)

    # -- users ------------------------------------------------------------------------------------

    def submission(self, **more: Any) -> s.TaskSubmitted:
        """Anything that somebody may submit."""
        waiting, bundles = self.mesh.state.queue.agent_names, self.any(BUNDLES)
        payload = self.dice.gang() if self.chance(0.15) else SINGLE_PROCESS
        if isinstance(payload, GangPayload) and self.chance(0.6):
            bundles = self.any([each for each in BUNDLES if len(each) > 1])
        many = len(bundles) > 1 or isinstance(payload, GangPayload) or self.chance(0.1)
        # Others are refused with one.
        is_gang = isinstance(payload, GangPayload) and not payload.replicas
        fields: dict[str, Any] = {
            "may_preempt": self.chance(0.9),
            "for_group": self.chance(0.1),
            "choose_node": self.chance(0.95),
            "default_resources": self.chance(0.05) and not many,
            "request_id": self.request(),
            "client": self.any((None, "c1", "c2")),
            **more,
        }
        pool_name = self.any(POOLS[:3] if self.calm else POOLS) if self.chance(0.9) else ""
        living = self.mesh.state.agents
        free = [name for name in AGENTS if name not in living and name not in waiting]
        found = self.mesh.submission(
            self.any(free if free and self.chance(0.7) else AGENTS),
            pool_name,
            self.any(PRIORITIES),
            task=self.chance(0.85),
            labels=self.any(LABELS),
            duration=self.any(DURATIONS),
            selector=None if pool_name else self.any(({}, {"name": "p"}, {"name": "none"})),
            class_key=self.any(KEYS),
            restartable=self.chance(0.9),
            run=self.any(("", "", "train")),
            retries=self.any((0, 1, 3)),
            bundles=bundles if many else (),
            payload=payload,
            topology=self.any(TOPOLOGIES) if is_gang or self.chance(0.02) else "",
            more=fields,
            **({} if many else bundles[0]),
        )
        if found.task is None:
            return found
        task_id = self.any(TASKS) if self.chance(0.2) else found.task.task_id
        most = self.any((None, None, 0, 1))
        task = msgspec.structs.replace(found.task, task_id=task_id, max_preemptions=most)
        return msgspec.structs.replace(found, task=task)

    def request(self) -> str | None:
        """An id for a request: a new one, none, or one that was used."""
        if self.chance(0.1):
            return None
        if self.chance(0.9):
            self.requests += 1
        return f"r{self.requests}"

    def submit(self) -> None:
        found = self.submission()
        outcome = self.tell(found).outcome
        if isinstance(outcome, ProbeNeeded):
            self.tell(s.ClassProbed(class_key=outcome.class_key))
            self.tell(found)
        if self.chance(0.5):
            self.executor()

    def queue(self) -> None:
        """A submission that may wait."""
        found = self.submission(
            queue=True, wait_s=self.any((None, None, 5.0)), until_runs=self.chance(0.3)
        )
        if found.task is not None:
            kept = self.any(("", "requeue", "drop"))
            task = msgspec.structs.replace(found.task, on_preempted=kept)
            self.tell(msgspec.structs.replace(found, task=task))

    def waiting(self) -> str:
        """The id of a task, most often of one that waits."""
        return self.any((*sorted(self.mesh.state.queue.by_id), *TASKS[:2]))

    def change_queued(self) -> None:
        more: dict[str, Any] = self.any(
            ({"held": True}, {"held": False}, {"to_front": True}, {"priority": 9.0})
        )
        self.tell(s.QueuedTaskChanged(task_id=self.waiting(), request_id=self.request(), **more))

    def cancel(self) -> None:
        if self.chance(0.3):
            ids = tuple(self.any((self.waiting(), *TASKS)) for _ in range(3))
            self.tell(s.TasksCancellationRequested(task_ids=ids))
            return
        task_id, request_id = self.any((self.waiting(), *TASKS[:3])), self.request()
        self.tell(s.TaskCancellationRequested(task_id=task_id, request_id=request_id))

    def explain(self) -> None:
        """A question about any task: its answer changes nothing, and is the twin's."""
        task_id = self.any((self.waiting(), *TASKS))
        found = self.mesh.engine.explain(task_id, self.now)
        if self.mesh.twin is not None and self.chance(0.5):
            told = self.mesh.twin.explain(task_id, self.now)
            if found != told:
                raise Diverged(f"{task_id}\n  original: {found}\n  twin:     {told}")

    def dry_run(self) -> None:
        """Only the original is asked: its answer may change nothing."""
        asked = self.submission(dry_run=True, request_id=None)
        step = self.mesh.engine.handle(asked, self.now)
        assert step.facts == ()
        assert step.instructions == ()

    def query(self) -> None:
        """A look at the decision, now or at another time; the twin is asked too, or is not."""
        now = self.now + self.any((0.0, 0.0, 30.0, -5.0))
        query = PreemptionQuery(
            priority=self.any(PRIORITIES),
            pool_name=self.any(POOLS),
            labels=self.any(LABELS),
            resources=None if self.chance(0.5) else amount(**self.any(BUNDLES)[0]),
            limit=self.any((0, 1, 100)),
        )
        found = self.mesh.engine.evaluate(query, now)
        if self.mesh.twin is not None and self.chance(0.5):
            told = self.mesh.twin.evaluate(query, now)
            if found != told:
                raise Diverged(f"{query}\n  original: {found}\n  twin:     {told}")

    def finish(self) -> None:
        self.tell(
            s.TaskFinished(
                task_id=self.any(TASKS),
                end_agent=self.chance(0.6),
                request_id=self.request(),
            )
        )

    def delete(self) -> None:
        self.tell(
            s.AgentDeletionRequested(
                agent_name=self.any((*AGENTS, "unknown")),
                destroy_group=self.any((None, None, True, False)),
            )
        )

    def announce(self) -> None:
        task = self.mesh.submission(
            self.any(TASKS),
            self.any(POOLS),
            self.any(PRIORITIES),
            labels=self.any(LABELS),
            duration=self.any(DURATIONS),
        ).task
        assert task is not None
        agent_name = self.any((*AGENTS, "elsewhere"))
        self.tell(s.TaskAnnounced(task=task, agent_name=agent_name))

    def preempt(self) -> None:
        self.tell(
            s.PreemptionRequested(
                task_id=self.any(TASKS) if self.chance(0.7) else None,
                agent_name=self.any(AGENTS) if self.chance(0.5) else None,
                end_agent=self.chance(0.5),
                for_pool=self.any((None, None, *POOLS)),
                client=self.any((None, "c1", "c2")),
                preempt_score=self.any((None, 2.0)),
                request_id=self.request(),
            )
        )

    # -- Ray and the executor ------------------------------------------------------------------------

    def executor(self) -> None:
        """Some of what was ordered comes about."""
        mesh = self.mesh
        orders = [
            *((self._start, name) for name in mesh.starts),
            *((self._end, name) for name in mesh.ends),
            *((self._make, group_id) for group_id in mesh.makes),
            *((self._remove, group_id) for group_id in sorted(mesh.removes)),
            *((self._cancel, task_id) for task_id in mesh.task_evictions),
        ]
        self.dice.shuffle(orders)
        for carry_out, name in orders[: self.any((1, 2, 20))]:
            carry_out(name)

    def _start(self, name: str) -> None:
        order = self.mesh.starts.pop(name, None)
        if order is None:
            return
        if self.chance(0.03 if self.calm else 0.15):
            reason = self.any(("agent_start_failed", "agent_start_timeout"))
            self.tell(
                s.AgentStartFailed(
                    agent_name=name,
                    incarnation=order.incarnation,
                    reason=reason,
                    error="it could not be made",
                )
            )
            return
        self.tell(self._report(name, order.incarnation, order.node_id))

    def _report(self, name: str, incarnation: int, node_id: str | None) -> s.AgentReported:
        """Where it runs: as ordered on devices as assumed, or something else."""
        gpu_ids = self.any(GPU_IDS)
        if self.chance(0.6):
            found = self.mesh.state.cluster.nodes.get(node_id or "")
            mine = None if found is None else found.allocations.get(name)
            units = () if mine is None else mine.devices.units
            first = 4 if node_id == "n2" else 0
            gpu_ids = tuple(str(first + i) for i, _ in units)
        if self.chance(0.1):
            node_id = self.any((None, "nowhere", *NODES))
        agent = self.mesh.state.agents.get(name)
        gang = agent is not None and isinstance(agent.spec.payload, GangPayload)
        group = self.mesh.state.groups.by_id.get((agent and agent.group_id) or "")
        members = group.node_ids if gang and group is not None else ()
        return s.AgentReported(
            agent_name=name,
            incarnation=incarnation,
            node_id=node_id,
            gpu_ids=gpu_ids,
            pid=self.dice.randrange(9999),
            capabilities=self.any(((), ("save_state", "cancel"))),
            state_restored=self.any((None, True, False)),
            members=tuple(MemberProcess(node_id=n, gpu_ids=self.any(GPU_IDS)) for n in members),
        )

    def _end(self, name: str) -> None:
        order = self.mesh.ends.pop(name, None)
        if order is None:
            return
        for task_id in getattr(order, "task_ids", ()):
            if self.chance(0.7):
                self._store(task_id)
        self.tell(s.AgentGone(agent_name=name, incarnation=order.incarnation))

    def _store(self, task_id: str) -> None:
        self.tell(
            s.StateStored(
                task_id=task_id,
                state_key=f"state-{self.dice.randrange(99)}",
            )
        )
        if self.chance(0.2):
            self.tell(s.StateNotSaved(task_id=task_id, error="too large"))

    def run_ends(self) -> None:
        """The method that a task consists of returns or raises; sometimes that was reported before."""
        if not self.mesh.runs:
            return
        order = self.any(self.mesh.runs[self.any(sorted(self.mesh.runs))])
        reason = self.any((None, None, TaskEndReason.RUN_RAISED, TaskEndReason.RESULT_TOO_LARGE))
        self.tell(
            s.RunEnded(
                task_id=order.task_id,
                agent_name=order.agent_name,
                incarnation=order.incarnation,
                result_key=self.any((None, f"result-{self.dice.randrange(99)}")),
                reason=reason,
                error="" if reason is None else "it raised",
                cancelled=self.chance(0.2),
            )
        )

    def probe(self) -> None:
        """A class that was to be loaded could be, or could not."""
        if not self.mesh.probes:
            return
        probe = self.mesh.probes.pop(self.any(sorted(self.mesh.probes)))
        if self.chance(0.7):
            self.tell(s.ClassProbed(class_key=probe.class_key))
            return
        self.tell(
            s.ClassProbeFailed(
                task_id=probe.task_id, reason=Reason.AGENT_START_FAILED, error="no such module"
            )
        )

    def _cancel(self, task_id: str) -> None:
        self.mesh.task_evictions.pop(task_id, None)
        went_well = self.chance(0.5)
        self.tell(
            s.CancelAnswered(
                task_id=task_id,
                cancel_success=went_well,
                runs_on=not went_well and self.chance(0.5),
            )
        )

    def _make(self, group_id: str) -> None:
        self.mesh.makes.pop(group_id, None)
        if self.chance(0.95 if self.calm else 0.8):
            self.tell(s.GroupCreated(group_id=group_id))
        else:
            self.tell(s.GroupCreateFailed(group_id=group_id, error="no"))

    def _remove(self, group_id: str) -> None:
        self.mesh.removes.discard(group_id)
        self.tell(s.GroupGone(group_id=group_id))

    def late_report(self) -> None:
        """Of this life or a former one, in any phase, whether it was asked for or not."""
        agents = self.mesh.state.agents
        name = self.any(AGENTS)
        agent = agents.get(name)
        incarnation = 0 if agent is None else agent.incarnation - self.any((0, 0, 1))
        node_id = self.any(("nowhere", None, *NODES))
        kind = self.dice.randrange(4)
        if kind == 0:
            self.tell(self._report(name, incarnation, node_id))
        elif kind == 1:
            self.tell(s.AgentGone(agent_name=name, incarnation=incarnation))
        elif kind == 2:
            self.tell(
                s.AgentStartFailed(
                    agent_name=name,
                    incarnation=incarnation,
                    reason=Reason.AGENT_START_FAILED,
                    error="late",
                )
            )
        else:
            self.tell(
                s.AgentRestarted(
                    agent_name=name,
                    incarnation=incarnation,
                    pid=1,
                    node_id=node_id,
                    gpu_ids=self.any(GPU_IDS),
                )
            )

    def lose_agent(self) -> None:
        agents = self.mesh.state.agents
        if agents:
            name = self.any(list(agents))
            incarnation = agents[name].incarnation
            self.tell(s.AgentGone(agent_name=name, incarnation=incarnation))

    def rebuild(self) -> None:
        name = self.any([*self.mesh.state.lost, self.any(AGENTS)])
        self.tell(s.RebuildRequested(agent_name=name, request_id=self.request()))

    def late_group_report(self) -> None:
        group_id = self.any([*self.mesh.state.groups.by_id, "p-pg-1", "none"])
        kind = self.dice.randrange(3)
        if kind == 0:
            self.tell(s.GroupCreated(group_id=group_id))
        elif kind == 1:
            self.tell(s.GroupCreateFailed(group_id=group_id, error="late"))
        else:
            self.tell(s.GroupGone(group_id=group_id))

    def late_task_report(self) -> None:
        if self.chance(0.5):
            self._store(self.any(TASKS))
        else:
            self._cancel(self.any(TASKS))

    def world(self) -> None:
        """The supervisor died; what it had ordered may or may not have come about."""
        self.epoch += 1
        self.tell(s.SupervisorBegan(epoch=self.epoch))
        for orders in (self.mesh.starts, self.mesh.ends, self.mesh.makes, self.mesh.task_evictions):
            orders.clear()
        self.mesh.probes.clear()
        self.mesh.runs.clear()
        self.mesh.removes.clear()
        agents = [(name, agent.incarnation) for name, agent in self.mesh.state.agents.items()]
        self.tell(
            s.RecoveryObserved(
                living=frozenset(one for one in [*agents, ("ghost", 1)] if self.chance(0.7)),
                groups=frozenset(g for g in self.mesh.state.groups.by_id if self.chance(0.7)),
            )
        )

    # -- operators, nodes and the clock -----------------------------------------------------------

    def define_pool(self) -> None:
        self.tell(
            s.PoolRequested(spec=self.dice.pool(self.any(POOLS[:3])), must_be_new=self.chance(0.1))
        )

    def policy(self) -> None:
        self.tell(s.PolicyChangeRequested(policy=self.dice.policy(), client="me", changes=("all",)))

    def queue_policy(self) -> None:
        policy = self.dice.queue_policy()
        self.tell(s.QueuePolicyChangeRequested(policy=policy, client="me", changes=("all",)))

    def cohort(self) -> None:
        self.tell(s.CohortRequested(spec=self.dice.cohort()))

    def nodes(self) -> None:
        for name in NODES:
            if self.chance(0.2):
                (self.up.discard if name in self.up else self.up.add)(name)
        seen = [self._node(name) for name in sorted(self.up)]
        self.tell(s.ClusterObserved(nodes=tuple(seen)))

    def _node(self, name: str) -> NodeReport:
        total = amount(**(NODES[name][0] if self.chance(0.9) else self.any(NODES[name])))
        used = amount(**self.any(({}, {"cpu": 1}, {"gpu": 0.5}))) if self.chance(0.3) else NOTHING
        return NodeReport(
            node_id=name,
            total=total,
            labels={"rack": self.any(("r1", "r2"))} if self.chance(0.5) else {},
            external_usage=None if self.chance(0.3) else used.within(total),
            draining=self.chance(0.03),
            drain_deadline=self.any((None, self.now + 60.0)),
        )

    def drain(self) -> None:
        """A client drains a node or a pool, or ends that."""
        whole_pool, known = self.chance(0.4), self.mesh.state.drains
        if self.chance(0.6):
            # What is drained already is opened again, most often.
            for drain in tuple(known):
                node_id, pool_name = drain.node_id, drain.pool_name
                self.tell(s.DrainRequested(node_id=node_id, pool_name=pool_name, drained=False))
            return
        self.tell(
            s.DrainRequested(
                node_id=None if whole_pool else self.any((*NODES, "none")),
                pool_name=self.any(POOLS) if whole_pool else None,
                drained=self.chance(0.8),
                deadline_s=self.any((None, 0.0, 60.0, 600.0)),
            )
        )

    def cordon(self) -> None:
        self.tell(s.CordonRequested(node_id=self.any((*NODES, "none")), cordoned=self.chance(0.4)))

    def tick(self) -> None:
        """Time goes by; sometimes the clock is set back."""
        self.mesh.now += self.any((0.0, 0.25, 1.0, 5.0, 30.0, 61.0, -2.0, 90_000.0))
        self.tell(s.ClockTicked())

    def handlers(self) -> None:
        kind = self.dice.randrange(3)
        if kind == 0:
            self.tell(
                s.StateHandlersGiven(
                    pool_name=self.any(POOLS), preserver_key="k", restorer_key=None
                )
            )
        elif kind == 1:
            self.tell(s.ClassProbed(class_key=self.any(KEYS[1:])))
        else:
            keys = tuple(f"state-{self.dice.randrange(99)}" for _ in range(30))
            self.tell(s.StatesOutlived(state_keys=keys))

    def new_twin(self) -> None:
        """A supervisor that began now would have this state."""
        self.mesh.rebuild_twin(from_facts=self.chance(0.2))


class Failed(AssertionError):
    """A history that went wrong, with what is needed to see it again."""


def run(seed: str, stimuli: int) -> tuple[int, str]:
    """Run histories until there were so many stimuli: how many there were, and a digest of all decisions."""
    done = number = 0
    digests = sha256()
    while done < stimuli:
        history = History(f"{seed}/{number}")
        try:
            history.run()
        except Exception as error:
            raise Failed(
                f"seed {seed}, history {number}, stimulus {history.stimuli}: {history.log[-1]}"
            ) from error
        done += history.stimuli
        number += 1
        digests.update(history.mesh.digest.digest())
    return done, digests.hexdigest()


def main() -> None:
    """As told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stimuli", type=int, default=20_000)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began = time.monotonic()
    done, digest = run(given.seed, given.stimuli)
    print(f"{done} stimuli in {time.monotonic() - began:.0f} s; every twin stayed in lockstep")
    print(f"decisions {digest}")


if __name__ == "__main__":
    sys.exit(main())
