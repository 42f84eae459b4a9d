"""The base of all calls: a call is one struct, sent as bytes.

A call checks its fields whenever it is created, so the client and, on decoding, the supervisor make the same
checks. Object references are sent beside it. Stimuli that only the runtime may send to the engine are no
calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from schedulemesh.api.routes import ListRoute, Route
from schedulemesh.api.values import Checked, RequestId
from schedulemesh.domain.request_ids import new_request_id
from schedulemesh.domain.tokens import Role

#: The most classes, arguments and states that come with one request: some of each member of large gangs.
MAX_BLOBS = 10_000


class Call(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="request",
    gc=False,
):
    """Base of all calls. Creating one raises InvalidRequestError if a value is out of range."""

    #: The lowest role whose tokens may make it; a submitter's calls are restricted further.
    least_role: ClassVar[Role] = Role.VIEWER
    #: Whether it may change the state.
    changes_state: ClassVar[bool] = False
    #: The ways to make it over HTTP, with a body of its other fields; none: it has a table entry of its own
    #: in ``server``, or is not made over HTTP.
    routes: ClassVar[tuple[Route, ...]] = ()
    #: The lists of rows that it answers over HTTP.
    listings: ClassVar[tuple[ListRoute, ...]] = ()

    @classmethod
    def allows(cls, role: Role) -> bool:
        """Whether tokens of this role may make it."""
        return role.rank >= cls.least_role.rank

    @classmethod
    def first_sentence(cls) -> str:
        """What it does, as its docstring begins."""
        return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())

    @property
    def waits(self) -> bool:
        """Whether its answer may come long after it was asked for."""
        return bool(getattr(self, "wait_s", 0.0))

    @property
    def searches(self) -> bool:
        """Whether it is answered by a search, which may take as long as hundreds of reads, and changes
        nothing.
        """
        return False

    def __post_init__(self) -> None:
        for name, optional, checks in _checked_fields(type(self)):
            value = getattr(self, name)
            if optional and (value is None or value is UNSET):
                continue
            for check in checks:
                check(value, name)


class ChangingCall(Call, frozen=True, kw_only=True):
    """Base of calls that change something: a repetition with the same id, as after a lost answer, changes
    nothing more.
    """

    least_role: ClassVar[Role] = Role.OPERATOR
    changes_state: ClassVar[bool] = True

    request_id: RequestId = msgspec.field(default_factory=new_request_id)


class CallWithBlobs(Call, frozen=True, kw_only=True):
    """Base of calls with bytes to store."""

    #: By their SHA-256.
    blobs: Annotated[dict[str, bytes], msgspec.Meta(max_length=MAX_BLOBS)] = {}


class ChangeWithBlobs(CallWithBlobs, frozen=True, kw_only=True):
    """Base of those of them that change something."""

    least_role: ClassVar[Role] = Role.OPERATOR
    changes_state: ClassVar[bool] = True

    request_id: RequestId = msgspec.field(default_factory=new_request_id)


def declared_by(module: ModuleType) -> Iterator[type[Call]]:
    """The calls that a module declares, in their order."""
    for value in vars(module).values():
        is_call = isinstance(value, type) and issubclass(value, Call)
        if is_call and value.__module__ == module.__name__ and not _is_base(value):
            yield value


def _is_base(call: type[Call]) -> bool:
    """Whether it has no name of its own in bytes, so that only calls derived from it are made."""
    return call.__struct_config__.tag == call.__name__


@cache
def _checked_fields(call: type[Call]) -> tuple[tuple[str, bool, tuple[Checked, ...]], ...]:
    """The fields of a call whose types check themselves: whether each may be absent, and its checks."""
    hints = get_type_hints(call, include_extras=True)
    fields = ((name, *_checks_of(hints[name])) for name in call.__struct_fields__)
    return tuple(field for field in fields if field[2])


def _checks_of(hint: Any) -> tuple[bool, tuple[Checked, ...]]:
    parts = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
    metadata = (one for part in parts for one in getattr(part, "__metadata__", ()))
    checks = tuple(one for one in metadata if isinstance(one, Checked))
    return bool({type(None), UnsetType} & set(parts)), checks


#: ``X | None`` and ``Optional[X]``.
_UNIONS = (Union, type(int | None))
