"""The record of changes that were requested, of a limited length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

import msgspec

from schedulemesh.domain.audit import LASTING_CALLS, REFUSED, AuditRecord
from schedulemesh.engine.messages.audit_facts import ChangeAnswered, ChangeReceived
from schedulemesh.engine.messages.fact import Fact

#: Seconds for which changes are kept.
KEPT_S = 365 * 24 * 3600.0


class RetentionClass(Enum):
    """Which changes push each other out of the record: those of one class, by one token in one role.

    So nobody makes the record forget what others have changed. Many changes of tasks push out no change of
    the rules. What a token changed as an operator's stays when it has become that of a pool's operator.
    """

    LASTING = "lasting"
    OTHER = "other"
    REFUSED = "refused"


#: How many changes of one token in one role are kept. Of lasting ones this is beyond what people do in a
#: year; it keeps a script that repeats them from filling the memory.
KEPT = {RetentionClass.LASTING: 50_000, RetentionClass.OTHER: 1_000, RetentionClass.REFUSED: 500}


#: A class, a token and its role.
GroupKey = tuple[RetentionClass, str, str]


class AuditLog(msgspec.Struct, kw_only=True):
    """Changes that were requested, the oldest first."""

    #: By number, in ascending order.
    records: dict[int, AuditRecord] = msgspec.field(default_factory=dict)
    next_number: int = 1
    #: The numbers of each group of each token in each role.
    numbers: dict[GroupKey, dict[int, None]] = msgspec.field(default_factory=dict)

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each fact changes the record."""
        return {ChangeReceived: self._received, ChangeAnswered: self._answered}

    def all(self) -> list[AuditRecord]:
        """Everything that is kept, the oldest first."""
        return list(self.records.values())

    def between(self, after: int, before: int | None) -> list[AuditRecord]:
        """Those with a higher number than ``after`` and a lower one than ``before``, the oldest first."""
        records = self.all()
        begin = bisect_right(records, after, key=_number)
        end = len(records) if before is None else bisect_left(records, before, key=_number)
        return records[begin:end]

    def restore(self, records: Iterable[AuditRecord], next_number: int) -> None:
        """Add what was kept before, the oldest first."""
        for record in records:
            self._add(record)
        self.next_number = next_number

    def _received(self, fact: ChangeReceived) -> None:
        record = fact.record
        self._add(record)
        self.next_number = record.number + 1
        while (oldest := next(iter(self.records.values()))).at < record.at - KEPT_S:
            self._remove(oldest)

    def _answered(self, fact: ChangeAnswered) -> None:
        record = self.records.get(fact.number)
        if record is None:
            return
        answered = msgspec.structs.replace(
            record, outcome=fact.outcome, reason=fact.reason, error=fact.error, after=fact.after
        )
        self.records[fact.number] = answered
        if _group_key(answered) != _group_key(record):
            self._leave_group(record)
            self._enter_group(answered)

    def _add(self, record: AuditRecord) -> None:
        self.records[record.number] = record
        self._enter_group(record)

    def _remove(self, record: AuditRecord) -> None:
        del self.records[record.number]
        self._leave_group(record)

    def _enter_group(self, record: AuditRecord) -> None:
        """Add a record to its group, from which the oldest one goes where it has too many."""
        key = _group_key(record)
        numbers = self.numbers.setdefault(key, {})
        numbers[record.number] = None
        if len(numbers) > KEPT[key[0]]:
            self._remove(self.records[next(iter(numbers))])

    def _leave_group(self, record: AuditRecord) -> None:
        key = _group_key(record)
        del self.numbers[key][record.number]
        if not self.numbers[key]:
            del self.numbers[key]


def _number(record: AuditRecord) -> int:
    return record.number


def _group_key(record: AuditRecord) -> GroupKey:
    """The group that a record belongs to, whose oldest one goes where there are too many."""
    if record.outcome == REFUSED:
        group = RetentionClass.REFUSED
    elif record.call in LASTING_CALLS:
        group = RetentionClass.LASTING
    else:
        group = RetentionClass.OTHER
    return group, record.token, record.role
