"""The changes whose HTTP form is declared with the call itself: their paths, bodies and requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Union, get_args, get_type_hints

import msgspec

from schedulemesh.api.agents import EnsureAgentHealth
from schedulemesh.api.call import Call
from schedulemesh.api.calls import CALLS
from schedulemesh.api.cluster import EndOrphans
from schedulemesh.api.exec_sessions import StartExec
from schedulemesh.api.preemption import PreemptTask
from schedulemesh.api.routes import Route
from schedulemesh.api.states import SaveTaskState
from schedulemesh.api.values import Priority, Seconds
from schedulemesh.domain.numbers import as_seconds
from schedulemesh.domain.priorities import as_priority
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import ChangeRoute, ReceivedChange
from schedulemesh.server.reads import IN_PATH, path_of

#: What the answer has, where that is more than success.
_ANSWERS: dict[type[Call], Any] = {
    SaveTaskState: schemas.Saved,
    StartExec: schemas.CommandBegun,
    EnsureAgentHealth: None,
    PreemptTask: None,
    EndOrphans: None,
}
#: Fields that are not part of a body: who asks is known, and the id is in a header.
_NOT_IN_BODY = frozenset(("client", "request_id"))


def derived_changes() -> Iterator[ChangeRoute]:
    """A change for each route of each call."""
    for call in CALLS:
        for route in call.routes:
            if route.method != "GET":
                yield _change(call, route)


def _change(call: type[Call], route: Route) -> ChangeRoute:
    return ChangeRoute(
        method=route.method,
        path=path_of(route),
        summary=route.summary,
        body=_body(call, route),
        answer=_ANSWERS.get(call, schemas.ChangeDone),
        asks=call,
        request=_request(call, route),
    )


def _body(call: type[Call], route: Route) -> Any:
    """The type of the body: the fields of the call that are neither in the path nor fixed."""
    names = tuple((name, route.renamed.get(name, name)) for name in _fields_of_body(call, route))
    return _struct(call, names) if names else bodies.Nothing


@cache
def _struct(call: type[Call], names: tuple[tuple[str, str], ...]) -> Any:
    """A body with these fields of a call, each with its name in the body; the same for all its routes."""
    hints = get_type_hints(call, include_extras=True)
    defaults = {field.name: field for field in msgspec.structs.fields(call)}
    fields: list[Any] = [
        (shown, _in_json(hints[name]))
        if defaults[name].required
        else (shown, _in_json(hints[name]), defaults[name].default)
        for name, shown in names
    ]
    return msgspec.defstruct(
        f"{call.__name__}Body", fields, bases=(bodies.Body,), frozen=True, kw_only=True
    )


def _fields_of_body(call: type[Call], route: Route) -> list[str]:
    outside_body = {*_NOT_IN_BODY, *route.fixed, *IN_PATH.findall(route.path)}
    return [name for name in call.__struct_fields__ if name not in outside_body]


def _in_json(hint: Any) -> Any:
    """The type of a field in a body: seconds may be written as a duration, such as "30m", and priorities by
    the names of their classes.
    """
    kinds = (hint, *get_args(hint))
    return Union[hint, str] if Seconds in kinds or Priority in kinds else hint


def _typed(value: object, hint: Any, shown: str) -> object:
    """The value of a field that may be written as a text. Raises InvalidRequestError."""
    kinds = (hint, *get_args(hint))
    if Priority in kinds:
        return as_priority(value, shown)
    return as_seconds(value, shown) if Seconds in kinds else value


def _request(call: type[Call], route: Route) -> Callable[[ReceivedChange], Call]:
    """What makes the call of what a caller gave."""
    hints = get_type_hints(call, include_extras=True)
    in_path, in_body = IN_PATH.findall(route.path), _fields_of_body(call, route)
    shared_fields = _NOT_IN_BODY.intersection(call.__struct_fields__)

    def request(received: ReceivedChange) -> Call:
        values = dict(route.fixed) | {name: received.name(name) for name in in_path}
        for name in in_body:
            shown = route.renamed.get(name, name)
            value = getattr(received.body, shown)
            values[name] = _typed(value, hints[name], shown)
        values |= {name: getattr(received, name) for name in shared_fields}
        return call(**values)

    return request
