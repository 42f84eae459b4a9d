"""Arguments of public calls: signatures, and errors that name what was given and what is taken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar, cast, get_type_hints

from schedulemesh.client.notebook import CallAnswer
from schedulemesh.client.task_fields import DEFAULTS
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.priorities import OWN_CLASSES
from schedulemesh.errors import InvalidRequestError, nearest, shown

Given = ParamSpec("Given")
Answered = TypeVar("Answered")
Scheduler = TypeVar("Scheduler")

#: Names that other systems use, and the argument that takes their value here.
_ELSEWHERE = {
    "num_cpus": "say resources={'cpu': ...}",
    "num_gpus": "say resources={'gpu': ...}",
    "cpu": "say resources={'cpu': ...}",
    "gpu": "say resources={'gpu': ...}",
    "memory": "say resources={'memory': ...}, in MB",
    "runtime_env": "say ray_options={'runtime_env': ...}",
    "max_restarts": "say ray_options={'max_restarts': ...}",
    "args": "did you mean 'actor_args'?",
    "kwargs": "did you mean 'actor_kwargs'?",
}


#: The two words under which calls take a pool: what one of them declares, the other stands for.
_POOL_WORDS = ("pool", "pool_name")


def public_calls(cls: type[Scheduler]) -> type[Scheduler]:
    """Decorate every public call of a class, and its construction, with ``public``; a call that names a pool
    takes it as ``pool`` and as ``pool_name``.
    """
    for name, member in list(vars(cls).items()):
        call = member.__func__ if isinstance(member, classmethod) else member
        if not inspect.isfunction(call) or (name.startswith("_") and name != "__init__"):
            continue
        checked = call if hasattr(call, "__wrapped__") else public()(call)
        checked = _with_either_word(checked)
        setattr(cls, name, classmethod(checked) if isinstance(member, classmethod) else checked)
    return cls


def _with_either_word(call: Callable[Given, Answered]) -> Callable[Given, Answered]:
    """The call with both words for a pool, if its signature has one of them."""
    signature = inspect.signature(call)
    declared = [word for word in _POOL_WORDS if word in signature.parameters]
    if len(declared) != 1:
        return call
    (word,) = declared
    (synonym,) = set(_POOL_WORDS) - {word}

    @functools.wraps(call)
    def translated(*args: Given.args, **kwargs: Given.kwargs) -> Answered:
        if synonym in kwargs:
            if word in kwargs:
                raise InvalidRequestError(
                    f"{_called(call)}() got pool and pool_name, which mean the same; give one of them"
                )
            kwargs[word] = kwargs.pop(synonym)
        return call(*args, **kwargs)

    return translated


def public(
    fields: type | None = None,
) -> Callable[[Callable[Given, Answered]], Callable[Given, Answered]]:
    """Have a call that is given wrong arguments raise InvalidRequestError, naming the nearest one.

    ``fields`` is the TypedDict of the call's ``**fields``: the signature that ``help`` shows lists them as
    keyword arguments. A call that takes other keywords checks them itself.
    """

    def decorate(call: Callable[Given, Answered]) -> Callable[Given, Answered]:
        signature = _signature(call, fields)
        parameters = signature.parameters.values()
        names = {
            p.name
            for p in parameters
            if p.kind is not p.VAR_KEYWORD and p.name not in ("self", "cls")
        }
        checks_itself = any(p.kind is p.VAR_KEYWORD for p in parameters)

        @functools.wraps(call)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Answered:
            if not checks_itself:
                for name in kwargs:
                    if name not in names:
                        raise InvalidRequestError(_unknown(_called(call), name, names))
            token = OWN_CLASSES.set(partial(_own_classes_of, args))
            try:
                return _shown_in_notebooks(call(*args, **kwargs))
            except TypeError as error:
                inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
                if inside:
                    raise
                raise InvalidRequestError(str(error)) from None
            finally:
                OWN_CLASSES.reset(token)

        checked.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
        return checked

    return decorate


def _own_classes_of(arguments: tuple[object, ...]) -> Mapping[str, float]:
    """The own priority classes of the scheduler whose call has these arguments."""
    ask = getattr(arguments[0], "_own_classes", None) if arguments else None
    return {} if ask is None else cast("Mapping[str, float]", ask())


def _shown_in_notebooks(answer: Answered) -> Answered:
    """The answer; a dict as one that notebooks show as a table."""
    if type(answer) is not dict:
        return answer
    return cast("Answered", CallAnswer(cast("dict[str, object]", answer)))


def _signature(call: Callable[..., object], fields: type | None) -> inspect.Signature:
    """The call's signature, with the keywords of ``fields`` in the place of its ``**fields``."""
    signature = inspect.signature(call)
    if fields is None:
        return signature
    own_parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    listed = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=kind
        )
        for name, kind in get_type_hints(fields).items()
    ]
    return signature.replace(parameters=[*own_parameters, *listed])


def _called(call: Callable[..., object]) -> str:
    """The name that callers use."""
    owner, _, name = call.__qualname__.rpartition(".")
    return owner if name == "__init__" else name


def _unknown(call: str, argument: str, names: set[str]) -> str:
    if argument in _ELSEWHERE and "resources" in names:
        return f"{call}() has no argument {argument!r}; {_ELSEWHERE[argument]}"
    takes = f"it takes {', '.join(sorted(names))}" if names else "it takes none"
    return f"{call}() has no argument {argument!r}{nearest(argument, names)}; {takes}"


def check_constructor(cls: type, args: Iterable[object], kwargs: dict[str, object]) -> None:
    """Raise InvalidRequestError for a class that cannot be built with the agent's name and labels first,
    then these arguments. One whose signature Python cannot tell is let through.
    """
    try:
        signature = inspect.signature(cls)
    except Exception:  # noqa: BLE001  # a class of the user's may raise anything; its process tells
        return
    if not _can_take(signature, ("name", {}), {}, partly=True):
        raise InvalidRequestError(
            f"actor_class {shown(cls.__name__)} takes {signature}; an agent's class is built with name and "
            "labels first: def __init__(self, name, labels, ...), or derive it from AgentActor"
        )
    if not _can_take(signature, ("name", {}, *args), kwargs, partly=False):
        raise InvalidRequestError(
            f"actor_class {shown(cls.__name__)} takes {signature}; that does not take the agent's name and "
            f"labels, then actor_args and actor_kwargs as given: {_why(signature, args, kwargs)}"
        )


def _can_take(
    signature: inspect.Signature,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    partly: bool,
) -> bool:
    try:
        (signature.bind_partial if partly else signature.bind)(*args, **kwargs)
    except TypeError:
        return False
    return True


def _why(signature: inspect.Signature, args: Iterable[object], kwargs: dict[str, object]) -> str:
    try:
        signature.bind("name", {}, *args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def parse_ids(value: object, what: str) -> tuple[str, ...]:
    """Names or ids, each once: of one, or of a list. Raises InvalidRequestError."""
    name = as_text(value)
    elements = [name] if name is not None else as_elements(value, what, "a list of ids")
    return tuple(dict.fromkeys(parse_name(element, what.removesuffix("s")) for element in elements))
