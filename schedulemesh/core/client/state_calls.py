"""Calls about saved states and the health of agents."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from schedulemesh.config.pools import parse_name
from schedulemesh.core.client import results as replies
from schedulemesh.core.client.sending import Client
from schedulemesh.core.transport.user_code import ship_function, ship_state
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.clients import to_saved_state
from schedulemesh.runtime.eviction import TaskState

Preserver = Callable[[TaskState], dict[str, Any]]
Restorer = Callable[[dict[str, Any]], None]


class StateCalls(Client):
    """Save, list, restore; look after agents."""

    def save_task_state(self, task_id: str) -> dict[str, Any]:
        """Save a running task's state now, and let it go on; a rebuilt agent goes on from there."""
        saved = self._connection.call("checkpoint", parse_name(task_id, "task_id"))
        if isinstance(saved, Refused):
            return dict(replies.refused(saved))
        if saved is None:
            error = f"task {task_id!r} is not running, so there is no state to save"
            return {"success": False, "error": error, "reason": "task_not_found"}
        return {"success": True, "saved_state": replies.saved_state(saved)}

    def list_saved_states(self) -> dict[str, Any]:
        """Every task with a stored state, and whether it is running, preempted or lost."""
        return {"success": True, "saved_states": self._connection.call("view", "saved_states")}

    def get_saved_state(self, task_id: str) -> dict[str, Any]:
        """The state last saved of a task, as ``saved_state``; it goes to restore_task."""
        saved = self._connection.call("saved_state", parse_name(task_id, "task_id"))
        if isinstance(saved, Refused):
            return dict(replies.refused(saved))
        if saved is None:
            error = f"no saved state of task {task_id!r}; it was never preempted, or long ago"
            return {"success": False, "error": error, "reason": "state_not_found"}
        return {"success": True, "saved_state": replies.saved_state(saved)}

    def restore_task(self, saved_state: Mapping[str, Any]) -> dict[str, Any]:
        """Run a preempted task again from its saved state.

        The state goes to the pool's restorer, if one is registered, and to the new object's
        ``restore_state``. ``resubmitted`` says whether an agent was started for it.
        """
        if not isinstance(saved_state, Mapping) or "task_id" not in saved_state:
            raise InvalidRequestError(
                f"a saved state is a dict with task_id, as preemption answers it; not {saved_state!r}"
            )
        task_id = parse_name(saved_state["task_id"], "saved_state['task_id']")
        own = saved_state.get("source") == "save_state"
        state = ship_state(saved_state["state"] if own else dict(saved_state))
        given = to_saved_state(saved_state, "save_state" if own else "given", state, time.time())
        pool = saved_state.get("pool_name")
        reply = self._connection.call("restore", given, uuid.uuid4().hex, task_id, pool)
        if isinstance(reply.outcome, Done):
            return {"success": True, "task_id": task_id, "resubmitted": False}
        answer = replies.submitted(reply.outcome, reply.handle, dry_run=False, group=reply.group)
        return {**answer, "resubmitted": answer["success"]}

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: Preserver | None = None,
        restorer: Restorer | None = None,
    ) -> replies.Result:
        """How states of this pool's tasks are saved and restored.

        ``preserver`` takes a TaskState and returns a dict; ``restorer`` takes that dict. Both run in
        workers of their own, at most ``save_timeout`` seconds.
        """
        blobs: dict[str, bytes] = {}
        keys: list[str | None] = []
        for what, function in (("preserver", preserver), ("restorer", restorer)):
            data = None if function is None else ship_function(function, what)
            keys.append(None if data is None else key_of(data))
            if data is not None:
                blobs[key_of(data)] = data
        stimulus = s.StateHandlersGiven(
            at=0.0,
            pool_name=parse_name(pool_name, "the pool's name"),
            preserver_key=keys[0],
            restorer_key=keys[1],
        )
        return replies.done(self._connection.call("act", stimulus, blobs).outcome)

    def ensure_agent_health(self, timeout: float = 120.0) -> dict[str, Any]:
        """Look at every agent: the dead, and those silent for ``timeout`` seconds and deaf to a ping, are
        taken off the book and made again from their last saved state where that can be.

        Returns ``checked`` and ``healthy`` (counts), ``rebuilt`` and ``removed`` (names), and ``details``:
        per agent its problem, what was done, and why not more. Removed ones are told once.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise InvalidRequestError(f"timeout must be seconds above 0, not {timeout!r}")
        found = self._connection.call("ensure_health", float(timeout))
        if isinstance(found, Refused):
            return dict(replies.refused(found))
        return {"success": True, **found}
