"""What is asked of the history. Nothing here imports a database."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schedulemesh.store.history.usage import HOUR_S


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempts are wanted; None: all."""

    task_id: str | None = None
    #: All names that the pool has had.
    pool_names: tuple[str, ...] | None = None
    owner: str | None = None
    agent_name: str | None = None
    state: str | None = None
    #: Labels that it has.
    labels: Mapping[str, str] = {}
    #: Those that had not ended before, and those that were submitted before: seconds since 1970.
    since: float | None = None
    until: float | None = None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list: the attempts before this ``cursor``, the newest first; or, where ``after`` is given,
    those after that one, the oldest first.
    """

    before: int | None = None
    after: int | None = None


def whole_hours(since: float, until: float) -> tuple[float, float]:
    """The time span in whole hours that contains this one."""
    return since // HOUR_S * HOUR_S, -(-until // HOUR_S) * HOUR_S
