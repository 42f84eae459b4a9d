"""Changes single fields of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from schedulemesh.errors import InvalidRequestError, nearest, shown

PolicyT = TypeVar("PolicyT", bound=msgspec.Struct)


def with_changes(policy: PolicyT, changes: Mapping[str, Any], what: str) -> PolicyT:
    """The policy with these fields changed; ``what`` names it in errors.

    Raises InvalidRequestError for unknown fields, and for bad values, which the policy itself checks.
    """
    names = policy.__struct_fields__
    unknown = [name for name in changes if name not in names]
    if unknown:
        raise InvalidRequestError(
            f"{what} has no {shown(unknown[0])}{nearest(str(unknown[0]), names)}; it has "
            + ", ".join(names)
        )
    return msgspec.structs.replace(policy, **changes)
