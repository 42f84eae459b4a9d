"""Records every change: who asked for it, from where, and what was there before and after.

A change is recorded before it is carried out, and once more with its outcome. Both are facts in the journal:
no change is carried out whose record could be lost, and one that was interrupted stays recorded as ``open``.
Submissions and ends of tasks are in the history instead; recording them here too would double their cost.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from weakref import WeakValueDictionary

import msgspec
from msgspec import json

from schedulemesh.api.audit import MAX_LISTED, ChangeInfo, ListAuditPage, QueryAudit
from schedulemesh.api.call import Call
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.pages import PageQuery, Selected, Selection, foreign_cursor
from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy
from schedulemesh.api.pools import (
    CreateCohort,
    CreatePool,
    DeleteCohort,
    DeletePool,
    EnsureCohort,
    EnsurePool,
    RenameCohort,
    RenamePool,
    ResizePool,
)
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.tasks import SetTimeLimit
from schedulemesh.api.tokens import (
    ChangeToken,
    CreateToken,
    RevokeToken,
    RotateToken,
    token_info,
)
from schedulemesh.api.windows import CreateWindow, DeleteWindow
from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.queueing import changed_queue_policy
from schedulemesh.domain.audit import DONE, REFUSED, AuditRecord
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.tokens import LOCAL
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.audit_facts import ChangeAnswered
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.errors import InvalidRequestError, JournalError, shown
from schedulemesh.protocol.answers import (
    AnyAnswer,
    Details,
    Listed,
    Malformed,
    PoolResponse,
    Refusal,
    Response,
    WithHandles,
    details,
    listed,
)
from schedulemesh.protocol.callers import RequestSource, TokenCaller
from schedulemesh.protocol.credentials import without_token
from schedulemesh.protocol.public import pool_definition
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.reactor import Reactor
from schedulemesh.store.journal import InDoubtError

logger = logging.getLogger(__name__)

#: Characters of a text in a record.
_MOST = 4_000
#: Values within values that a record shows.
_DEEPEST = 50
#: Fields of requests that are not recorded: bytes, and what the record has elsewhere.
_LEFT_OUT = ("request", "blobs", "client", "request_id", "saved")
#: The fields of requests and definitions that are shown nowhere.
_HIDDEN = ("secret_hash",)


#: Records that are looked at before it is asked whether there are enough.
_LOOKED_AT = 1_000
#: The orders in which records are kept.
_BY_NUMBER = ((("number", False),), (("number", True),))


#: The fields of a type of struct, found out once: that takes longer than a whole record otherwise.
_fields_of = functools.cache(msgspec.structs.fields)


class Audit:
    """Writes and reads the record."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        #: Held while something is changed, by what it is.
        self._changing: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    async def carry_out(
        self,
        request: Call,
        caller: TokenCaller | None,
        source: RequestSource,
        execute: Callable[[], Awaitable[AnyAnswer | WithHandles]],
    ) -> AnyAnswer | WithHandles:
        """Record a change, execute it, and record its outcome. Raises JournalError where ``execute`` does,
        and where the change cannot be recorded; then it is not executed.

        Changes of the same thing are executed one after the other, so that each has its own before and after.
        A request for what is so already changes nothing and is not recorded.
        """
        subject = _changed_alone(request)
        if subject is None:
            return await self._execute_recorded(request, caller, source, execute)
        lock = self._changing.setdefault(subject, asyncio.Lock())
        async with lock:
            return await self._execute_recorded(request, caller, source, execute)

    async def _execute_recorded(
        self,
        request: Call,
        caller: TokenCaller | None,
        source: RequestSource,
        execute: Callable[[], Awaitable[AnyAnswer | WithHandles]],
    ) -> AnyAnswer | WithHandles:
        state = self._reactor.state
        record = AuditRecord(
            number=0,
            call=str(type(request).__struct_config__.tag),
            token="" if caller is None else caller.token.name,
            role="" if caller is None else caller.role.value,
            owner="" if caller is None else caller.token.owner,
            address=source.address,
            user=source.user,
            user_verified=source.user_verified,
            request=_request(request),
            before=_subject(state, request),
        )
        if is_so_already(state, request):
            answer = await execute()
            # Another change may have come first; a caller that may not ask for this is refused.
            outcome = _outcome(answer)
            if outcome[0] == REFUSED or _subject(state, request) != record.before:
                await self._record_outcome(await self._record_received(record), request, outcome)
            return answer
        number = await self._record_received(record)
        try:
            answer = await execute()
        except JournalError as failed:
            # It stays open where it may have been carried out, as after the supervisor was killed.
            if not isinstance(failed, InDoubtError):
                reason = Reason.JOURNAL_UNAVAILABLE.value
                await self._record_outcome(number, request, (REFUSED, reason, str(failed)))
            raise
        await self._record_outcome(number, request, _outcome(answer))
        return answer

    async def _record_received(self, record: AuditRecord) -> int:
        """Record a change that was requested; returns its number."""
        step = await self._reactor.step(s.ChangeWasReceived(record=record))
        return max(fact.record.number for fact in step.facts if hasattr(fact, "record"))

    async def _record_outcome(
        self, number: int, request: Call, outcome: tuple[str, str, str]
    ) -> None:
        result, reason, error = outcome
        fact = ChangeAnswered(
            number=number,
            outcome=result,
            reason=reason,
            error=error[:_MOST],
            after=_subject(self._reactor.state, request),
        )
        try:
            await self._reactor.step(s.ChangeWasAnswered(fact=fact))
        except JournalError as failed:
            logger.warning("the outcome of change %d is not recorded: %s", number, failed)

    @handler
    async def query(self, request: QueryAudit) -> Listed:
        """The changes that a request is about, the newest first."""
        reactor = self._reactor
        while True:
            await reactor.until_consistent()
            engine = reactor.engine
            rows = await self._rows(await self._matching(request))
            await reactor.flushed()
            if reactor.engine is engine:
                return listed(rows)

    @handler
    async def page(self, request: ListAuditPage) -> Details:
        """One page of the changes, of which no other rows are made."""
        reactor = self._reactor
        while True:
            await reactor.until_consistent()
            engine = reactor.engine
            selected = await self._selected(request.page)
            rows = await self._rows(selected.items)
            await reactor.flushed()
            if reactor.engine is engine:
                return details({"items": rows, "total": selected.total, "more": selected.more})

    async def _matching(self, request: QueryAudit) -> list[AuditRecord]:
        """The newest records that a request is about, which are looked at in portions."""
        records = self._reactor.state.audit.between(request.after, request.before)
        matching: list[AuditRecord] = []

        def add(portion: Sequence[AuditRecord]) -> None:
            matching.extend(record for record in portion if _is_about(request, record))

        for end in range(len(records), 0, -_LOOKED_AT):
            await self._reactor.turns.each(records[max(0, end - _LOOKED_AT) : end][::-1], add)
            if len(matching) >= request.limit or not _is_in_time(request, records[end - 1]):
                break
        return matching[: request.limit]

    async def _selected(self, page: PageQuery) -> Selected:
        """The records of a page of the newest ones."""
        records = self._reactor.state.audit.all()[-MAX_LISTED:]
        if page.order in _BY_NUMBER and not page.is_filtered_by_others_than():
            return _cut(records, page)
        selection = Selection[AuditRecord](page, _value)
        await self._reactor.turns.each(records, selection.add)
        return selection.selected()

    async def _rows(self, records: Sequence[AuditRecord]) -> list[ChangeInfo]:
        rows: list[ChangeInfo] = []
        await self._reactor.turns.each(records, lambda portion: rows.extend(map(_row, portion)))
        return rows


def _is_about(request: QueryAudit, record: AuditRecord) -> bool:
    """Whether a request is about a record, as far as its number does not tell."""
    return (
        _is_in_time(request, record)
        and request.token in (None, record.token, _who(record))
        and request.call in (None, record.call)
        and request.outcome in (None, record.outcome)
    )


def _is_in_time(request: QueryAudit, record: AuditRecord) -> bool:
    return request.since is None or record.at >= request.since


def _cut(records: Sequence[AuditRecord], page: PageQuery) -> Selected:
    """The page of records in the order of their numbers, or in the opposite one. Raises InvalidRequestError
    for a cursor of another listing.
    """
    ((_, newest_first),) = page.order
    begin, end = 0, len(records)
    if page.after is not None:
        (number,) = page.after
        if not isinstance(number, float | int):
            raise foreign_cursor()
        if newest_first:
            end = bisect_left(records, number, key=_number)
        else:
            begin = bisect_right(records, number, key=_number)
    rest = end - begin
    count = min(rest, page.limit)
    items = records[end - count : end][::-1] if newest_first else records[begin : begin + count]
    return Selected([*items], len(records), rest > count)


def _number(record: AuditRecord) -> int:
    return record.number


def _value(record: AuditRecord, field: str) -> object:
    """The value of a field of its row, if that is one value."""
    return _who(record) if field == "who" else getattr(record, field, None)


def _who(record: AuditRecord) -> str:
    """The name of the token; where a change came without one, or with that which all processes of a user on
    this machine have, the user and host, or else the process that it came from.
    """
    if record.token not in ("", LOCAL):
        return record.token
    return record.user or record.token or record.address.partition(", ray job ")[0]


def _is_verified(record: AuditRecord) -> bool:
    """Whether a token or the system of the machine says who requested a change."""
    return record.user_verified or (bool(record.token) and _who(record) == record.token)


def _row(record: AuditRecord) -> ChangeInfo:
    return {
        "number": record.number,
        "at": record.at,
        "call": record.call,
        "token": record.token,
        "role": record.role,
        "owner": record.owner,
        "address": record.address,
        "user": record.user,
        "request": json.decode(record.request),
        "before": _decoded(record.before),
        "after": _decoded(record.after),
        "outcome": record.outcome,
        "reason": record.reason,
        "error": record.error,
        "who": _who(record),
        "who_verified": _is_verified(record),
    }


def _decoded(recorded: str) -> dict[str, object] | None:
    """What was recorded as JSON; None: nothing was."""
    return json.decode(recorded) if recorded else None


def _outcome(answer: AnyAnswer | WithHandles) -> tuple[str, str, str]:
    """The outcome of a change, and of a refusal its code and its sentence."""
    plain_answer = answer.answer if isinstance(answer, WithHandles) else answer
    if isinstance(plain_answer, Malformed):
        return REFUSED, "invalid_request", plain_answer.error
    refused = plain_answer.refused if isinstance(plain_answer, Refusal) else None
    if isinstance(plain_answer, (Response, PoolResponse)) and isinstance(
        plain_answer.outcome, Refused
    ):
        refused = plain_answer.outcome
    return (DONE, "", "") if refused is None else (REFUSED, refused.reason.value, refused.error)


class _Walk:
    """Makes plain data of values, as much of it as a record shows: its work does not grow with a request."""

    def __init__(self) -> None:
        #: Characters that are still looked for, at least one in each value.
        self._most = _MOST

    def plain(self, value: object, depth: int = 0) -> object:
        """A value as plain data, with amounts as callers give them and without tokens in Ray options."""
        self._most -= 1 + len(value) if isinstance(value, str) else 1
        if depth > _DEEPEST:
            return "..."
        match value:
            case Resources():
                return value.public()
            case msgspec.Struct():
                return self._elements(_given(value), depth)
            case dict():
                return self._elements(value.items(), depth)
            case tuple() | list() | frozenset() | set():
                return [self.plain(element, depth + 1) for element in value if self._most > 0]
            case _:
                return msgspec.to_builtins(value, enc_hook=shown)

    def _elements(self, items: Iterable[tuple[object, object]], depth: int) -> dict[str, object]:
        elements: dict[str, object] = {}
        for key, element in items:
            name = str(key)
            self._most -= len(name)
            if key == "options" and isinstance(element, str):
                elements[name] = without_token(element)
            else:
                elements[name] = self.plain(element, depth + 1)
            if self._most <= 0:
                break
        return elements


def _given(value: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """The fields of a request or a definition that do not have their defaults, without secrets."""
    for field in _fields_of(type(value)):
        content = getattr(value, field.name)
        if field.name not in _HIDDEN and content not in (field.default, msgspec.UNSET):
            yield field.name, content


def _request(request: Call) -> str:
    fields = {name: content for name, content in _given(request) if name not in _LEFT_OUT}
    return _text(fields)


def _changed_alone(request: Call) -> tuple[str, ...] | None:
    """What a request changes, if others that change it wait for this one; None: they do not. Changes of pools
    do not wait for each other, because they may wait for placement groups.
    """
    match request:
        case ChangePolicy() | ChangeQueuePolicy():
            return (type(request).__name__,)
        case EnsureCohort() | CreateCohort() | DeleteCohort() | RenameCohort():
            return ("cohort", request.name)
        case DeletePool() | RenamePool():
            return ("pool", request.name)
        case CreateToken():
            return ("token", request.spec.name)
        case RotateToken() | ChangeToken() | RevokeToken():
            return ("token", request.name)
        case Drain():
            return ("drain", request.node_id or "", request.pool_name or "")
        case CordonNode():
            return ("node", request.node_id)
        case CreateWindow() | DeleteWindow():
            return ("window", request.name)
        case ChangeQueuedTask() | SetTimeLimit():
            return ("task", request.task_id)
        case _:
            return None


def _subject(state: MeshState, request: Call) -> str:
    """What a change is about as it is now; empty: it does not exist, or is not one thing."""
    match request:
        case CreatePool() | EnsurePool() | ResizePool() | DeletePool() | RenamePool():
            name = request.spec.name if isinstance(request, CreatePool) else request.name
            name = state.pool_names.current(name)
            account = state.ledger.accounts.get(name)
            return "" if account is None else _text(_pool(account.spec))
        case EnsureCohort() | CreateCohort() | DeleteCohort():
            cohort = state.ledger.cohorts.specs.get(request.name)
            return "" if cohort is None else _text(cohort)
        case ChangePolicy():
            policy = state.policy
            return _text({name: getattr(policy, name, None) for name in request.changes})
        case ChangeQueuePolicy():
            return _text(state.queue.policy.public())
        case CreateToken():
            return _token(state, request.spec.name)
        case RotateToken() | ChangeToken() | RevokeToken():
            return _token(state, request.name)
        case Drain():
            drains = state.drains
            drain = drains.nodes.get(request.node_id or "") or drains.pools.get(
                request.pool_name or ""
            )
            return "" if drain is None else _text(drain)
        case CreateWindow() | DeleteWindow():
            window = state.windows.by_name.get(request.name)
            return "" if window is None else _text(window)
        case CordonNode():
            node = state.cluster.nodes.get(request.node_id)
            return "" if node is None else _text({"cordoned": node.cordoned})
        case ChangeQueuedTask():
            waiting = state.queue.by_id.get(request.task_id)
            running = state.running.by_id.get(request.task_id)
            if running is not None:
                return _text({"priority": running.spec.priority})
            if waiting is None:
                return ""
            return _text({"priority": waiting.spec.priority, "held": waiting.held})
        case SetTimeLimit():
            task = state.running.by_id.get(request.task_id) or state.queue.by_id.get(
                request.task_id
            )
            return "" if task is None else _text({"max_run_s": task.spec.max_run_s})
        case _:
            return ""


def _pool(spec: PoolSpec) -> dict[str, object]:
    """A pool's definition as listings show it."""
    definition: dict[str, object] = dict(pool_definition(spec))
    if spec.groups is not None:
        definition["pg_pool_config"] = spec.groups
    return definition


def is_so_already(state: MeshState, request: Call) -> bool:
    """Whether a request asks for what is so already, and would change nothing."""
    try:
        match request:
            case CreatePool():
                account = state.ledger.accounts.get(request.spec.name)
                return account is not None and account.spec == request.spec
            case EnsurePool() | ResizePool():
                account = state.ledger.accounts.get(request.name)
                return account is not None and request.applied_to(account.spec) == account.spec
            case CreateCohort():
                return state.ledger.cohorts.specs.get(request.name) == request.spec
            case EnsureCohort():
                cohort = state.ledger.cohorts.specs.get(request.name)
                return cohort is not None and request.applied_to(cohort) == cohort
            case ChangePolicy():
                return all(_has(state.policy, name, to) for name, to in request.changes.items())
            case ChangeQueuePolicy():
                policy = state.queue.policy
                return changed_queue_policy(policy, request.changes) == policy
            case CordonNode():
                node = state.cluster.nodes.get(request.node_id)
                return node is not None and node.cordoned == request.cordoned
            case _:
                return False
    except (InvalidRequestError, RecursionError, TypeError):
        return False


def _has(policy: PreemptionPolicy, name: str, value: object) -> bool:
    """Whether a field of a policy has this value, which comes from a request."""
    if name not in policy.__struct_fields__:
        return False
    if isinstance(value, (dict, list)):
        encode = functools.partial(json.encode, order="deterministic")
        return encode(getattr(policy, name)) == encode(value)
    return bool(getattr(policy, name) == value)


def _token(state: MeshState, name: str) -> str:
    token = state.tokens.get(name)
    return "" if token is None else _text(token_info(token))


def _text(value: object) -> str:
    """A value as JSON, shortened where it is long."""
    text = json.encode(_Walk().plain(value)).decode()
    return text if len(text) <= _MOST else json.encode({"shortened": text[:_MOST]}).decode()
