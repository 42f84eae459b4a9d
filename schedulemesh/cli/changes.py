"""Commands that change several things by name: each is changed, and what became of it is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from schedulemesh.api.call import Call
from schedulemesh.cli.columns import CHANGES
from schedulemesh.cli.command import Output, Target, note
from schedulemesh.cli.language import spoken
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Listing
from schedulemesh.cli.wording import in_commands
from schedulemesh.domain.sentences import Text, say
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import AnswerT, PoolResponse, Response

if TYPE_CHECKING:
    from schedulemesh.api.pools import RenameCohort, RenamePool


def change_each(
    target: Target,
    output: Output,
    names: Iterable[str],
    request: Callable[[str], Call],
    expected: type[AnswerT],
    done: Callable[[AnswerT], Text],
) -> int:
    """Send a request for each name; the exit code is that of the first refusal.

    ``done``: what became of a thing, from the answer. Refusals are printed on stderr.
    """
    from schedulemesh.cli.exits import RefusedError, code_of
    from schedulemesh.cli.gateway import gateway_to, with_hint

    rows: list[dict[str, Text]] = []
    code = 0
    with gateway_to(target) as gateway:
        for name in names:
            try:
                answer = gateway.ask(request(name), expected)
                result = done(answer)
                note_warnings(getattr(answer, "outcome", None))
            except RefusedError as error:
                note(str(with_hint(gateway, error)))
                code = code or int(code_of(error))
                result = say("result_refused", reason=error.reason or "")
            rows.append({"name": name, "result": result})
    emit(Listing(kind="changes", rows=rows, columns=CHANGES), output)
    return code


def note_warnings(outcome: object) -> None:
    """Print on stderr what the caller of a change may not have intended by it, if it was carried out."""
    for warning in getattr(outcome, "warning_texts", ()):
        note(in_commands(spoken(warning)))


def noted_result(answer: Response | PoolResponse) -> Text:
    """As ``changed_result``, after the warnings were printed."""
    note_warnings(answer.outcome)
    return changed_result(answer)


def changed_result(answer: Response | PoolResponse) -> Text:
    """What an answer says was changed: created, changed or unchanged."""
    return say("result_code", code=_change_of(answer))


def _change_of(answer: Response | PoolResponse) -> str:
    return str(getattr(answer.outcome, "change", None) or "changed")


def rename_one(
    target: Target,
    output: Output,
    name: str,
    new_name: str,
    rename: type[RenamePool | RenameCohort],
) -> int:
    """Give a pool or a cohort another name; returns the exit code."""

    def result(answer: Response) -> Text:
        if _change_of(answer) != "changed":
            return say("result_code", code="unchanged")
        return say("result_renamed", name=new_name)

    def request(name: str) -> Call:
        return rename(name=name, new_name=new_name)

    return change_each(target, output, [name], request, Response, result)


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """Fields from words ``FIELD=VALUE``, whose values are YAML. Raises InvalidRequestError, also for one that
    is given twice.
    """
    import yaml

    fields: dict[str, Any] = {}
    for word in words:
        field, sign, value = word.partition("=")
        if not sign or not field:
            raise InvalidRequestError(
                f"{word!r} is no change; a change is FIELD=VALUE, without spaces around the sign"
            )
        if field in fields:
            raise InvalidRequestError(f"{field} is given twice; give it once")
        if not value.strip():
            raise InvalidRequestError(
                f"{word!r} has no value; give 0 for no amount, null for the default, '\"\"' for an empty text"
            )
        try:
            fields[field] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InvalidRequestError(f"{word!r} has no YAML value: {error}") from None
    return fields


def pairs(
    words: Iterable[str], option: str, form: str, *, later_wins: bool = False
) -> dict[str, str]:
    """Names and values from words ``NAME=VALUE``. Raises InvalidRequestError, also for a name that has two
    values unless ``later_wins``.
    """
    values: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise InvalidRequestError(f"{option} is {word!r}; {form}")
        if not later_wins and values.get(name, value) != value:
            raise InvalidRequestError(
                f"{option} has {name} as {values[name]!r} and as {value!r}; give it once"
            )
        values[name] = value
    return values
