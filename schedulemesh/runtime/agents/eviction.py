"""The steps of an eviction that the engine has decided: notice, save, make durable, cancel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from typing_extensions import Unpack

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.payloads import GangPayload, JobPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskSpec, TaskState
from schedulemesh.engine.lifecycle.agents import current
from schedulemesh.engine.lifecycle.eviction import attempt_of, task_in
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import (
    AnyStimulus,
    CancelAnswered,
    StateNotSaved,
    StateStored,
)
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.task_phases import Preempting
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import JournalError, NotStorableError
from schedulemesh.protocol.agents import (
    CommandResult,
    Handled,
    MessageError,
    StateTooLargeError,
    key_of,
    line_and_traceback,
    pack,
    unpack,
)
from schedulemesh.runtime.agents.commands import CommandFields
from schedulemesh.runtime.agents.registry import Agents
from schedulemesh.runtime.backend import Backend, BackendError
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.runtime.threads import beside_loop

__all__ = ["Eviction", "TaskState"]

logger = logging.getLogger(__name__)

#: Bytes that a stored state may take beside the state itself and what is known of its task.
_ENVELOPE_BYTES = 512

#: Takes a stimulus and blobs; returns once they are durable.
Feed = Callable[[AnyStimulus, Mapping[str, bytes]], Awaitable[Step]]


class NotSaved(msgspec.Struct, frozen=True, kw_only=True):
    """Why the state of a task could not be saved."""

    error: str
    too_large: bool = False


class Eviction:
    """The eviction of one attempt of a task. What it needs of it and its agent it looks up in the state where
    it is used, so it never acts on what was true earlier.
    """

    def __init__(self, backend: Backend, agents: Agents, reactor: Reactor, task_id: str) -> None:
        self._backend, self._agents, self._reactor = backend, agents, reactor
        self.task_id = task_id
        self._attempt = attempt_of(reactor.state, task_id)

    @property
    def task(self) -> RunningTask | None:
        """The task; None: this attempt of it has ended."""
        if self._attempt is None:
            return None
        return task_in(self._reactor.state, self.task_id, self._attempt)

    @property
    def _incarnation(self) -> int | None:
        """That of the task's agent; None: the scheduler does not know the agent."""
        return None if self._attempt is None else self._attempt.incarnation

    @property
    def processes(self) -> tuple[str, ...]:
        """The agent's processes: itself, or the members of a gang in the order of ranks. Of an agent that the
        scheduler does not know its name; none where the task or this incarnation of the agent has ended.
        """
        task, agent = self.task, self._agent
        if task is None or (agent is None and self._incarnation is not None):
            return ()
        return (task.agent_name,) if agent is None else agent.spec.process_names

    @property
    def _agent(self) -> Agent | None:
        """The task's agent in this incarnation; None: it has ended, or the scheduler does not know it."""
        task = self.task
        agent = None if task is None else self._reactor.state.agents.get(task.agent_name)
        return agent if agent is not None and agent.incarnation == self._incarnation else None

    @property
    def _is_gang(self) -> bool:
        agent = self._agent
        return agent is not None and isinstance(agent.spec.payload, GangPayload)

    @property
    def _policy(self) -> PreemptionPolicy:
        return self._reactor.state.policy

    async def notice(self, grace_s: float) -> None:
        """Notify the agent that it will be evicted in so many seconds, and wait for as long; of a job until
        its driver has ended.
        """
        patience_s = min(self._policy.cancel_timeout, 1.0)
        until = time.monotonic() + patience_s + grace_s
        agent = self._agent
        if agent is not None and isinstance(agent.spec.payload, JobPayload):
            # Its runner answers when the driver has ended, or the time is over.
            within_s = patience_s + grace_s
            await self._order(agent.spec.name, "notice", within_s, until=until, seconds=grace_s)
            return
        # A process that stands still for longer than that is told as long as there is any grace left.
        within_s = max(patience_s, grace_s)
        able = self._able("on_preemption_notice")
        notices = (self._order(p, "notice", within_s, until=until, seconds=grace_s) for p in able)
        await asyncio.gather(*notices)
        if grace_s > 0:
            await asyncio.sleep(min(grace_s, until - time.monotonic()))

    async def save(self) -> None:
        """Save the task's state from the best source that works, and make it durable. Where that fails,
        nothing is written: what was saved before stays what the task is restored from.
        """
        task = self.task
        if task is None:
            return
        try:
            saved = await self._save(task)
            if isinstance(saved, SavedState):
                await self._keep(saved, self._reactor.report)
                return
        except Exception as error:
            await self._report_not_saved(f"the state was not saved: {error}")
            raise
        await self._report_not_saved(saved.error)

    async def note_unsaved(self) -> None:
        """Report of a job or a lease that nothing of its attempt was saved. What it has saved was reported by
        itself; it may do that as long as it runs.
        """
        task, agent = self.task, self._agent
        if task is None or agent is None or task.saved_at is not None:
            return
        if isinstance(agent.spec.payload, JobPayload):
            await self._report_not_saved(
                "the job has written nothing to its checkpoint folder since the attempt began, and has not "
                "called schedulemesh.job.saved()"
            )
        elif isinstance(agent.spec.payload, LeasePayload):
            await self._report_not_saved("the holder of the lease has not called saved()")

    async def checkpoint(self) -> SavedState | Refused | None:
        """As ``save``, while the task goes on; None: it has ended. A state that was saved before is never
        taken for what was asked for, but one that was taken later and stored meanwhile is.
        """
        task = self.task
        if task is None:
            return None
        saved = await self._save(task)
        if isinstance(saved, SavedState):
            try:
                # The caller can retry, so it does not wait for a journal that cannot be written.
                step = await self._keep(saved, self._reactor.step)
            except StateTooLargeError as large:
                return self._refused_state(Reason.STATE_TOO_LARGE, str(large))
            return saved if step.facts else await self._kept_instead(saved)
        reason = Reason.STATE_TOO_LARGE if saved.too_large else Reason.SAVE_FAILED
        return self._refused_state(reason, saved.error)

    def _refused_state(self, reason: Reason, why: str) -> Refused:
        return Refused(reason=reason, error_text=say("was_not_saved", task=self.task_id, why=why))

    async def _kept_instead(self, saved: SavedState) -> SavedState | None:
        """What answers for a state that was not stored: a newer one that was, or itself where nothing could
        be restored from it; None: the task has ended.
        """
        task = self.task
        if task is None:
            return None
        if not saved.restorable:
            return saved
        data = await self._reactor.fetch(task.state_key)
        if data is None:
            return None
        return await beside_loop(len(data), lambda: unpack(data, SavedState))

    async def _keep(self, saved: SavedState, feed: Feed) -> Step:
        if saved.warning:
            logger.warning("saving task %s: %s", self.task_id, saved.warning)
        key, data = await _stored_form(saved)
        limit_bytes = self._reactor.saved_state_bytes
        if len(data) > limit_bytes:
            raise StateTooLargeError(
                f"it has {len(data)} bytes with all that is stored with it; more than saved_state_bytes, "
                f"{limit_bytes}, are not kept"
            )
        stored = StateStored(
            task_id=self.task_id,
            attempt=self._attempt,
            state_key=key,
            saved_at=saved.saved_at,
            restorable=saved.restorable,
        )
        try:
            return await feed(stored, {key: data})
        except NotStorableError as error:
            raise StateTooLargeError(str(error)) from error

    async def _report_not_saved(self, error: str) -> None:
        logger.warning("task %s was not saved: %s", self.task_id, error)
        failed = StateNotSaved(task_id=self.task_id, attempt=self._attempt, error=error)
        await self._reactor.report(failed, {})

    async def resume(self) -> None:
        """Let the agent continue that waits at a safe point, even where the task has ended meanwhile. One
        whose eviction has begun stands there for that, too, until it is cancelled.
        """
        task = self.task
        if task is not None and isinstance(task.phase, Preempting):
            return
        attempt, within_s = self._attempt, self._policy.cancel_timeout
        if attempt is None or attempt.incarnation is None:
            return
        agent = current(self._reactor.state, attempt.agent_name, attempt.incarnation)
        processes = () if agent is None else agent.spec.process_names
        await asyncio.gather(*(self._order(p, "resume", within_s) for p in processes))

    @property
    def can_cancel(self) -> bool:
        """Whether the agent's class has a ``cancel``."""
        return bool(self._able("cancel"))

    async def cancel(self) -> CancelAnswered:
        """Have the agent, or all members of a gang, cancel the task, within ``cancel_timeout``; returns the
        result, of a gang the first that is no success.
        """
        if self._incarnation is None or not self.processes:
            task = self.task
            name = "" if task is None else f" {task.agent_name!r}"
            return self._cancel_outcome(False, f"agent{name} cannot be reached")
        answers = await asyncio.gather(*map(self._cancel, self._able("cancel") or self.processes))
        return next((answer for answer in answers if not answer.cancel_success), answers[0])

    async def _cancel(self, process: str) -> CancelAnswered:
        within_s = self._policy.cancel_timeout
        result = await self._order(process, "cancel", within_s, task_id=self.task_id)
        if result is None:
            late = f"cancel() did not return within {within_s:g} s"
            return self._cancel_outcome(False, late, timed_out=True)
        if not result.able:
            error = "the agent's class has no cancel(), so nothing was cancelled"
            return self._cancel_outcome(False, error + _going_on(result), runs_on=True)
        if result.error:
            error = self._line("cancel()", result.error) + _going_on(result)
            return self._cancel_outcome(False, error, runs_on=True)
        return self._cancel_outcome(result.success, "", runs_on=not result.success)

    async def _save(self, task: RunningTask) -> SavedState | NotSaved:
        """The state from the best source that works: the pool's preserver, the agent's ``save_state``, and
        the payload where it has neither.
        """
        base, processes = (
            await without_state(self._reactor, task.spec, task.agent_name),
            self.processes,
        )
        failed: NotSaved | None = None
        if (preserver := await self._preserver(task)) is not None:
            within_s = self._policy.save_timeout - await self._newest_metrics(processes)
            base = self._with_metrics(base, processes)
            handled = await self._preserve(preserver, task, base, within_s)
            if not handled.error:
                return msgspec.structs.replace(base, source="preserver", state=handled.data)
            error = self._line("the pool's preserver", handled.error)
            failed = NotSaved(
                error=f"the pool's preserver failed: {error}", too_large=handled.too_large
            )
        if able := self._able("save_state"):
            size = len(pack(base))
            answered_at: list[float] = []

            async def save_state(process: str) -> CommandResult:
                result = await self._save_state(process, size)
                answered_at.append(self._reactor.now())
                return result

            save_results = await asyncio.gather(*map(save_state, able))
            if _has_saved(save_results):
                # Of a gang the first state counts: a save that ends earlier may have newer ones of others.
                base = self._with_metrics(base, processes, saved_at=answered_at[0])
                results = dict(zip(able, save_results, strict=True))
                return self._together(base, processes, results, failed)
            return self._why_not_saved(save_results, failed)
        if failed is not None:
            return failed
        await self._newest_metrics(processes)
        return self._with_metrics(base, processes)

    def _why_not_saved(self, results: Sequence[CommandResult], before: NotSaved | None) -> NotSaved:
        """Why ``save_state`` did not save; ``before``: why a better source did not, either."""
        failed = next((r for r in results if r.error), None)
        error = "save_state returned None, so nothing was saved"
        if failed is not None:
            error = f"save_state failed: {self._line('save_state', failed.error)}"
        too_large = any(r.too_large for r in results)
        if before is None:
            return NotSaved(error=error, too_large=too_large)
        return NotSaved(error=f"{before.error} {error}", too_large=too_large or before.too_large)

    def _together(
        self,
        base: SavedState,
        processes: Sequence[str],
        results: Mapping[str, CommandResult],
        failed: NotSaved | None,
    ) -> SavedState:
        """The states that all processes saved, as one; ``failed``: a better source that did not work."""
        states = tuple(r.data if (r := results.get(p)) is not None else None for p in processes)
        is_gang = self._is_gang
        return msgspec.structs.replace(
            base,
            source="save_state",
            state=None if is_gang else states[0],
            members=states if is_gang else (),
            consistent=all(result.consistent for result in results.values()),
            warning="" if failed is None else failed.error,
        )

    async def _newest_metrics(self, processes: Sequence[str]) -> float:
        """Have the agent send the metrics that it has buffered; an agent that reports none is not asked. Of a
        gang the first member reports.

        Returns the seconds that it took, at most half of those for saving: an agent on a busy machine may
        take long to answer, and one that hangs must leave time for the preserver.
        """
        if not processes or not self._agents.metrics.may_have_newer(processes[0]):
            return 0.0
        began = time.monotonic()
        await self._order(processes[0], "ping", self._policy.save_timeout / 2)
        return time.monotonic() - began

    async def _preserve(
        self, preserver: bytes, task: RunningTask, base: SavedState, within_s: float
    ) -> Handled:
        try:
            answer = await self._backend.preserve_state(
                preserver, pack(base), task.started_at, self._state_bytes(len(pack(base))), within_s
            )
            return unpack(answer, Handled)
        except (BackendError, MessageError) as error:
            return Handled(error=str(error))

    async def _save_state(self, process: str, size: int) -> CommandResult:
        """The state of one process; ``size``: the bytes of what is stored with it."""
        # Half of the time is for waiting for a safe point, the other half for saving.
        within_s = self._policy.save_timeout
        limit_bytes = self._state_bytes(size)
        result = await self._order(
            process, "save", within_s, seconds=within_s / 2, limit_bytes=limit_bytes
        )
        result = result or CommandResult(
            error=f"no answer within {within_s:g} s, or the agent died"
        )
        if result.error and self._is_gang:
            return msgspec.structs.replace(result, error=f"member {process!r}: {result.error}")
        return result

    def _line(self, what: str, error: str) -> str:
        """The error of user code as one line; its traceback, if it has one, is logged."""
        line, traceback = line_and_traceback(error)
        if traceback:
            logger.warning("task %s: %s raised:\n%s", self.task_id, what, traceback)
        return line

    def _state_bytes(self, size: int) -> int:
        """Bytes that the state itself may have: all that is stored with it counts, too."""
        return max(0, self._reactor.saved_state_bytes - size - _ENVELOPE_BYTES)

    def _with_metrics(
        self, saved: SavedState, processes: Sequence[str], saved_at: float | None = None
    ) -> SavedState:
        """A state that was taken at that time, or is taken now, with the newest metrics."""
        metrics = self._agents.metrics.newest_of(processes[0]) if processes else {}
        if saved_at is None:
            saved_at = self._reactor.now()
        return msgspec.structs.replace(saved, saved_at=saved_at, last_metrics=metrics)

    async def _preserver(self, task: RunningTask) -> bytes | None:
        """The preserver of the task's pool; None: there is none."""
        handlers = self._reactor.state.handlers.get(task.spec.pool_name)
        return (
            None if handlers is None else await _fetch_stored(self._reactor, handlers.preserver_key)
        )

    def _able(self, method: str) -> tuple[str, ...]:
        """The processes whose classes have this control method."""
        incarnation = self._incarnation
        if incarnation is None:
            return ()
        return tuple(p for p in self.processes if self._agents.can(p, incarnation, method))

    async def _order(
        self,
        process: str,
        kind: str,
        timeout_s: float,
        *,
        until: float | None = None,
        **fields: Unpack[CommandFields],
    ) -> CommandResult | None:
        if self._incarnation is None:
            return None
        return await self._agents.commands.execute(
            process, self._incarnation, kind, timeout_s, until=until, **fields
        )

    def _cancel_outcome(
        self, success: bool, error: str, *, runs_on: bool = False, timed_out: bool = False
    ) -> CancelAnswered:
        """What became of the cancellation, for the engine; a failure is logged."""
        if not success:
            why = error or "its cancel() answered that it failed"
            logger.warning("task %s was not cancelled: %s", self.task_id, why)
        return CancelAnswered(
            task_id=self.task_id,
            attempt=self._attempt,
            cancel_success=success,
            runs_on=runs_on,
            timed_out=timed_out,
            error=error,
        )


def _has_saved(results: Sequence[CommandResult]) -> bool:
    """Whether ``save_state`` gave a state and failed nowhere. Of a gang, members may have none."""
    return all(not r.error for r in results) and any(r.data is not None for r in results)


async def without_state(reactor: Reactor, task: TaskSpec, agent_name: str) -> SavedState:
    """What is stored of a task beside its state, and what is known of one whose state was not saved."""
    return SavedState(
        task=task,
        agent_name=agent_name,
        source="payload",
        saved_at=reactor.now(),
        payload=await _fetch_stored(reactor, task.payload_key),
    )


async def _fetch_stored(reactor: Reactor, key: str | None) -> bytes | None:
    """Stored bytes, without which an eviction can continue; None: none, or not readable."""
    try:
        return await reactor.fetch(key)
    except JournalError as error:
        logger.error("an eviction goes on without what is stored: %s", error)  # noqa: TRY400
        return None


def _going_on(result: CommandResult) -> str:
    """The end of a message about methods that still run."""
    if not result.running:
        return ""
    return (
        f"; {result.running} of the agent's methods {'runs' if result.running == 1 else 'run'} on"
    )


async def _stored_form(saved: SavedState) -> tuple[str, bytes]:
    """The key and the bytes of a saved state."""
    return await beside_loop(saved.size, lambda: _packed_form(saved))


def _packed_form(saved: SavedState) -> tuple[str, bytes]:
    data = pack(saved)
    return key_of(data), data
