"""What the runtime reported in a recording, by the attempt or placement group that it was about."""

from __future__ import annotations

from collections.abc import Sequence

from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.demand_facts import RoomLost
from schedulemesh.sim.rehearsal.recording import detail_of, fact_of
from schedulemesh.store.history.events import OBSERVED, Event


class Reported:
    """The reports that events tell of. Times are in seconds since 1970."""

    def __init__(self, events: Sequence[Event]) -> None:
        #: The numbers of events, by attempt and kind.
        self.numbers = {(event.attempt, event.kind): event.number for event in events}
        #: When tasks were evicted that ended by themselves meanwhile, when agents began to end before their
        #: tasks, and those of them whose runs had failed, by attempt.
        self.evicted_at = _times(events, "preempting")
        self.ending_at = _times(events, "ending")
        self.failed_at = _times(events, "ending", reason="run_raised")
        #: When states were not saved, with the numbers of these events, by attempt.
        self.not_saved: dict[int | None, list[tuple[float, int]]] = {}
        #: By attempt.
        self.starts: dict[int | None, f.AgentStarted] = {}
        #: When placement groups were created or removed, with the numbers, by kind of event and group.
        self.groups: dict[tuple[str, str], tuple[float, int]] = {}
        #: Why groups were not placed, by group.
        self.not_placed: dict[str, str] = {}
        #: The tasks whose room external work got, with the time at which their starts found none.
        self.rooms_lost: set[tuple[str, float]] = set()
        #: When the state was reconciled after a restart of the supervisor.
        self.recovered_at = {e.at for e in events if e.kind == "supervisor_recovered"}
        for event in events:
            self._note(event)

    def found_gone(self, at: float, number: int) -> set[str]:
        """The placement groups that the step at this time removed whose last event has this number."""
        return {
            group_id
            for (kind, group_id), (when, place) in self.groups.items()
            if kind == "group_removed" and when == at and place < number
        }

    def _note(self, event: Event) -> None:
        if event.kind == "not_saved":
            self.not_saved.setdefault(event.attempt, []).append((event.at, event.number))
        elif event.kind == "group_created":
            self.groups[event.kind, event.subject] = event.at, event.number
        elif event.kind == "group_removed":
            self.groups[event.kind, event.subject] = event.at, event.number
            self.not_placed[event.subject] = detail_of(event).get("error", "")
        elif event.kind in ("started", OBSERVED):
            fact = fact_of(event)
            if isinstance(fact, f.AgentStarted):
                self.starts[event.attempt] = fact
            elif isinstance(fact, RoomLost):
                self.rooms_lost.add((fact.task_id, event.at))


def _times(events: Sequence[Event], kind: str, reason: str = "") -> dict[int | None, float]:
    """The times of events of this kind, by attempt; ``reason``: of those with this one only."""
    return {
        event.attempt: event.at
        for event in events
        if event.kind == kind and (not reason or detail_of(event).get("reason") == reason)
    }
