"""Calls about saved states and the health of agents."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from schedulemesh.core.actors.control.preemption_controller import TaskState
from schedulemesh.core.client import results
from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.asking import ask_with_handles
from schedulemesh.core.client.sending import Client
from schedulemesh.core.client.task_request import client_name
from schedulemesh.core.transport.user_code import ship_function, ship_state
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_priority, parse_timeout
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Done, Refused
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import SavedState, key_of
from schedulemesh.protocol.answers import Response, SavedBytes
from schedulemesh.protocol.requests import (
    AnyRequest,
    EndOrphans,
    EnsureAgentHealth,
    GetSavedState,
    ListOrphans,
    ListSavedStates,
    RegisterStateHandlers,
    RestoreTask,
    SaveTaskState,
)

Preserver = Callable[[TaskState], dict[str, Any]]
Restorer = Callable[[dict[str, Any]], None]


@public_calls
class StateCalls(Client):
    """Save, list, restore; look after agents."""

    def save_task_state(self, task_id: str) -> dict[str, Any]:
        """Save a running task's state now, and let it go on; a rebuilt agent goes on from there."""
        name = parse_name(task_id, "task_id")
        error = f"task {name!r} is not running, so there is no state to save"
        return self._state(
            SaveTaskState(task_id=name), Refused(reason=Reason.TASK_NOT_FOUND, error=error)
        )

    def list_saved_states(self) -> dict[str, Any]:
        """Every task with a stored state, and whether it is running, preempted or lost."""
        return self._listed(ListSavedStates(), "saved_states")

    def get_saved_state(self, task_id: str) -> dict[str, Any]:
        """The state last saved of a task, as ``saved_state``; it goes to restore_task."""
        name = parse_name(task_id, "task_id")
        error = f"no saved state of task {name!r}; it was never preempted, or long ago"
        return self._state(
            GetSavedState(task_id=name), Refused(reason=Reason.STATE_NOT_FOUND, error=error)
        )

    def _state(self, request: AnyRequest, none: Refused) -> dict[str, Any]:
        """A saved state, or why there is none (``none``: there is nothing to be had)."""
        saved = self._ask(request, SavedBytes)
        if isinstance(saved, Refused) or saved.state is None:
            return dict(results.refused(saved if isinstance(saved, Refused) else none))
        return {"success": True, "saved_state": results.saved_state(saved.state)}

    def restore_task(self, saved_state: Mapping[str, Any]) -> dict[str, Any]:
        """Run a preempted task again from its saved state.

        The state goes to the pool's restorer, if one is registered, and to the new object's
        ``restore_state``. ``resubmitted`` says whether an agent was started for it.
        """
        saved = given_state(saved_state, time.time())
        request = RestoreTask(saved=saved, client=client_name(), request_id=uuid.uuid4().hex)
        found, handles = ask_with_handles(self._connection, request, Response)
        reply = Response(outcome=found) if isinstance(found, Refused) else found
        if isinstance(reply.outcome, Done):
            return {"success": True, "task_id": saved.task.task_id, "resubmitted": False}
        handle = handles[0] if handles else None
        answer = results.submitted(reply.outcome, handle, dry_run=False, group=reply.group)
        return {**answer, "resubmitted": answer["success"]}

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: Preserver | None = None,
        restorer: Restorer | None = None,
    ) -> results.Result:
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
        request = RegisterStateHandlers(
            pool_name=parse_name(pool_name, "the pool's name"),
            preserver_key=keys[0],
            restorer_key=keys[1],
            blobs=blobs,
        )
        return results.done(self._reply(request).outcome)

    def list_orphans(self) -> dict[str, Any]:
        """Actors and placement groups of this scheduler that its journal does not know, because a backup was
        put back while they lived: ``orphans``, each with its ``name`` in Ray and its ``kind``.
        """
        return self._listed(ListOrphans(), "orphans")

    def end_orphans(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """End the orphans with these names in Ray, None: all. Their placement groups go with the last.

        Returns ``ended`` (names).
        """
        return self._details(EndOrphans(names=None if names is None else _names(names)))

    def ensure_agent_health(self, timeout: float = 120.0) -> dict[str, Any]:
        """Look at every agent: the dead, and those silent for ``timeout`` seconds and deaf to a ping, are
        taken off the book and made again from their last saved state where that can be.

        Returns ``checked`` and ``healthy`` (counts), ``rebuilt`` and ``removed`` (names), and ``details``:
        per agent its problem, what was done, and why not more. Removed ones are told once.
        """
        return self._details(EnsureAgentHealth(timeout_s=parse_timeout(timeout, "timeout")))


def _names(given: object) -> tuple[str, ...]:
    """Names as list_orphans gives them. Raises InvalidRequestError."""
    text = as_text(given)
    names = as_elements(given, "names", "a list of names", sets=True) if text is None else [text]
    return tuple(parse_name(name, "each of names") for name in names)


def given_state(given: object, now: float) -> SavedState:
    """A saved state that a caller passed in, as it is stored. Raises InvalidRequestError."""
    expected = "a dict with task_id, as preemption answers it"
    items = as_items(given, "a saved state", expected)
    fields = {as_text(key): value for key, value in items}
    if "task_id" not in fields:
        raise InvalidRequestError(f"a saved state must be {expected}, not {shown(given)}")
    own = as_text(fields.get("source")) == "save_state" and "state" in fields
    priority = fields.get("priority")
    return SavedState(
        task=TaskSpec(
            task_id=parse_name(fields["task_id"], "saved_state['task_id']"),
            pool_name=_optional_name(fields, "pool_name"),
            priority=(
                0.0 if priority is None else parse_priority(priority, "saved_state['priority']")
            ),
        ),
        agent_name=_optional_name(fields, "agent_name"),
        source="save_state" if own else "given",
        saved_at=now,
        state=ship_state(fields["state"] if own else dict(items)),
    )


def _optional_name(fields: Mapping[str | None, Any], name: str) -> str:
    given = fields.get(name)
    return "" if given is None or given == "" else parse_name(given, f"saved_state[{name!r}]")
