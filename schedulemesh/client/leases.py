"""A lease as its holder has it: its placement groups, the notice of its eviction, and its end."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
from typing_extensions import Self

from schedulemesh.api.leases import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.api.results import Result
from schedulemesh.api.tasks import LONGEST_WAIT_S
from schedulemesh.client.asking import SchedulerConnection, ask, respond
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.numbers import MAX_DURATION_S, parse_duration
from schedulemesh.domain.placement import PART_JOINT
from schedulemesh.domain.task import EndState
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import (
    InvalidRequestError,
    LeaseRefusedError,
    ScheduleMeshError,
)
from schedulemesh.protocol.answers import LeaseView
from schedulemesh.protocol.public import result_of

logger = logging.getLogger(__name__)

#: Seconds before a supervisor that did not answer is asked again.
LEASE_RETRY_S = 1.0

_BEFORE = ("queued", "starting")
_ANOTHER = "request another one with lease()"
LEASE_ENDED = frozenset((*(state.value for state in EndState), "unknown"))


class Lease:
    """Placement groups that a scheduler holds for a task; made by ``lease`` and ``get_lease``.

    ``placement_groups`` are ordinary placement groups of Ray, which every job and namespace may use: all of
    their bundles are free. What runs in them ends with the lease. As a context manager it is released at the
    end of the block. Over HTTP it has ``group_ids`` only: a process of the cluster gets the groups with
    ``get_lease``.
    """

    def __init__(
        self,
        connection: SchedulerConnection,
        task_id: str,
        pool: str,
        view: LeaseView,
        on_preempt: Callable[[Lease], object] | None = None,
        *,
        renewed: bool = False,
    ) -> None:
        #: The id of its task.
        self.task_id = task_id
        #: The pool that it is in.
        self.pool = pool
        self._connection = connection
        self._on_preempt = on_preempt
        #: Whether it is renewed while this process lives.
        self._is_renewed = renewed
        self._view = view
        #: Its agent, which tells it from a later lease of the same id; empty until the supervisor has named
        #: it.
        self._agent_name = view.agent_name
        #: When the notice of its eviction ends, by the monotonic clock; None: there was none.
        self._ends_at: float | None = None
        self._changed = threading.Condition()
        self._start_following()

    def __repr__(self) -> str:
        shape = self._view.shape
        shape_text = "" if shape is None else f", {shape}"
        end_text = "" if self._ends_at is None else f", ends in {self.grace_left():.0f} s"
        return f"<Lease {self.task_id!r} in pool {self.pool!r}: {self.state}{shape_text}{end_text}>"

    def __enter__(self) -> Self:
        """Raises InvalidRequestError when it has ended."""
        if self.state in LEASE_ENDED:
            raise InvalidRequestError(
                f"lease {self.task_id!r} has ended ({_why(self._view)}); {_ANOTHER}"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except ScheduleMeshError as failed:
            if error is None:
                raise
            # The error of the block matters more than that of leaving it.
            logger.warning("%r was not released: %s", self, failed)

    @property
    def state(self) -> str:
        """The state of its task: "queued", "starting", "running", "preempting", or how it ended."""
        return self._view.state

    @property
    def placement_groups(self) -> list[Any]:
        """Its placement groups in Ray, in the order in which they were asked for.

        Raises InvalidRequestError while it waits, when it has ended, and over HTTP.
        """
        self._granted()
        raise InvalidRequestError(
            f"the placement groups of lease {self.task_id!r} are Ray handles, which HTTP does not carry; "
            f"get_lease({self.task_id!r}) of RayScheduler has them in a process of the cluster, and "
            "group_ids here has their ids"
        )

    @property
    def group_ids(self) -> list[str]:
        """The ids of its placement groups in Ray, in hexadecimal digits, in the order in which they were
        asked for. Raises InvalidRequestError while it waits, and when it has ended.
        """
        return self._granted().ray_id.split(PART_JOINT)

    def _granted(self) -> LeaseView:
        """How it stands, with its groups. Raises InvalidRequestError where it has none."""
        view = self._view
        if not view.ray_id or view.shape is None or view.state in (*_BEFORE, *LEASE_ENDED):
            why = f" ({_why(view)})" if _why(view) != view.state else ""
            next_step = "wait() returns when it is granted" if view.state in _BEFORE else _ANOTHER
            raise InvalidRequestError(
                f"lease {self.task_id!r} has no placement groups: it is {view.state}{why}; {next_step}"
            )
        return view

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a lease in the queue is granted; False: ``timeout`` seconds were not enough.

        Raises LeaseRefusedError where it has ended instead.
        """
        limit_s = MAX_DURATION_S if timeout is None else parse_duration(timeout, "timeout")
        with self._changed:
            self._changed.wait_for(
                lambda: self.state not in _BEFORE, min(limit_s, threading.TIMEOUT_MAX)
            )
        if self.state in LEASE_ENDED:
            raise LeaseRefusedError(f"lease {self.task_id!r} has ended: {_why(self._view)}")
        return self.state not in _BEFORE

    def preempted(self) -> bool:
        """Whether it is being evicted, or was: release it as soon as what it holds is saved."""
        if self._ends_at is not None or self.state == "preempting":
            return True
        return self._view.reason == str(TaskEndReason.PREEMPTED.value)

    def grace_left(self) -> float:
        """Seconds until everything that runs in it is ended, once ``preempted``; 0 when that is over."""
        return 0.0 if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def renew(self) -> Result:
        """Have its time to live begin again. Refused with ``lease_ended`` or ``task_not_found``."""
        request = RenewLease(task_id=self.task_id, agent_name=self._agent_name)
        return result_of(respond(self._connection, request).outcome)

    def saved(self) -> Result:
        """Say that the work that was done in it can be restored from what is saved by now. Refused with
        ``lease_ended`` or ``task_not_found``.
        """
        request = SaveLease(
            task_id=self.task_id, agent_name=self._agent_name, request_id=uuid.uuid4().hex
        )
        return result_of(respond(self._connection, request).outcome)

    def release(self) -> Result:
        """Give it up: everything that runs in its placement groups is ended, and others get them.

        Returns when that is done. One that waits is cancelled, one that is being evicted ends at once, and
        one that has ended before is a success with ``detail`` "already_ended".
        """
        request = ReleaseLease(
            task_id=self.task_id, agent_name=self._agent_name, request_id=uuid.uuid4().hex
        )
        released = result_of(respond(self._connection, request).outcome)
        if released["success"] and self.state not in LEASE_ENDED:
            # It is told sooner than by following it.
            ended = EndState.COMPLETED if self.state == "running" else EndState.CANCELLED
            self._take(msgspec.structs.replace(self._view, state=ended.value))
        return released

    def _start_following(self) -> None:
        """Have the lease followed to its end, beside what this process does."""
        name = f"lease {self.task_id}"
        threading.Thread(target=self._follow, name=name, daemon=True).start()

    def _follow(self) -> None:
        while self.state not in LEASE_ENDED:
            try:
                self._take_answer(ask(self._connection, self._next_look(), LeaseView))
                if self._is_renewed and self.state == "running":
                    self.renew()
            except InvalidRequestError:
                return  # the scheduler object has detached
            except ScheduleMeshError as error:
                logger.debug("lease %s: %s", self.task_id, error)
                time.sleep(LEASE_RETRY_S)

    def _next_look(self) -> WatchLease:
        """The request that is answered once the lease stands otherwise, or after some time."""
        return WatchLease(
            task_id=self.task_id,
            agent_name=self._agent_name,
            known=self.state if self._agent_name else "",
            notified=self._ends_at is not None,
            wait_s=LONGEST_WAIT_S,
        )

    def _take_answer(self, answer: LeaseView | Refused) -> None:
        self._take(LeaseView(state="unknown") if isinstance(answer, Refused) else answer)

    def _take(self, view: LeaseView) -> None:
        with self._changed:
            self._view = view
            self._agent_name = self._agent_name or view.agent_name
            notified = view.grace_s is not None and self._ends_at is None
            if view.grace_s is not None:
                self._ends_at = time.monotonic() + view.grace_s
            self._changed.notify_all()
        if notified and self._on_preempt is not None:
            # In a thread of its own, so that the lease is followed meanwhile.
            threading.Thread(target=self._call_back, name=f"on_preempt {self.task_id}").start()

    def _call_back(self) -> None:
        try:
            if self._on_preempt is not None:
                self._on_preempt(self)
        except Exception:  # the holder's code; it is logged
            logger.exception("on_preempt of lease %s failed", self.task_id)


def _why(view: LeaseView) -> str:
    return view.error or view.reason or view.state
