"""What happened from outside in a recording, as stimuli: definitions, nodes, submissions and requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import msgspec

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.reasons import LIMITS, PreemptionReason, Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.cohort_facts import CohortDeleted, CohortEnsured, CohortRenamed
from schedulemesh.engine.messages.job_facts import JobClaimMoved
from schedulemesh.engine.messages.job_stimuli import JobWorkObserved
from schedulemesh.engine.messages.limit_facts import TimeLimitChanged
from schedulemesh.engine.messages.pool_facts import PoolDeleted, PoolRenamed
from schedulemesh.engine.messages.window_facts import WindowCreated, WindowEnded
from schedulemesh.engine.state.long_waits import PROMOTED
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.sim.rehearsal.declared import Declared
from schedulemesh.sim.rehearsal.observations import NODE_KINDS, Observations, is_of_cluster
from schedulemesh.sim.rehearsal.recording import Recording, detail_of, fact_of
from schedulemesh.sim.rehearsal.world import RehearsedWorld
from schedulemesh.store.history.attempts import RETURNED, Attempt
from schedulemesh.store.history.events import OBSERVED, Event

#: How a task ended that a client ended.
_BY_REQUEST = frozenset((Reason.CANCELLED.value, TaskEndReason.CANCELLED.value))
#: Events with which an agent ends, or begins to.
_ENDS = frozenset(
    ("ending", "preempting", "completed", "cancelled", "failed", "lost", RETURNED)
) | {f"{limit.value}_reached" for limit in LIMITS}
#: Evictions that no decision of the engine alone leads to, by their rules as they are recorded.
_FROM_OUTSIDE = {
    reason.value: reason for reason in (PreemptionReason.MANUAL, PreemptionReason.IDLE_LIMIT)
}
_CLIENT = "rehearsal"


class Outside:
    """Has what is recorded happen in a world."""

    def __init__(self, world: RehearsedWorld, recording: Recording) -> None:
        self._world, self._recording = world, recording
        self._seen = Observations(lambda: world.engine.state, world.late_s)
        self._first = {one.attempts[0].id: one for one in recording.submissions}
        #: What takes the place of what definitions say from now on.
        self.declared = Declared()
        #: The agents that ended or began to, with the time; the cores of extra members, by attempt; attempts
        #: whose deletion was requested; those that clients cancelled, by time.
        self._ends: set[tuple[str, float]] = set()
        self._core_of: dict[int, str] = {}
        self._deleted: set[int] = set()
        self._cancelled_at: dict[float, list[Attempt]] = {}
        #: The last attempt so far of each task, and of each agent without one.
        self._latest: dict[str, Attempt] = {}
        #: What cannot be rehearsed, and how often it happened.
        self.left_out: dict[str, int] = {}
        #: Nodes that a window closes in the history, and when windows have closed and opened which.
        self._by_windows: set[str] = set()
        self._window_steps: set[tuple[str, float]] = set()
        self._known: dict[str, Callable[[Event], s.AnyStimulus | None]] = {
            "pool_defined": self._definition,
            "pool_renamed": self._definition,
            "pool_deleted": self._definition,
            "cohort_defined": self._definition,
            "cohort_renamed": self._definition,
            "cohort_deleted": self._definition,
            "policy_changed": self._definition,
            "queue_policy_changed": self._definition,
            "class_loaded": lambda event: s.ClassProbed(class_key=event.subject),
            OBSERVED: self._seen.measured,
            "node_cordoned": lambda event: self._cordon(event, True),
            "node_uncordoned": lambda event: self._cordon(event, False),
            "window_created": self._definition,
            "window_ended": self._definition,
            "drain_started": self._drain_started,
            "drain_ended": self._drain_ended,
            "cancelled": self._cancelled,
            "ending": self._ending,
            "held": self._changed,
            "released": self._changed,
            "priority_changed": self._changed,
            "moved_to_front": self._changed,
            "members_cancelled": self._members_cancelled,
            "preempting": self._preempting,
            "claim_moved": self._claim_moved,
            "time_limit_changed": self._limited,
            "registered": lambda _: self._leave_out("lacks_registered_tasks"),
            "restarted": lambda _: self._leave_out("lacks_restarted_agents"),
        }

    def define(self) -> None:
        """Have the definitions in force that the recording begins with, before anything else happens."""
        recording = self._recording
        defined = {
            (event.kind, event.subject) for event in (*recording.definitions, *recording.events)
        }
        if recording.present is not None:
            for missing in _undefined(recording.present, defined):
                self._world.handle(missing)
            self._world.handle(self._seen.start_with(_unseen(recording.present, defined)))
        for look, event in _by_look(recording.definitions):
            stimulus = self._seen.of_cluster(look) if look else self._stimulus(event)
            if stimulus is not None:
                self._world.handle(stimulus)
        state = self._world.engine.state
        self._note_not_learned(state.queue.policy)
        if other := len(recording.groups - state.groups.by_id.keys()):
            self.left_out["lacks_earlier_groups"] = other
        if recording.missing:
            self.left_out["lacks_earlier_events"] = recording.missing

    def _note_not_learned(self, policy: QueuePolicy) -> None:
        """Where estimates of durations are in use, those that were learned before are missing."""
        earlier = min(self._recording.attempts, default=1) - 1
        if policy.estimates and earlier:
            self.left_out["lacks_learned_durations"] = earlier

    def plan(self) -> None:
        """Have everything that is recorded happen at its time."""
        self._note_ends()
        for look, event in _by_look(self._recording.events):
            if look:
                self._world.recorded_at(event.at, event.number, self._looking(look))
            elif event.kind == "ticked":
                self._world.recorded_at(event.at, event.number, self._world.tick)
            elif event.kind == "supervisor_started":
                self._world.recorded_at(event.at, event.number, self._restarting(event))
            elif event.kind == "supervisor_recovered":
                self._world.recorded_at(
                    event.at, event.number, functools.partial(self._world.recover, event.number)
                )
            elif event.kind in ("queued", "admitted", "split"):
                self._plan_submission(event)
            elif event.kind in self._known:
                happen = self._happening(event)
                self._world.recorded_at(event.at, event.number, happen)

    def add_nodes(self, more: int) -> None:
        """Add so many nodes to those of the history; below 0: leave out so many."""
        self._seen.more_nodes = more
        self._world.handle(self._seen.now())

    @property
    def each_added(self) -> Resources:
        """What each of the nodes has that were added to those of the history."""
        return self._seen.each_added

    def _restarting(self, event: Event) -> Callable[[], None]:
        detail = detail_of(event)
        epoch, gap = detail.get("epoch", 0), detail.get("gap", 0)
        return lambda: self._world.restart(s.SupervisorBegan(epoch=epoch, gap=gap))

    def _looking(self, look: list[Event]) -> Callable[[], None]:
        def happen() -> None:
            self._world.handle(self._seen.of_cluster(look))

        return happen

    def _happening(self, event: Event) -> Callable[[], None]:
        def happen() -> None:
            stimulus = self._stimulus(event)
            if stimulus is not None:
                self._world.handle(stimulus)

        return happen

    def _stimulus(self, event: Event) -> s.AnyStimulus | None:
        make = self._known.get(event.kind)
        return None if make is None else make(event)

    def _leave_out(self, what: str) -> None:
        self.left_out[what] = self.left_out.get(what, 0) + 1

    # submissions

    def _plan_submission(self, event: Event) -> None:
        submission = self._first.get(event.attempt or 0)
        if event.kind == "split":
            if submission is not None:
                self._world.expect(submission)
            return
        fact = fact_of(event)
        if event.kind == "admitted" and fact is None:
            return  # it came from the queue
        stimulus = _submission(fact)
        if submission is None or stimulus is None:
            self._leave_out("lacks_parts_of_submissions")
            return
        before, self._latest[submission.key] = (
            self._latest.get(submission.key),
            submission.attempts[-1],
        )
        if stimulus.task is not None and stimulus.task.extra_of:
            for attempt in submission.attempts:
                self._core_of[attempt.id] = stimulus.task.extra_of
            self._world.expect(submission)
            return
        if isinstance(fact, f.AgentAdmitted) and _is_readmitted(fact, before):
            self._world.expect(submission)
            return
        self._world.recorded_at(
            event.at,
            event.number,
            lambda: self._world.submit_recorded(stimulus, submission),
        )

    def _cancelled(self, event: Event) -> s.AnyStimulus | None:
        """A cancellation by a client, with all that one request cancelled."""
        attempt = self._recording.attempts.get(event.attempt or 0)
        if attempt is None or self._ends_with_core(attempt, event.at):
            return None
        if attempt.reason in _BY_REQUEST:
            together = self._cancelled_at.pop(event.at, ())
            ids = [one.task_id for one in together if not self._ends_with_core(one, event.at)]
            if len(ids) > 1:
                return s.TasksCancellationRequested(task_ids=tuple(ids))
            return s.TaskCancellationRequested(task_id=ids[0]) if ids else None
        if attempt.reason == "deleted" and attempt.id not in self._deleted:
            return s.AgentDeletionRequested(agent_name=attempt.agent_name)
        return None

    def _ending(self, event: Event) -> s.AnyStimulus | None:
        """An agent that a client deleted; its attempt ends later."""
        attempt = self._recording.attempts.get(event.attempt or 0)
        if attempt is None or detail_of(event).get("reason") != "deleted":
            return None
        self._deleted.add(attempt.id)
        if self._ends_with_core(attempt, event.at):
            return None
        return s.AgentDeletionRequested(agent_name=attempt.agent_name)

    def _ends_with_core(self, attempt: Attempt, at: float) -> bool:
        """Whether it is an extra member of an elastic gang that ended because its core did."""
        return (self._core_of.get(attempt.id, ""), at) in self._ends

    def _note_ends(self) -> None:
        """Note which agents ended when, and which tasks clients cancelled in one request."""
        of = [
            (one, self._recording.attempts.get(one.attempt or 0)) for one in self._recording.events
        ]
        ends = [(event, attempt) for event, attempt in of if attempt and event.kind in _ENDS]
        self._ends.update((attempt.agent_name, event.at) for event, attempt in ends)
        for event, attempt in ends:
            if event.kind == "cancelled" and attempt.reason in _BY_REQUEST:
                self._cancelled_at.setdefault(event.at, []).append(attempt)

    def _members_cancelled(self, event: Event) -> s.AnyStimulus | None:
        """Members of an array that a client cancelled and that were no tasks yet."""
        fact = fact_of(event)
        if not isinstance(fact, q.ArrayMembersCancelled) or fact.reason is not Reason.CANCELLED:
            return None
        members = f"{fact.array_id}[{fact.indices}]" if fact.indices else fact.array_id
        return s.TaskCancellationRequested(task_id=members)

    def _changed(self, event: Event) -> s.AnyStimulus | None:
        """How a task waits from then on."""
        fact = fact_of(event)
        if isinstance(fact, q.PriorityChanged):
            return s.QueuedTaskChanged(task_id=fact.task_id, priority=fact.priority)
        if not isinstance(fact, q.QueuePlaceChanged):
            return None
        queue = self._world.engine.state.queue
        queued = queue.by_id.get(fact.task_id)
        # Those that have waited for too long are promoted by the pass itself.
        promoted = bool(queue.policy.promote_after_s) and fact.front == PROMOTED
        return s.QueuedTaskChanged(
            task_id=fact.task_id,
            held=fact.held,
            priority=fact.priority,
            to_front=queued is not None and fact.front != queued.front and not promoted,
        )

    def _preempting(self, event: Event) -> s.AnyStimulus | None:
        """An eviction that a client requested, or that measurements of GPUs led to."""
        attempt = self._recording.attempts.get(event.attempt or 0)
        if attempt is None or attempt.rule not in _FROM_OUTSIDE:
            return None
        return s.PreemptionRequested(
            task_id=attempt.task_id,
            end_agent=True,
            client=attempt.by_client,
            reason=_FROM_OUTSIDE[attempt.rule],
        )

    def _limited(self, event: Event) -> s.AnyStimulus | None:
        """For how long a task may run from then on."""
        fact = fact_of(event)
        if not isinstance(fact, TimeLimitChanged):
            return None
        return s.TimeLimitRequested(task_id=fact.task_id, max_run_s=fact.max_run_s)

    def _claim_moved(self, event: Event) -> s.AnyStimulus | None:
        """The work of a job was found on other nodes."""
        fact = fact_of(event)
        if not isinstance(fact, JobClaimMoved):
            return None
        agent = self._world.engine.state.agents.get(fact.agent_name)
        if agent is None:
            return None
        return JobWorkObserved(
            agent_name=fact.agent_name, incarnation=agent.incarnation, claims=fact.parts
        )

    # definitions

    def _definition(self, event: Event) -> s.AnyStimulus | None:
        fact, declared = fact_of(event), self.declared
        if isinstance(fact, f.PoolEnsured):
            return s.PoolRequested(spec=declared.pool(fact.spec))
        if isinstance(fact, CohortEnsured):
            return s.CohortRequested(spec=declared.cohort(fact.spec))
        if isinstance(fact, PoolRenamed):
            return s.PoolRenameRequested(pool_name=fact.pool_name, new_name=fact.new_name)
        if isinstance(fact, PoolDeleted):
            return self._deletion(fact.pool_name)
        if isinstance(fact, CohortRenamed):
            return s.CohortRenameRequested(name=fact.name, new_name=fact.new_name)
        if isinstance(fact, CohortDeleted):
            return s.CohortDeletionRequested(name=fact.name)
        if isinstance(fact, WindowCreated):
            return s.WindowRequested(window=fact.window, client=_CLIENT)
        if isinstance(fact, WindowEnded):
            return s.WindowDeletionRequested(name=fact.name, client=_CLIENT)
        if isinstance(fact, f.PolicyChanged):
            preemption = declared.preemption(fact.policy)
            return s.PolicyChangeRequested(policy=preemption, client=_CLIENT, changes=())
        if isinstance(fact, q.QueuePolicyChanged):
            self._note_not_learned(fact.policy)
            queue = declared.queue(fact.policy)
            return s.QueuePolicyChangeRequested(policy=queue, client=_CLIENT, changes=())
        return None

    def _deletion(self, pool_name: str) -> s.AnyStimulus | None:
        """The deletion of a pool, which may be drained here longer than it was; None: it has gone already."""
        if pool_name not in self._world.engine.state.ledger.accounts:
            return None
        return s.PoolDeletionRequested(pool_name=pool_name, drain=True, client=_CLIENT)

    # drains

    def _drain_started(self, event: Event) -> s.AnyStimulus | None:
        detail = detail_of(event)
        if not detail.get("by_client"):
            return None  # Ray's: the report of its node says so
        if detail.get("window"):
            self._by_windows.add(event.subject)
            self._window_steps.add((event.subject, event.at))
            return None  # the window does it here, too
        deadline = detail.get("deadline")
        left_s = None if deadline is None else max(0.0, deadline - event.at)
        if detail.get("deletes"):
            return s.PoolDeletionRequested(
                pool_name=event.subject, drain=True, deadline_s=left_s, client=_CLIENT
            )
        return self._drain(event, drained=True, deadline_s=left_s)

    def _drain_ended(self, event: Event) -> s.AnyStimulus | None:
        if event.subject in self._by_windows:
            self._by_windows.discard(event.subject)
            self._window_steps.add((event.subject, event.at))
            return None
        return self._drain(event, drained=False)

    def _cordon(self, event: Event, cordoned: bool) -> s.AnyStimulus | None:
        if (event.subject, event.at) in self._window_steps:
            return None
        return s.CordonRequested(node_id=event.subject, cordoned=cordoned)

    def _drain(
        self, event: Event, *, drained: bool, deadline_s: float | None = None
    ) -> s.AnyStimulus:
        is_node = event.subject in self._recording.node_ids.values()
        return s.DrainRequested(
            node_id=event.subject if is_node else None,
            pool_name=None if is_node else event.subject,
            drained=drained,
            deadline_s=deadline_s,
            client=_CLIENT,
        )


def _by_look(events: Iterable[Event]) -> list[tuple[list[Event], Event]]:
    """The events in their order. Those of one look at the cluster come together, with the first of them; with
    others there is an empty list.
    """
    grouped: list[tuple[list[Event], Event]] = []
    looks: dict[float, list[Event]] = {}
    for event in events:
        if not is_of_cluster(event):
            grouped.append(([], event))
        elif event.at in looks:
            looks[event.at].append(event)
        else:
            looks[event.at] = [event]
            grouped.append((looks[event.at], event))
    return grouped


def _submission(fact: f.AnyFact | None) -> s.TaskSubmitted | None:
    """The submission that a fact is about, whose answer nobody waits for."""
    if isinstance(fact, q.TaskQueued):
        return msgspec.structs.replace(fact.submission, request_id=None, until_runs=False)
    if isinstance(fact, f.AgentAdmitted):
        return s.TaskSubmitted(
            agent=fact.agent,
            task=fact.task,
            choose_node=fact.choose_node,
            state_key=fact.state_key,
        )
    return None


def _is_readmitted(fact: f.AgentAdmitted, before: Attempt | None) -> bool:
    """Whether it is a victim that runs again, because what it was evicted for did not start."""
    return before is not None and before.state == "preempted" and fact.request_id is None


def _undefined(state: MeshState, defined: set[tuple[str, str]]) -> Iterator[s.AnyStimulus]:
    """The definitions of a state that no event contains."""
    for cohort in state.ledger.cohorts.specs.values():
        if ("cohort_defined", cohort.name) not in defined:
            yield s.CohortRequested(spec=cohort)
    for account in state.ledger.accounts.values():
        if ("pool_defined", account.spec.name) not in defined:
            yield s.PoolRequested(spec=account.spec)
    if ("policy_changed", "") not in defined:
        yield s.PolicyChangeRequested(policy=state.policy, client=_CLIENT, changes=())
    if ("queue_policy_changed", "") not in defined:
        policy = state.queue.policy
        yield s.QueuePolicyChangeRequested(policy=policy, client=_CLIENT, changes=())
    for window in state.windows.by_name.values():
        if ("window_created", window.name) not in defined:
            yield s.WindowRequested(window=window, client=_CLIENT)
    for class_key in state.loaded:
        if ("class_loaded", class_key) not in defined:
            yield s.ClassProbed(class_key=class_key)


def _unseen(state: MeshState, defined: set[tuple[str, str]]) -> Iterator[Node]:
    """The nodes of a state that no event contains: the history keeps events for a while only."""
    for node in state.cluster.nodes.values():
        if not any((kind, node.node_id) in defined for kind in NODE_KINDS):
            yield node
