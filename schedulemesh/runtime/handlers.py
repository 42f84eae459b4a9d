"""Which method of which service answers which call: the one whose first argument is that call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
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
        kind: type = type(service)
        for name, (call, *others) in _marked(kind).items():
            method = getattr(service, name)
            if call in handlers:
                raise ValueError(f"two methods answer {call.__name__}")
            handlers[call] = method if others else _without_refs(method)
    return handlers


@functools.cache
def _marked(service: type) -> Mapping[str, list[type]]:
    """The types of the arguments of each method that is marked, by its name."""
    functions = inspect.getmembers(service, inspect.isfunction)
    return {name: _types_of(function) for name, function in functions if hasattr(function, _MARK)}


def _types_of(function: Callable[..., Awaitable[Answered]]) -> list[type]:
    """The types of its arguments, but for the first, which is the service."""
    hints = get_type_hints(function)
    _, *names = inspect.signature(function).parameters
    return [hints[name] for name in names]


def _without_refs(method: Callable[..., Awaitable[Answered]]) -> Handler:
    return lambda call, _: method(call)
