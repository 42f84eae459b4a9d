"""What a submitted task runs by itself: a method of its class, or a function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from ray.actor import ActorClass
from ray.remote_function import RemoteFunction

from schedulemesh.core.agent.function_agent import FunctionAgent
from schedulemesh.core.transport.user_code import ship_arguments
from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.names import as_text, parse_method
from schedulemesh.domain.user_data import UserFunction, UserValue
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import key_of

#: The method of FunctionAgent that a task consists of which is a function.
_CALL = "run"


def with_run(
    arguments: Mapping[str, object],
) -> tuple[Mapping[str, object], dict[str, bytes]]:
    """The arguments of a submission with the key of what its method takes, and the bytes of that key. A
    function is replaced by an agent class that calls it. Raises InvalidRequestError.
    """
    args = positional(arguments.get("run_args"), "run_args")
    kwargs = named(arguments.get("run_kwargs"), "run_kwargs")
    target, run = arguments.get("actor_class"), arguments.get("run")
    if is_a(target, RemoteFunction):
        raise InvalidRequestError(
            "actor_class is a function with @ray.remote, whose options would not be used; submit the "
            "function without that decorator, and say what it takes with resources and ray_options"
        )
    if not is_a(target, type) and not is_a(target, ActorClass) and callable(target):
        return _of_function(arguments, target, args, kwargs), {}
    if run is None:
        if args or kwargs:
            raise InvalidRequestError(
                "run_args and run_kwargs are arguments of the method that run names; give run='...', or "
                "submit a function"
            )
        return arguments, {}
    cls, _ = unwrap(target)
    _check_method(cls, parse_method(run, "run"), args, kwargs)
    shipped = ship_arguments(args, kwargs, "run_args and run_kwargs")
    if shipped.refs or shipped.nested:
        raise InvalidRequestError(
            "run_args and run_kwargs cannot hold object references, which do not outlive a restart of "
            "the scheduler; pass them to the constructor, in actor_args or actor_kwargs"
        )
    if not args and not kwargs:
        return arguments, {}
    key = key_of(shipped.data)
    return {**arguments, "run_key": key}, {key: shipped.data}


def unwrap(actor_class: object) -> tuple[type, Mapping[str, object]]:
    """The plain class and the options of its ``@ray.remote``, if it has one."""
    if is_a(actor_class, ActorClass):
        metadata = actor_class.__ray_metadata__
        modified = metadata.modified_class
        beneath = getattr(actor_class, "_default_options", None) or {}
        cls = getattr(modified, "__ray_actor_class__", modified)
    else:
        cls, beneath = actor_class, {}
    if not is_a(cls, type):
        raise InvalidRequestError(
            f"actor_class must be a class or a function, not {shown(actor_class)}"
        )
    return cls, beneath


def positional(values: object, what: str) -> tuple[UserValue, ...]:
    """Positional arguments. Raises InvalidRequestError for anything but a list of values, or None."""
    return () if values is None else tuple(as_elements(values, what, "a list"))


def named(arguments: object, what: str) -> dict[str, UserValue]:
    """Arguments by name. Raises InvalidRequestError for anything but a dict by name, or None."""
    if arguments is None:
        return {}
    values_by_name: dict[str, UserValue] = {}
    for key, value in as_items(arguments, what, "a dict of named arguments"):
        name = as_text(key)
        if name is None:
            raise InvalidRequestError(
                f"{what} must be a dict of named arguments, not {shown(arguments)}"
            )
        values_by_name[name] = value
    return values_by_name


def _of_function(
    arguments: Mapping[str, object],
    function: UserFunction,
    args: tuple[UserValue, ...],
    kwargs: dict[str, UserValue],
) -> Mapping[str, object]:
    """The submission of an agent that calls this function."""
    for argument in ("run", "actor_args", "actor_kwargs"):
        if arguments.get(argument):
            raise InvalidRequestError(
                f"{argument} belongs to a class, and a function was submitted; its arguments are "
                "run_args and run_kwargs"
            )
    name = getattr(function, "__name__", type(function).__name__)
    _check_returns(f"the function {name}", function)
    _check_call(f"the function {name}", function, args, kwargs)
    return {
        **arguments,
        "actor_class": FunctionAgent,
        "actor_args": (function, *args),
        "actor_kwargs": kwargs,
        "run": _CALL,
    }


def _check_method(
    cls: type, method: str, args: tuple[UserValue, ...], kwargs: dict[str, UserValue]
) -> None:
    """Raise InvalidRequestError if the class has no such method, or it does not take these arguments."""
    function = getattr(cls, method, None)
    if not callable(function):
        raise InvalidRequestError(f"class {cls.__name__} has no method {method!r} to run")
    _check_returns(f"{cls.__name__}.{method}", function)
    bound = isinstance(inspect.getattr_static(cls, method), staticmethod | classmethod)
    call_args = args if bound else (None, *args)
    _check_call(f"{cls.__name__}.{method}", function, call_args, kwargs)


def _check_returns(what: str, function: UserFunction) -> None:
    """Raise InvalidRequestError for a generator, which has no result."""
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidRequestError(
            f"{what} is a generator, and a task runs a function or method that returns its result"
        )


def _check_call(
    what: str, function: UserFunction, args: tuple[UserValue, ...], kwargs: dict[str, UserValue]
) -> None:
    """Raise InvalidRequestError for arguments that a function does not take. One whose signature Python
    cannot tell is let through.
    """
    try:
        signature = inspect.signature(function)
    except Exception:  # noqa: BLE001  # user code may raise anything; its process tells
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidRequestError(
            f"{what} takes {signature}; that does not take run_args and run_kwargs as given: {error}"
        ) from None
