"""Calls are declared once: who may make them, what their fields may hold, and that something answers them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from schedulemesh import api
from schedulemesh.api.agents import EnsureAgentHealth
from schedulemesh.api.call import ChangeWithBlobs, ChangingCall
from schedulemesh.api.calls import CALLS
from schedulemesh.api.history import QueryUsage
from schedulemesh.api.nodes import Drain
from schedulemesh.api.pools import EnsureCohort
from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.api.tasks import CancelTasks, ExplainTask, GetResult
from schedulemesh.api.values import MAX_NAMES, Checked
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError
from schedulemesh.runtime.handlers import handler, handlers_of
from tests.runtime.request_samples import sample

#: What a submitter may do, beyond looking.
OF_SUBMITTERS = {
    "submit_task",
    "submit_many",
    "register_task",
    "complete_task",
    "cancel_task",
    "cancel_tasks",
    "change_queued_task",
    "set_time_limit",
    "get_result",
    "read_task_log",
    "start_exec",
    "read_exec",
    "write_exec",
    "watch_lease",
    "renew_lease",
    "save_lease",
    "release_lease",
    "save_task_state",
    "get_saved_state",
    "restore_task",
}
#: Changes that operators of pools make in theirs; the table of ``tests/runtime/test_pool_operators.py``.
OF_POOL_OPERATORS = {
    "delete_agent",
    "drain",
    "ensure_pool",
    "execute_preemption",
    "preempt_task",
    "register_state_handlers",
    "resize_pool",
}
#: Queries that only operators make.
OF_OPERATORS = {"list_tokens", "get_token_hashes", "list_audit_page", "query_audit"}


def tag_of(call):
    return call.__struct_config__.tag


def test_who_may_make_which_call():
    roles = {tag_of(call): call.least_role for call in CALLS}
    assert {tag for tag, role in roles.items() if role is Role.SUBMITTER} == OF_SUBMITTERS
    assert {tag for tag, role in roles.items() if role is Role.POOL_OPERATOR} == OF_POOL_OPERATORS
    listed = OF_SUBMITTERS | OF_POOL_OPERATORS | OF_OPERATORS
    others = [call for call in CALLS if tag_of(call) not in listed]
    for call in others:
        assert call.least_role is (Role.OPERATOR if call.changes_state else Role.VIEWER), call
    assert all(roles[tag] is Role.OPERATOR for tag in OF_OPERATORS)


@pytest.mark.parametrize(
    ("role", "number"),
    [(Role.VIEWER, 0), (Role.SUBMITTER, 1), (Role.POOL_OPERATOR, 2), (Role.OPERATOR, 3)],
)
def test_each_role_may_do_what_those_before_it_may(role, number):
    assert [r for r in Role if ExplainTask.allows(r)] == list(Role)
    assert GetResult.allows(role) == (number >= 1)
    assert Drain.allows(role) == (number >= 2)
    assert EnsureCohort.allows(role) == (number == 3)


def test_every_call_that_is_written_down_is_known():
    folder = Path(api.__path__[0])
    written = [
        tag
        for path in folder.glob("*.py")
        for tag in re.findall(r'\btag="(\w+)"', path.read_text(encoding="utf-8"))
    ]
    assert sorted(map(tag_of, CALLS)) == sorted(written)
    assert len(set(written)) == len(written)


#: Where the calls of Python and of commands are made.
MADE_IN = {
    "Python": ("client", "core/client", "simple.py", "job.py", "protocol/exec_reader.py"),
    "commands": ("cli", "protocol/exec_reader.py"),
}
#: Those that they do not make.
NOT_MADE = {
    "Python": {
        # Tokens are for people: commands and HTTP issue them.
        *(
            "ChangeToken",
            "CreateToken",
            "GetTokenHashes",
            "ListTokens",
            "RevokeToken",
            "RotateToken",
        ),
        # Python gets all rows at once.
        *("ListAuditPage", "ListPage"),
    },
    "commands": {
        # For programs: they have a class, an object or a list of their own.
        *(
            "DeleteAgent",
            "ExecutePreemption",
            "RegisterStateHandlers",
            "RegisterTask",
            "SubmitMany",
        ),
        # Commands use the functions of Python for these.
        *("EndOrphans", "ListOrphans", "SaveLease", "SubmitTask"),
        # Other calls say or do the same, and more.
        *("CancelTask", "GetPreemptionStats", "GetStats", "ListAuditPage", "ListStrategies"),
    },
}


@pytest.mark.parametrize("caller", MADE_IN)
def test_every_call_is_made(caller):
    """A call without a method or a command is found here; one without an answer or over HTTP is elsewhere."""
    package = Path(api.__path__[0]).parent
    parts = [package / part for part in MADE_IN[caller]]
    files = [file for part in parts for file in (part.rglob("*.py") if part.is_dir() else (part,))]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text("utf-8"))}
    words |= {call.__name__ for call in CALLS if caller == "commands" and has_table(call)}
    assert {call.__name__ for call in CALLS} - words == NOT_MADE[caller]


def has_table(call):
    """Whether a command is declared with a call."""
    return any(listing.table for listing in call.listings)


def test_changes_have_a_request_id_and_queries_have_none():
    for call in CALLS:
        is_change = issubclass(call, (ChangingCall, ChangeWithBlobs))
        assert ("request_id" in call.__struct_fields__) == is_change, call
        assert is_change <= call.changes_state


def checked_fields():
    """Every field of a call whose type checks itself by a name, with the call."""
    for call in CALLS:
        hints = get_type_hints(call, include_extras=True)
        for name in call.__struct_fields__:
            for part in (hints[name], *get_args(hints[name])):
                metadata = getattr(part, "__metadata__", ())
                if get_args(part)[:1] == (str,) and any(isinstance(m, Checked) for m in metadata):
                    yield call, name


@pytest.mark.parametrize(
    ("call", "field"),
    [pytest.param(*pair, id=f"{pair[0].__name__}.{pair[1]}") for pair in checked_fields()],
)
def test_a_name_that_is_none_is_refused_in_every_field(call, field):
    with pytest.raises(InvalidRequestError):
        msgspec.structs.replace(sample(call), **{field: "a\nb"})


def test_absent_values_are_not_checked_and_others_are():
    assert EnsureCohort(name="c").parent is msgspec.UNSET
    assert EnsureCohort(name="c", parent=None).parent is None
    for parent in ("", 5, "x" * 300):
        with pytest.raises(InvalidRequestError, match="parent must be a text"):
            EnsureCohort(name="c", parent=parent)
    with pytest.raises(InvalidRequestError, match="the cohort's name must be a text"):
        EnsureCohort(name=None)
    with pytest.raises(InvalidRequestError, match="limit must be"):
        EvaluatePreemption(priority=1.0, pool_name="p", limit=10_001)


def test_too_many_names_are_counted():
    with pytest.raises(InvalidRequestError, match="1,001 names; one request has up to 1,000"):
        CancelTasks(task_ids=tuple(f"t-{i}" for i in range(MAX_NAMES + 1)))


class Answers:
    @handler
    async def explain(self, request: ExplainTask) -> None:
        """Answers one call."""


class AnswersToo(Answers):
    @handler
    async def again(self, request: ExplainTask) -> None:
        """Answers the same one."""


def test_a_call_is_answered_by_one_method():
    assert list(handlers_of(Answers())) == [ExplainTask]
    with pytest.raises(ValueError, match="two methods answer ExplainTask"):
        handlers_of(AnswersToo())


def test_messages_name_times_as_callers_do():
    with pytest.raises(InvalidRequestError, match=r"^deadline must be seconds"):
        Drain(node_id="n", deadline_s=0, client="c")
    with pytest.raises(InvalidRequestError, match=r"^timeout must be seconds"):
        EnsureAgentHealth(timeout_s=-1)
    with pytest.raises(InvalidRequestError, match=r"^until is 5m before since; exchange the two$"):
        QueryUsage(since=1000.0, until=700.0)
