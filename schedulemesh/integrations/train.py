"""Ray Train: the workers of a run are in a lease; an eviction restarts them from a checkpoint.

Ray Train's controller, an actor, creates the placement group of its workers, so the lease is requested and
captured there, by a callback that is given in ``RunConfig``. An eviction reaches the workers as Ray Train's
own preemption (``ray.train.get_preemption_info()``), and the controller restarts them from the last
checkpoint as soon as the queue grants the lease again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerGroupCallback,
)
from ray.train.v2.api.exceptions import ControllerError, PreemptionError
from ray.train.v2.api.preemption import PreemptionInfo

from schedulemesh.integrations.group_capture import Capture, capture
from schedulemesh.integrations.lease_terms import LeaseLike, LeaseTerms

logger = logging.getLogger(__name__)

#: Seconds that the controller waits for a lease before it starts anew; meanwhile it serves nothing else.
_WAIT_S = 20.0
#: Seconds until an eviction is noticed here that has already ended workers, and between two looks.
_LATEST_NOTICE_S = 2.0
_LOOK_AGAIN_S = 0.05
#: The part of the time after a notice that the workers get; the controller stops them in the rest.
_SAVING_PART = 0.8
#: Where Ray Train logs what a callback raises, and how it goes on from there.
_LOGGERS_OF_ERRORS = (
    "ray.train.v2._internal.execution.callback_manager",
    "ray.train.v2._internal.execution.failure_handling.default",
)


class LeasedWorkers(ControllerCallback, WorkerGroupCallback, ReportCallback):  # type: ignore[misc]
    """A callback for ``ray.train.RunConfig``: the run's worker group is a task of ScheduleMesh.

    The run waits in the pool's queue until its workers fit. When it is evicted, every worker's
    ``ray.train.get_preemption_info()`` says so; with the next checkpoint that is reported, or shortly before
    the lease ends, the controller stops the workers, requests the lease again and resumes from the last
    checkpoint when it is granted.
    """

    def __init__(
        self,
        task_id: str,
        pool: str,
        *,
        scheduler: str | None = None,
        namespace: str | None = None,
        token: str | None = None,
        **fields: Any,
    ) -> None:
        """``fields`` are those of ``RayScheduler.lease``, such as ``priority`` and ``grace_s``."""
        self._task_id = task_id
        self._terms = LeaseTerms(
            scheduler=scheduler, namespace=namespace, token=token, pool=pool, fields=fields
        )
        self._lease: LeaseLike | None = None
        self._bundles: Sequence[Mapping[str, float]] = ()
        self._capture: Capture | None = None
        self._workers: Sequence[Any] = ()

    def after_controller_start(self, train_run_context: Any) -> None:  # noqa: ARG002
        """Keep Ray Train's own cleaner off the groups: when the controller dies it would remove the last one
        that it was told of, which by then may belong to another task.
        """
        PlacementGroupCleanerCallback.after_worker_group_start = _registers_nothing
        for name in _LOGGERS_OF_ERRORS:
            logging.getLogger(name).addFilter(expected_without_traceback)

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Wait for a lease that holds the workers, and serve the controller's placement group from it."""
        count = worker_group_context.num_workers
        bundles = [dict(worker_group_context.resources_per_worker)] * count
        if bundles != self._bundles or (self._capture is not None and not self._is_held()):
            self._give_up()
        if self._lease is None:
            strategy = worker_group_context.placement_strategy
            self._bundles = bundles
            self._lease = self._terms.request(self._task_id, bundles, strategy, self._notify)
        if not self._lease.wait(_WAIT_S):
            logger.info("%r: waits in the queue of its pool", self._lease)
            raise WorkerGroupStartupTimeoutError(count)
        if self._capture is None:
            self._capture = capture(self._lease, strict=True).start()

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Note the workers, which a notice is passed on to."""
        self._workers = worker_group.get_workers()
        if self._lease is not None and self._lease.preempted():
            self._notify(self._lease)

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Have the end of workers with their lease counted as a preemption, not as a failure of the run."""
        if worker_group_status.errors and self._is_evicted_within(_LATEST_NOTICE_S):
            raise PreemptionError(self._info(time.time()), drain_timed_out=True)

    def after_report(self, training_report: Any, metrics: Any) -> None:  # noqa: ARG002
        """Once a checkpoint is saved after a notice, let the controller stop the workers at once."""
        if training_report.checkpoint is not None and self._lease and self._lease.preempted():
            self._announce(time.time())

    def after_worker_group_shutdown(self, worker_group_context: Any) -> None:  # noqa: ARG002
        """Give an evicted lease back as soon as nothing runs in it."""
        self._workers = ()
        if self._lease is not None and self._lease.preempted():
            self._give_up()

    async def before_controller_shutdown(self) -> None:
        """Give the lease back when the run has ended."""
        self._give_up()

    def after_worker_group_abort(self, worker_group_context: Any) -> None:  # noqa: ARG002
        """Give the lease back when the run was interrupted."""
        self._give_up()

    def before_controller_abort(self) -> None:
        """Withdraw a lease that waits when the run is interrupted."""
        if not self._workers:
            self._give_up()

    def _notify(self, lease: LeaseLike) -> None:
        self._announce(time.time() + lease.grace_left() * _SAVING_PART)

    def _announce(self, ends_at: float) -> None:
        """Say to every worker when it is stopped, as Ray Train does when a node is preempted."""
        for worker in self._workers:
            worker.actor.mark_preempt.remote(self._info(ends_at))

    def _info(self, ends_at: float) -> PreemptionInfo:
        ranks: dict[str, list[int]] = {}
        for worker in self._workers:
            rank = worker.distributed_context.world_rank
            ranks.setdefault(worker.metadata.node_id, []).append(rank)
        return PreemptionInfo(deadline_ms=int(ends_at * 1000), preempted_node_to_ranks=ranks)

    def _is_held(self) -> bool:
        """Whether the lease is granted and not being evicted."""
        lease = self._lease
        return lease is not None and lease.state == "running" and not lease.preempted()

    def _is_evicted_within(self, limit_s: float) -> bool:
        """Whether the lease is being evicted, or turns out to be within some seconds."""
        until = time.monotonic() + limit_s
        while self._is_held() and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
        return self._lease is not None and self._lease.preempted()

    def _give_up(self) -> None:
        if self._capture is not None:
            self._capture.stop()
        if self._lease is not None:
            self._lease.release()
        self._capture = self._lease = None


def expected_without_traceback(record: logging.LogRecord) -> bool:
    """A filter for Ray Train's loggers: a wait for the lease and an eviction are logged without traceback.

    Both reach Ray Train as exceptions, which it logs with the stack of the callback that raised them,
    although it continues. The line on its decision remains; the one on a callback that raised is left out.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ControllerError):
        error = error.controller_failure
    if not isinstance(error, (WorkerGroupStartupTimeoutError, PreemptionError)):
        return True
    record.exc_info = None
    return record.levelno < logging.ERROR


def _registers_nothing(_callback: object, _worker_group: object) -> None:
    """In place of ``PlacementGroupCleanerCallback.after_worker_group_start``."""
