"""Records changes before and after they are carried out."""

from __future__ import annotations

import msgspec

from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.audit_facts import ChangeReceived
from schedulemesh.engine.messages.outcomes import Done, RequestOutcome
from schedulemesh.engine.transaction import Transaction


def change_received(tx: Transaction, stimulus: s.ChangeWasReceived) -> RequestOutcome:
    """A change is about to be carried out; its number is that of the last record of the state."""
    record = msgspec.structs.replace(stimulus.record, number=tx.state.audit.next_number, at=tx.now)
    tx.emit(ChangeReceived(record=record))
    return Done()


def change_answered(tx: Transaction, stimulus: s.ChangeWasAnswered) -> RequestOutcome:
    """A change was carried out or refused."""
    tx.emit(stimulus.fact)
    return Done()
