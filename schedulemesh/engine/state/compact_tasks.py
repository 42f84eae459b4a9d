"""Queued tasks as a snapshot has them: what many of them have in common is stored and kept once.

Of a million tasks in the queue few are looked at before they start. So each of them is restored without a
submission of its own: it has one from when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.queued_tasks import QueueDetails, QueuedTask

_Value = TypeVar("_Value")

_encoder = msgspec.msgpack.Encoder()
_USUAL_DETAILS = QueueDetails()


class CompactSubmission(msgspec.Struct, frozen=True, gc=False):
    """The submission of a task, as what it shares with others and what is its own."""

    #: Without what follows.
    shared: TaskSubmitted
    agent_name: str
    task_id: str
    request_id: str | None
    arguments_key: str | None
    payload_key: str | None
    run_key: str | None
    estimated_duration: float | None

    @classmethod
    def of(cls, submission: TaskSubmitted) -> CompactSubmission:
        """That of a submission, which shares nothing yet."""
        agent, task = submission.agent, submission.task
        if task is None:
            raise ValueError("an agent without a task does not wait in the queue")
        shared = replace(
            submission,
            request_id=None,
            agent=replace(agent, name="", arguments_key=None),
            task=replace(task, task_id="", payload_key=None, run_key=None, estimated_duration=None),
        )
        return cls(
            shared,
            agent.name,
            task.task_id,
            submission.request_id,
            agent.arguments_key,
            task.payload_key,
            task.run_key,
            task.estimated_duration,
        )

    @property
    def shared_task(self) -> TaskSpec:
        """The task without what is its own."""
        if self.shared.task is None:
            raise ValueError("an agent without a task does not wait in the queue")
        return self.shared.task

    @property
    def task(self) -> TaskSpec:
        """The task."""
        return replace(
            self.shared_task,
            task_id=self.task_id,
            payload_key=self.payload_key,
            run_key=self.run_key,
            estimated_duration=self.estimated_duration,
        )

    @property
    def submission(self) -> TaskSubmitted:
        """The submission."""
        agent = replace(self.shared.agent, name=self.agent_name, arguments_key=self.arguments_key)
        return replace(self.shared, request_id=self.request_id, agent=agent, task=self.task)


class CompactTask(QueuedTask, kw_only=True, omit_defaults=True, gc=False):
    """A queued task without a submission of its own; once it has got one it is a plain ``QueuedTask``."""

    @property
    def compact(self) -> CompactSubmission:
        """What it has instead."""
        compact: CompactSubmission = _SUBMISSION.__get__(self)
        return compact

    @property  # type: ignore[misc]  # a property in place of a field
    def submission(self) -> TaskSubmitted:
        """Its submission, which it has from now on."""
        submission = self.submission = self.compact.submission
        return submission

    @submission.setter
    def submission(self, submission: TaskSubmitted) -> None:
        self.__class__ = QueuedTask  # type: ignore[assignment]
        self.submission = submission

    @property
    def common(self) -> TaskSubmitted:
        """Its submission without what is its own."""
        return self.compact.shared

    @property
    def outline(self) -> tuple[TaskSubmitted, str, str, float | None]:
        """``common``, ``task_id``, ``agent_name`` and ``estimated_duration``."""
        compact: CompactSubmission = _SUBMISSION.__get__(self)
        return compact.shared, compact.task_id, compact.agent_name, compact.estimated_duration

    @property
    def common_spec(self) -> TaskSpec:
        """The task without what is its own."""
        return self.compact.shared_task

    @property
    def spec(self) -> TaskSpec:
        """The task, made anew each time."""
        return self.compact.task

    @property
    def pool_name(self) -> str:
        """The pool in whose queue it is."""
        return self.compact.shared.agent.pool_name

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self.compact.task_id

    @property
    def agent_name(self) -> str:
        """The name of the agent that will run it."""
        return self.compact.agent_name

    @property
    def estimated_duration(self) -> float | None:
        """For how many seconds it runs, as it says itself; None: it does not."""
        return self.compact.estimated_duration


#: Where a task has its submission, or what it has instead.
_SUBMISSION: Any = QueuedTask.__dict__["submission"]


class QueueColumns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tasks that wait, field by field: each list has an entry for each of them, in their order. One that is
    empty has None for all of them.
    """

    #: The number of the submission that each of them has in common with others, from 0.
    shared: list[int]
    agent_names: list[str]
    task_ids: list[str]
    request_ids: list[str | None] = []
    arguments_keys: list[str | None] = []
    payload_keys: list[str | None] = []
    run_keys: list[str | None] = []
    estimated_durations: list[float | None] = []
    queued_at: list[float]
    numbers: list[int]
    #: (index, how it waits) of those for which not all of that is as usual.
    details: list[tuple[int, QueueDetails]] = []

    def tasks(self, shared: Sequence[TaskSubmitted]) -> Iterator[QueuedTask]:
        """The tasks; ``shared``: the submissions to which the numbers refer."""
        durations = dict(zip(self.estimated_durations, self.estimated_durations, strict=True))
        submissions = zip(
            map(shared.__getitem__, self.shared),
            self.agent_names,
            self.task_ids,
            self.request_ids or repeat(None),
            self.arguments_keys or repeat(None),
            self.payload_keys or repeat(None),
            self.run_keys or repeat(None),
            # The same durations come often: each is one object.
            map(durations.__getitem__, self.estimated_durations) if durations else repeat(None),
            strict=False,
        )
        tasks = [
            CompactTask(submission=CompactSubmission(*values), queued_at=at, number=number)  # type: ignore[arg-type]
            for values, at, number in zip(submissions, self.queued_at, self.numbers, strict=True)
        ]
        for index, details in self.details:
            tasks[index] = replace(tasks[index], **msgspec.structs.asdict(details))
        return iter(tasks)

    def pieces(self, size: int) -> Iterator[QueueColumns]:
        """The same tasks, at most so many together."""
        names = [name for name in self.__struct_fields__ if name != "details"]
        for first in range(0, len(self.numbers), size):
            last = first + size
            yield QueueColumns(
                **{name: getattr(self, name)[first:last] for name in names},
                details=[(i - first, one) for i, one in self.details if first <= i < last],
            )

    def keys(self) -> set[str | None]:
        """The keys of stored bytes to which tasks refer on their own."""
        previous = {one.attempts.previous_state for _, one in self.details}
        return previous.union(self.arguments_keys, self.payload_keys, self.run_keys)


class SharedSubmissions:
    """What the submissions of many tasks have in common, each once; needed while a snapshot is made."""

    def __init__(self) -> None:
        self.all: list[TaskSubmitted] = []
        #: The place of each in ``all``: as it is encoded, and by the identity of objects that stay.
        self._by_content: dict[bytes, int] = {}
        self._by_identity: dict[int, int] = {}

    def columns(self, tasks: Iterable[QueuedTask]) -> QueueColumns:
        """These tasks, whose numbers refer to ``all``. No task changes meanwhile."""
        waiting = list(tasks)
        compact = [
            task.compact if isinstance(task, CompactTask) else CompactSubmission.of(task.submission)
            for task in waiting
        ]
        return QueueColumns(
            shared=list(map(self._number, waiting, compact)),
            agent_names=[one.agent_name for one in compact],
            task_ids=[one.task_id for one in compact],
            request_ids=_column([one.request_id for one in compact]),
            arguments_keys=_column([one.arguments_key for one in compact]),
            payload_keys=_column([one.payload_key for one in compact]),
            run_keys=_column([one.run_key for one in compact]),
            estimated_durations=_column([one.estimated_duration for one in compact]),
            queued_at=[task.queued_at for task in waiting],
            numbers=[task.number for task in waiting],
            details=[
                (index, details)
                for index, task in enumerate(waiting)
                if (details := _details_of(task)) != _USUAL_DETAILS
            ],
        )

    def _number(self, task: QueuedTask, compact: CompactSubmission) -> int:
        number = self._by_identity.get(id(compact.shared))
        if number is None:
            content = _encoder.encode(compact.shared)
            number = self._by_content.setdefault(content, len(self.all))
            if number == len(self.all):
                self.all.append(compact.shared)
            if isinstance(task, CompactTask):
                self._by_identity[id(compact.shared)] = number
        return number


def _column(values: list[_Value | None]) -> list[_Value | None]:
    """Values as a column: none at all where all of them are None."""
    return values if any(value is not None for value in values) else []


def _details_of(task: QueuedTask) -> QueueDetails:
    return QueueDetails(**{name: getattr(task, name) for name in QueueDetails.__struct_fields__})
