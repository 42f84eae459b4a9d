"""The steps of an eviction that the engine has decided: notice, save, make durable, cancel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from typing_extensions import Unpack

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskState
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import (
    AnyStimulus,
    CancelAnswered,
    StateNotSaved,
    StateStored,
)
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.errors import NotStorableError
from schedulemesh.protocol.agents import (
    Handled,
    MessageError,
    Result,
    SavedState,
    StateTooLargeError,
    key_of,
    line_and_traceback,
    pack,
    unpack,
)
from schedulemesh.runtime.agent_commands import CommandFields
from schedulemesh.runtime.agent_registry import Agents
from schedulemesh.runtime.backend import Backend, BackendError

__all__ = ["Eviction", "TaskState"]

logger = logging.getLogger(__name__)

#: Bytes that a stored state may take beside the state itself and what is known of its task.
_ENVELOPE_BYTES = 512
#: Bytes from which a state is packed and hashed in a thread.
_LARGE = 1024 * 1024

#: Takes a stimulus and blobs; returns once they are durable.
Feed = Callable[[AnyStimulus, Mapping[str, bytes]], Awaitable[object]]


class Eviction(msgspec.Struct, kw_only=True):
    """The eviction of one task of one agent."""

    backend: Backend
    agents: Agents
    policy: PreemptionPolicy
    feed: Feed
    task: RunningTask
    #: The agent's processes: itself, or the members of a gang in the order of ranks.
    processes: tuple[str, ...]
    incarnation: int | None
    #: The pool's preserver as bytes; None: there is none.
    preserver: bytes | None
    payload: bytes | None
    #: The state that was saved of it before, as stored; None: there is none.
    earlier: bytes | None
    now: float
    #: Bytes that a stored state may have.
    limit_bytes: int
    #: Whether the agent is a gang, or a job.
    gang: bool = False
    job: bool = False

    async def notice(self, grace_s: float) -> None:
        """Notify the agent that it will be evicted in so many seconds, and wait for as long; of a job until
        its driver has ended.
        """
        patience_s = min(self.policy.cancel_timeout, 1.0)
        until = time.monotonic() + patience_s + grace_s
        if self.job:
            # Its runner answers when the driver has ended, or the time is over.
            within_s = patience_s + grace_s
            await self._order(self.processes[0], "notice", within_s, until=until, seconds=grace_s)
            return
        # A process that stands still for longer than that is told as long as there is any grace left.
        within_s = max(patience_s, grace_s)
        able = self._able("on_preemption_notice")
        told = (self._order(p, "notice", within_s, until=until, seconds=grace_s) for p in able)
        await asyncio.gather(*told)
        if grace_s > 0:
            await asyncio.sleep(min(grace_s, until - time.monotonic()))

    async def save(self) -> SavedState:
        """Save the task's state from the best source that works, and make it durable."""
        try:
            saved, _ = await self._saved()
            await self._keep(saved)
        except Exception as error:
            await self._not_saved(f"the state was not saved: {error}")
            raise
        if not saved.current:
            await self._not_saved(saved.warning)
        return saved

    async def checkpoint(self) -> SavedState | Refused:
        """As ``save``, if the state can be saved now. If not, the state that was saved before is kept:
        nobody may take that for what was asked for.
        """
        saved, too_large = await self._saved()
        if saved.current:
            try:
                await self._keep(saved)
            except StateTooLargeError as large:
                return Refused(
                    reason=Reason.STATE_TOO_LARGE,
                    error=f"task {saved.task.task_id!r}: {large}",
                )
            return saved
        error = f"task {saved.task.task_id!r} was not saved: {saved.warning}"
        if too_large:
            return Refused(reason=Reason.STATE_TOO_LARGE, error=error)
        return Refused(reason=Reason.SAVE_FAILED, error=error)

    async def _keep(self, saved: SavedState) -> None:
        if saved.warning:
            logger.warning("saving task %s: %s", saved.task.task_id, saved.warning)
        key, data = await _stored_form(saved)
        if len(data) > self.limit_bytes:
            raise StateTooLargeError(
                f"it has {len(data)} bytes with all that is stored with it; more than saved_state_bytes, "
                f"{self.limit_bytes}, are not kept"
            )
        try:
            await self.feed(StateStored(task_id=saved.task.task_id, state_key=key), {key: data})
        except NotStorableError as error:
            raise StateTooLargeError(str(error)) from error

    async def _not_saved(self, error: str) -> None:
        await self.feed(StateNotSaved(task_id=self.task.spec.task_id, error=error), {})

    async def resume(self) -> None:
        """Let a task that waits at a safe point continue."""
        within_s = self.policy.cancel_timeout
        await asyncio.gather(*(self._order(p, "resume", within_s) for p in self.processes))

    @property
    def can_cancel(self) -> bool:
        """Whether the agent's class has a ``cancel``."""
        return bool(self._able("cancel"))

    async def cancel(self) -> CancelAnswered:
        """Have the agent, or all members of a gang, cancel the task, within ``cancel_timeout``; returns the
        result, of a gang the first that is no success.
        """
        if self.incarnation is None:
            return self._answered(False, f"agent {self.task.agent_name!r} cannot be reached")
        answers = await asyncio.gather(*map(self._cancel, self._able("cancel") or self.processes))
        return next((answer for answer in answers if not answer.cancel_success), answers[0])

    async def _cancel(self, process: str) -> CancelAnswered:
        within_s, task_id = self.policy.cancel_timeout, self.task.spec.task_id
        result = await self._order(process, "cancel", within_s, task_id=task_id)
        if result is None:
            late = f"cancel() did not return within {self.policy.cancel_timeout:g} s"
            return self._answered(False, late, timed_out=True)
        if not result.able:
            error = "the agent's class has no cancel(), so nothing was cancelled"
            return self._answered(False, error + _going_on(result), runs_on=True)
        if result.error:
            error = self._line("cancel()", result.error) + _going_on(result)
            return self._answered(False, error, runs_on=True)
        return self._answered(result.success, "", runs_on=not result.success)

    async def _saved(self) -> tuple[SavedState, bool]:
        """The state from the best source that works, and whether a better source gave too large a state."""
        warning, too_large = "", False
        if self.preserver is not None:
            within_s = self.policy.save_timeout - await self._newest_metrics()
            base = self._base()
            handled = await self._preserve(self.preserver, base, within_s)
            if not handled.error:
                return msgspec.structs.replace(base, source="preserver", state=handled.data), False
            error = self._line("the pool's preserver", handled.error)
            warning, too_large = f"the pool's preserver failed: {error}", handled.too_large
        if able := self._able("save_state"):
            found = dict(zip(able, await asyncio.gather(*map(self._save_state, able)), strict=True))
            failed = next((r for r in found.values() if r.error or r.data is None), None)
            if failed is None:
                return self._whole(found, warning), False
            error = self._line("save_state", failed.error)
            warning = f"{warning} save_state failed: {error}".strip()
            too_large = too_large or any(r.too_large for r in found.values())
        elif self.preserver is None:
            await self._newest_metrics()
        base = msgspec.structs.replace(self._base(), warning=warning, current=not warning)
        return self._saved_before(warning) or base, too_large

    def _whole(self, found: Mapping[str, Result], warning: str) -> SavedState:
        """The states that all processes saved, as one."""
        states = tuple(r.data if (r := found.get(p)) is not None else None for p in self.processes)
        return msgspec.structs.replace(
            self._base(),
            source="save_state",
            state=None if self.gang else states[0],
            members=states if self.gang else (),
            consistent=all(result.consistent for result in found.values()),
            warning=warning,
        )

    async def _newest_metrics(self) -> float:
        """Have the agent send the metrics that it has buffered; an agent that reports none is not asked. Of a
        gang the first member reports.

        Returns the seconds that it took, at most half of those for saving: an agent on a busy machine may
        take long to answer, and one that hangs must leave time for the preserver.
        """
        if not self.agents.metrics.may_have_newer(self.processes[0]):
            return 0.0
        began = time.monotonic()
        await self._order(self.processes[0], "ping", self.policy.save_timeout / 2)
        return time.monotonic() - began

    def _saved_before(self, warning: str) -> SavedState | None:
        """The last state that could be saved, which is better than none: an agent may die while it is
        evicted.
        """
        if self.earlier is None:
            return None
        earlier = msgspec.msgpack.decode(self.earlier, type=SavedState)
        if earlier.state is None and not earlier.members:
            return None
        return msgspec.structs.replace(
            earlier,
            warning=f"{warning} This is the state that was saved before.".strip(),
            current=False,
        )

    async def _preserve(self, preserver: bytes, base: SavedState, within_s: float) -> Handled:
        try:
            answer = await self.backend.preserve_state(
                preserver,
                pack(base),
                self.task.started_at,
                self._state_bytes(),
                within_s,
            )
            return unpack(answer, Handled)
        except (BackendError, MessageError) as error:
            return Handled(error=str(error))

    async def _save_state(self, process: str) -> Result:
        # Half of the time is for waiting for a safe point, the other half for saving.
        wait_s = self.policy.save_timeout / 2
        within_s, limit_bytes = self.policy.save_timeout, self._state_bytes()
        result = await self._order(
            process, "save", within_s, seconds=wait_s, limit_bytes=limit_bytes
        )
        result = result or Result(error=f"no answer within {within_s:g} s, or the agent died")
        if result.error and self.gang:
            return msgspec.structs.replace(result, error=f"member {process!r}: {result.error}")
        return result

    def _line(self, what: str, error: str) -> str:
        """The error of user code as one line; its traceback, if it has one, is logged."""
        line, traceback = line_and_traceback(error)
        if traceback:
            logger.warning("task %s: %s raised:\n%s", self.task.spec.task_id, what, traceback)
        return line

    def _state_bytes(self) -> int:
        """Bytes that the state itself may have: all that is stored with it counts, too."""
        return max(0, self.limit_bytes - len(pack(self._base())) - _ENVELOPE_BYTES)

    def _base(self) -> SavedState:
        return SavedState(
            task=self.task.spec,
            agent_name=self.task.agent_name,
            source="payload",
            saved_at=self.now,
            last_metrics=self.agents.metrics.of(self.processes[0]),
            payload=self.payload,
        )

    def _able(self, method: str) -> tuple[str, ...]:
        """The processes whose classes have this control method."""
        if self.incarnation is None:
            return ()
        incarnation = self.incarnation
        return tuple(p for p in self.processes if self.agents.can(p, incarnation, method))

    async def _order(
        self,
        process: str,
        kind: str,
        timeout_s: float,
        *,
        until: float | None = None,
        **fields: Unpack[CommandFields],
    ) -> Result | None:
        if self.incarnation is None:
            return None
        return await self.agents.commands.execute(
            process, self.incarnation, kind, timeout_s, until=until, **fields
        )

    def _answered(
        self, success: bool, error: str, *, runs_on: bool = False, timed_out: bool = False
    ) -> CancelAnswered:
        if not success:
            why = error or "its cancel() answered that it failed"
            logger.warning("task %s was not cancelled: %s", self.task.spec.task_id, why)
        return CancelAnswered(
            task_id=self.task.spec.task_id,
            cancel_success=success,
            runs_on=runs_on,
            timed_out=timed_out,
            error=error,
        )


def _going_on(result: Result) -> str:
    """The end of a message about methods that still run."""
    if not result.running:
        return ""
    return (
        f"; {result.running} of the agent's methods {'runs' if result.running == 1 else 'run'} on"
    )


async def _stored_form(saved: SavedState) -> tuple[str, bytes]:
    """The key and the bytes of a saved state."""
    if len(saved.state or b"") + sum(len(state or b"") for state in saved.members) < _LARGE:
        data = pack(saved)
        return key_of(data), data
    data = await asyncio.to_thread(pack, saved)
    return await asyncio.to_thread(key_of, data), data
