"""Notices about tasks, which receivers of alerts are sent: what happened, and who is told."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from schedulemesh.config.alerts import Severity
from schedulemesh.config.notices import NOTIFY_LABEL, NoticeRoute
from schedulemesh.domain.numbers import duration_text
from schedulemesh.engine.state.pool_names import PoolNames
from schedulemesh.errors import InvalidRequestError, nearest, shown
from schedulemesh.metrics.alert_conditions import LabelSet
from schedulemesh.metrics.alert_evaluation import Alert, AlertState
from schedulemesh.metrics.alert_rules import filled_in

#: What the rules of notices begin with, before the event.
NOTICE = "notice_"
#: Characters of an error in a notice.
_MOST_OF_ERROR = 300
#: The class of an error of the scheduler's own, whose text says all.
_OWN_ERROR = re.compile(r"^schedulemesh\.errors\.\w+: ")
#: What happened, and what to do about it, by the kind of the event.
_SENTENCES: Mapping[str, tuple[str, str]] = {
    "started": ("It has started in pool {pool}, after it had waited for {waited}.", ""),
    "preempted": (
        "It was preempted in pool {pool} by {by}; {lost} of its work were lost.",
        "`schedulemesh explain {task}` says whether and when it returns.",
    ),
    "preempted_queued": (
        (
            "It was preempted in pool {pool} by {by}; {lost} of its work were lost. It waits again, "
            "{position} of {waiting} in the queue."
        ),
        "`schedulemesh explain {task}` says when it returns.",
    ),
    "failed": (
        "It has failed in pool {pool}, after it had run for {ran}: {why}",
        "`schedulemesh logs {task}` has its output.",
    ),
    "lost": (
        "It was lost in pool {pool}, after it had run for {ran}: {why}",
        "`schedulemesh explain {task}` says whether it returns.",
    ),
    "completed": ("It is completed in pool {pool}, after it had run for {ran}.", ""),
    "cancelled": ("It was cancelled in pool {pool}: {why}", ""),
    "time_limit_soon": (
        "It has nearly run for as long as it may in pool {pool}, and is saved and ended then.",
        "`schedulemesh explain {task}` says when; an operator can let it run longer.",
    ),
    "time_limit_reached": (
        "It has run for {ran} in pool {pool}, as long as it may, and was ended.",
        "`schedulemesh explain {task}` says whether it returns, and what of it is saved.",
    ),
    "idle_limit_soon": (
        "Its GPUs in pool {pool} are not used. It is ended if that goes on.",
        "`schedulemesh explain {task}` says when; `schedulemesh cancel {task}` frees them now.",
    ),
    "idle_limit_reached": (
        "It was ended in pool {pool}, because its GPUs were not used for long.",
        "`schedulemesh explain {task}` says what of it is saved.",
    ),
}
#: As severe as an alert.
_SEVERITIES = dict.fromkeys(
    ("preempted", "failed", "lost", "time_limit_soon", "idle_limit_soon", "idle_limit_reached"),
    Severity.WARNING,
)


def notice_of(
    cursor: int,
    at: float,
    kind: str,
    attempt: Mapping[str, object],
    place: tuple[int, int] | None = None,
) -> Alert:
    """The notice about an event of an attempt: an alert in a state of its own, without a rule behind it.
    ``place``: where its task waits now, and among how many of its pool; None: it does not.
    """
    position, waiting = ("", "") if place is None else map(str, place)
    labels = tuple(
        {
            "task": str(attempt["task_id"]),
            "pool": str(attempt["pool_name"] or ""),
            "owner": str(attempt["owner"] or ""),
            "waited": _span(attempt["waited_s"]),
            "ran": _span(attempt["ran_s"]),
            "lost": _span(attempt["lost_s"]),
            "by": _by(attempt),
            "why": _why(attempt),
            "position": position,
            "waiting": waiting,
        }.items()
    )
    summary, action = _SENTENCES[sentence_key(kind, labels)]
    return Alert(
        id=f"{NOTICE}{kind}-{cursor}",
        rule=f"{NOTICE}{kind}",
        labels=labels,
        state=AlertState.NOTICE,
        severity=_SEVERITIES.get(kind, Severity.INFO).value,
        summary=filled_in(summary, labels),
        action=filled_in(action, labels),
        value=0.0,
        threshold=0.0,
        active_at=at,
    )


def sentence_key(kind: str, labels: LabelSet) -> str:
    """Which sentence a notice has: another one of a task that was evicted and waits again."""
    return "preempted_queued" if kind == "preempted" and dict(labels)["position"] else kind


def check_notify(labels: Mapping[str, str], receivers: Collection[str]) -> None:
    """Raise InvalidRequestError where the label of a task names somebody to be told who does not exist."""
    receiver = labels.get(NOTIFY_LABEL)
    if receiver is None or receiver in receivers:
        return
    there_are = f"there are {', '.join(receivers)}" if receivers else "this scheduler has none"
    raise InvalidRequestError(
        f"label {NOTIFY_LABEL} names the receiver {shown(receiver)}{nearest(receiver, receivers)}; "
        f"{there_are}, and without the label the routes of notices say who is told"
    )


def cursor_of(notice: Alert) -> int:
    """The event that a notice is about."""
    return int(notice.id.rpartition("-")[2])


def is_for(
    receiver: str,
    routes: Iterable[NoticeRoute],
    kind: str,
    attempt: Mapping[str, object],
    names: PoolNames | None = None,
) -> bool:
    """Whether a receiver is told of an event of this kind, by a route or by the label of the task.
    ``names``: the former names of pools, which routes may have.
    """
    labels = attempt["labels"]
    if isinstance(labels, Mapping) and labels.get(NOTIFY_LABEL) == receiver:
        return True
    return any(
        receiver in route.to and _concerns(route, kind, attempt, names or PoolNames())
        for route in routes
    )


def _concerns(
    route: NoticeRoute, kind: str, attempt: Mapping[str, object], names: PoolNames
) -> bool:
    if kind not in route.events:
        return False
    pools = names.all_of(str(attempt["pool_name"])) if route.pools else ()
    if route.pools and not set(route.pools).intersection(pools):
        return False
    if route.owners and attempt["owner"] not in route.owners:
        return False
    return kind != "started" or _seconds(attempt["waited_s"]) >= route.min_wait_s


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _span(value: object) -> str:
    return duration_text(_seconds(value))


def _by(attempt: Mapping[str, object]) -> str:
    """For whom it was evicted, or at whose request."""
    fields = ("by_task", "by_agent", "by_client", "rule")
    return next((str(attempt[field]) for field in fields if attempt[field]), "its scheduler")


def _why(attempt: Mapping[str, object]) -> str:
    """Why it ended: the first line of its error, or the code of the reason."""
    lines = str(attempt["error"] or attempt["reason"] or attempt["state"]).splitlines()
    return _OWN_ERROR.sub("", lines[0])[:_MOST_OF_ERROR] if lines else ""
