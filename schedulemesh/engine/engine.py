"""The step: a stimulus in, facts and instructions out. See README.md beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from schedulemesh.config.settings import ANSWER_MEMORY_S
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.request_ids import key_of_content
from schedulemesh.domain.sentences import did_you_mean, say
from schedulemesh.engine.admission import queue
from schedulemesh.engine.admission.arrays import refused_as_array
from schedulemesh.engine.admission.decide import submit
from schedulemesh.engine.admission.dependencies import refused_for_dependencies
from schedulemesh.engine.admission.evaluate import evaluate
from schedulemesh.engine.admission.groups import expire
from schedulemesh.engine.admission.pending import hand_on
from schedulemesh.engine.admission.refusals import node_not_found
from schedulemesh.engine.admission.registration import with_known_parent
from schedulemesh.engine.explanation.dry_run import outcome_of_dry_run
from schedulemesh.engine.explanation.task import explain
from schedulemesh.engine.explanation.waiting import ExplainedReasons, WaitCauses
from schedulemesh.engine.lifecycle import agents as lifecycle
from schedulemesh.engine.lifecycle import (
    budgets,
    cohorts,
    eviction,
    pools,
    task_ends,
    time_limits,
    windows,
)
from schedulemesh.engine.lifecycle.audit import change_answered, change_received
from schedulemesh.engine.lifecycle.capacity import serve_freed_capacity, serve_in_portions
from schedulemesh.engine.lifecycle.drain import advance_drains, change_drain, observe_drain
from schedulemesh.engine.lifecycle.group_reports import (
    group_create_failed,
    group_created,
    group_gone,
    node_lost,
)
from schedulemesh.engine.lifecycle.impossible import cancel_impossible
from schedulemesh.engine.lifecycle.job_claims import end_beyond_claim, follow_work
from schedulemesh.engine.lifecycle.measurements import forget_measurements, note_measurements
from schedulemesh.engine.lifecycle.rebuild import agent_restarted, rebuild
from schedulemesh.engine.lifecycle.recovery import reconcile
from schedulemesh.engine.lifecycle.tokens import (
    change_token,
    enable_authentication,
    issue_token,
    revoke_token,
)
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.demand_facts import ExternalDemandSeen
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.messages.facts import (
    AnswersForgotten,
    EpochBegun,
    HoldShrank,
    NodeCordoned,
    NodeLost,
    NodeSeen,
    PolicyChanged,
    RequestAnswered,
    StateHandlersRegistered,
    StatesForgotten,
)
from schedulemesh.engine.messages.job_stimuli import JobBeyondClaim, JobWorkObserved
from schedulemesh.engine.messages.outcomes import (
    Done,
    Evaluation,
    Pending,
    ProbeNeeded,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.messages.query import PreemptionQuery
from schedulemesh.engine.messages.queue_facts import ClassLoaded, Ticked
from schedulemesh.engine.messages.stimulus import RequestStimulus, Stimulus
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.agents import Waiting
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.snapshot import past_states
from schedulemesh.engine.transaction import Step, Transaction

#: Facts on which nothing depends that happens: what was answered, or that something kept is forgotten.
_ANSWERS = (RequestAnswered, AnswersForgotten, StatesForgotten)
#: Stimuli of which only what they decide is known to the history.
_TICKS = (s.ClockTicked, s.RecoveryObserved)
#: Outcomes that a repeated request may not get.
_NOT_FINAL = (Pending, ProbeNeeded)
#: Names that a warning lists.
_NAMED = 10

StimulusT = TypeVar("StimulusT", bound=Stimulus)
Handler = Callable[[Transaction, StimulusT], "RequestOutcome | None"]


class DividedTick:
    """A tick that is made in portions, each of which is a step. If nothing happens in between, it decides as
    if it were not divided.
    """

    def __init__(
        self, tx: Transaction, stimulus: s.ClockTicked, handle: Callable[[], None]
    ) -> None:
        tx.portion = stimulus.portion
        self._tx, self._stimulus, self._portions = tx, stimulus, self._all(handle)
        #: What had happened when it was interrupted.
        self._seen = self._changes()

    def _all(self, handle: Callable[[], None]) -> Iterator[None]:
        handle()
        yield from serve_in_portions(self._tx, self._stimulus)
        _note_tick(self._tx, self._stimulus, 0)

    def _changes(self) -> tuple[int, int]:
        state = self._tx.state
        return (state.spared.facts, state.queue.advanced)

    def step(self, stimulus: s.ClockTicked | s.TickContinued, now: float) -> Step:
        """Make the next portion. It happens when the tick began, or when others have changed something since
        then: what was found out before holds for that time.
        """
        tx = self._tx
        facts, instructions = len(tx.facts), len(tx.instructions)
        if self._changes() != self._seen:
            tx.resume(now)
        is_unfinished = next(self._portions, self) is not self
        self._seen = self._changes()
        return Step(
            facts=tuple(tx.facts[facts:]),
            instructions=tuple(tx.instructions[instructions:]),
            stimulus=stimulus,
            at=tx.now,
            is_unfinished=is_unfinished,
        )


class Engine:
    """Decides everything, deterministically: the same stimuli give the same steps."""

    def __init__(
        self,
        state: MeshState | None = None,
        node_strategy: str = "bin_pack",
        strategies: Strategies | None = None,
    ) -> None:
        self.state = state or MeshState()
        # What joined the queue before was estimated then.
        self.state.queue.kinds.new = {}
        self.strategies = strategies or Strategies(node_strategy)
        #: Whether a step failed after it had made something true, so that the state holds half of it.
        self.torn = False
        #: A tick that is not finished.
        self._tick: DividedTick | None = None
        self._explained = ExplainedReasons()
        self._handlers: dict[
            type[Stimulus], Callable[[Transaction, s.AnyStimulus], RequestOutcome | None]
        ] = {}
        self._on(s.TaskSubmitted, _submit)
        self._on(s.QueuedTaskChanged, queue.change_queued)
        self._on(s.TimeLimitRequested, time_limits.change_limit)
        self._on(s.TaskCancellationRequested, task_ends.cancel_task)
        self._on(s.TasksCancellationRequested, task_ends.cancel_tasks)
        self._on(s.ClassProbeFailed, queue.class_probe_failed)
        self._on(s.AgentReported, lifecycle.agent_reported)
        self._on(s.TaskFinished, task_ends.finish_task)
        self._on(s.RunEnded, task_ends.run_ended)
        self._on(s.AgentGone, lifecycle.agent_gone)
        self._on(s.AgentStartFailed, lifecycle.start_failed)
        self._on(s.AgentDeletionRequested, lifecycle.delete_agent)
        self._on(s.TaskAnnounced, lifecycle.register_task)
        self._on(s.PreemptionRequested, eviction.preempt)
        self._on(s.StateStored, eviction.state_stored)
        self._on(s.WorkReported, eviction.work_reported)
        self._on(s.StateNotSaved, eviction.state_not_saved)
        self._on(s.CancelAnswered, lifecycle.cancel_answered)
        self._on(s.PoolRequested, pools.ensure_pool)
        self._on(s.PoolDeletionRequested, pools.delete_pool)
        self._on(s.PoolRenameRequested, pools.rename_pool)
        self._on(s.CohortRequested, cohorts.ensure_cohort)
        self._on(s.CohortDeletionRequested, cohorts.delete_cohort)
        self._on(s.CohortRenameRequested, cohorts.rename_cohort)
        self._on(s.PolicyChangeRequested, _change_policy)
        self._on(s.QueuePolicyChangeRequested, queue.change_policy)
        self._on(s.StateHandlersGiven, _register_handlers)
        self._on(s.CordonRequested, _cordon)
        self._on(s.DrainRequested, change_drain)
        self._on(s.WindowRequested, windows.create_window)
        self._on(s.WindowDeletionRequested, windows.delete_window)
        self._on(s.ClassProbed, _class_probed)
        self._on(s.ClusterObserved, _observe_cluster)
        self._on(s.ClockTicked, _tick)
        self._on(s.TickContinued, _no_tick)
        self._on(s.GroupCreated, group_created)
        self._on(s.GroupCreateFailed, group_create_failed)
        self._on(s.GroupGone, group_gone)
        self._on(s.AgentRestarted, agent_restarted)
        self._on(s.RebuildRequested, rebuild)
        self._on(s.StatesOutlived, _forget_states)
        self._on(s.RecoveryObserved, reconcile)
        self._on(s.SupervisorBegan, _begin)
        self._on(s.AgentsMeasured, note_measurements)
        self._on(JobWorkObserved, follow_work)
        self._on(JobBeyondClaim, end_beyond_claim)
        self._on(s.TokenRequested, issue_token)
        self._on(s.TokenChangeRequested, change_token)
        self._on(s.TokenRevocationRequested, revoke_token)
        self._on(s.AuthenticationRequested, enable_authentication)
        self._on(s.ChangeWasReceived, change_received)
        self._on(s.ChangeWasAnswered, change_answered)

    def handle(self, stimulus: s.AnyStimulus, now: float) -> Step:
        """Process a stimulus that happens ``now``, in seconds since 1970. The state changes by the facts of
        the step, and by nothing else ever.
        """
        if isinstance(stimulus, s.TickContinued) and self._tick is not None:
            return self._portion_of(self._tick, stimulus, now)
        tx = Transaction(self.state, now, self.strategies)
        if isinstance(stimulus, _TICKS):
            self._tick = None
            if isinstance(stimulus, s.ClockTicked) and stimulus.portion:
                tick = DividedTick(tx, stimulus, partial(_tick, tx, stimulus))
                return self._portion_of(tick, stimulus, now)
        try:
            if isinstance(stimulus, RequestStimulus):
                outcome = self._answer(tx, stimulus)
            else:
                outcome = self._handlers[type(stimulus)](tx, stimulus)
            of_stimulus = len(tx.facts)
            serve_freed_capacity(tx, stimulus)
            if len(tx.facts) > of_stimulus or isinstance(stimulus, _TICKS):
                _note_tick(tx, stimulus, of_stimulus)
        except BaseException:
            self.torn = self.torn or bool(tx.facts)
            raise
        return Step(
            facts=tuple(tx.facts),
            instructions=tuple(tx.instructions),
            outcome=outcome,
            stimulus=stimulus,
            at=now,
        )

    def _portion_of(
        self, tick: DividedTick, stimulus: s.ClockTicked | s.TickContinued, now: float
    ) -> Step:
        """The next portion of a tick."""
        self._tick = None
        try:
            step = tick.step(stimulus, now)
        except BaseException:
            self.torn = True
            raise
        self._tick = tick if step.is_unfinished else None
        return step

    def _answer(self, tx: Transaction, request: s.AnyRequest) -> RequestOutcome | None:
        """The outcome of a request. A final one is remembered, and is the outcome of every repetition."""
        decided = self.decided(request)
        if decided is not None:
            return decided
        outcome = self._handlers[type(request)](tx, request)
        dry_run = isinstance(request, s.TaskSubmitted) and request.dry_run
        if outcome is None or dry_run or isinstance(outcome, _NOT_FINAL):
            return outcome
        return tx.answer(request.request_id, outcome)

    def decided(self, stimulus: s.AnyStimulus) -> RequestOutcome | None:
        """The outcome of a request that is repeated, as far as it is known; None: it is new."""
        state = self.state
        request_id = stimulus.request_id if isinstance(stimulus, RequestStimulus) else None
        if request_id is None:
            return None
        if request_id in state.answers:
            return state.answers[request_id].outcome
        agent_name = state.requests.get(request_id)
        if agent_name is not None:
            return Pending(agent_name=agent_name)
        return _other_content(state, request_id)

    def evaluate(self, query: PreemptionQuery, now: float) -> Evaluation:
        """Whether and whom an incoming task may evict ``now``; changes nothing."""
        return evaluate(self.state, query, now, self.strategies)

    def explain(self, task_id: str, now: float) -> Explanation | Refused:
        """Why a task waits, where it runs or how it ended; changes nothing. Refused: it is not on record."""
        explained = explain(self.state, self.strategies, task_id, now)
        if isinstance(explained, Explanation) and explained.state == "queued":
            self._explained.note(self.state, task_id, explained.reason, now)
        return explained

    def wait_causes(self, now: float) -> WaitCauses:
        """Why queued tasks wait ``now``, for the rows of a listing; changes nothing."""
        return WaitCauses(Transaction(self.state, now, self.strategies), self._explained)

    def _on(self, kind: type[StimulusT], handler: Handler[StimulusT]) -> None:
        self._handlers[kind] = handler  # type: ignore[assignment]  # each kind meets its own handler


def _other_content(state: MeshState, request_id: str) -> Refused | None:
    """The refusal where another request was made with the same key."""
    key = key_of_content(request_id)
    if not key:
        return None
    if key in state.answers.by_key or any(other.startswith(key) for other in state.requests):
        return Refused(
            reason=Reason.REQUEST_ID_REUSED,
            error_text=say("other_content"),
        )
    return None


def _submit(tx: Transaction, stimulus: s.TaskSubmitted) -> RequestOutcome:
    """A submission starts, or waits in the queue if it may, or is refused."""
    task, refused = stimulus.task, None
    if task is not None and task.parent:
        task = with_known_parent(tx.state, task)
        stimulus = msgspec.structs.replace(stimulus, task=task)
    if task is not None and task.after:
        refused = refused_for_dependencies(tx.state, stimulus)
    if refused is None and task is not None and (task.array or tx.state.arrays.by_id):
        refused = refused_as_array(tx.state, stimulus)
    if refused is not None:
        return refused
    if stimulus.dry_run:
        return outcome_of_dry_run(tx, stimulus)
    if stimulus.queue:
        return queue.join(tx, stimulus)
    return submit(tx, stimulus)


def _change_policy(tx: Transaction, stimulus: s.PolicyChangeRequested) -> RequestOutcome:
    if stimulus.policy != tx.state.policy:
        tx.emit(
            PolicyChanged(
                policy=stimulus.policy,
                at=tx.now,
                client=stimulus.client,
                changes=stimulus.changes,
                level=stimulus.level,
            )
        )
        forget_measurements(tx)
        tx.state.queue.reopen_all()  # a pool that is protected no longer may borrow
    unknown = [p for p in stimulus.policy.protected_pools if p not in tx.state.ledger.accounts]
    if "protected_pools" not in stimulus.changes or not unknown:
        return Done()
    pools, others = [*map(repr, unknown[:_NAMED])], len(unknown) - _NAMED
    named = say("names", names=pools)
    if others > 0:
        named = say("names_and_others", names=pools, count=others)
    return Done(warning_texts=(say("protects_unknown_pools", pools=named),))


def _register_handlers(tx: Transaction, stimulus: s.StateHandlersGiven) -> RequestOutcome:
    tx.emit(
        StateHandlersRegistered(
            pool_name=stimulus.pool_name,
            preserver_key=stimulus.preserver_key,
            restorer_key=stimulus.restorer_key,
        )
    )
    pools = tx.state.ledger.accounts
    if stimulus.pool_name in pools:
        return Done()
    near = did_you_mean(stimulus.pool_name, pools)
    warning = say("handlers_without_pool", pool=stimulus.pool_name, near=near)
    return Done(warning_texts=(warning,))


def _cordon(tx: Transaction, stimulus: s.CordonRequested) -> RequestOutcome:
    node = tx.state.cluster.nodes.get(stimulus.node_id)
    if node is None:
        return node_not_found(tx.state, stimulus.node_id)
    if node.cordoned == stimulus.cordoned:
        return Done(change=Change.UNCHANGED)
    if stimulus.node_id in tx.state.drains.nodes:
        return Refused(
            reason=Reason.NODE_DRAINING,
            error_text=say("node_is_drained", node=stimulus.node_id),
        )
    tx.emit(NodeCordoned(node_id=stimulus.node_id, cordoned=stimulus.cordoned, at=tx.now))
    return Done()


def _class_probed(tx: Transaction, stimulus: s.ClassProbed) -> None:
    if stimulus.class_key not in tx.state.loaded:
        tx.emit(ClassLoaded(class_key=stimulus.class_key, at=tx.now))


def _observe_cluster(tx: Transaction, stimulus: s.ClusterObserved) -> None:
    """Only what changed becomes a fact."""
    nodes, tx.hosts = tx.state.cluster.nodes, stimulus.hosts
    for report in stimulus.nodes:
        node = nodes.get(report.node_id)
        same = node is not None and (node.total, node.labels) == (report.total, report.labels)
        if same and node is not None and report.external_usage in (None, node.external_usage):
            continue
        tx.emit(NodeSeen(report=report, at=tx.now))
        if node is None:
            _renew_claims(tx, report.node_id)
    for report in stimulus.nodes:
        observe_drain(tx, report)
    demand = stimulus.external_demand
    if demand is not None and tx.state.external_demands.changed_by(demand):
        tx.emit(ExternalDemandSeen(demand=demand, at=tx.now))
    living = {report.node_id for report in stimulus.nodes}
    for node_id in [node_id for node_id in nodes if node_id not in living]:
        tx.emit(NodeLost(node_id=node_id, at=tx.now))
        node_lost(tx, node_id)


def _renew_claims(tx: Transaction, node_id: str) -> None:
    """Have agents that wait for a node take again what they held of it before it was lost for a moment."""
    waiting = [
        name
        for name, agent in tx.state.agents.items()
        if isinstance(agent.phase, Waiting) and agent.is_on(node_id)
    ]
    hand_on(tx, waiting)


def _tick(tx: Transaction, _stimulus: s.ClockTicked) -> None:
    state = tx.state
    for hold_id in [key for key, hold in state.ledger.holds.items() if hold.until <= tx.now]:
        tx.emit(HoldShrank(hold_id=hold_id, at=tx.now))
    if state.groups.of_pool:
        expire(tx)
    if state.windows.by_name:
        windows.advance_windows(tx)
    if state.drains:
        advance_drains(tx)
    if state.running.limits_due:
        time_limits.advance_limits(tx)
    budgets.advance_budgets(tx)
    cancel_impossible(tx)
    for pool_name in tuple(state.ledger.over_quota):
        pools.call_back(tx, pool_name)
    before = tx.now - ANSWER_MEMORY_S
    oldest = next(iter(state.answers.values()), None)
    if oldest is not None and oldest.at < before:
        tx.emit(AnswersForgotten(before=before))


def _no_tick(_tx: Transaction, _stimulus: s.TickContinued) -> None:
    """The tick that was to go on was given up: another one has begun, or the state was read anew."""


def _note_tick(tx: Transaction, stimulus: s.AnyStimulus, of_stimulus: int) -> None:
    """Have a tick known to the history that has decided something, or another step that has, although the
    stimulus itself changed nothing; ``of_stimulus``: how many of the facts are its own.
    """
    if isinstance(stimulus, _TICKS):
        if any(type(fact) is not AnswersForgotten for fact in tx.facts):
            tx.emit(Ticked(at=tx.now, recovered=isinstance(stimulus, s.RecoveryObserved)))
    elif len(tx.facts) > of_stimulus and all(
        type(fact) in _ANSWERS for fact in tx.facts[:of_stimulus]
    ):
        tx.emit(Ticked(at=tx.now, served=True))


def _forget_states(tx: Transaction, stimulus: s.StatesOutlived) -> None:
    retained = past_states(tx.state)
    keys = tuple(key for key in stimulus.state_keys if key in retained)
    if keys:
        tx.emit(StatesForgotten(state_keys=keys))


def _begin(tx: Transaction, stimulus: s.SupervisorBegan) -> None:
    tx.emit(
        EpochBegun(
            epoch=stimulus.epoch,
            at=tx.now,
            gap=stimulus.gap,
            actor_names=stimulus.actor_names,
        )
    )
