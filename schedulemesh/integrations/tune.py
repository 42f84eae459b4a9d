"""Ray Tune: each trial is a task of its own, so that trials wait, are evicted and resume one by one."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import Any

from ray.air.execution.resources.placement_group import PlacementGroupAcquiredResources
from ray.air.execution.resources.resource_manager import ResourceManager
from ray.tune.execution import tune_controller

from schedulemesh.errors import ScheduleMeshError
from schedulemesh.integrations.lease_terms import LeaseLike, LeaseTerms

logger = logging.getLogger(__name__)

#: Seconds that Tune's loop pauses where trials wait and none is ready.
_PAUSE_S = 0.05


@contextlib.contextmanager
def leased_trials(
    task_id: str,
    pool: str,
    *,
    scheduler: str | None = None,
    namespace: str | None = None,
    token: str | None = None,
    **fields: Any,
) -> Iterator[None]:
    """Run the trials of experiments that start in the block as tasks ``{task_id}-1``, ``{task_id}-2``, ...
    None of their leases outlives the block.

    An evicted trial fails; with ``FailureConfig(max_failures=...)`` Tune restores it from its last checkpoint
    when the queue grants it a new lease, under the next id. ``fields`` are those of ``RayScheduler.lease``.
    """
    terms = LeaseTerms(
        scheduler=scheduler, namespace=namespace, token=token, pool=pool, fields=fields
    )
    names = (f"{task_id}-{number}" for number in itertools.count(1))
    of_ray = tune_controller.PlacementGroupResourceManager
    made: list[LeaseResourceManager] = []

    def manager() -> LeaseResourceManager:
        made.append(LeaseResourceManager(terms, names))
        return made[-1]

    tune_controller.PlacementGroupResourceManager = manager
    try:
        yield
    finally:
        tune_controller.PlacementGroupResourceManager = of_ray
        # Tune releases them where an experiment ends as it should.
        with contextlib.ExitStack() as clearing:
            for each in made:
                clearing.callback(each.clear)


class LeaseResourceManager(ResourceManager):  # type: ignore[misc]
    """Serves each request of Tune with a lease. See Ray's ResourceManager for the calls."""

    def __init__(self, terms: LeaseTerms, names: Iterator[str]) -> None:
        self._terms, self._names = terms, names
        #: Leases that no trial uses yet, by request; they may still wait.
        self._requested: dict[Any, list[LeaseLike]] = {}
        #: By request, the granted lease that ``has_resources_ready`` has promised to Tune, with its placement
        #: group. It is kept even if the lease ends meanwhile: then only the trial that acquires it fails,
        #: while Tune stops the whole experiment if nothing can be acquired after that promise.
        self._offers: dict[Any, tuple[LeaseLike, Any]] = {}
        #: Leases in use by placement group.
        self._acquired: dict[Any, LeaseLike] = {}

    def request_resources(self, resource_request: Any) -> None:
        """Request a lease with the bundles of a trial."""
        lease = self._terms.request(
            next(self._names), resource_request.bundles, resource_request.strategy
        )
        self._requested.setdefault(resource_request, []).append(lease)

    def cancel_resource_request(self, resource_request: Any) -> None:
        """Withdraw a lease that no trial uses, one that waits first."""
        leases = self._requested.get(resource_request)
        if not leases:
            return  # it was refused, and Tune cleans up
        lease = next((waiting for waiting in leases if not _is_granted(waiting)), leases[0])
        leases.remove(lease)
        self._offers.pop(resource_request, None)
        lease.release()

    def has_resources_ready(self, resource_request: Any) -> bool:
        """Whether a lease for the request is granted. One that has ended unused is requested anew."""
        for lease in list(self._requested.get(resource_request, ())):
            if _is_over(lease):
                self._requested[resource_request].remove(lease)
                lease.release()
                self.request_resources(resource_request)
        self._offers.pop(resource_request, None)
        for lease in filter(_is_granted, self._requested.get(resource_request, ())):
            with contextlib.suppress(ScheduleMeshError):  # it has just ended
                self._offers[resource_request] = (lease, lease.placement_groups[0])
                return True
        return False

    def acquire_resources(self, resource_request: Any) -> PlacementGroupAcquiredResources | None:
        """The placement group of a granted lease; None: none is granted."""
        if resource_request not in self._offers and not self.has_resources_ready(resource_request):
            return None
        lease, group = self._offers.pop(resource_request)
        self._requested[resource_request].remove(lease)
        self._acquired[group] = lease
        return PlacementGroupAcquiredResources(
            placement_group=group, resource_request=resource_request
        )

    def free_resources(self, acquired_resource: Any) -> None:
        """Release the lease of a trial that has ended, paused or failed."""
        lease = self._acquired.pop(acquired_resource.placement_group, None)
        if lease is not None:  # else the block has been left
            lease.release()

    def get_resource_futures(self) -> list[Any]:
        """None: leases are no objects of Ray. Pauses where Tune would otherwise ask again without end."""
        waiting = [lease for leases in self._requested.values() for lease in leases]
        if waiting and not any(map(_is_granted, waiting)):
            with contextlib.suppress(ScheduleMeshError):
                waiting[0].wait(_PAUSE_S)
        return []

    def clear(self) -> None:
        """Release every lease, whatever becomes of the others; raises the first unexpected error."""
        requested = itertools.chain.from_iterable(self._requested.values())
        leases = [*requested, *self._acquired.values()]
        self._requested.clear()
        self._offers.clear()
        self._acquired.clear()
        with contextlib.ExitStack() as releases:
            for lease in leases:
                releases.callback(_release_or_log, lease)


def _release_or_log(lease: LeaseLike) -> None:
    """Release a lease; an error is logged, so that the others are released, too."""
    try:
        lease.release()
    except ScheduleMeshError as error:
        logger.warning("%r is not released: %s", lease, error)


def _is_granted(lease: LeaseLike) -> bool:
    return lease.state == "running" and not lease.preempted()


def _is_over(lease: LeaseLike) -> bool:
    return lease.state not in ("queued", "starting", "running")
