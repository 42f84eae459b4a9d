"""Ray Data: what a pipeline runs is placed in the placement group of a lease, and ends with it."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

from ray.data import DataContext
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from schedulemesh.errors import InvalidRequestError, LeaseEndedError, shown
from schedulemesh.integrations.lease_terms import LeaseLike

#: The leases that pipelines of this process run in. What Ray Data sends to its workers has only their keys.
_LEASES: dict[str, LeaseLike] = {}


@contextlib.contextmanager
def leased_datasets(lease: LeaseLike) -> Iterator[None]:
    """Datasets that are created in the block read, map and write in the placement group of a lease.

    So do the tasks that their functions start. Tasks of a shuffle (``sort``, ``groupby``, ``repartition``,
    ``join``) are not in it: Ray Data spreads them over the cluster. When the lease has ended, pipelines in it
    raise ``LeaseEndedError``. Raises ``InvalidRequestError`` if the lease has several placement groups.
    """
    if not hasattr(lease, "placement_groups"):
        raise InvalidRequestError(f"leased_datasets was given {shown(lease)}; allowed is a lease")
    group = _only(lease.placement_groups)
    context = DataContext.get_current()
    place = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    key = uuid.uuid4().hex
    _LEASES[key] = lease
    watch = type("WatchedLease", (_EndsWithLease,), {"key": key})
    watches = [*context.custom_execution_callback_classes, watch]
    settings = {
        "scheduling_strategy": place,
        "scheduling_strategy_large_args": place,
        "custom_execution_callback_classes": watches,
    }
    before = {name: getattr(context, name) for name in settings}
    _set(context, settings)
    try:
        yield
    finally:
        _set(context, before)
        del _LEASES[key]


class _EndsWithLease(ExecutionCallback):  # type: ignore[misc]
    """Ends a pipeline whose lease has ended. Ray Data would submit its tasks again without end, to a
    placement group that is gone.
    """

    key = ""

    def on_execution_step(self, _executor: object) -> None:
        """Called after each step of a pipeline."""
        lease = _LEASES.get(self.key)
        if lease is not None and lease.state not in ("running", "preempting"):
            raise LeaseEndedError(
                f"{lease!r} has ended, and what the pipeline ran in it; ask for another lease, and run the "
                f"pipeline again"
            )


def _only(groups: list[PlacementGroup]) -> PlacementGroup:
    if len(groups) == 1:
        return groups[0]
    raise InvalidRequestError(
        f"Ray Data runs in one placement group; this lease has {len(groups)}. Ask for one group with all "
        f"bundles, such as groups=[[{{'cpu': 1}}] * 8]"
    )


def _set(context: Any, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        # Ray announces that the strategies will go in 2027; nothing else places all of a pipeline.
        warnings.simplefilter("ignore")
        for name, value in settings.items():
            setattr(context, name, value)
