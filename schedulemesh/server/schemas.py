"""The objects of the HTTP API, version 1: they have the fields that the Python calls return."""

from __future__ import annotations

from typing import TypedDict

from schedulemesh.api.cluster import SchedulerAbout
from schedulemesh.api.exec_sessions import ExecStarted
from schedulemesh.api.results import SentenceInfo
from schedulemesh.domain.resources import Amounts


class IssuedToken(TypedDict, total=False):
    """A token that was issued, with its secret."""

    success: bool
    detail: str
    token: str


class SchedulerStatus(SchedulerAbout, total=False):
    """The supervisor, its journal, and how much there is."""

    success: bool
    pools: int
    agents: int
    running_tasks: int
    queued_tasks: int
    failed_last_hour: int


class Error(TypedDict):
    """Why a request was not carried out; a refusal may have more fields, such as ``hint`` and ``holders``."""

    success: bool
    error: str
    reason: str


class Saved(TypedDict):
    """Whether a task has a saved state now."""

    success: bool
    state_saved: bool


class Submitted(TypedDict, total=False):
    """A job or a lease that runs, starts, or waits in the queue."""

    success: bool
    task_id: str
    #: "running", "starting" or "queued".
    state: str
    agent_name: str
    pool_name: str
    node_id: str | None
    #: How many tasks of its pool come before it, plus one; 0: it does not wait.
    position: int
    #: The tasks that were evicted for it.
    preempted: list[str]
    #: Only of a dry run, which has no state.
    dry_run: bool


class LeasedGroup(TypedDict):
    """A placement group of a lease."""

    #: Its id in Ray, as hexadecimal digits.
    id: str
    bundles: list[Amounts]
    strategy: str


class LeaseState(TypedDict, total=False):
    """How a lease stands."""

    success: bool
    task_id: str
    #: The state of its task.
    state: str
    pool_name: str
    #: Empty while it waits, and when it has ended.
    placement_groups: list[LeasedGroup]
    #: Seconds until it ends, because it is being evicted; null: it is not.
    grace_s: float | None
    #: Why it has ended, as a code and as a sentence; empty: it has not.
    end_reason: str
    end_error: str


class TaskLogPart(TypedDict, total=False):
    """A part of what an attempt of a task has written."""

    success: bool
    task_id: str
    #: The state of the task.
    state: str
    #: "stdout" or "stderr"; empty: both, as jobs write them.
    stream: str
    #: 0: no attempt has begun.
    attempt: int
    #: The position of the first byte of ``text``: above that asked for where earlier bytes are not kept.
    offset: int
    text: str
    #: The position of the byte after ``text``, from which a client that follows reads on.
    next: int
    #: How much the attempt has written up to now.
    end: int


class CommandBegun(ExecStarted):
    """A command that was started inside the claim of a task or a lease."""

    success: bool


class CommandPiece(TypedDict):
    """What a command has written to one stream at one time."""

    #: "stdout" or "stderr".
    stream: str
    text: str


class CommandPart(TypedDict, total=False):
    """What a command inside a claim has written since it was last asked for, and how it ended."""

    success: bool
    task_id: str
    pieces: list[CommandPiece]
    #: How many pieces there were up to now: what ``after`` is in the next request.
    next: int
    ended: bool
    #: None: it runs, or has ended in another way than by itself, as ``error`` says.
    exit_code: int | None
    error: str


class ChangeDone(TypedDict, total=False):
    """A change that was made."""

    success: bool
    detail: str
    #: What the caller may not have meant, in the language of Accept-Language, and its sentences.
    warnings: list[str]
    sentences: dict[str, list[SentenceInfo]]
