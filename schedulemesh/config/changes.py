"""Changes single fields of a policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from schedulemesh.errors import InvalidRequestError, nearest, shown

PolicyT = TypeVar("PolicyT", bound=msgspec.Struct)


def with_changes(policy: PolicyT, changes: Mapping[str, Any], what: str) -> PolicyT:
    """The policy with these fields changed; ``what`` names it in errors.

    Raises InvalidRequestError for unknown fields, and for bad values, which the policy itself checks.
    """
    check_names(changes, policy.__struct_fields__, what)
    return msgspec.structs.replace(policy, **changes)


def check_names(fields: Iterable[object], names: Iterable[str], what: str) -> None:
    """Raise InvalidRequestError for the first of these that is no name of a field."""
    names = tuple(names)
    for name in fields:
        if name not in names:
            raise InvalidRequestError(
                f"{what} has no {shown(name)}{nearest(str(name), names)}; it has {', '.join(names)}"
            )


def without_null(changes: Mapping[str, Any], default: msgspec.Struct) -> dict[str, Any]:
    """Changes of a policy in which None stands for the field's value in ``default``."""
    return {
        name: getattr(default, str(name), None) if value is None else value
        for name, value in changes.items()
    }
