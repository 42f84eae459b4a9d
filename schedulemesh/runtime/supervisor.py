"""What the supervisor does: takes requests, decides, remembers and has its hands act."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from schedulemesh.config.policy import PreemptionPolicy, changed_policy
from schedulemesh.config.settings import PROTOCOL_VERSION, SchedulerSettings
from schedulemesh.core.agent.control_channel import restarted_by_ray
from schedulemesh.core.backend.ray_backend import LiveRay
from schedulemesh.engine.admission.decide import pool_for
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    AgentEvicted,
    Done,
    Evicted,
    Pending,
    ProbeNeeded,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.errors import JournalError, SchedulerUnavailableError
from schedulemesh.plugins.guard import Guarded
from schedulemesh.protocol.agents import MessageError, Report, pack, unpack
from schedulemesh.protocol.clients import GroupPlace, Hello, Reply
from schedulemesh.runtime.agent_registry import Agents
from schedulemesh.runtime.cluster_monitor import Patrol, off_loop
from schedulemesh.runtime.command_queue import POLL_S
from schedulemesh.runtime.decision_log import log_refusal
from schedulemesh.runtime.executor import Hands
from schedulemesh.runtime.health import HealthCheck
from schedulemesh.runtime.journal_opening import (
    cannot_begin,
    journal_address,
    mark_path,
    opened,
)
from schedulemesh.runtime.pg_manager import Groups
from schedulemesh.runtime.plugin_watchdog import StrategyKeeper
from schedulemesh.runtime.pool_service import PoolService
from schedulemesh.runtime.queries import View
from schedulemesh.runtime.references import Refs
from schedulemesh.runtime.serving import unavailable, when_ready
from schedulemesh.runtime.state_service import StateService
from schedulemesh.store.journal import Journal

logger = logging.getLogger(__name__)

#: Seconds that the answer to a deletion waits for the removal of the agent's placement group.
_GROUP_GOES_S = 10.0

#: Names of running tasks whose last evaluation is remembered.
_NAMED = 100_000
#: A supervisor that comes back to a journal which it cannot use tries for so many seconds before callers
#: are told; and so long it pauses between two attempts.
_PATIENCE_S, _PAUSE_S = 5.0, 0.2
#: Seconds after which one that was shut down ends itself, where its caller died before it could.
_LAST_WORD_S = 1.0


class SupervisorService(StateService, PoolService):
    """One life of a supervisor. Its public coroutines are the calls of clients and agent hosts."""

    def __init__(self, settings: SchedulerSettings, job_id: str) -> None:
        logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(message)s")
        self._settings = settings
        self._job_id = job_id
        self._ray = LiveRay()
        self._agents = Agents(self._ray, settings.name, settings.namespace)
        self._groups = Groups(self._ray, settings.name, settings.namespace)
        self._me = ray.get_runtime_context().current_actor
        self._named: dict[str, tuple[str, float]] = {}
        self._began: asyncio.Future[None] | None = None
        #: Whether a former life of it may have begun.
        self._again = restarted_by_ray()
        self._patient_until = time.monotonic() + (_PATIENCE_S if self._again else 0.0)
        self._watching: asyncio.Future[None] | None = None
        self._keeper: StrategyKeeper | None = None
        self._hands: Hands = None  # type: ignore[assignment]  # set when it begins
        self._patrol: Patrol = None  # type: ignore[assignment]  # set when it begins
        _spare_the_collector()
        # After a restart nobody may call for long; settling must not wait for that.
        self._me.hello.remote()

    async def ready(self) -> None:
        """Begin, if nobody asked before or that failed: recover, settle, patrol. All others wait for it.

        Raises SchedulerUnavailableError where the journal cannot be used.
        """
        if self._watching is None and not self._settings.detached:
            self._watching = asyncio.ensure_future(self._end_with_job())
        failed = self._began is not None and self._began.done() and not self.settled
        if self._began is None or failed:
            self._began = asyncio.ensure_future(self._begin_patiently())
        try:
            await asyncio.shield(self._began)
        except JournalError as error:
            raise SchedulerUnavailableError(cannot_begin(self._settings, error)) from error

    @when_ready
    async def hello(self) -> Hello:
        """Who this is."""
        return Hello(
            protocol=PROTOCOL_VERSION,
            python=platform.python_version(),
            ray=ray.__version__,
            detached=self._settings.detached,
            job_id=self._job_id,
            settings=self._settings.told(),
        )

    async def alive(self) -> tuple[bool, float]:
        """A sign of life, given at once: whether it has begun, and how many seconds a request may take that
        starts, saves and ends agents.
        """
        policy = self._scribe.state.policy if self.settled else PreemptionPolicy()
        return self.settled, policy.longest_s

    @when_ready
    async def act(self, stimulus: s.AnyStimulus, blobs: Mapping[str, bytes] | None = None) -> Reply:
        """A change that is done when it is decided: pools, policy, handlers, cordons, registrations."""
        try:
            step = await self._scribe.step(stimulus, blobs)
        except JournalError as error:
            return Reply(outcome=unavailable(error))
        return Reply(outcome=step.outcome or Done())

    @when_ready
    async def change_policy(
        self, changes: Mapping[str, Any], client: str, level: str | None
    ) -> dict[str, Any] | Refused:
        """Change these fields of the policy; returns the whole policy in force."""
        policy = changed_policy(self._scribe.state.policy, changes)
        stimulus = s.PolicyChangeRequested(
            at=0.0, policy=policy, client=client, changes=tuple(changes), level=level
        )
        try:
            if changes:
                await self._scribe.step(stimulus)
        except JournalError as error:
            return unavailable(error)
        return self._scribe.state.policy.public()

    @when_ready
    async def submit(
        self,
        stimulus: s.TaskSubmitted,
        blobs: Mapping[str, bytes],
        refs: Refs,
    ) -> Reply:
        """A submission: answered when the agent runs, or cannot."""
        class_key = stimulus.agent.class_key
        try:
            known = await self._hands.class_bytes(class_key, blobs)
        except JournalError as error:
            return Reply(outcome=unavailable(error))
        if known is None:
            return Reply(outcome=ProbeNeeded(class_key=class_key))
        # The journal forgets classes that nothing refers to; this process may remember them for longer.
        blobs = {**blobs, class_key: known}
        self._hands.expect(stimulus.agent.arguments_key, blobs)
        references = self._hands.references
        stimulus = references.given_with(self._with_name(stimulus), refs)
        with references.held_for(stimulus.agent, refs):
            outcome = await self._decided(stimulus, blobs)
        references.release_unused(self._scribe.state)
        agent = self._scribe.state.agents.get(getattr(outcome, "agent_name", ""))
        handle = None if agent is None else self._agents.handle(agent.spec.name, agent.incarnation)
        return Reply(outcome=outcome, handle=handle, group=self._group_of(outcome))

    async def _decided(
        self, stimulus: s.TaskSubmitted, blobs: Mapping[str, bytes]
    ) -> RequestOutcome:
        """What becomes of a submission."""
        class_key = stimulus.agent.class_key
        try:
            step = await self._scribe.step(stimulus, blobs)
            if isinstance(step.outcome, ProbeNeeded):
                failed = await self._hands.probe(class_key, blobs[class_key], stimulus)
                if failed is not None:
                    return failed
                step = await self._scribe.step(stimulus, blobs)
        except JournalError as error:
            return unavailable(error)
        outcome = step.outcome or Done()
        log_refusal(stimulus, outcome)
        if isinstance(outcome, Pending) and stimulus.request_id is not None:
            return await self._scribe.answer(stimulus.request_id)
        return outcome

    def _group_of(self, outcome: RequestOutcome) -> GroupPlace | None:
        """Where the placement group stands that a submission was given."""
        if not isinstance(outcome, Accepted) or outcome.group_id is None:
            return None
        group = self._scribe.state.groups.by_id.get(outcome.group_id)
        return GroupPlace(
            name=self._groups.name(outcome.group_id),
            node_ids=() if group is None else group.node_ids,
        )

    @when_ready
    async def end(self, stimulus: s.TaskFinished | s.AgentDeletionRequested) -> Reply:
        """The end of a task or an agent: answered when the process is gone."""
        group_id = self._group_to_go(stimulus)
        try:
            step = await self._scribe.step(stimulus)
        except JournalError as error:
            return Reply(outcome=unavailable(error))
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            await self._scribe.end_of(outcome.agent_name)
            outcome = Done()
        until = time.monotonic() + _GROUP_GOES_S
        while group_id in self._scribe.state.groups.by_id and time.monotonic() < until:
            await self._groups.changed(until - time.monotonic())
        return Reply(outcome=outcome)

    def _group_to_go(self, stimulus: s.TaskFinished | s.AgentDeletionRequested) -> str | None:
        """The placement group that is to be destroyed with the agent."""
        if not isinstance(stimulus, s.AgentDeletionRequested) or not stimulus.destroy_group:
            return None
        agent = self._scribe.state.agents.get(stimulus.agent_name)
        return None if agent is None else agent.group_id

    @when_ready
    async def preempt(self, stimulus: s.PreemptionRequested, request_id: str) -> Reply:
        """An eviction by hand: answered when the task was cancelled, or its agent is gone."""
        if stimulus.task_id is not None and not stimulus.end_agent:
            reason, score = self._named.get(stimulus.task_id, (stimulus.reason, None))
            stimulus = msgspec.structs.replace(stimulus, reason=reason, preempt_score=score)
        try:
            step = await self._scribe.step(msgspec.structs.replace(stimulus, request_id=request_id))
        except JournalError as error:
            return Reply(outcome=unavailable(error))
        outcome = step.outcome or Done()
        if isinstance(outcome, Pending):
            outcome = await self._scribe.answer(request_id)
        if isinstance(outcome, AgentEvicted):
            return Reply(outcome=outcome, evicted=await self._past(outcome.task_ids))
        key = outcome.state_key if isinstance(outcome, Evicted) else None
        return Reply(outcome=outcome, saved=await self._scribe.fetch(key))

    @when_ready
    async def reborn(self, agent_name: str, incarnation: int, message: bytes) -> None:
        """Ray restarted an agent's process by itself: a Report. One that cannot be read ends the agent."""
        try:
            report = unpack(message, Report)
        except MessageError as error:
            logger.warning("agent %s was restarted by Ray and is ended: %s", agent_name, error)
            await self._agents.end(agent_name, incarnation)
            return
        self._agents.reborn(agent_name, incarnation)
        logger.warning("agent %s was restarted by Ray, as process %d", agent_name, report.pid)
        agent = current(self._scribe.state, agent_name, incarnation)
        if agent is None:
            return
        await self._scribe.report(
            s.AgentRestarted(
                at=0.0,
                agent_name=agent_name,
                incarnation=incarnation,
                pid=report.pid,
                node_id=report.node_id,
                gpu_ids=report.gpu_ids,
            )
        )

    @when_ready
    async def ensure_health(self, timeout_s: float) -> dict[str, Any] | Refused:
        """A round of looking after agents."""
        try:
            return await HealthCheck(self._ray, self._agents, self._scribe).run(timeout_s)
        except JournalError as error:
            return unavailable(error)

    @when_ready
    async def about(self) -> dict[str, Any]:
        """What this supervisor is: for the head and the command line."""
        return await self._scribe.read(self._about)

    def _about(self) -> dict[str, Any]:
        state = self._scribe.state
        return {
            "name": self._settings.name,
            "namespace": self._settings.namespace,
            "detached": self._settings.detached,
            "node_id": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
            "journal": str(journal_address(self._settings, self._ray.session_folder())),
            "epoch": state.epoch,
            "pools": len(state.ledger.accounts),
            "agents": len(state.agents),
            "running_tasks": len(state.running),
        }

    @when_ready
    async def evaluate(self, asked: bytes) -> bytes:
        """The dry run of the preemption decision: a PreemptionQuery, an Evaluation, both packed."""
        query = msgspec.structs.replace(
            msgspec.msgpack.decode(asked, type=s.PreemptionQuery), at=self._scribe.now()
        )
        found = await self._scribe.read(lambda: self._scribe.engine.evaluate(query))
        if len(self._named) > _NAMED:
            self._named.clear()
        for candidate in found.candidates:
            self._named[candidate.task_id] = (candidate.reason, candidate.preempt_score)
        return pack(found)

    @when_ready
    async def view(self, name: str, *args: Any) -> Any:
        """One of the queries of ``View``."""

        def look() -> Any:
            view = View(self._scribe.state, self._agents, self._groups, self._scribe.now())
            return getattr(view, name)(*args)

        return await self._scribe.read(look)

    async def shutdown(self) -> None:
        """End every agent and group, forget everything, and end this actor. One that cannot begin ends the
        agents and groups that carry its mark, and leaves its journal as it is.
        """
        try:
            await self.ready()
        except SchedulerUnavailableError as error:
            logger.warning("%s; it is given up", error)
            await self._end_marked()
        else:
            self._hands.stop_all()
            living = [(name, a.incarnation) for name, a in self._scribe.state.agents.items()]
            await asyncio.gather(*(self._agents.end(*agent) for agent in living))
            await self._hands.ready.leave_nothing()
            await self._groups.leave_nothing()
            await self._patrol.withdraw()
            await self._scribe.close(destroy=True)
            if self._keeper is not None:
                self._keeper.close()
        # The caller kills it as soon as it has this answer.
        asyncio.get_running_loop().call_later(_LAST_WORD_S, self._ray.kill_actor, self._me)

    async def withdraw(self) -> None:
        """End this actor if it is new and could not begin, so that its name is free again."""
        if not self.settled and not self._again:
            self._ray.kill_actor(self._me)

    @when_ready
    async def strategies(self) -> list[dict[str, Any]]:
        """Every strategy that was supplied: see StrategyKeeper.status."""
        return [] if self._keeper is None else self._keeper.status()

    async def poll(self, agent_name: str, incarnation: int) -> bytes:
        """A host asks for commands. The call that is made most often, and the one that stays open longest."""
        if not self.settled:
            await self.ready()
        return pack(await self._agents.poll(agent_name, incarnation))

    @when_ready
    async def command_done(self, command_id: int, result: bytes) -> None:
        """A host answers a command: a Result."""
        self._agents.done(command_id, result)

    @when_ready
    async def report_metrics(self, message: bytes) -> bool:
        """An agent says how far it is: a MetricsReport. Returns whether it was taken."""
        return self._agents.metrics.take(self._scribe.state, message)

    async def _begin_patiently(self) -> None:
        while True:
            try:
                await self._begin()
            except JournalError as error:
                if time.monotonic() > self._patient_until:
                    raise
                logger.warning("%s; trying again", error)
            else:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _begin(self) -> None:
        settings = self._settings
        journal = await opened(settings, self._ray, self._agents, again=self._again)
        strategies = Strategies(
            settings.node_strategy, settings.pool_strategy, self._strategies(journal)
        )
        self._hands = Hands(
            self._ray, self._agents, self._groups, journal, settings.name, strategies, self._me
        )
        self._patrol = Patrol(self._ray, self._agents, self._hands)
        try:
            await self._recover()
        except (JournalError, RayError):
            # The next attempt opens the journal anew.
            await self._scribe.close(destroy=False)
            raise
        self.settled = True
        self._hands.spawn(self._keep_watch())
        if settings.health_interval_s is not None:
            self._hands.spawn(self._look_after(settings.health_interval_s))

    async def _recover(self) -> None:
        epoch = await self._scribe.begin(self._settings.journal, take_over=self._again)
        self._agents.begin_epoch(epoch)
        await self._patrol.look_around()
        await self._patrol.settle()

    def _strategies(self, journal: Journal) -> tuple[Guarded, ...]:
        """The plugins, loaded once in a life."""
        if self._keeper is None:
            mark = mark_path(self._settings, self._ray.session_folder())
            self._keeper = StrategyKeeper(self._settings.strategies, journal, mark)
            self._keeper.load(again=self._again)
        self._keeper.journal = journal
        return self._keeper.plugins

    def _with_name(self, stimulus: s.TaskSubmitted) -> s.TaskSubmitted:
        """An agent without a name gets one that begins with its pool's."""
        agent = stimulus.agent
        if agent.name:
            return stimulus
        engine = self._scribe.engine
        pool = pool_for(engine.state, engine.strategies, stimulus)
        name = f"{pool}-agent-{secrets.token_hex(3)}"
        named = msgspec.structs.replace(agent, name=name, pool_name=pool or "")
        return msgspec.structs.replace(stimulus, agent=named)

    async def _past(self, task_ids: Sequence[str]) -> tuple[tuple[str, str, bytes | None], ...]:
        found = []
        for task_id in task_ids:
            past = self._scribe.state.preempted.get(task_id)
            if past is not None:
                saved = await self._scribe.fetch(past.state_key)
                found.append((task_id, past.fact.reason, saved))
        return tuple(found)

    async def _look_after(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.ensure_health(2 * POLL_S)
            except (JournalError, RayError) as error:
                logger.warning("health: %s", error)

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.patrol_interval_s)
            try:
                await self._patrol.look_around()
                self._hands.references.release_unused(self._scribe.state)
            except (JournalError, RayError) as error:
                logger.warning("patrol: %s", error)

    async def _end_with_job(self) -> None:
        """Leave nothing behind when the job has ended, also where this supervisor cannot begin."""
        while True:
            await asyncio.sleep(self._settings.patrol_interval_s)
            try:
                if await off_loop(self._ray.job_lives, self._job_id):
                    continue
                logger.info("job %s has ended; everything made for it ends too", self._job_id)
                # What a former scheduler of this name left behind is not this job's.
                await (self.shutdown() if self.settled or self._again else self.withdraw())
                self._ray.kill_actor(self._me)
            except (JournalError, RayError) as error:
                logger.warning("leaving: %s", error)

    async def _end_marked(self) -> None:
        """End every agent that carries this scheduler's mark, and its groups."""
        living = await off_loop(self._ray.living_actors)
        for namespace, name in self._agents.strays(living, set()):
            handle = self._agents.find(namespace, name)
            if handle is not None:
                self._ray.kill_actor(handle)
        await self._groups.leave_nothing()


def _spare_the_collector() -> None:
    """Collect garbage in cycles seldom: with a question open for each of 10,000 hosts a whole collection
    walks a million living objects and takes a second. What is in no cycle is freed at once all the same.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
