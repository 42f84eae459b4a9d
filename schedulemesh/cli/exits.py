"""Exit codes of the commands, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum

from schedulemesh.cli.language import language, spoken
from schedulemesh.cli.wording import in_commands
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import (
    InvalidRequestError,
    LeaseRefusedError,
    NotAllowedError,
    RayJobNotFoundError,
    ScheduleMeshError,
    SchedulerExistsError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.answers import AnswerT, PoolResponse, Response


class ExitCode(IntEnum):
    """What a command returns to the shell."""

    OK = 0
    FAILED = 1
    #: The command line is malformed: an unknown option, a bad value.
    USAGE = 2
    #: There is no such scheduler, pool, task, agent or node.
    NOT_FOUND = 3
    #: The caller's role does not allow it.
    NOT_ALLOWED = 4
    #: No Ray cluster was joined, or the scheduler does not answer.
    UNREACHABLE = 5
    #: It contradicts what exists: another definition, a task that runs already.
    CONFLICT = 6
    #: What was waited for did not happen in time; the code of the command ``timeout``.
    TIMED_OUT = 124


class RefusedError(ScheduleMeshError):
    """The scheduler refused a request."""

    def __init__(self, refused: Refused) -> None:
        sentences = filter(None, map(spoken, (refused.error_text, refused.hint_text)))
        words = [*map(in_commands, sentences), *filter(None, (_victims(refused),))]
        words[1:] = [f"{word[:1].upper()}{word[1:]}" for word in words[1:]]
        super().__init__(("。" if language() == "zh" else ". ").join(words))
        self.refused, self.reason = refused, refused.reason


def _victims(refused: Refused) -> str:
    """What became of the tasks that were evicted for it, in one sentence; empty: there were none."""
    ids_by_state = {
        "victims_run_again": refused.restarted,
        "victims_wait": refused.requeued,
        "victims_ended": refused.not_restarted,
    }
    parts = [say(code, tasks=ids) for code, ids in ids_by_state.items() if ids]
    return spoken(say("victims", parts=parts)) if parts else ""


class UnreachableError(ScheduleMeshError):
    """No Ray cluster was joined."""


def accepted(answer: AnswerT | Refused) -> AnswerT:
    """An answer that is no refusal. Raises RefusedError."""
    if isinstance(answer, Refused):
        raise RefusedError(answer)
    if isinstance(answer, (Response, PoolResponse)) and isinstance(answer.outcome, Refused):
        raise RefusedError(answer.outcome)
    return answer


_CONFLICTS = frozenset(
    {
        Reason.POOL_EXISTS,
        Reason.POOL_IN_USE,
        Reason.DUPLICATE_TASK,
        Reason.DUPLICATE_AGENT,
        Reason.POOL_DRAINING,
        Reason.POOL_ENDING,
        Reason.COHORT_EXISTS,
        Reason.COHORT_IN_USE,
        Reason.NODE_DRAINING,
        Reason.DRAINED_BY_RAY,
        Reason.MAINTENANCE_WINDOW,
        Reason.WINDOW_EXISTS,
        Reason.COHORT_CYCLE,
        Reason.CONFLICTING_OPTIONS,
        Reason.NOT_QUEUED,
        Reason.TASK_NOT_ENDED,
        Reason.AGENT_NOT_RUNNING,
        Reason.TASK_NOT_RUNNING,
        Reason.AGENT_ENDING,
        Reason.ALREADY_BEING_PREEMPTED,
        Reason.TOKEN_EXISTS,
        Reason.TOKEN_CONTRADICTION,
        Reason.LAST_OPERATOR,
    }
)
_NOT_ALLOWED = frozenset({Reason.NOT_ALLOWED, Reason.TOKEN_NOT_ACCEPTED, Reason.COMMANDS_OFF})
_TIMEOUTS = frozenset({Reason.WAIT_TIMEOUT, Reason.AGENT_START_TIMEOUT})

#: The first class that an error is an instance of decides.
_BY_CLASS: tuple[tuple[type[Exception], ExitCode], ...] = (
    (RayJobNotFoundError, ExitCode.NOT_FOUND),
    (InvalidRequestError, ExitCode.USAGE),
    (SchedulerNotFoundError, ExitCode.NOT_FOUND),
    (SchedulerExistsError, ExitCode.CONFLICT),
    (SchedulerUnavailableError, ExitCode.UNREACHABLE),
    (UnreachableError, ExitCode.UNREACHABLE),
    (NotAllowedError, ExitCode.NOT_ALLOWED),
    (TimeoutError, ExitCode.TIMED_OUT),
)


def code_of_reason(reason: Reason) -> ExitCode:
    """The exit code of a refusal."""
    if reason.value.endswith("_not_found"):
        return ExitCode.NOT_FOUND
    if reason in _CONFLICTS:
        return ExitCode.CONFLICT
    if reason in _NOT_ALLOWED:
        return ExitCode.NOT_ALLOWED
    return ExitCode.TIMED_OUT if reason in _TIMEOUTS else ExitCode.FAILED


def code_of(error: Exception) -> ExitCode:
    """The exit code of an error."""
    if isinstance(error, RefusedError):
        return code_of_reason(error.reason)
    if isinstance(error, LeaseRefusedError) and error.answer:
        return code_of_reason(next(one for one in Reason if one.value == error.answer["reason"]))
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), ExitCode.FAILED)
