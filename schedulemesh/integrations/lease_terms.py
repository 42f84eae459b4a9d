"""From which scheduler, and on what terms, a library's processes lease placement groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ray.util.placement_group import PlacementGroup

from schedulemesh.client.lease_calls import LeaseFields
from schedulemesh.core.backend.ray_resources import requested_resources
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.errors import InvalidRequestError, nearest

#: Arguments of a lease that the adapters pass on.
_FURTHER = sorted({"priority", "grace_s", *LeaseFields.__annotations__})


class LeaseLike(Protocol):
    """What the adapters use of a lease."""

    @property
    def state(self) -> str:
        """The state of its task: "queued", "starting", "running", "preempting", or how it ended."""

    @property
    def placement_groups(self) -> list[PlacementGroup]:
        """Its placement groups in Ray."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is granted; raises LeaseRefusedError where it has ended instead."""

    def preempted(self) -> bool:
        """Whether it is being evicted, or was."""

    def grace_left(self) -> float:
        """Seconds until everything in it is ended, once it is being evicted."""

    def release(self) -> object:
        """Give it up; returns when everything in it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What all leases of a run have in common. Can be pickled: a process of a library attaches by itself."""

    #: The scheduler's name and Ray namespace; None: the one that lives in the cluster, and any namespace.
    scheduler: str | None
    namespace: str | None
    #: For a scheduler with auth="token"; None: the one that is found.
    token: str | None
    pool: str
    #: Further arguments of ``RayScheduler.lease``, such as ``priority``.
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for what is no further argument of a lease."""
        for name in self.fields:
            if name not in _FURTHER:
                raise InvalidRequestError(
                    f"{name!r} is no argument of a lease{nearest(name, _FURTHER)}; allowed are "
                    f"{', '.join(_FURTHER)}"
                )

    def request(
        self,
        task_id: str,
        bundles: Sequence[Mapping[str, float]],
        strategy: str,
        on_preempt: Callable[[LeaseLike], object] | None = None,
    ) -> LeaseLike:
        """Request one placement group, with bundles in Ray's names and units; it may wait in the queue.

        Raises LeaseRefusedError where the scheduler refuses it.
        """
        mesh: Any = RayScheduler.attach(self.scheduler, namespace=self.namespace, token=self.token)
        group = [requested_resources(bundle).public() for bundle in bundles]
        lease: LeaseLike = mesh.lease(
            task_id,
            self.pool,
            [group],
            strategy=strategy,
            queue=True,
            on_preempt=on_preempt,
            **self.fields,
        )
        return lease
