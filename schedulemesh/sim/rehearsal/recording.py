"""What a history recorded: events in their order, and the attempts to run tasks that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from schedulemesh.domain.reasons import LIMITS
from schedulemesh.engine.codec import decode_facts
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.errors import JournalError
from schedulemesh.store.history.attempts import RETURNED, Attempt
from schedulemesh.store.history.events import Event

#: Events that say nothing about the order of facts.
_REMARKS = frozenset(("waiting", "gap", "found", "unknown"))


class RecordedSubmission(msgspec.Struct, kw_only=True):
    """One submission, and every attempt to run it in their order."""

    #: The id of its task; of an agent without a task that agent's name.
    key: str
    attempts: list[Attempt]

    @property
    def work_s(self) -> list[float]:
        """Seconds of work up to each failure of its run, and at last up to its end."""
        worked, done = [], 0.0
        for attempt in self._started:
            done = (done if attempt.restored else 0.0) + work_of(attempt)
            if not was_evicted(attempt):
                worked.append(done)
                done = 0.0
        return worked

    def done_before(self, number: int) -> float:
        """Seconds of work that the attempt of this number, from 0, began with."""
        done, ahead = 0.0, self.attempts[number:]
        before = [one for one in self.attempts[:number] if one.started_at is not None]
        present = next((one for one in ahead if one.started_at is not None), self.attempts[number])
        for attempt, following in zip(before, [*before, present][1:], strict=True):
            was_restored = was_evicted(attempt) and following.restored
            done = done + work_of(attempt) if was_restored else 0.0
        return done

    def following(self, number: int) -> Attempt | None:
        """The attempt after that of this number; None: there is none."""
        return self.attempts[number + 1] if number + 1 < len(self.attempts) else None

    @property
    def _started(self) -> list[Attempt]:
        """Those that worked, and the last one."""
        return [
            one for one in self.attempts if one.started_at is not None or one is self.attempts[-1]
        ]

    @property
    def has_ended(self) -> bool:
        """Whether the history has its end."""
        if not self.attempts:
            return False
        last = self.attempts[-1]
        return last.has_ended and not was_evicted(last) and last.state not in (RETURNED, "unknown")


class Recording(msgspec.Struct, kw_only=True):
    """A part of a history, from its beginning or from a moment at which nothing ran."""

    #: With ticks, loaded classes and observations, in their order and numbered in it.
    events: list[Event]
    #: By their ids.
    attempts: dict[int, Attempt]
    #: The names of nodes, by the numbers by which attempts refer to them.
    node_ids: dict[int, str]
    submissions: list[RecordedSubmission]
    #: When it ends: the time of the last event, or of a later release of resources.
    until: float
    #: Definitions of pools, policies and nodes before its first event, in their order.
    definitions: list[Event] = []
    #: How many events before it are not kept any more.
    missing: int = 0
    #: The placement groups that stood when it begins.
    groups: frozenset[str] = frozenset()
    #: The state at its end, for definitions that the history does not contain any more; None: unknown.
    present: MeshState | None = None


def recorded(
    events: Iterable[Event], attempts: Iterable[Attempt], node_ids: dict[int, str]
) -> Recording:
    """The recording of these rows of a history; events are in the order of their numbers."""
    relevant = [event for event in events if event.kind not in _REMARKS]
    numbered = [msgspec.structs.replace(one, number=n) for n, one in enumerate(relevant, 1)]
    by_id = {attempt.id: attempt for attempt in attempts}
    return Recording(
        events=numbered,
        attempts=by_id,
        node_ids=node_ids,
        submissions=submissions_of(by_id.values()),
        until=max(
            (numbered[-1].at if numbered else 0.0),
            max((one.released_at or 0.0 for one in by_id.values()), default=0.0),
        ),
    )


def submissions_of(attempts: Iterable[Attempt]) -> list[RecordedSubmission]:
    """The submissions that these attempts belong to, in the order of their first ones."""
    return list(_submissions(attempts))


def _submissions(attempts: Iterable[Attempt]) -> Iterator[RecordedSubmission]:
    latest: dict[str, RecordedSubmission] = {}
    for attempt in sorted(attempts, key=lambda one: one.id):
        key = attempt.task_id or attempt.agent_name
        submission = latest.get(key)
        if submission is not None and _is_further(attempt):
            submission.attempts.append(attempt)
            continue
        latest[key] = RecordedSubmission(key=key, attempts=[attempt])
        yield latest[key]


def _is_further(attempt: Attempt) -> bool:
    """Whether its task had joined the queue again. An eviction by a drain counts as no further attempt."""
    joined_at = attempt.queued_at or 0.0
    return attempt.number > 1 or joined_at > (attempt.submitted_at or joined_at)


def was_evicted(attempt: Attempt) -> bool:
    """Whether an attempt ended before its work, because others needed the room or by a limit in time."""
    return attempt.state == "preempted" or (
        attempt.state == "cancelled" and attempt.reason in LIMITS
    )


def work_of(attempt: Attempt) -> float:
    """Seconds of work of an attempt that were not lost."""
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    stopped = attempt.evicted_at if was_evicted(attempt) else attempt.ended_at
    return max(0.0, (stopped or attempt.ended_at) - attempt.started_at - (attempt.lost_s or 0.0))


def detail_of(event: Event) -> dict[str, Any]:
    """The details of an event by name."""
    return msgspec.json.decode(event.detail) if event.detail else {}


def fact_of(event: Event) -> AnyFact | None:
    """The fact that an event contains; None: none. Raises JournalError where it is damaged."""
    if not event.fact:
        return None
    try:
        return decode_facts(event.fact.encode())[0]
    except (msgspec.MsgspecError, IndexError) as error:
        raise JournalError(
            f"event {event.number} of the history, {event.kind!r}, has a fact that cannot be read: {error}. "
            "It is damaged, or another version wrote it"
        ) from error
