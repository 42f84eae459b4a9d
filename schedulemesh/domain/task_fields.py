"""How a field of a task is declared: who may ask for it and how, and its texts on every surface.

Each field of ``TaskSpec`` has one ``TaskField``. Calls, rows, HTTP bodies, commands and tables have the field
by this declaration alone: they read it, or it stands in the part of their module that
``tests/api/test_written_parts.py`` writes from it, so that type checkers and editors know it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Takers(Enum):
    """The calls that take a field, with the commands and HTTP calls that make them."""

    #: Every call that describes a task: those that submit an agent, a job or a lease, register a task, and
    #: adopt a job.
    ALL = "all"
    #: Those that submit an agent or a job, and register a task: what becomes of it when it is ended.
    ENDED = "ended"
    #: Those that submit an agent, a job or a lease: when and where it starts.
    QUEUED = "queued"
    #: Those that submit an agent or a job: how often it runs.
    RUNS = "runs"
    #: Those that submit an agent.
    AGENTS = "agents"
    #: Each call that takes it names it itself, or the scheduler sets it.
    NONE = "none"


class OptionForm(Enum):
    """How the value of an option is written."""

    TEXT = "text"
    #: As ``90s`` or ``1h30m``; a span is above zero.
    DURATION = "duration"
    SPAN = "span"
    #: As ``64GB``.
    SIZE = "size"
    COUNT = "count"
    #: Texts with commas between them; the option is repeatable.
    LIST = "list"


@dataclass(frozen=True, kw_only=True)
class Option:
    """The option of commands that stands for a field, the key in the file of a job, and the directive."""

    #: What ``--help`` says, in both languages.
    english: str
    chinese: str
    #: Without dashes, with underscores; empty: the name of the field.
    name: str = ""
    form: OptionForm = OptionForm.TEXT
    metavar: str = ""
    #: The value where it is not given.
    default: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskField:
    """One field of a task, as its callers and readers know it.

    Types are given as they stand in a module, where they do not follow from the type of the field.
    """

    #: Checks and converts what a caller asks for, or raises InvalidRequestError; None: only the scheduler
    #: sets it.
    parse: Callable[[Any], Any] | None = None
    takers: Takers = Takers.NONE
    #: What it is; and what the value means that it has where nobody asked for it.
    means: str = ""
    absent: str = ""
    #: What None means as an argument of Python, and null over HTTP; empty: nothing is said of it.
    unasked: str = ""
    unasked_over_http: str = ""
    #: Whether listings show it.
    shown: bool = True
    #: In rows, as an argument of Python, and in a body.
    row_type: str = ""
    argument_type: str = ""
    body_type: str = ""
    #: Its heading in the wide form of the tables of tasks, jobs and the queue; empty: they do not show it.
    heading: str = ""
    #: What it is called in Chinese, as that heading and among the facts of one task.
    chinese: str = ""
    option: Option | None = None
