"""How a member of a gang learns its rank: environment variables, and arguments of its constructor."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence

from schedulemesh.domain.user_data import UserClass, UserValue


def set_environment(rank: int, world_size: int) -> None:
    """Set ``RANK`` and ``WORLD_SIZE`` in this process, before the user's class is loaded."""
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)


def rank_arguments(
    cls: UserClass,
    args: Sequence[UserValue],
    kwargs: Mapping[str, UserValue],
    rank: int,
    world_size: int,
) -> dict[str, UserValue]:
    """Of ``rank`` and ``world_size`` those that the constructor names and the caller has not given."""
    try:
        signature = inspect.signature(cls)
        caller_arguments = signature.bind_partial("name", {}, *args, **kwargs).arguments
    except Exception:  # noqa: BLE001  # a class of the user's may raise anything; building it tells
        return {}
    rank_values = {"rank": rank, "world_size": world_size}
    return {
        name: value
        for name, value in rank_values.items()
        if name in signature.parameters and name not in caller_arguments
    }
