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
from schedulemesh.server.page.actions import (
    Action,
    ActionForm,
    Requested,
    fields_in,
    quota_in,
)
from schedulemesh.server.page.words import WORDS, Words
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


def what_was_done(
    action: Action,
    form: ActionForm,
    outcomes: Sequence[TargetOutcome],
    names: Mapping[str, str],
    words: Words,
) -> Mapping[str, Any]:
    """What the template ``changed.html`` shows of a change. ``names``: of nodes, by id."""
    done = [one for one in outcomes if not one.reason]
    if action.subject == "policy":
        what = words.text(f"policy_{form.targets[0]}")
    else:
        what = words.named([names.get(one.target, one.target) for one in done])
    return {
        "action": action,
        "form": form,
        "names": names,
        "what": what,
        "quota": quota_in(form) if action.name == "quota" else None,
        "changed": fields_in(action, form),
        "done": done,
        "refused": [one for one in outcomes if one.reason],
    }


async def _outcomes(
    gateway: SupervisorClient, caller: TokenCaller, requested: Requested, language: Language
) -> list[TargetOutcome]:
    try:
        answer = await gateway.ask(requested.call, caller)
    except SchedulerUnavailableError as error:
        return [
            TargetOutcome(target, "scheduler_unavailable", WORDS[language].error(error))
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
    error = WORDS[language].problem(body) if body.get("error") else ""
    body = translated(body, language)
    return TargetOutcome(
        target,
        reason=str(body.get("reason", "")),
        error=error,
        hint=str(body.get("hint", "")),
    )
