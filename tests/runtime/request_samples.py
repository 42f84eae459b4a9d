"""A valid request of every class, made from the types of its fields, so that a new class is tried as well."""

from __future__ import annotations

import msgspec
import msgspec.inspect as mi

from schedulemesh.api.calls import CALLS
from schedulemesh.domain.tokens import Role

#: Values of fields that not every value of their type is valid for, by name.
VALUES = {
    "owner": "ada",
    "command": ["true"],
    "secret_hash": "c" * 64,
    "by": "pool",
    "role": "submitter",
    "class_key": "c" * 64,
    "agent_name": "none",
    "request_id": "sample",
    "since": 0.0,
    "timeout_s": 1.0,
    "listing": "tasks",
    "limit": 1,
    "node_id": "none",
    "start": "2090-01-01T00:00Z",
}

#: Fields that are given although they have a default.
_GIVEN = ("owner", "node_id", "class_key", "agent_name", "request_id", "task", "held", "all_nodes")


def classes():
    """The classes of all requests."""
    return list(CALLS)


def sample(cls):
    """A request of a class: every field without a default has a value, nothing of which exists."""
    plain = _struct(mi.type_info(cls))
    return msgspec.convert(plain, cls)


def _struct(info):
    tag = {} if info.tag is None else {info.tag_field: info.tag}
    wanted = [f for f in info.fields if f.required or f.name in _GIVEN]
    return tag | {f.encode_name: VALUES.get(f.name) or _value(f.type, f.name) for f in wanted}


def _value(kind, name):
    match kind:
        case mi.StructType():
            return _struct(kind)
        case mi.StrType():
            return VALUES.get(name, "none")
        case mi.FloatType() | mi.IntType():
            return VALUES.get(name, 1)
        case mi.BoolType():
            return True
        case mi.VarTupleType() | mi.ListType() | mi.CollectionType():
            return []
        case mi.DictType():
            return {}
        case mi.EnumType():
            return next(iter(kind.cls)).value
        case mi.UnionType():
            return _value(next(k for k in kind.types if not isinstance(k, mi.NoneType)), name)
        case mi.Metadata():
            return _value(kind.type, name)
    raise TypeError(f"{name}: no sample of {kind!r}")


def allowed(role, cls):
    """Whether the table lets a role make requests of this class."""
    return list(Role).index(role) >= list(Role).index(cls.least_role)


def refused_by_role(answer):
    """Whether an answer is a refusal of the role."""
    refusal = getattr(answer, "refused", None)
    return (
        refusal is not None
        and refusal.reason == "not_allowed"
        and "this needs the role" in refusal.error
    )
