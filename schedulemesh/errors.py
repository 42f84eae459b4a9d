"""Every exception that ScheduleMesh raises. A refusal by the scheduler is a result, not an exception."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


#: Characters of a value that an error shows.
_SHOWN_CHARS = 200
#: Characters of a word that is compared with others, and the most of those.
_COMPARED_CHARS, _COMPARED = 253, 200


def shown(value: object) -> str:
    """The ``repr`` of a value for error messages, shortened. Never raises, whatever the value's class is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a class of the user's may raise anything
        text = f"a value of type {type(value).__name__}"
    text = encodable(text)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def encodable(text: str) -> str:
    """The text with an escape for each lone surrogate, such as names of files have that are not UTF-8."""
    return str.encode(text, errors="backslashreplace").decode()


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` if there is a ``nearest_name``, else empty."""
    near = nearest_name(word, allowed)
    return "" if near is None else f" (did you mean {near!r}?)"


def nearest_name(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that is similar to the word, or has it as one of its words; None: there is none."""
    names = _comparable(word, allowed)
    if not names:
        return None  # difflib would index the word all the same, however long it is
    with_word = [name for name in names if word in name.split("_")]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    near = near or difflib.get_close_matches(word, with_word, n=1, cutoff=0.0)
    return near[0] if near else None


def nearest_names(word: str, names: Iterable[str], most: int) -> list[str]:
    """The known names that are most similar to the given one, the most similar first."""
    compared = _comparable(word, names)
    return difflib.get_close_matches(word, compared, n=most, cutoff=0.0) if compared else []


def _comparable(word: str, names: Iterable[str]) -> list[str]:
    """The names with which a word is compared, sorted. Comparing takes long, and others may wait for it:
    nobody mistypes a very long word, and of many names only those count that begin or end as it does.
    """
    if len(word) > _COMPARED_CHARS:
        return []
    ordered = sorted(names)
    if len(ordered) > _COMPARED:
        first, last = word[:2], word[-2:]
        alike = [name for name in ordered if name.startswith(first) or name.endswith(last)]
        return alike[:_COMPARED]
    return ordered


class ScheduleMeshError(Exception):
    """An error of ScheduleMesh."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidRequestError(ScheduleMeshError, ValueError):
    """The request is malformed; nothing was changed and nothing is reserved."""


class NotStorableError(InvalidRequestError):
    """The request has a value that would not be read back from the journal unchanged; nothing was changed."""


class RayJobNotFoundError(InvalidRequestError):
    """No such Ray job runs and holds something outside of the scheduler; nothing was changed."""


class SchedulerExistsError(ScheduleMeshError):
    """A scheduler of this name belongs to another job or runs with other settings; choose another name or
    attach to it.
    """


class SchedulerNotFoundError(ScheduleMeshError):
    """No scheduler of this name is running; create one with RayScheduler(name)."""


class SchedulerUnavailableError(ScheduleMeshError):
    """The supervisor does not respond; it has ended or cannot be reached."""


class NotAllowedError(ScheduleMeshError):
    """The caller's token is not accepted, or its role does not allow the request."""


class ProtocolMismatchError(ScheduleMeshError):
    """Client and supervisor have incompatible versions."""


class JournalError(ScheduleMeshError):
    """The journal cannot be read or written; nothing is changed until it can."""


class JournalTakenOverError(JournalError):
    """Another process has taken over the journal; this one cannot write to it any more."""


class WorkerError(ScheduleMeshError):
    """A call to a worker of a group failed."""

    def __init__(
        self, message: str = "", group: str = "", rank: int = -1, agent: str = "", method: str = ""
    ) -> None:
        super().__init__(message)
        #: The group's name.
        self.group = group
        #: The worker's rank in it.
        self.rank = rank
        #: The agent's name.
        self.agent = agent
        #: The method that was called.
        self.method = method


class WorkerDiedError(WorkerError):
    """A worker of a group is dead or cannot be reached."""


class WorkerFailedError(WorkerError):
    """A method of a worker raised an exception, which is the cause of this error."""


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker of a group did not return in time; its method may still be running."""


class GroupRefusedError(ScheduleMeshError):
    """Not every agent of a group could be started; those that were started have been terminated."""

    def __init__(self, message: str = "", answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        #: The scheduler's answer to the submission that it refused.
        self.answer = dict(answer or {})


class GroupNotLeasedError(ScheduleMeshError):
    """No placement group of the lease serves a library's request for one."""


class LeaseRefusedError(ScheduleMeshError):
    """A lease was refused, or has ended before it was granted."""

    def __init__(self, message: str = "", answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        #: The scheduler's answer; empty: the lease has ended.
        self.answer = dict(answer or {})


class LeaseEndedError(ScheduleMeshError):
    """A lease has ended, with what ran in it, while it was in use."""


class TaskFailedError(ScheduleMeshError):
    """A task ended without a result. Where its run raised, the message has the traceback."""

    def __init__(self, message: str = "", task_id: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id
        #: The code of a refusal, such as "task_lost"; empty: it was run and failed.
        self.reason = reason


class JobFailedError(TaskFailedError):
    """The driver of a job ended with another exit code than 0, or by a signal."""

    def __init__(
        self, message: str = "", task_id: str = "", reason: str = "", exit_code: int = 1
    ) -> None:
        super().__init__(message, task_id, reason)
        #: Negative: the number of the signal that ended it.
        self.exit_code = exit_code


class ResultNotLoadableError(ScheduleMeshError):
    """The result of a task is kept, but cannot be unpickled in this process."""
