"""What a group was asked, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedulemesh.core.worker_groups.worker_calls import Call, results
from schedulemesh.dispatch.strategies import Dealt
from schedulemesh.errors import InvalidRequestError


class PendingResult:
    """The answers of a group's ranks, which may still be at it."""

    def __init__(
        self, calls: Sequence[Call], timeout_s: float | None, dealt: Dealt | None = None
    ) -> None:
        self._calls = tuple(calls)
        self._timeout_s = timeout_s
        self._dealt = dealt

    @property
    def refs(self) -> list[Any]:
        """The Ray references of the answers, by rank."""
        return [call.ref for call in self._calls]

    def outputs(self, timeout_s: float | None = None) -> list[Any]:
        """The answers by rank, when all are there.

        The first worker that fails ends the wait with ``WorkerDiedError`` or ``WorkerFailedError``; one
        that has not answered after ``timeout_s`` seconds (None: the group's) with ``WorkerTimeoutError``.
        """
        return results(self._calls, self._timeout_s if timeout_s is None else timeout_s)

    def collect(self, like: str | None = None, timeout_s: float | None = None) -> Any:
        """The answers as one batch, in the order of the data that was dispatched.

        Of replicas the lowest rank's answer is taken; padding is removed; rows that were dealt out in
        another order are put back. ``like`` is the path of the leaf ("prompts/ids") that the answers were
        cut as; None: all leaves that were cut are cut alike. Where nothing was cut by a spec (``call``, or
        a plugin that gave bare parts) the answers are returned by rank.

        Raises as ``outputs``, and ``InvalidRequestError`` where an answer is not of its part's size.
        """
        found = self.outputs(timeout_s)
        if self._dealt is None:
            return found
        try:
            return self._dealt.collect(found, like)
        except InvalidRequestError as error:
            asked = self._calls[0]
            raise InvalidRequestError(
                f"the answers of group {asked.group} to {asked.method} do not make a batch: {error}"
            ) from error
