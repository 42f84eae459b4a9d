"""The calls that save, load and restore the states of tasks, by themselves and before an eviction."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping

from schedulemesh.api.call import Call
from schedulemesh.api.preemption import ExecutePreemption, PreemptTask
from schedulemesh.api.states import (
    GetSavedState,
    RestoreTask,
    SaveTaskState,
)
from schedulemesh.api.values import client_name
from schedulemesh.client import results
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import (
    ask,
    ask_with_handles,
    respond,
)
from schedulemesh.client.pickling import Pickling
from schedulemesh.client.saved_results import evicted_task, preempted, saved_state
from schedulemesh.client.scheduler_object import SchedulerObject
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_priority
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskSpec, task_row
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import AgentEvicted, Done, Refused
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.answers import Response, SavedBytes
from schedulemesh.protocol.public import refused

#: The keys of what is shown of a task without a state.
_KNOWN = frozenset(
    {
        *task_row(TaskSpec(task_id="t")),
        "agent_name",
        "source",
        "saved_at",
        "consistent",
        "warning",
        "last_metrics",
        "progress",
        "payload",
        "state",
    }
)

#: Pickles a state.
Dump = Callable[[UserValue], bytes]


@public_calls
class StateCalls(SchedulerObject):
    """A scheduler object that saves, loads and restores the states of tasks."""

    _pickling: Pickling

    def save_task_state(self, task_id: str) -> results.SavedStateResult:
        """Save a running task's state now and let the task continue; a rebuilt agent starts from it.

        Returns ``saved_state``, or a refusal: ``task_not_found``, ``task_not_running``, ``save_failed`` or
        ``state_too_large``.
        """
        name = parse_name(task_id, "task_id")
        error = say("nothing_to_save", task=name)
        absent = Refused(reason=Reason.TASK_NOT_FOUND, error_text=error)
        return self._saved_state(SaveTaskState(task_id=name), absent)

    def get_saved_state(self, task_id: str) -> results.SavedStateResult:
        """Return the state last saved of a task as ``saved_state``, for ``restore_task``.

        Refused with ``state_not_found`` where none is stored.
        """
        name = parse_name(task_id, "task_id")
        error = say("no_saved_state", task=name)
        absent = Refused(reason=Reason.STATE_NOT_FOUND, error_text=error)
        return self._saved_state(GetSavedState(task_id=name), absent)

    def restore_task(self, saved_state: Mapping[str, UserValue]) -> results.RestoreResult:
        """Start a preempted task again from its saved state.

        The state is passed to the pool's restorer, if one is registered, and to the new object's
        ``restore_state``. Returns what a submission returns, and ``resubmitted``: whether an agent was
        started.
        """
        saved = given_state(saved_state, time.time(), self._pickling.dump_state)
        request = RestoreTask(saved=saved, client=client_name(), request_id=uuid.uuid4().hex)
        answer, handles = ask_with_handles(self._connection, request, Response)
        response = Response(outcome=answer) if isinstance(answer, Refused) else answer
        if isinstance(response.outcome, Done):
            return {"success": True, "task_id": saved.task.task_id, "resubmitted": False}
        result = results.submitted(response, handles, dry_run=False)
        return {**result, "resubmitted": result["success"]}

    def execute_preemption(self, task_id: str, agent_name: str) -> results.PreemptionResult:
        """Save a task's state and cancel the task; its agent stays, for another task.

        Returns ``saved_state``, ``state_saved``, ``cancel_success`` and ``reason``: that of the last
        evaluation with this candidate, else "manual". A task that is not cancelled runs on, and the answer is
        a refusal with ``not_cancelled`` that has the saved state all the same.
        """
        request = ExecutePreemption(
            task_id=parse_name(task_id, "task_id"),
            agent_name=parse_name(agent_name, "agent_name"),
            request_id=uuid.uuid4().hex,
        )
        response = respond(self._connection, request)
        return preempted(response.outcome, response.saved, self._pickling.load_state)

    def preempt_task(
        self, task_id: str | None = None, agent_name: str | None = None, for_pool: str | None = None
    ) -> results.PreemptionResult:
        """Evict manually: save and cancel the tasks of an agent, and terminate the agent.

        Name the task or the agent; a single name may be either's. The freed quota is held for ``for_pool``
        for 60 s; without it, for this process for 10 s, whatever pool it submits to. Returns ``preempted``:
        the tasks with their saved states.
        """
        request = PreemptTask(
            task_id=None if task_id is None else parse_name(task_id, "task_id"),
            agent_name=None if agent_name is None else parse_name(agent_name, "agent_name"),
            for_pool=None if for_pool is None else parse_name(for_pool, "for_pool"),
            client=client_name(),
            request_id=uuid.uuid4().hex,
        )
        response = respond(self._connection, request)
        if not isinstance(response.outcome, AgentEvicted):
            return preempted(response.outcome, response.saved, self._pickling.load_state)
        load = self._pickling.load_state
        return {
            "success": True,
            "preempted": [evicted_task(task, load) for task in response.evicted],
        }

    def _saved_state(self, request: Call, absent: Refused) -> results.SavedStateResult:
        """A saved state; ``absent`` is the refusal where there is none."""
        answer = ask(self._connection, request, SavedBytes)
        if isinstance(answer, Refused):
            return results.combined(results.SavedStateResult, refused(answer))
        if answer.state is None:
            return results.combined(results.SavedStateResult, refused(absent))
        return {
            "success": True,
            "saved_state": saved_state(answer.state, self._pickling.load_state),
        }


def given_state(value: object, now: float, dump: Dump) -> SavedState:
    """A saved state that a caller passed, as it is stored. Raises InvalidRequestError.

    ``now``: seconds since 1970. ``dump``: pickles a state.
    """
    expected = "a dict with task_id, as preemption answers it"
    items = as_items(value, "a saved state", expected)
    fields = {as_text(key): field_value for key, field_value in items}
    if "task_id" not in fields:
        raise InvalidRequestError(f"a saved state must be {expected}, not {shown(value)}")
    source = as_text(fields.get("source"))
    # What is known of a task without a state is no state, unless its holder has added something.
    bare = source == "payload" and fields.get("state") is None and fields.keys() <= _KNOWN
    agent_saved = source == "save_state" and "state" in fields
    gang = agent_saved and "world_size" in fields
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
        source="save_state" if agent_saved else "payload" if bare else "given",
        saved_at=now,
        state=None if gang else dump(fields["state"] if agent_saved else dict(items)),
        members=_members(fields["state"], dump) if gang else (),
    )


def _members(states: object, dump: Dump) -> tuple[bytes | None, ...]:
    """The states of the members of a gang."""
    member_states = as_elements(
        states, "saved_state['state'] of a gang", "a list of its members' states"
    )
    return tuple(None if state is None else dump(state) for state in member_states)


def _optional_name(fields: Mapping[str | None, object], name: str) -> str:
    value = fields.get(name)
    return "" if value is None or value == "" else parse_name(value, f"saved_state[{name!r}]")
