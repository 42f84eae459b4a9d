"""A scheduler object: what it is connected to, and leaving the scheduler."""

from __future__ import annotations

from types import TracebackType

from typing_extensions import Self

from schedulemesh.api.policies import GetPolicy
from schedulemesh.client.arguments import public_calls
from schedulemesh.client.asking import SchedulerConnection, details
from schedulemesh.client.listings import PolicyResult
from schedulemesh.client.notebook import table_of


@public_calls
class SchedulerObject:
    """An object that is connected to the supervisor of one scheduler."""

    _connection: SchedulerConnection

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection.described()}>"

    def _repr_html_(self) -> str:
        return table_of(self._connection.description())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self._connection.name

    def _own_classes(self) -> dict[str, float]:
        """The own priority classes of the policy in force."""
        answer = details(self._connection, GetPolicy(), PolicyResult)
        return answer.get("policy", {}).get("priority_classes", {})

    def detach(self) -> None:
        """Use this object no more. The scheduler keeps running: a detached one until it is shut down, others
        until their job ends.
        """
        self._connection.leave()
