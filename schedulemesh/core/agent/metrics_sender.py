"""Sends an agent's metrics to the supervisor at a limited rate: the newest ones, and always the last."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import ray
from ray import ObjectRef
from ray.exceptions import RayError

from schedulemesh.domain.user_data import UserValue
from schedulemesh.protocol.agents import MetricsReport, pack
from schedulemesh.protocol.metric_values import MAX_METRICS_BYTES, encode_metrics

logger = logging.getLogger(__name__)

#: Minimum seconds between two messages, however often metrics are reported.
_GAP_S = 0.1
#: Minimum time between two messages, as a multiple of what the supervisor took for the last one.
_GAP_FACTOR = 10
#: Seconds after which a message that did not arrive is sent again, unless there is a newer one.
_RETRY_S = 1.0

#: A report's number, and its encoded metrics.
_Numbered = tuple[int, bytes]


class MetricsSender:
    """Sends one message at a time; of the reports made meanwhile, the newest is sent next.

    ``send`` submits a packed MetricsReport to the supervisor and returns the reference of the answer.
    """

    def __init__(
        self,
        agent_name: str,
        incarnation: int | None,
        send: Callable[[bytes], ObjectRef],
    ) -> None:
        self._agent_name = agent_name
        self._incarnation = incarnation
        self._send = send
        self._wait: Callable[[ObjectRef], object] = ray.get
        self._changed = threading.Condition()
        #: Numbers that no earlier process of this agent has used.
        self._numbers = itertools.count(time.time_ns())
        #: The newest report, numbered and encoded; None: it was sent.
        self._newest: _Numbered | None = None
        #: The last report that was sent, for a supervisor that has lost it.
        self._sent: _Numbered | None = None
        #: When the newest is to be sent, on the monotonic clock.
        self._due = 0.0
        #: When the last report was due that was not held back.
        self._last_due = float("-inf")
        self._thread: threading.Thread | None = None
        self._warned = False

    def report(self, metrics: Mapping[str, UserValue], interval_s: float, *, at_once: bool) -> bool:
        """Schedule these metrics to be sent, ``interval_s`` after the last at the earliest; never blocks.

        Returns whether they are sent now. Otherwise they are sent later, unless newer ones replace them.
        """
        data = encode_metrics(metrics)
        if len(data) > MAX_METRICS_BYTES:
            self._warn(len(data))
            return False
        now = time.monotonic()
        with self._changed:
            due = now if at_once else max(now, self._last_due + interval_s)
            idle = self._newest is None
            if idle or due < self._due:
                self._due = due
                self._changed.notify()
            self._newest = next(self._numbers), data
            if due <= now:
                self._last_due = now
            if self._thread is None:
                self._begin()
        return due <= now

    def newest(self) -> bytes | None:
        """The newest report, packed, for a caller who sends it now; None: nothing was reported.

        Also one that was sent before, because it may not have arrived yet.
        """
        with self._changed:
            if self._newest is not None:
                self._sent, self._newest = self._newest, None
            return None if self._sent is None else self._message(self._sent)

    def send_again(self) -> None:
        """Send the last report again, because the supervisor may have lost it."""
        with self._changed:
            if self._newest is None and self._sent is not None:
                self._newest, self._due = self._sent, time.monotonic()
                self._changed.notify()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="schedulemesh-metrics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        logged_error = ""
        while True:
            report, began = self._next(), time.monotonic()
            try:
                self._wait(self._send(self._message(report)))
            except Exception as error:  # later metrics are sent all the same
                level = logging.DEBUG if isinstance(error, RayError) else logging.ERROR
                if repr(error) != logged_error:
                    logger.log(level, "metrics did not arrive: %r", error, exc_info=True)
                logged_error = repr(error)
                self._put_back(report)
                time.sleep(_RETRY_S)
            time.sleep(max(_GAP_S, _GAP_FACTOR * (time.monotonic() - began)))

    def _next(self) -> _Numbered:
        """The newest report, once it is due."""
        with self._changed:
            while True:
                remaining_s = self._due - time.monotonic()
                if self._newest is not None and remaining_s <= 0:
                    # A delayed report starts an interval when it is sent.
                    self._last_due = max(self._last_due, self._due)
                    self._sent, self._newest = self._newest, None
                    return self._sent
                self._changed.wait(None if self._newest is None else remaining_s)

    def _put_back(self, report: _Numbered) -> None:
        with self._changed:
            if self._newest is None:
                self._newest, self._due = report, time.monotonic()

    def _message(self, report: _Numbered) -> bytes:
        number, data = report
        return pack(
            MetricsReport(
                agent_name=self._agent_name,
                incarnation=self._incarnation,
                metrics=msgspec.Raw(data),
                number=number,
            )
        )

    def _warn(self, size: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "metrics of %d bytes are not sent; up to %d bytes are. Put what is large into a file or the "
                "saved state",
                size,
                MAX_METRICS_BYTES,
            )
