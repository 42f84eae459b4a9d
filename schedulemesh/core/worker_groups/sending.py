"""Puts values that workers are given into Ray's object store."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import ray
from ray import ObjectRef, cloudpickle

from schedulemesh.core.transport.arrays import wrapped
from schedulemesh.core.worker_groups.array_trees import Path, spelled
from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import InvalidRequestError


def put_once(values: Sequence[UserValue]) -> list[ObjectRef]:
    """The object references of values; a value that occurs several times is put into the store once."""
    refs = {id(value): put(value) for value in {id(value): value for value in values}.values()}
    return [refs[id(value)] for value in values]


def put(part: UserValue) -> ObjectRef:
    """The object reference of a part; a strategy may return references itself."""
    if isinstance(part, ray.ObjectRef):
        return part
    try:
        return ray.put(wrapped(part))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        path, value, reason = _first_unsendable(part, ()) or ((), part, error)
        raise InvalidRequestError(
            f"at {spelled(path)} lies a {type(value).__name__}, which cannot be sent: {reason}; allowed is "
            f"what pickle can pickle"
        ) from None


def _first_unsendable(value: UserValue, path: Path) -> tuple[Path, UserValue, Exception] | None:
    """The first leaf of a tree that cannot be pickled: its path, itself, and why."""
    if isinstance(value, (Mapping, list, tuple)):
        members = value.items() if isinstance(value, Mapping) else enumerate(value)
        unsendable = (_first_unsendable(member, (*path, key)) for key, member in members)
        return next(filter(None, unsendable), None)
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001  # a class of the user's may raise anything
        return path, value, error
    return None
