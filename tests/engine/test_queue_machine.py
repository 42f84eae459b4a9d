"""The state machine of the whole engine with a queue: no task is lost, doubled, or waits although it fits.

HYPOTHESIS_EXAMPLES sets how many examples are run; 100 where it is not set.
"""

from __future__ import annotations

import os

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from schedulemesh.config.queueing import BY_REMAINING, QueuePolicy
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.pool import QUEUEING
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Done, Queued, Refused
from schedulemesh.engine.state.agents import Starting
from tests.engine import walk
from tests.engine.builders import Mesh, NothingSpared, differences, in_portions
from tests.engine.test_machine import (
    AGENTS,
    LABELS,
    NEEDS,
    POOLS,
    PRIORITIES,
    MeshMachine,
    crowds,
    pick,
    picks,
    policies,
)

NAMES = tuple(f"q{number}" for number in range(10))
#: Refusals after which a task from the queue waits again, because there was no room for it.
NO_ROOM = (Reason.PREEMPTION_FAILED, Reason.CLUSTER_OUT_OF_RESOURCES)

queued = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "where": st.sampled_from([*POOLS, *POOLS, ""]),
        "priority": st.sampled_from(PRIORITIES),
        "need": st.sampled_from(NEEDS),
        "labels": st.sampled_from([LABELS[0], *LABELS]),
        "on_preempted": st.sampled_from(["", "requeue", "requeue", "drop"]),
        "class_key": st.sampled_from(["", "c1", "c1", "c2"]),
        "wait_s": st.sampled_from([None, None, None, 0.5, 20.0]),
        "own_place": st.sampled_from([False, False, False, True]),
        "duration": st.sampled_from([None, 5.0, 60.0]),
    }
)
pool_kinds = st.fixed_dictionaries(
    {
        "queueing": st.sampled_from(QUEUEING),
        "on_preempted": st.sampled_from(["drop", "requeue"]),
    }
)
orders = st.fixed_dictionaries(
    {
        "backfill_limit_s": st.sampled_from([0.0, 15.0, 3600.0]),
        "order": st.sampled_from(["priority", "priority", "fifo", *BY_REMAINING, "two_level_las"]),
        # Tasks run for seconds here, on less than a GPU or two.
        "las_threshold_gpu_hours": st.just(2 / 3600),
        "las_preempts": st.booleans(),
        "ageing_per_hour": st.sampled_from([0.0, 0.0, 3600.0]),
        "promote_after_s": st.sampled_from([0.0, 0.0, 15.0]),
        "on_impossible": st.sampled_from(["skip", "cancel"]),
        "impossible_after_s": st.sampled_from([0.0, 15.0]),
    }
)


class QueueMesh(Mesh):
    """A mesh that checks each step: why tasks ended, in which order they started, and that a twin which
    repeats every search, and whose ticks are divided, decides the same.
    """

    #: What ends a task that runs.
    ENDS = (s.TaskFinished, s.AgentDeletionRequested, s.TaskCancellationRequested)

    def __init__(self, *pools, **policy):
        #: The tasks that wait, by the facts alone.
        self.waits: set[str] = set()
        #: The agent with which each task was last admitted, and whether that was from the queue.
        self.admitted: dict[str, tuple[AgentSpec, bool]] = {}
        #: Agents whose deletion was requested while they were being terminated.
        self.deleted: set[str] = set()
        #: Tasks that have had a reserved start since the last tick, or when it came.
        self.reserved: set[str] = set()
        self.tell_twin()
        super().__init__(*pools, **policy)

    def tell_twin(self, state=None):
        """Have a twin begin where the mesh is: in this state, or in an empty one."""
        self.twin = Engine(state)
        self.twin.state.spared = NothingSpared()

    def report(self, name, *given, **how):
        """Every other agent can save its state, so that tasks of earlier levels may evict it."""
        able = ("save_state",) if name[-1] in "02468" else ()
        return super().report(name, *given, capabilities=able, **how)

    def handle(self, stimulus):
        queue, running = self.state.queue, self.state.running
        before = {**queue.by_id, **running.by_id}
        waited = {t: (task.queue_class, queue.entry(task)) for t, task in queue.by_id.items()}
        due, reserved = queue.is_due(self.now), set(queue.reserved)
        step = super().handle(stimulus)
        assert in_portions(self.twin, stimulus, self.now) == step
        for task_id in before.keys() - self.state.queue.by_id - self.state.running.by_id.keys():
            self.is_explained(task_id, before[task_id], stimulus, step)
        if not due and not isinstance(stimulus, s.QueuePolicyChangeRequested):
            self.started_in_order(waited, step)
        self.note(step)
        if isinstance(stimulus, s.ClockTicked | s.RecoveryObserved):
            self.reserved = reserved
        self.reserved |= set(self.state.queue.reserved)
        assert self.waits == set(self.state.queue.by_id)
        return step

    def note(self, step):
        for fact in step.facts:
            if isinstance(fact, q.TaskQueued):
                self.waits.add(fact.submission.task.task_id)
            elif isinstance(fact, q.TaskCancelled):
                self.waits.remove(fact.task_id)
            elif isinstance(fact, f.EndingAgentDeleted):
                self.deleted.add(fact.agent_name)
            elif isinstance(fact, f.AgentAdmitted):
                self.deleted.discard(fact.agent.name)
            if isinstance(fact, f.AgentAdmitted) and fact.task is not None:
                self.admitted[fact.task.task_id] = (fact.agent, fact.task.task_id in self.waits)
                self.waits.discard(fact.task.task_id)

    def is_explained(self, task_id, task, stimulus, step):
        """Its end was asked for, or it was evicted and does not return, or it failed."""
        if (cancelled := _of(step, q.TaskCancelled, task_id)) is not None:
            self.may_be_cancelled(cancelled, task, stimulus)
            return
        if _of(step, f.TaskEnded, task_id) is not None:
            assert isinstance(stimulus, self.ENDS)
            return
        ended = {x.agent_name: x.reason for x in step.facts if isinstance(x, f.AgentEnded)}
        reason = ended.get(task.agent_name)
        if any(isinstance(x, f.TaskPreempted) and x.task.task_id == task_id for x in step.facts):
            evicted = reason is EndReason.PREEMPTED and task.agent_name not in self.deleted
            assert not (evicted and self.returns(task)), f"{task_id} was evicted, and is gone"
            return
        assert reason in (EndReason.LOST, EndReason.DELETED, EndReason.START_FAILED), task_id
        failed = isinstance(stimulus, s.AgentStartFailed) and stimulus.reason in NO_ROOM
        queued = task_id in self.admitted and self.admitted[task_id][1]
        assert not (failed and reason is EndReason.START_FAILED and queued)

    def may_be_cancelled(self, cancelled, task, stimulus):
        """Somebody cancelled it, or it waited too long, or its class cannot be loaded."""
        if cancelled.reason is Reason.CANCELLED:
            assert isinstance(stimulus, s.TaskCancellationRequested)
        elif cancelled.reason is Reason.WAIT_TIMEOUT:
            assert task.queued_at + task.submission.wait_s <= self.now
        elif cancelled.reason is Reason.IMPOSSIBLE:
            assert isinstance(stimulus, s.ClockTicked | s.RecoveryObserved)
            assert self.state.queue.policy.on_impossible == "cancel"
        else:
            assert isinstance(stimulus, s.ClassProbeFailed)
            assert cancelled.reason is stimulus.reason

    def returns(self, task):
        """Whether an evicted task has to wait again."""
        agent, _ = self.admitted.get(task.spec.task_id, (None, False))
        if agent is None or agent.name != task.agent_name or not agent.class_key:
            return False
        default = self.state.ledger.accounts[agent.pool_name].spec.on_preempted
        return (task.spec.on_preempted or default) == "requeue"

    def is_strict(self, pool_name):
        return self.state.ledger.accounts[pool_name].spec.queueing == "strict"

    def started_in_order(self, waited, step):
        """No task was started that came after one that still waits: one of its class, or one of its strict
        pool that this can hold.
        """
        queue = self.state.queue
        left = [
            (task, queue.entry(task))
            for task_id, task in queue.by_id.items()
            if task.queue_class is not None and task_id in waited and waited[task_id][0] is not None
        ]
        for fact in step.facts:
            task_id = fact.task.task_id if isinstance(fact, f.AgentAdmitted) and fact.task else ""
            queue_class, place = waited.get(task_id, (None, None))
            if queue_class is None or _of(step, q.QueuePlaceChanged, task_id) is not None:
                continue
            pool_name = fact.agent.pool_name
            for other, earlier in left:
                strict = other.pool_name == pool_name and self.is_strict(pool_name)
                passed_over = other.spec.extra_of or walk.is_ruled_out(self.state, other)
                before = other.queue_class is queue_class or (strict and not passed_over)
                assert not before or earlier > place, f"{task_id} passed one at {earlier}"


def _of(step, kind, task_id):
    return next((x for x in step.facts if isinstance(x, kind) and x.task_id == task_id), None)


class QueueMachine(MeshMachine):
    """The engine, its executor, a cluster, and users whose tasks may wait."""

    mesh_kind = QueueMesh

    def __init__(self):
        super().__init__()
        self.mesh = self.mesh_kind()

    @initialize(
        quotas=st.lists(st.sampled_from([2, 4, 8]), min_size=3, max_size=3),
        up=st.sets(st.sampled_from(["n1", "n2", "n3"]), max_size=3),
        policy=policies,
        kinds=st.lists(pool_kinds, min_size=3, max_size=3),
        order=orders,
        crowd=crowds,
    )
    def begin(self, quotas, up, policy, kinds, order, crowd):
        self.kinds = dict(zip(POOLS, kinds, strict=True))
        specs = [
            self.spec(n, cpu, index)
            for index, (n, cpu) in enumerate(zip(POOLS, quotas, strict=True))
        ]
        self.mesh = self.mesh_kind(*specs, **policy)
        self.order = QueuePolicy()
        self.change_order(order)
        self.up = set(up)
        if up:
            self.observe()
        for number, given in enumerate(crowd):
            name = self.submit(given)
            if name in self.mesh.starts:
                self.come_up(name, number, number)
            self.mesh.now += given["which"]

    def spec(self, name, cpu, agents=0):
        spec = super().spec(name, cpu, agents)
        return msgspec.structs.replace(spec, **self.kinds[name])

    # -- tasks that may wait ------------------------------------------------------------------------

    @rule(given=queued)
    def queue(self, given):
        self.join(**given)

    @rule(given=st.lists(queued, min_size=3, max_size=6))
    def queue_some(self, given):
        for one in given:
            self.join(**one)

    def join(self, name, where, priority, need, labels, wait_s, own_place, **how):
        state = self.mesh.state
        taken = (
            name in state.agents or name in state.running.by_id or name in state.queue.agent_names
        )
        outcome = self.mesh.queue(
            name,
            where,
            priority,
            labels=labels,
            selector=None if where else {"name": ["p", "q"]},
            more={"wait_s": wait_s, "choose_node": not own_place},
            **how,
            **need,
        )
        if taken:
            assert isinstance(outcome, Refused)
            assert outcome.reason in (
                "duplicate_task",
                "duplicate_agent",
                "no_matching_pool",
            )
        elif isinstance(outcome, Refused):
            assert outcome.reason in ("exceeds_pool_capacity", "no_matching_pool")
            assert name not in state.queue.by_id
        else:
            assert isinstance(outcome, Queued)
            waits = name in state.queue.by_id
            assert waits is (outcome.position > 0)
            if waits:
                order = self.mesh.waiting(outcome.pool_name)
                assert order.index(name) + 1 == outcome.position
            else:
                assert name in state.agents

    @rule(order=orders)
    def change_order(self, order):
        self.order = QueuePolicy(**order)
        self.mesh.handle(
            s.QueuePolicyChangeRequested(policy=self.order, client="me", changes=tuple(order))
        )

    def expect(self, stimulus):
        """Where the rules allow no eviction, the order may allow one of tasks in later levels."""
        by_rules = super().expect(stimulus)

        def check(outcome):
            victims = outcome.preempted if isinstance(outcome, Accepted) else ()
            if not any(one.reason is PreemptionReason.ATTAINED_SERVICE for one in victims):
                by_rules(outcome)
                return
            by_rules(Refused(reason=Reason.PREEMPTION_FAILED, error_text=""))
            for one in victims:
                self.may_be_evicted_by_the_order(one.task_id)

        return check

    def may_be_evicted_by_the_order(self, task_id):
        """For a task of the first level: it has used enough, keeps its work and returns."""
        assert self.order.las_preempts
        task = self.state.running.by_id[task_id]
        assert task.gpu_s(self.mesh.now) >= 3600.0 * self.order.las_threshold_gpu_hours
        assert "save_state" in self.state.agents[task.agent_name].phase.capabilities
        assert self.mesh.returns(task)

    @precondition(lambda self: self.state.queue.by_id)
    @rule(which=picks, held=st.booleans())
    def hold(self, which, held):
        self.mesh.change(pick(self.state.queue.by_id, which), held=held)

    @precondition(lambda self: self.state.queue.by_id)
    @rule(which=picks, priority=st.sampled_from(PRIORITIES))
    def set_priority(self, which, priority):
        self.mesh.change(pick(self.state.queue.by_id, which), priority=priority)

    @precondition(lambda self: self.state.queue.by_id)
    @rule(which=picks)
    def move_to_front(self, which):
        task_id = pick(self.state.queue.by_id, which)
        pool_name = self.state.queue.by_id[task_id].pool_name
        assert self.mesh.change(task_id, to_front=True) == Done()
        task = self.state.queue.by_id.get(task_id)
        if task is not None and task.queue_class is not None:
            assert self.mesh.waiting(pool_name)[0] == task_id

    @rule(task_id=st.sampled_from([*NAMES, AGENTS[0]]))
    def cancel(self, task_id):
        waits = task_id in self.state.queue.by_id
        known = task_id in self.state.running.by_id or task_id in self.state.ended
        outcome = self.mesh.cancel(task_id)
        assert not waits or outcome == Done()
        if not waits and not known:
            assert outcome.reason is Reason.TASK_NOT_FOUND
        assert task_id not in self.state.queue.by_id

    @precondition(lambda self: self.mesh.probes)
    @rule(which=picks, loads=st.sampled_from([True, True, False]))
    def probe(self, which, loads):
        probe = self.mesh.probes.pop(pick(self.mesh.probes, which))
        if loads:
            self.mesh.handle(s.ClassProbed(class_key=probe.class_key))
        else:
            self.mesh.handle(
                s.ClassProbeFailed(
                    task_id=probe.task_id, reason=Reason.AGENT_START_FAILED, error="no such module"
                )
            )

    @precondition(lambda self: self.mesh.starts)
    @rule(which=picks)
    def find_no_room(self, which):
        name = pick(self.mesh.starts, which)
        waits_again = self.waits_without_room(name)
        self.mesh.fail(name, Reason.CLUSTER_OUT_OF_RESOURCES)
        assert (name in self.state.queue.by_id) is waits_again

    def waits_without_room(self, name):
        """Whether a task whose start finds no room waits again: it came from the queue, or had run before and
        was started again from its saved state, as a victim is whose incoming task failed.
        """
        agent, task = self.state.agents[name], self.state.running.by_id.get(name)
        if task is None or not isinstance(agent.phase, Starting):
            return False
        return agent.submission.queued or (bool(agent.spec.class_key) and task.attempts.number > 1)

    # -- the supervisor -----------------------------------------------------------------------------

    @rule(snapshot=st.booleans())
    def restart(self, snapshot):
        """The supervisor is killed; the next one goes on with what is stored and what is alive."""
        mesh = self.mesh
        found = mesh.rewritten() if snapshot else mesh.refolded()
        assert differences(self.advanced(mesh.state), self.advanced(found)) == []
        mesh.tell_twin(mesh.rewritten() if snapshot else mesh.refolded())
        mesh.engine = Engine(found, strategies=mesh.engine.strategies)
        mesh.starts, mesh.ends, mesh.probes, mesh.task_evictions = {}, {}, {}, {}
        mesh.handle(s.SupervisorBegan(epoch=found.epoch + 1, gap=100))
        living = frozenset(
            (name, found.agents[name].incarnation) for name in self.lives if name in found.agents
        )
        mesh.handle(s.RecoveryObserved(living=living))

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def what_waits_does_not_fit(self):
        """Where no reserved start may have kept it from starting."""
        queue = self.state.queue
        heads = [queue.entry(queue.by_id[t]) for t in self.mesh.reserved if t in queue.by_id]
        for task in self.first_ones():
            if all(queue.entry(task) <= head for head in heads):
                assert not self.fits(task), f"{task.task_id} fits and waits"

    @rule()
    def serve(self):
        """Once the reserved starts have settled, what fits and waits would delay one."""
        for _ in range(3):
            step = self.mesh.tick()
        if any(isinstance(fact, q.StartReserved | q.ReservationDropped) for fact in step.facts):
            return
        for task in self.first_ones():
            assert not self.fits(task) or self.delays(task), f"{task.task_id} fits and waits"

    def first_ones(self):
        """The first task of each class; in strict pools only the first of all that the pool can hold.

        Without any node only quota decides, which the loss of the last node does not bring about at once.
        """
        state, passed = self.state, set()
        for name in sorted(state.queue.pools) if state.cluster.nodes else ():
            for task in state.queue.of_pool(name):
                if task.queue_class is None or task.queue_class.key in passed:
                    continue
                passed.add(task.queue_class.key)
                yield task
                if self.mesh.is_strict(name) and not walk.is_ruled_out(state, task):
                    break

    def fits(self, task):
        total = self.state.ledger.accounts[task.pool_name].spec.resources
        seats = self.seats(task)
        return self.need_of(task.submission, task.pool_name).fits(total) and seats.enough(())

    def seats(self, task):
        submission = task.submission
        anywhere = not submission.choose_node or not self.state.cluster.nodes
        need = self.need_of(submission, task.pool_name)
        return walk.Seats(self.state, task.pool_name, need, anywhere=anywhere)

    def delays(self, task):
        """Whether it would delay a reserved start."""
        need = self.need_of(task.submission, task.pool_name)
        entry = self.state.queue.entry(task)
        later = walk.Later(task.pool_name, need, task.spec.estimated_duration, entry)
        return walk.held_back(self.state, later, self.seats(task), self.mesh.now)

    @invariant()
    def the_order_is_that_of_the_policy(self):
        """Worked out anew from what was submitted: by front, order value, number."""
        queue = self.state.queue
        for name in queue.pools:
            tasks = [t for t in queue.of_pool(name) if t.queue_class is not None]
            places = [(-t.front, 0 if t.front else self.value(t), t.number) for t in tasks]
            assert places == sorted(places)

    def value(self, task):
        order, spec = self.order.order, task.spec
        if order == "fifo":
            return 0.0
        if order in BY_REMAINING:
            if spec.estimated_duration is None:
                return float("inf")
            gpus = task.submission.agent.resources.gpus if order == "shortest_service" else 1
            return max(0.0, spec.estimated_duration - task.attempts.ran_s) * gpus
        if order == "two_level_las":
            is_late = task.attempts.gpu_s >= self.order.las_threshold_gpu_hours * 3600.0
            return (is_late, task.submission.agent.resources.gpus)
        return self.order.ageing_per_hour / 3600 * task.arrived_at - spec.priority

    def advanced(self, state):
        """Tasks whose time has come are let in at the next step: not a fact, and the same for all."""
        state.queue.advance(self.mesh.now)
        return state

    def check_stored(self):
        for stored in (self.mesh.refolded(), self.mesh.rewritten()):
            assert differences(self.advanced(self.state), self.advanced(stored)) == []

    def finish_everything(self):
        while self.state.queue.by_id or self.state.agents:
            for task_id in list(self.state.queue.by_id):
                self.mesh.cancel(task_id)
            super().finish_everything()
        super().finish_everything()


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
