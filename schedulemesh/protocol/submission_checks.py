"""Checks a submission that a client sends, beyond its types."""

from __future__ import annotations

from schedulemesh.domain.agent import check_agent
from schedulemesh.domain.labels import check_selector
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_timeout
from schedulemesh.domain.task import FIRST_ATTEMPT, check_task
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError


def check_submission(given: TaskSubmitted) -> None:
    """Raise InvalidRequestError for a submission that no client may send."""
    check_agent(given.agent)
    if given.client is not None:
        parse_name(given.client, "the client's name")
    if given.task is not None:
        check_task(given.task)
    check_selector(given.selector)
    parse_name(given.request_id, "request_id")
    if given.state_key is not None:
        raise InvalidRequestError("state_key is set by the scheduler, not by its callers")
    if given.attempts != FIRST_ATTEMPT:
        raise InvalidRequestError("attempts are counted by the scheduler, not by its callers")
    if given.queue and given.task is None:
        raise InvalidRequestError("only a task can wait in the queue")
    if given.until_runs and not given.queue:
        raise InvalidRequestError("a submission that waits until its task runs must be queued")
    if given.wait_s is not None:
        parse_timeout(given.wait_s, "wait")
