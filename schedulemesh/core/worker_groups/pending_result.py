"""The pending results of a call to a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from ray import ObjectRef

from schedulemesh.core.worker_groups.handed_on import HandedOn, handed_on
from schedulemesh.core.worker_groups.worker_calls import WorkerCall, results
from schedulemesh.dispatch.collecting import Reductions, below, common_split, reduced
from schedulemesh.dispatch.declarations import UNDECLARED, MethodDeclaration
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.strategies import Scattered, row_sharding
from schedulemesh.dispatch.trees import child
from schedulemesh.domain.user_data import UserValue
from schedulemesh.errors import InvalidRequestError, WorkerError


class PendingResult:
    """The results of a group's ranks, which may still be running."""

    def __init__(
        self,
        calls: Sequence[WorkerCall],
        timeout_s: float | None,
        scattered: Scattered | None = None,
        earlier: Sequence[WorkerCall] = (),
        *,
        declared: MethodDeclaration | None = None,
        collected: Sequence[int] | None = None,
    ) -> None:
        self._calls = tuple(calls)
        self._timeout_s = timeout_s
        self._assigned = scattered
        self._earlier = tuple(earlier)
        self._keys: tuple[Any, ...] = ()
        #: Has the defaults of collect.
        self._declared = UNDECLARED if declared is None else declared
        #: The ranks whose results are collected; None: all.
        self._collected = collected

    def __getitem__(self, key: Any) -> PendingResult:
        """The value under ``key`` (a dict key, or the index of a tuple) of each result, still pending."""
        reduce = below(self._declared.reduce, key)
        member = PendingResult(
            self._calls,
            self._timeout_s,
            self._assigned,
            self._earlier,
            declared=msgspec.structs.replace(self._declared, reduce=reduce),
            collected=self._collected,
        )
        member._keys = (*self._keys, key)
        return member

    @property
    def refs(self) -> list[ObjectRef]:
        """The Ray object references of the results, by rank."""
        return [call.ref for call in self._calls]

    def outputs(self, timeout_s: float | None = None) -> list[UserValue]:
        """Wait for all results and return them by rank.

        The first worker that fails ends the wait with ``WorkerDiedError`` or ``WorkerFailedError``; a worker
        without a result after ``timeout_s`` seconds (None: the group's limit) with ``WorkerTimeoutError``.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            values = results(self._calls, timeout_s)
        except WorkerError:
            # If an earlier call has failed, its worker is the one to name.
            results(self._earlier, timeout_s)
            raise
        for key in self._keys:
            values = [child(result, key) for result in values]
        return values

    def handed_on(self, strategy: Any, layout: ParallelLayout) -> HandedOn:
        """These results as the argument of a call to a group of this layout; see ``WorkerGroup.dispatch``.

        Raises ``InvalidRequestError`` if it is not known which rows each result has.
        """
        sharded = None if self._assigned is None else self._assigned.sharded
        split = None if sharded is None else common_split(sharded.spec, sharded.shapes)
        if split is None:
            raise InvalidRequestError(
                "it is not known which rows each result has: the data was not distributed by one split of "
                "its rows; collect() the results, and dispatch them"
            )
        return handed_on(self.refs, self._keys, split, row_sharding(strategy, layout))

    @property
    def calls(self) -> tuple[WorkerCall, ...]:
        """The calls of which these are the results, after those whose results were handed on to them."""
        return (*self._earlier, *self._calls)

    def collect(
        self,
        like: str | None = None,
        timeout_s: float | None = None,
        *,
        reduce: Reductions = None,
    ) -> UserValue:
        """The results as one batch, in the order of the data that was dispatched.

        Of replicas, the result of the lowest rank is used; padding is removed; the original order of the rows
        is restored. ``like`` is the path of the leaf ("prompts/ids") whose split the results follow; None:
        all leaves that were split are split alike. ``reduce`` says how values without rows, such as a loss,
        become one: {"loss": "mean"}; see ``dispatch.collecting.collect``. If they are not given, what the
        method declares is used. Without a spec (``call`` of a method that declares none, or a plugin that
        returned plain parts) the results are returned by rank, or combined as ``reduce`` says.

        Raises as ``outputs``, and ``InvalidRequestError`` if a result does not have the size of its part.
        """
        outputs = self.outputs(timeout_s)
        like = self._declared.like if like is None else like
        reduce = self._declared.reduce if reduce is None else reduce
        try:
            if self._assigned is None:
                if self._collected is not None:
                    outputs = [outputs[rank] for rank in self._collected]
                return outputs if reduce is None else reduced(outputs, reduce)
            return self._assigned.collect(outputs, like, reduce)
        except InvalidRequestError as error:
            call = self._calls[0]
            raise InvalidRequestError(
                f"the answers of group {call.group} to {call.method} do not make a batch: {error}"
            ) from error
