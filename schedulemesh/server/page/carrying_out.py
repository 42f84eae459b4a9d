"""Carries out a change that was confirmed, on behalf of the token of a session, and says what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schedulemesh.domain.language import Language
from schedulemesh.engine.messages.outcomes import TasksCancelled
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol import public
from schedulemesh.protocol.answers import Response
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.wording import translated
from schedulemesh.server.answers import plain
from schedulemesh.server.gateway import SupervisorClient
from schedulemesh.server.page.actions import Action, ActionForm, Requested
from schedulemesh.server.problems import Problem


class TargetOutcome(NamedTuple):
    """What came of a change of one task, node or pool."""

    target: str
    #: Why it was refused: a code, a sentence and the next step; empty: it was carried out.
    reason: str = ""
    error: str = ""
    hint: str = ""
    #: What the caller may not have intended.
    warnings: Sequence[str] = ()


async def carry_out(
    gateway: SupervisorClient,
    caller: TokenCaller,
    action: Action,
    form: ActionForm,
    language: Language,
) -> list[TargetOutcome]:
    """Make the calls of a form one after the other. Raises InvalidRequestError where it asks for what cannot
    be; whatever the supervisor refuses is in the outcomes, in this language, and in its record of changes.
    """
    outcomes: dict[str, TargetOutcome] = {}
    for requested in action.calls(form):
        for outcome in await _outcomes(gateway, caller, requested, language):
            outcomes[outcome.target] = outcome
    return [outcomes[target] for target in form.targets]


async def _outcomes(
    gateway: SupervisorClient, caller: TokenCaller, requested: Requested, language: Language
) -> list[TargetOutcome]:
    try:
        answer = await gateway.ask(requested.call, caller)
    except SchedulerUnavailableError as error:
        return [
            TargetOutcome(target, "scheduler_unavailable", str(error))
            for target in requested.targets
        ]
    if isinstance(answer, Response) and isinstance(answer.outcome, TasksCancelled):
        refusals = answer.outcome.refused
        return [
            _refused(target, public.refused(refusals[target]), language)
            if target in refusals
            else TargetOutcome(target)
            for target in requested.targets
        ]
    try:
        facts = translated(plain(answer), language)
    except Problem as problem:
        return [_refused(target, problem.body, language) for target in requested.targets]
    warnings = tuple(map(str, facts.get("warnings", ())))
    return [TargetOutcome(target, warnings=warnings) for target in requested.targets]


def _refused(target: str, body: Mapping[str, Any], language: Language) -> TargetOutcome:
    body = translated(body, language)
    return TargetOutcome(
        target,
        reason=str(body.get("reason", "")),
        error=str(body.get("error", "")),
        hint=str(body.get("hint", "")),
    )
