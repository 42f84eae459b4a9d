"""Every error that ScheduleMesh raises; a refusal of the scheduler is an answer, not an error."""

from __future__ import annotations


class ScheduleMeshError(Exception):
    """Something went wrong in ScheduleMesh."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidRequestError(ScheduleMeshError, ValueError):
    """The request is malformed; nothing was changed and nothing is held."""


class SchedulerExistsError(ScheduleMeshError):
    """A living scheduler of another job has this name; choose another name or attach to it."""


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
