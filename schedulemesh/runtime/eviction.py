"""The hand that evicts: notice, save, make durable, cancel. The engine has decided already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from ray.exceptions import RayError

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.core.agent.user_workers import preserve
from schedulemesh.core.backend.ray_backend import RayApi
from schedulemesh.domain.task import TaskState
from schedulemesh.engine.messages.stimuli import CancelAnswered, StateStored
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.agents import (
    Handled,
    MessageError,
    Result,
    SavedState,
    key_of,
    pack,
    unpack,
)
from schedulemesh.runtime.agent_registry import Agents

__all__ = ["Eviction", "TaskState"]

logger = logging.getLogger(__name__)

#: Seconds that an agent may take to send the metrics that it holds back.
_PING_S = 1.0

#: Takes a stimulus and blobs; returns once they are durable.
Feed = Callable[[Any, Mapping[str, bytes]], Awaitable[Any]]


class Eviction(msgspec.Struct, kw_only=True):
    """The eviction of one task of one agent."""

    ray: RayApi
    agents: Agents
    policy: PreemptionPolicy
    feed: Feed
    task: RunningTask
    incarnation: int | None
    #: The pool's preserver as bytes; None: there is none.
    preserver: bytes | None
    payload: bytes | None
    #: The state that was saved of it before, as stored; None: there is none.
    earlier: bytes | None
    now: float

    async def notice(self, grace_s: float) -> None:
        """Tell the agent that it has so many seconds, and wait them out."""
        if self._can("on_preemption_notice"):
            await self._order("notice", min(self.policy.cancel_timeout, 1.0), seconds=grace_s)
        if grace_s > 0:
            await asyncio.sleep(grace_s)

    async def save(self) -> SavedState:
        """Save the task's state from the best source that works, and make it durable."""
        return await self._keep(await self._saved())

    async def checkpoint(self) -> SavedState | str:
        """As ``save``, where it can be saved now. Where it cannot, what was saved before stays as it is,
        and the text says why: nobody may take that for what was asked for.
        """
        saved = await self._saved()
        fresh = saved.saved_at == self.now and (saved.source != "payload" or not saved.warning)
        return await self._keep(saved) if fresh else saved.warning

    async def _keep(self, saved: SavedState) -> SavedState:
        if saved.warning:
            logger.warning("saving task %s: %s", saved.task_id, saved.warning)
        data = pack(saved)
        await self.feed(
            StateStored(
                at=0.0,
                task_id=saved.task_id,
                state_key=key_of(data),
                consistent=saved.consistent,
                source=saved.source,
            ),
            {key_of(data): data},
        )
        return saved

    async def resume(self) -> None:
        """Let a task that waits at a safe point go on."""
        await self._order("resume", self.policy.cancel_timeout)

    @property
    def can_cancel(self) -> bool:
        """Whether the agent's class has a ``cancel``."""
        return self._can("cancel")

    async def cancel(self) -> CancelAnswered:
        """Have the agent cancel its task, at most ``cancel_timeout``; the answer says what came of it."""
        task_id = self.task.spec.task_id
        if self.incarnation is None:
            return self._answered(False, f"agent {self.task.agent_name!r} cannot be reached")
        result = await self._order("cancel", self.policy.cancel_timeout, task_id=task_id)
        if result is None:
            return self._answered(
                False, f"cancel() did not return within {self.policy.cancel_timeout:g} s"
            )
        if not result.able:
            return self._answered(False, "the agent's class has no cancel()", runs_on=True)
        success = result.success and not result.error
        return self._answered(success, result.error, runs_on=not success)

    async def _saved(self) -> SavedState:
        warning = ""
        if self.preserver is not None:
            await self._newest_metrics()
            base = self._base()
            handled = await self._preserve(base)
            if not handled.error:
                return msgspec.structs.replace(base, source="preserver", state=handled.data)
            warning = f"the pool's preserver failed: {handled.error}"
        if self._can("save_state"):
            result = await self._save_state()
            if not result.error and result.data is not None:
                return msgspec.structs.replace(
                    self._base(),
                    source="save_state",
                    state=result.data,
                    consistent=result.consistent,
                    warning=warning,
                )
            warning = f"{warning} save_state failed: {result.error}".strip()
        elif self.preserver is None:
            await self._newest_metrics()
        return self._saved_before(warning) or msgspec.structs.replace(self._base(), warning=warning)

    async def _newest_metrics(self) -> None:
        """Have the agent send metrics that it holds back; one that reports none is not asked."""
        if self.agents.metrics.may_have_newer(self.task.agent_name):
            await self._order("ping", _PING_S)

    def _saved_before(self, warning: str) -> SavedState | None:
        """The last state that could be saved, which is better than none: an agent may die while it is
        evicted.
        """
        if self.earlier is None:
            return None
        earlier = msgspec.msgpack.decode(self.earlier, type=SavedState)
        if earlier.state is None:
            return None
        return msgspec.structs.replace(
            earlier, warning=f"{warning} This is the state that was saved before.".strip()
        )

    async def _preserve(self, base: SavedState) -> Handled:
        args = (self.preserver, pack(base), self.task.started_at, self.task.spec.estimated_duration)
        try:
            answer = await self.ray.run(preserve, args, self.policy.save_timeout, None)
            return unpack(answer, Handled)
        except (TimeoutError, RayError, MessageError) as error:
            return Handled(error=str(error))

    async def _save_state(self) -> Result:
        # Half of the time may go by waiting for a safe point; the other half is for saving.
        wait_s = self.policy.save_timeout / 2
        result = await self._order("save", self.policy.save_timeout, seconds=wait_s)
        told = f"no answer within {self.policy.save_timeout:g} s, or the agent died"
        return result or Result(error=told)

    def _base(self) -> SavedState:
        spec = self.task.spec
        return SavedState(
            task_id=spec.task_id,
            agent_name=self.task.agent_name,
            pool_name=spec.pool_name,
            priority=spec.priority,
            labels=spec.labels,
            source="payload",
            saved_at=self.now,
            last_metrics=self.agents.metrics.of(self.task.agent_name),
            payload=self.payload,
        )

    def _can(self, method: str) -> bool:
        if self.incarnation is None:
            return False
        return self.agents.can(self.task.agent_name, self.incarnation, method)

    async def _order(self, kind: str, timeout_s: float, **fields: Any) -> Result | None:
        if self.incarnation is None:
            return None
        return await self.agents.order(
            self.task.agent_name, self.incarnation, kind, timeout_s, **fields
        )

    def _answered(self, success: bool, error: str, *, runs_on: bool = False) -> CancelAnswered:
        if error:
            logger.info("cancelling task %s: %s", self.task.spec.task_id, error)
        return CancelAnswered(
            at=0.0,
            task_id=self.task.spec.task_id,
            cancel_success=success,
            runs_on=runs_on,
            error=error,
        )
