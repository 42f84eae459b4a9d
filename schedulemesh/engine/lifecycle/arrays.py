"""Arrays end when all of their members have: completed where all are, failed where one is, else cancelled."""

from __future__ import annotations

from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages.queue_facts import ArrayEnded
from schedulemesh.engine.state.arrays import TaskArray
from schedulemesh.engine.transaction import Transaction


def finish_arrays(tx: Transaction) -> None:
    """Note the ends of arrays of which the last member has ended in this step."""
    arrays = tx.state.arrays
    for array_id in list(arrays.over):
        one = arrays.by_id[array_id]
        state = _state_of(one)
        error = "" if state is EndState.COMPLETED else str(one.described())
        tx.emit(ArrayEnded(array_id=array_id, at=tx.now, state=state, error=error))


def _state_of(one: TaskArray) -> EndState:
    """How an array has ended of which all members have."""
    if one.ended[EndState.FAILED] or one.ended[EndState.LOST]:
        return EndState.FAILED
    return EndState.CANCELLED if one.ended[EndState.CANCELLED] else EndState.COMPLETED
