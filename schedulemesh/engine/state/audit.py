"""The record of changes that were requested, of a limited length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

import msgspec

from schedulemesh.domain.audit import LASTING_CALLS, REFUSED, AuditRecord
from schedulemesh.engine.messages.audit_facts import ChangeAnswered, ChangeReceived
from schedulemesh.engine.messages.fact import Fact

#: Seconds for which changes are kept.
KEPT_S = 365 * 24 * 3600.0


class RetentionClass(Enum):
    """Changes that push out only each other, and only those of the same token: nobody can make the record
    forget what others have changed, or a change of the rules by many changes of tasks.
    """

    LASTING = "lasting"
    OTHER = "other"
    REFUSED = "refused"


#: How many changes of one token are kept. Of lasting ones this is beyond what people do in a year; it keeps a
#: script that repeats them from filling the memory.
KEPT = {RetentionClass.LASTING: 50_000, RetentionClass.OTHER: 1_000, RetentionClass.REFUSED: 500}


class AuditLog(msgspec.Struct, kw_only=True):
    """Changes that were requested, the oldest first."""

    #: By number, in ascending order.
    records: dict[int, AuditRecord] = msgspec.field(default_factory=dict)
    next_number: int = 1
    #: The numbers of each group of each token.
    numbers: dict[tuple[RetentionClass, str], dict[int, None]] = msgspec.field(default_factory=dict)

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each fact changes the record."""
        return {ChangeReceived: self._received, ChangeAnswered: self._answered}

    def all(self) -> list[AuditRecord]:
        """Everything that is kept, the oldest first."""
        return list(self.records.values())

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
        if _group(answered) is not _group(record):
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
        group = _group(record)
        numbers = self.numbers.setdefault((group, record.token), {})
        numbers[record.number] = None
        if len(numbers) > KEPT[group]:
            self._remove(self.records[next(iter(numbers))])

    def _leave_group(self, record: AuditRecord) -> None:
        key = (_group(record), record.token)
        del self.numbers[key][record.number]
        if not self.numbers[key]:
            del self.numbers[key]


def _group(record: AuditRecord) -> RetentionClass:
    if record.outcome == REFUSED:
        return RetentionClass.REFUSED
    return RetentionClass.LASTING if record.call in LASTING_CALLS else RetentionClass.OTHER
