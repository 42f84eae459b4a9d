"""The record of changes that were requested, of a limited length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from schedulemesh.domain.audit import REFUSED, AuditRecord
from schedulemesh.engine.messages.audit_facts import ChangeAnswered, ChangeReceived
from schedulemesh.engine.messages.fact import Fact

#: How many changes are kept, and how many that were refused: so that whoever may change nothing cannot make
#: the record forget what others have changed.
KEPT, KEPT_REFUSED = 10_000, 2_000
#: Seconds for which they are kept.
KEPT_S = 365 * 24 * 3600.0


class AuditLog(msgspec.Struct, kw_only=True):
    """Changes that were requested, the oldest first."""

    #: By number: those that were carried out or are open, and those that were refused.
    changes: dict[int, AuditRecord] = msgspec.field(default_factory=dict)
    refused: dict[int, AuditRecord] = msgspec.field(default_factory=dict)
    next_number: int = 1

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """How each fact changes the record."""
        return {ChangeReceived: self._received, ChangeAnswered: self._answered}

    def all(self) -> list[AuditRecord]:
        """Everything that is kept, the oldest first."""
        return sorted([*self.changes.values(), *self.refused.values()], key=lambda r: r.number)

    def restore(self, records: Iterable[AuditRecord], next_number: int) -> None:
        """Add what was kept before."""
        for record in records:
            place = self.refused if record.outcome == REFUSED else self.changes
            place[record.number] = record
        self.next_number = next_number

    def _received(self, fact: ChangeReceived) -> None:
        self.changes[fact.record.number] = fact.record
        self.next_number = fact.record.number + 1
        _shorten(self.changes, KEPT, fact.record.at)

    def _answered(self, fact: ChangeAnswered) -> None:
        record = self.changes.get(fact.number)
        if record is None:
            return
        record = msgspec.structs.replace(
            record, outcome=fact.outcome, reason=fact.reason, error=fact.error, after=fact.after
        )
        if fact.outcome == REFUSED:
            del self.changes[fact.number]
            self.refused[fact.number] = record
            _shorten(self.refused, KEPT_REFUSED, record.at)
        else:
            self.changes[fact.number] = record


def _shorten(records: dict[int, AuditRecord], kept: int, now: float) -> None:
    """Remove the oldest beyond a number, and those that are too old."""
    while records:
        number, oldest = next(iter(records.items()))
        if len(records) <= kept and oldest.at >= now - KEPT_S:
            return
        del records[number]
