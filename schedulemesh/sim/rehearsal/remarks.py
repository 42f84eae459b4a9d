"""What is said of a rehearsal beside its figures: who gains and loses most, and how exact it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedulemesh.domain.numbers import local_time_text
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.sim.rehearsal.decisions import Check, Difference
from schedulemesh.sim.rehearsal.figures import TaskWait
from schedulemesh.sim.rehearsal.what_if import Rehearsal

#: Differences, and tasks at either end of the list, that are named.
_NAMED = 5
#: Seconds by which a wait has to change to be counted.
_LEAST_S = 1.0
#: The texts of the kinds of decisions.
_DECISIONS: Mapping[str, str] = {
    "admitted": "decision_admitted",
    "evicted": "decision_evicted",
    "removed": "decision_removed",
}


def remarks_on(rehearsal: Rehearsal) -> list[Sentence]:
    """All that is said of a rehearsal, in the order in which it is read."""
    return [*_nodes(rehearsal), *_waits(rehearsal), *_exactness(rehearsal.check)]


def _nodes(rehearsal: Rehearsal) -> list[Sentence]:
    """How many nodes were added and what each of them has, or how many were left out."""
    if rehearsal.nodes > 0:
        return [say("rehearsal_more_nodes", count=rehearsal.nodes, each=rehearsal.each_node)]
    return [say("rehearsal_fewer_nodes", count=-rehearsal.nodes)] if rehearsal.nodes else []


def _waits(rehearsal: Rehearsal) -> list[Sentence]:
    """The period, and who gains and loses most."""
    changes = [(wait.rehearsed_s - wait.recorded_s, wait) for wait in rehearsal.waits]
    less = [wait for change, wait in changes if change < -_LEAST_S]
    more = [wait for change, wait in reversed(changes) if change > _LEAST_S]
    since, until = local_time_text(rehearsal.since), local_time_text(rehearsal.until)
    counts = say("rehearsal_waits", since=since, until=until, less=len(less), more=len(more))
    remarks = [counts]
    if rehearsal.refused:
        first = rehearsal.first_refusal
        remarks.append(say("rehearsal_refused", count=rehearsal.refused, first=first))
    remarks += _named("rehearsal_less", less) + _named("rehearsal_more", more)
    return remarks


def _named(code: str, waits: Sequence[TaskWait]) -> list[Sentence]:
    tasks = [
        say("rehearsal_task", task=wait.task_id, before=wait.recorded_s, after=wait.rehearsed_s)
        for wait in waits[:_NAMED]
    ]
    return [say(code, tasks=tasks)] if tasks else []


def _exactness(check: Check) -> list[Sentence]:
    """How many decisions are the same as in the history, and why others are not."""
    if check.same == check.decisions:
        same = say("rehearsal_all_same", count=check.decisions)
    else:
        part = 100.0 * check.same / check.decisions
        same = say("rehearsal_same", same=check.same, count=check.decisions, part=f"{part:.1f}")
    differences = [_difference(one) for one in check.differences[:_NAMED]]
    missing = [
        say("rehearsal_left_out", count=count, what=say(code))
        for code, count in check.left_out.items()
    ]
    return [same, *differences, *missing]


def _difference(difference: Difference) -> Sentence:
    decision = difference.decision
    return say(
        "rehearsal_differs",
        task=decision.key,
        attempt=decision.attempt,
        kind=say(_DECISIONS[decision.kind]),
        how=say("in_brackets", what=decision.how) if decision.how else "",
        recorded=_when(difference.recorded_at),
        rehearsed=_when(difference.rehearsed_at),
    )


def _when(at: float | None) -> Sentence:
    return say("at_no_time") if at is None else say("at_time", time=local_time_text(at))
