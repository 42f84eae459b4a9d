"""Which method of which service answers which call: the one whose first argument is that call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar, Union, get_type_hints

from schedulemesh.api.call import Call
from schedulemesh.protocol.answers import AnyAnswer, WithHandles
from schedulemesh.runtime.backend import Refs

Answered = Union[AnyAnswer, WithHandles]
Handler = Callable[[Call, Refs], Awaitable[Answered]]
Method = TypeVar("Method", bound=Callable[..., Awaitable[Answered]])

_MARK = "_answers_a_call"


def handler(method: Method) -> Method:
    """Have a method of a service answer the call that its first argument is. With a second one it is also
    given the object references that came beside the call.
    """
    setattr(method, _MARK, True)
    return method


def handlers_of(*services: object) -> Mapping[type[Call], Handler]:
    """What answers each call. Raises ValueError for a call that two methods answer."""
    handlers: dict[type[Call], Handler] = {}
    for service in services:
        for method in _marked(service):
            call, *others = _types_of(method)
            if call in handlers:
                raise ValueError(f"two methods answer {call.__name__}")
            handlers[call] = method if others else _without_refs(method)
    return handlers


def _marked(service: object) -> Iterator[Callable[..., Awaitable[Answered]]]:
    for name, function in inspect.getmembers(type(service), inspect.isfunction):
        if hasattr(function, _MARK):
            yield getattr(service, name)


def _types_of(method: Callable[..., Awaitable[Answered]]) -> list[type[Call]]:
    """The types of its arguments."""
    hints = get_type_hints(method)
    return [hints[name] for name in inspect.signature(method).parameters]


def _without_refs(method: Callable[..., Awaitable[Answered]]) -> Handler:
    return lambda call, _: method(call)
