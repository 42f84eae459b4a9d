"""Every error that ScheduleMesh raises; a refusal of the scheduler is an answer, not an error."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


#: Characters of a value that an error shows.
_SHOWN_CHARS = 200


def shown(value: object) -> str:
    """A value as an error shows it: its ``repr``, shortened, whatever its class makes of that."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a class of the user's may raise anything
        text = f"a value of type {type(value).__name__}"
    text = str.encode(text, errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def nearest(given: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` where one of the known names is near to what was given, else nothing."""
    near = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


class ScheduleMeshError(Exception):
    """Something went wrong in ScheduleMesh."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidRequestError(ScheduleMeshError, ValueError):
    """The request is malformed; nothing was changed and nothing is held."""


class NotStorableError(InvalidRequestError):
    """The request has a value that the journal could not give back as it was; nothing was changed."""


class SchedulerExistsError(ScheduleMeshError):
    """A living scheduler of another job, or one made with other settings, has this name; choose another
    name or attach to it.
    """


class SchedulerNotFoundError(ScheduleMeshError):
    """No living scheduler has this name; create one with RayScheduler(name)."""


class SchedulerUnavailableError(ScheduleMeshError):
    """The supervisor did not answer; it has ended or cannot be reached."""


class ProtocolMismatchError(ScheduleMeshError):
    """Client and supervisor are of versions that do not understand each other."""


class JournalError(ScheduleMeshError):
    """The journal could not be read or written; nothing further is changed until it can."""


class JournalTakenOverError(JournalError):
    """Another process has taken the journal over and writes now; this one never will again."""


class WorkerError(ScheduleMeshError):
    """A worker of a group did not do what it was asked."""

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
        #: What it was asked to do.
        self.method = method


class WorkerDiedError(WorkerError):
    """A worker of a group is dead or cannot be reached."""


class WorkerFailedError(WorkerError):
    """A method of a worker raised; the cause is what it raised."""


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker of a group did not answer in time; it may still be at it."""


class GroupRefusedError(ScheduleMeshError):
    """Not every agent of a group could be started; those that were have been ended."""

    def __init__(self, message: str = "", answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        #: The scheduler's answer to the submission that it refused.
        self.answer = dict(answer or {})
