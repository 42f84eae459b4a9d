"""A task: the work of an agent; and the form in which user code sees it when its state is saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from schedulemesh.domain.arrays import check_array_id, parse_array
from schedulemesh.domain.dependencies import parse_after
from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import as_text, parse_key, parse_method, parse_name
from schedulemesh.domain.numbers import (
    MAX_COUNT,
    parse_count,
    parse_duration,
    parse_positive,
    parse_priority,
    parse_timeout,
)
from schedulemesh.domain.priorities import class_of
from schedulemesh.domain.resources import LIKE_BYTES, as_megabytes
from schedulemesh.domain.task_fields import Option, OptionForm, Takers, TaskField
from schedulemesh.domain.topology import parse_topology
from schedulemesh.errors import InvalidRequestError, shown

DEFAULT_PRIORITY = 5.0
#: The most retries that a task may ask for.
MAX_RETRIES = 1000

#: After its retries, a task whose state cannot be restored fails, is started from the state before that one,
#: or is started anew. The state is kept.
ON_RESTORE_FAILURE = ("fail", "previous", "restart")

#: After its process was killed because its node was short of memory, a task is started again as after any
#: other loss, started again with more memory, or fails.
ON_OOM = ("retry", "grow", "fail")

#: An evicted task joins the queue again with its saved state, or is dropped, and its user submits it again.
ON_PREEMPTED = ("requeue", "drop")

#: A task that has run for as long as it may ends, or joins the queue again with its saved state.
ON_TIME_LIMIT = ("end", "requeue")


class TaskPhase(str, Enum):
    """The phases of a task that have no data of their own; the fourth, ``Preempting``, has."""

    #: Its agent is not running yet.
    STARTING = "starting"
    RUNNING = "running"
    #: Its agent is being terminated, for another reason than preemption.
    ENDING = "ending"


class EndState(str, Enum):
    """The states of a task that has ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    #: That of its value, which it equals.
    __hash__ = str.__hash__


#: For states as texts, too, which equal their members.
ENDED_STATES = frozenset(EndState)


def _named(what: str) -> Callable[[Any], str]:
    return lambda value: parse_name(value, what)


def _one_of(what: str, words: tuple[str, ...]) -> Callable[[Any], str]:
    """What checks that a value is one of these words; raises InvalidRequestError."""

    def parse(value: object) -> str:
        word = as_text(value)
        if word not in words:
            raise InvalidRequestError(f"{what} is {shown(value)}; allowed are {', '.join(words)}")
        return word

    return parse


def _counted(what: str, most: int = MAX_COUNT) -> Callable[[Any], int]:
    return lambda value: parse_count(value, what, 0, most)


def _key(what: str) -> Callable[[Any], str]:
    return lambda value: parse_key(value, what)


def _timeout(what: str) -> Callable[[Any], float]:
    return lambda value: parse_timeout(value, what)


def _parse_run(value: object) -> str:
    return parse_method(value, "run")


def _parse_oom_max_memory(value: object) -> float:
    return parse_positive(as_megabytes(value, "oom_max_memory"), "oom_max_memory", LIKE_BYTES)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The specification of a task; two specs that compare equal are the same request.

    It is passed on and stored whole. What a field is to callers is declared with it: see ``task_fields``.
    """

    task_id: Annotated[str, TaskField(parse=_named("task_id"))]
    #: The pool whose rules apply to it; it may be unknown to the scheduler.
    pool_name: Annotated[str, TaskField(parse=_named("the pool's name"))] = ""
    priority: Annotated[float, TaskField(parse=parse_priority)] = DEFAULT_PRIORITY
    labels: Annotated[Labels, TaskField(parse=parse_labels)] = {}
    estimated_duration: Annotated[
        float | None,
        TaskField(
            parse=parse_duration,
            takers=Takers.ALL,
            means="Seconds from its start to its end",
            absent="None: unknown",
            chinese="声明的时长",
            option=Option(
                name="time",
                english="How long it will run: 90s, 30m, 2h, 1d. With it others need not wait in vain.",
                chinese="预计运行多久：90s、30m、2h、1d。填写后其他任务不必白等。",
                form=OptionForm.SPAN,
            ),
        ),
    ] = None
    owner: Annotated[
        str,
        TaskField(
            parse=_named("owner"),
            takers=Takers.ALL,
            means="The user that it belongs to",
            absent="empty: unknown",
            unasked="None: the one that this process runs as",
            unasked_over_http="null: the owner of the token",
            row_type="Owner",
            option=Option(
                english="To whom it belongs; else the user of this process.",
                chinese="负责人；默认为当前用户。",
            ),
        ),
    ] = ""
    max_preemptions: Annotated[
        int | None,
        TaskField(
            parse=_counted("max_preemptions"),
            takers=Takers.ALL,
            means="Evictions after which it cannot be evicted any more",
            absent="None: as the policy says",
            unasked="None: as the policy says",
            chinese="抢占次数上限",
            option=Option(
                english="How often it can be evicted; else as the policy says.",
                chinese="最多可被抢占几次；默认按策略。",
                form=OptionForm.COUNT,
            ),
        ),
    ] = None
    #: The key of its stored payload, which only user code reads; None: no payload.
    payload_key: Annotated[str | None, TaskField(parse=_key("the payload's key"), shown=False)] = (
        None
    )
    #: The method of its agent that it consists of: the agent calls it once it runs, and the task ends with
    #: it. Empty: its caller calls methods, and completes the task.
    run: Annotated[str, TaskField(parse=_parse_run, shown=False)] = ""
    #: The key of the stored arguments of that call; None: it takes none.
    run_key: Annotated[
        str | None, TaskField(parse=_key("the key of the run's arguments"), shown=False)
    ] = None
    #: Evictions do not count.
    max_retries: Annotated[
        int,
        TaskField(
            parse=_counted("max_retries", MAX_RETRIES),
            takers=Takers.RUNS,
            means="How often it is started again after its run failed, it could not be started, or it was "
            "lost",
            shown=False,
            option=Option(
                name="retries",
                english="How often it is started again.",
                chinese="失败后重新启动几次。",
                form=OptionForm.COUNT,
                default=0,
            ),
        ),
    ] = 0
    #: The requested priority, if a plugin changed it; None: not changed.
    asked_priority: Annotated[float | None, TaskField(shown=False)] = None
    #: The priority that it has but for a budget that is spent; None: no budget lowers it.
    full_priority: Annotated[float | None, TaskField(shown=False)] = None
    #: The agent of the elastic gang whose extra member runs it; empty: it is no extra member's.
    extra_of: Annotated[str, TaskField(shown=False)] = ""
    on_preempted: Annotated[
        str,
        TaskField(
            parse=_one_of("on_preempted", ON_PREEMPTED),
            takers=Takers.ENDED,
            means='"requeue" or "drop" when it is evicted',
            absent="empty: what its pool says",
            unasked='None: what its pool says, of a job "requeue"',
            unasked_over_http='null: "requeue"',
            row_type="OnPreempted",
            chinese="被抢占后",
            option=Option(
                english="requeue or drop: what becomes of it when it is evicted.",
                chinese="requeue（重新排队）或 drop（放弃）：被抢占后如何处理。",
                default="requeue",
            ),
        ),
    ] = ""
    parent: Annotated[
        str,
        TaskField(
            parse=_named("the parent's task_id"),
            means="The task from inside which it was started, and with which it ends",
            absent="empty: none, or that one was completed",
            row_type="TaskName",
        ),
    ] = ""
    on_restore_failure: Annotated[
        str,
        TaskField(
            parse=_one_of("on_restore_failure", ON_RESTORE_FAILURE),
            takers=Takers.AGENTS,
            means="What becomes of it, after its retries, when its saved state cannot be restored: "
            '"fail", "previous" (it is started from the state before) or "restart" (it is started anew)',
            unasked='None: "fail"',
            shown=False,
        ),
    ] = ""
    #: The pools whose tasks it may evict, by the token that it was submitted with; None: any.
    evict_pools: Annotated[tuple[str, ...] | None, TaskField(shown=False)] = None
    on_oom: Annotated[
        str,
        TaskField(
            parse=_one_of("on_oom", ON_OOM),
            takers=Takers.RUNS,
            means="What becomes of it when its process is killed because its node is short of memory: "
            '"retry" (as ``max_retries`` says), "grow" (the same with twice the memory, each time) or "fail"',
            unasked='None: "retry"',
            shown=False,
            option=Option(
                english="retry, grow (with twice the memory) or fail: where it is killed by a shortage of "
                "memory.",
                chinese="retry（重试）、grow（内存加倍）或 fail（失败）：因内存不足被杀死时。",
            ),
        ),
    ] = ""
    oom_max_memory: Annotated[
        float | None,
        TaskField(
            parse=_parse_oom_max_memory,
            takers=Takers.RUNS,
            means='The most memory that "grow" gives it, in MB',
            unasked="None: the quota of its pool",
            shown=False,
            option=Option(
                english="The most memory that grow gives it.",
                chinese="grow 最多给多少内存。",
                form=OptionForm.SIZE,
            ),
        ),
    ] = None
    max_run_s: Annotated[
        float | None,
        TaskField(
            parse=_timeout("max_run_s"),
            takers=Takers.ALL,
            means="Seconds that each of its attempts may run, from its start; then it is saved and ended",
            absent="None: what its pool says",
            unasked="None: what its pool says",
            chinese="运行时限（秒）",
            option=Option(
                name="max_run",
                english="The longest that it may run: 2h, 1d. Then it is saved and ended; else as its pool "
                "says.",
                chinese="最长运行时间：2h、1d。到时保存并结束；默认按资源池的设置。",
                form=OptionForm.SPAN,
            ),
        ),
    ] = None
    on_time_limit: Annotated[
        str,
        TaskField(
            parse=_one_of("on_time_limit", ON_TIME_LIMIT),
            takers=Takers.ENDED,
            means='"end" or "requeue" when it has run for as long as it may',
            unasked='None: "end"',
            shown=False,
            option=Option(
                english="end or requeue: what becomes of it when it has run for --max-run.",
                chinese="end（结束）或 requeue（重新排队）：运行满 --max-run 之后如何处理。",
            ),
        ),
    ] = ""
    idle_s: Annotated[
        float | None,
        TaskField(
            parse=_timeout("idle_s"),
            takers=Takers.ALL,
            means="Seconds for which its GPUs may be idle before its owner is warned, and again before it "
            "is ended",
            absent="None: what its pool says",
            unasked="None: what its pool says",
            chinese="空闲时限（秒）",
            option=Option(
                name="idle",
                english="How long its GPUs may be idle before a warning, and again before its end.",
                chinese="GPU 空闲多久后警告，再过同样时间后结束。",
                form=OptionForm.DURATION,
            ),
        ),
    ] = None
    #: See ``dependencies``.
    after: Annotated[
        tuple[str, ...],
        TaskField(
            parse=parse_after,
            takers=Takers.QUEUED,
            means="The tasks that it starts after, in the queue: an id alone or ``ok:ID`` when that one has "
            "completed, ``any:ID`` however it ends, ``fail:ID`` when it does not complete",
            argument_type="str | Sequence[str] | None",
            body_type="list[str] | str | None",
            chinese="依赖",
            option=Option(
                english="Tasks that it starts after: when they have completed, any:ID however it ends, "
                "fail:ID when it does not complete. Repeatable.",
                chinese="在哪些任务之后启动：默认在其完成后，any:ID 在其结束后，fail:ID 在其未完成时。"
                "可重复。",
                form=OptionForm.LIST,
                metavar="ID[,ID]",
            ),
        ),
    ] = ()
    #: See ``arrays``.
    array: Annotated[
        str,
        TaskField(
            parse=parse_array,
            takers=Takers.RUNS,
            means='Of an array: its indices, such as "0-99", "0-99:5" or "1,4,7-9", with "%10" behind them '
            "where at most ten run at once; or the number of its members",
            absent="empty: it is none",
            unasked="None: it is none",
            argument_type="str | int | None",
            body_type="str | int | None",
            option=Option(
                english="Many jobs: 0-99, 0-99:5 or 1,4,7-9, and %10 behind it where at most ten run at "
                "once. Each has its index as SCHEDULEMESH_ARRAY_INDEX.",
                chinese="一批作业：0-99、0-99:5 或 1,4,7-9，后加 %10 表示最多同时运行十个。"
                "各自的下标在 SCHEDULEMESH_ARRAY_INDEX 中。",
                metavar="INDICES",
            ),
        ),
    ] = ""
    array_id: Annotated[
        str,
        TaskField(
            means="Of a member of an array: the array's id",
            absent="empty: it is none",
            chinese="所属数组",
        ),
    ] = ""
    array_index: Annotated[
        int | None,
        TaskField(
            means="Of a member of an array: its index",
            absent="None: it is none",
            chinese="数组下标",
        ),
    ] = None
    #: See ``topology``.
    topology: Annotated[
        str,
        TaskField(
            parse=parse_topology,
            takers=Takers.QUEUED,
            means='How close together its members are placed: "rack", "preferred:rack", "slice:8:rack", '
            'with commas between them, or as a dict such as {"required": "rack"}',
            absent="empty: anywhere",
            unasked="None: anywhere",
            argument_type="str | Mapping[str, object] | None",
            body_type="str | dict[str, Any] | None",
            heading="topology",
            chinese="拓扑",
            option=Option(
                english="How close together its parts are: rack, preferred:rack, slice:8:rack, separated "
                "by commas.",
                chinese="各部分放得多近：rack、preferred:rack、slice:8:rack，用逗号分隔。",
                metavar="LEVEL,…",
            ),
        ),
    ] = ""

    def as_asked(self) -> TaskSpec:
        """The task as it was submitted."""
        if self.asked_priority is None and self.full_priority is None:
            return self
        of_caller = self.full_priority if self.asked_priority is None else self.asked_priority
        return msgspec.structs.replace(
            self, priority=of_caller, asked_priority=None, full_priority=None
        )

    def with_priority(self, priority: float) -> TaskSpec:
        """The task with another priority, as if no budget lowered it."""
        return msgspec.structs.replace(self, priority=priority, full_priority=None)


class Attempts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What happened to a task before its present attempt to run."""

    #: When it was first submitted, in seconds since 1970; None: with the present attempt.
    arrived_at: float | None = None
    #: How often it was evicted.
    preemptions: int = 0
    #: How often its run failed or its agent was lost.
    failures: int = 0
    #: Seconds that it has run.
    ran_s: float = 0.0
    #: GPU-seconds that it has used.
    gpu_s: float = 0.0
    #: How often it was evicted because its node or pool was drained, which counts as no preemption.
    drains: int = 0
    #: How often it reached a limit in time, which counts neither as an eviction nor as a failure.
    time_limits: int = 0
    #: Whether anything was saved in any of its attempts.
    has_saved: bool = False
    #: The key of the state before its last one, or of one that could not be restored; None: none is kept.
    previous_state: str | None = None
    #: Whether its last state could not be restored, and it was started from another or anew instead.
    fell_back: bool = False
    #: How often in a row its start was lost with its node; a start that succeeds resets it.
    lost_starts: int = 0

    @property
    def number(self) -> int:
        """The number of the present attempt, from 1: one more after each eviction, failure, loss or limit."""
        return 1 + self.preemptions + self.failures + self.drains + self.time_limits


FIRST_ATTEMPT = Attempts()


def _check_growth(spec: TaskSpec) -> None:
    """Raise InvalidRequestError where a task is to grow and cannot, or has a limit for nothing."""
    if spec.on_oom == "grow" and not spec.max_retries:
        raise InvalidRequestError(
            "on_oom is 'grow', but max_retries is 0, so that it is never started again; say max_retries"
        )
    if spec.oom_max_memory is not None and spec.on_oom != "grow":
        raise InvalidRequestError(
            "oom_max_memory limits on_oom='grow'; say that too, or leave it out"
        )


#: Checks what becomes of a task that is evicted. Raises InvalidRequestError.
parse_on_preempted = _one_of("on_preempted", ON_PREEMPTED)

#: What is declared of each field.
FIELDS: Mapping[str, TaskField] = {
    field.name: field.type.__metadata__[0] for field in msgspec.structs.fields(TaskSpec)
}
#: Fields that no listing shows.
INTERNAL = frozenset(name for name, field in FIELDS.items() if not field.shown)
_PUBLIC = tuple(name for name in FIELDS if name not in INTERNAL)
_public_values = attrgetter(*_PUBLIC)

#: How each field that a caller may set is checked and converted; all raise InvalidRequestError.
PARSERS: dict[str, Callable[[Any], Any]] = {
    name: field.parse for name, field in FIELDS.items() if field.parse is not None
}

#: Every field with its default; the task's id has none, so that it is always checked.
_DEFAULTS = tuple(
    (field.name, {} if field.default_factory is dict else field.default)
    for field in msgspec.structs.fields(TaskSpec)
)


def parse_task(fields: Mapping[str, object]) -> TaskSpec:
    """The task with these fields of TaskSpec, by name; None takes a field's default.

    Raises InvalidRequestError for what no caller may ask for.
    """
    parsed = {
        name: PARSERS[name](value)
        for name, value in fields.items()
        if value is not None or name == "task_id"
    }
    spec = TaskSpec(**parsed)
    _check_growth(spec)
    if spec.array:
        check_array_id(spec.task_id)
    return spec


def check_task(spec: TaskSpec) -> None:
    """Raise InvalidRequestError for a task that no caller may ask for."""
    for name, default in _DEFAULTS:
        value = getattr(spec, name)
        if value == default:
            continue
        if name == "evict_pools":
            # Set by a token; a client that sends one itself limits itself.
            for pool_name in value:
                parse_name(pool_name, "each of evict_pools")
            continue
        if name not in PARSERS:
            raise InvalidRequestError(f"{name} is set by the scheduler, not by its callers")
        PARSERS[name](value)
    _check_growth(spec)
    if spec.array:
        check_array_id(spec.task_id)


def task_row(spec: TaskSpec, own_class: str = "") -> dict[str, Any]:
    """The task as listings show it: its public fields by name, and the class of its priority. ``own_class``:
    that of the policy, if one has it.
    """
    row: dict[str, Any] = dict(zip(_PUBLIC, _public_values(spec), strict=True))
    row["after"] = list(spec.after)
    row["priority_class"] = class_of(spec.priority, own_class)
    return row


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskState:
    """The task whose state a preserver saves, as the preserver sees it."""

    task_id: str
    agent_name: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    payload: Any = None
    #: The class that has its priority; None: no class has.
    priority_class: str | None = None
    # begin written state
    #: Seconds from its start to its end; None: unknown.
    estimated_duration: float | None = None
    #: The user that it belongs to; empty: unknown.
    owner: str = ""
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None = None
    #: "requeue" or "drop" when it is evicted; empty: what its pool says.
    on_preempted: str = ""
    #: The task from inside which it was started, and with which it ends; empty: none, or that one was
    #: completed.
    parent: str = ""
    #: Seconds that each of its attempts may run, from its start; then it is saved and ended. None: what its
    #: pool says.
    max_run_s: float | None = None
    #: Seconds for which its GPUs may be idle before its owner is warned, and again before it is ended; None:
    #: what its pool says.
    idle_s: float | None = None
    #: The tasks that it starts after, in the queue: an id alone or ``ok:ID`` when that one has completed,
    #: ``any:ID`` however it ends, ``fail:ID`` when it does not complete.
    after: list[str] = dataclasses.field(default_factory=list)
    #: Of an array: its indices, such as "0-99", "0-99:5" or "1,4,7-9", with "%10" behind them where at most
    #: ten run at once; or the number of its members. empty: it is none.
    array: str = ""
    #: Of a member of an array: the array's id; empty: it is none.
    array_id: str = ""
    #: Of a member of an array: its index; None: it is none.
    array_index: int | None = None
    #: How close together its members are placed: "rack", "preferred:rack", "slice:8:rack", with commas
    #: between them, or as a dict such as {"required": "rack"}; empty: anywhere.
    topology: str = ""
    # end written
    #: When it started, in seconds since 1970.
    started_at: float = 0.0
    #: The metric ``progress`` as last reported; None: never reported.
    progress: float | None = None
    #: All metrics as last reported.
    last_metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
