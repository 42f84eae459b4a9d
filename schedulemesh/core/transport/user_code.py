"""Serializes classes, functions and arguments of users, and loads them in the process that runs them.

Modules of the job's own folder are pickled by value, so that every worker has them and two jobs may have
modules of the same name; installed modules are pickled by name.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import pickle
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec
from ray import ObjectRef, cloudpickle
from typing_extensions import Buffer

from schedulemesh.config.settings import MAX_BLOB_BYTES, StrategyRef
from schedulemesh.domain.user_data import UserClass, UserFunction, UserValue
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.plugins import discovery
from schedulemesh.protocol.agents import (
    Method,
    Parameter,
    ShippedClass,
    ShippedFunction,
    StateTooLargeError,
    pack,
)

_by_value_lock = threading.Lock()

#: Names of methods that begin like this are the host's own.
_RESERVED = ("schedulemesh_", "_sm_")

#: What the arguments of a constructor that gets none are pickled as.
_NO_ARGUMENTS = pickle.dumps(((), {}))


class ShippedArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Constructor arguments as bytes, with the object references that they hold."""

    data: bytes
    #: References that stand as whole arguments; Ray resolves them.
    refs: tuple[ObjectRef, ...] = ()
    #: References within other values; they stay references.
    nested: tuple[ObjectRef, ...] = ()


class _Slot(msgspec.Struct, frozen=True):
    """The place of an object reference that is resolved before the call."""

    index: int


def ship_class(cls: type) -> bytes:
    """A class as bytes. Raises InvalidRequestError where it is no class or cannot be pickled."""
    methods = tuple(_methods(cls))
    code = _pickled(cls, f"the class {cls.__name__}")
    return pack(ShippedClass(name=cls.__name__, methods=methods, code=code, sys_path=job_folders()))


def ship_function(function: UserFunction, what: str) -> bytes:
    """A function as bytes. Raises InvalidRequestError where it cannot be pickled."""
    if not callable(function):
        raise InvalidRequestError(f"{what} must be a function, not {shown(function)}")
    return pack(ShippedFunction(code=_pickled(function, what), sys_path=job_folders()))


def load_strategy(ref: StrategyRef) -> object:
    """The plugin of a reference; whatever its module or its constructor raises passes through."""
    discovery.see_folders(ref.sys_path)
    if ref.code is not None:
        loaded: object = cloudpickle.loads(ref.code)
        return loaded
    return discovery.load_class(ref.path, discovery.SCHEDULING_GROUP)()


def ship_value(value: UserValue, what: str) -> bytes:
    """Any value as bytes. Raises InvalidRequestError where it cannot be pickled or is above 16 MB."""
    return _bounded(_pickled(value, what), what)


def ship_state(value: UserValue) -> bytes:
    """A saved state as bytes, of any size. Raises InvalidRequestError where it cannot be pickled."""
    return _pickled(value, "the saved state")


def pickled_state(value: UserValue, limit_bytes: int) -> bytes:
    """A saved state as bytes. Raises StateTooLargeError as soon as there are more than ``limit_bytes``."""
    too_large = StateTooLargeError(
        f"the state takes more than {limit_bytes} bytes pickled, which is what saved_state_bytes "
        "leaves for it, so nothing of it is kept. Write what is large to a file or an object store "
        "and return its address"
    )
    file = BoundedFile(limit_bytes, too_large)
    cloudpickle.dump(value, file)
    return file.data()


class BoundedFile:
    """A file in memory that accepts a limited number of bytes, and raises this error when there are more."""

    def __init__(self, limit_bytes: int, too_large: Exception) -> None:
        self._parts: list[bytes] = []
        self._limit, self._too_large = limit_bytes, too_large
        self._size = 0

    def data(self) -> bytes:
        """Everything that was written."""
        self._check()
        return b"".join(self._parts)

    def write(self, data: Buffer) -> int:
        """Append a copy of the data."""
        part = bytes(data)
        self._size += len(part)
        self._check()
        self._parts.append(part)
        return len(part)

    def _check(self) -> None:
        if self._size > self._limit:
            raise self._too_large


def ship_arguments(
    args: Sequence[UserValue],
    kwargs: Mapping[str, UserValue],
    what: str = "actor_args and actor_kwargs",
) -> ShippedArguments:
    """Arguments as bytes, references taken out. Raises InvalidRequestError as ship_value does; ``what`` names
    them.
    """
    if not args and not kwargs:
        return ShippedArguments(data=_NO_ARGUMENTS)
    refs: list[ObjectRef] = []

    def slot(value: UserValue) -> UserValue:
        if not isinstance(value, ObjectRef):
            return value
        refs.append(value)
        return _Slot(len(refs) - 1)

    flat = (tuple(slot(v) for v in args), {name: slot(v) for name, v in kwargs.items()})
    buffer = io.BytesIO()
    pickler = _RefPickler(buffer)
    with _own_modules_by_value(), _pickling_errors(what):
        pickler.dump(flat)
    data = _bounded(buffer.getvalue(), what)
    return ShippedArguments(data=data, refs=tuple(refs), nested=tuple(pickler.refs))


def load_class(shipped: ShippedClass | ShippedFunction) -> UserClass:
    """The class or function, in the process that runs it; which raises whatever its module raises."""
    discovery.see_folders(shipped.sys_path)
    return cloudpickle.loads(shipped.code)


def load_arguments(
    data: bytes, refs: Sequence[UserValue], nested: Sequence[ObjectRef]
) -> tuple[tuple[UserValue, ...], dict[str, UserValue]]:
    """The arguments, with resolved references in their places; nested ones stay references."""
    args, kwargs = _RefUnpickler(io.BytesIO(data), nested).load()

    def fill(value: UserValue) -> UserValue:
        return refs[value.index] if isinstance(value, _Slot) else value

    return tuple(fill(v) for v in args), {name: fill(v) for name, v in kwargs.items()}


def job_folders() -> tuple[str, ...]:
    """The folders of this job that Ray's own workers would look in: the script's, and the working one."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [str(Path(main).resolve().parent)] if main else []
    folders.append(str(Path.cwd()))
    return tuple(dict.fromkeys(folders))


class _RefPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # Ray ships no types
    """Collects object references instead of pickling them, so that Ray keeps counting them."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.refs: list[ObjectRef] = []

    def persistent_id(self, value: UserValue) -> int | None:
        if not isinstance(value, ObjectRef):
            return None
        self.refs.append(value)
        return len(self.refs) - 1


class _RefUnpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, refs: Sequence[ObjectRef]) -> None:
        super().__init__(buffer)
        self._refs = refs

    def persistent_load(self, index: int) -> UserValue:
        return self._refs[index]


def _pickled(value: UserValue, what: str) -> bytes:
    with _own_modules_by_value(), _pickling_errors(what):
        data: bytes = cloudpickle.dumps(value)
        return data


@contextmanager
def _pickling_errors(what: str) -> Iterator[None]:
    """Name what could not be pickled; pickling runs user code, so anything may be raised."""
    try:
        yield
    except Exception as error:
        raise InvalidRequestError(
            f"{what} cannot be pickled: {shown(error)}. Open files, locks, sockets and "
            "the like are made in the agent, not brought along"
        ) from error


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > MAX_BLOB_BYTES:
        raise InvalidRequestError(
            f"{what} take {len(data) / 2**20:.1f} MB pickled; up to {MAX_BLOB_BYTES / 2**20:.0f} MB are "
            "kept with the task. Put more with ray.put and pass the reference, or use a file"
        )
    return data


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """Within, modules of the job's own folder are pickled by value."""
    with _by_value_lock:
        inside = tuple(folder + os.sep for folder in job_folders())
        modules = _own_modules(inside, hash(tuple(map(id, sys.modules.values()))))
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


@functools.lru_cache(maxsize=1)
def _own_modules(inside: tuple[str, ...], _loaded: int) -> tuple[ModuleType, ...]:
    """The job's own modules; looked for again only when modules have come or gone."""
    return tuple(m for m in list(sys.modules.values()) if _is_own(m, inside))


def _is_own(module: object, inside: tuple[str, ...]) -> bool:
    """Whether a module lies in the job's folders and is not installed."""
    if not isinstance(module, ModuleType) or module.__name__ == "__main__":
        return False
    if module.__name__.partition(".")[0] == "schedulemesh":
        return False
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    return file.startswith(inside) and not file.startswith(_installed_folders())


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    paths.add(site.getusersitepackages())
    return tuple(path.rstrip(os.sep) + os.sep for path in paths)


def _methods(cls: type) -> Iterator[Method]:
    for name, function in inspect.getmembers(cls, inspect.isroutine):
        plain = inspect.isfunction(function) or inspect.ismethod(function)
        if plain and name.startswith(_RESERVED):
            raise InvalidRequestError(
                f"the method {name!r} of class {cls.__name__} has a name that ScheduleMesh uses itself; give "
                f"it one that does not begin with {' or '.join(_RESERVED)}"
            )
        if plain and (not name.startswith("__") or name == "__call__"):
            yield Method(
                name=name,
                kind=_kind(function),
                parameters=tuple(_parameters(cls, name, function)),
                ray_attributes={
                    key: value
                    for key, value in vars(inspect.unwrap(function)).items()
                    if key.startswith("__ray_") and isinstance(value, int | float | str | bool)
                },
            )


def _kind(function: UserFunction) -> str:
    function = inspect.unwrap(function)
    if inspect.iscoroutinefunction(function):
        return "async"
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    return "generator" if inspect.isgeneratorfunction(function) else "sync"


def _parameters(cls: type, name: str, function: UserFunction) -> Iterator[Parameter]:
    """The parameters that a caller gives: without self."""
    bound = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    for i, parameter in enumerate(inspect.signature(function).parameters.values()):
        if i or bound:
            yield Parameter(
                name=parameter.name,
                kind=int(parameter.kind),
                has_default=parameter.default is not parameter.empty,
            )
