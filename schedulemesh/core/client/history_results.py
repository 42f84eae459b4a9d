"""The answers of the calls about the history. Times are seconds since 1970."""

from __future__ import annotations

from schedulemesh.api.history import AttemptInfo, HistoryEvent, UsageInfo
from schedulemesh.core.client.results import Result


class HistoryResult(Result, total=False):
    """The answer of ``history``."""

    attempts: list[AttemptInfo]
    #: Whether there are older ones that match.
    more: bool
    #: How many commits of the journal the history does not contain yet.
    behind: int


class UsageResult(Result, total=False):
    """The answer of ``usage``."""

    usage: list[UsageInfo]
    #: The time span in whole hours, or until now.
    since: float
    until: float
    behind: int


class EventsResult(Result, total=False):
    """The answer of ``events``."""

    events: list[HistoryEvent]
    #: What ``after`` is to be in the next call.
    cursor: int
    #: None: all that followed ``after`` is here. ``removed``: older events are not kept any more;
    #: ``began_again``: the history is another one than that of ``after``, and is listed from its beginning.
    gap: str | None
    behind: int


class ExportResult(Result, total=False):
    """The answer of ``export_history``."""

    path: str
    #: How many attempts to run a task were written.
    jobs: int
    #: What time 0 of the file is, in seconds since 1970.
    begin: float
