"""Delivers alerts to one receiver, from a thread of its own, until each has been accepted."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from schedulemesh.metrics.alert_evaluation import Alert

logger = logging.getLogger(__name__)

#: Deliveries that wait for one receiver; above it the oldest are given up.
MOST_WAITING = 1000
#: Seconds between two attempts: doubled from the first to the last, each shortened at random by up to half.
RETRY_S, RETRY_MAX_S = 1.0, 60.0

#: Passes an alert on; raises where it was not accepted.
Send = Callable[[Alert], None]


class Outbox:
    """The deliveries to one receiver, in their order. Any thread may call it."""

    def __init__(self, name: str, send: Send) -> None:
        self.name = name
        self._send = send
        self._retry_s = RETRY_S
        self._changed = threading.Condition()
        self._waiting: deque[Alert] = deque()
        self._counts: Counter[str] = Counter(delivered=0, failed=0, given_up=0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"alerts to {name}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def put(self, alerts: list[Alert]) -> None:
        """Deliver these after those that wait; returns at once."""
        with self._changed:
            self._waiting.extend(alerts)
            while len(self._waiting) > MOST_WAITING:
                dropped = self._waiting.popleft()
                self._counts["given_up"] += 1
                logger.error(
                    "alert %s is not delivered to %s: too many wait", dropped.id, self.name
                )
            self._changed.notify_all()

    def waiting(self) -> list[Alert]:
        """The alerts that have not been accepted yet."""
        with self._changed:
            return list(self._waiting)

    def drained(self, until: float) -> bool:
        """Return once nothing waits any more, or at a time of ``time.monotonic``; whether nothing waits."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting, max(0.0, until - time.monotonic())
            )

    def counts(self) -> dict[str, int]:
        """How many alerts were delivered and given up, and how many attempts failed."""
        with self._changed:
            return dict(self._counts)

    def close(self) -> None:
        """End the thread after the present attempt; what waits is not delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while (alert := self._next()) is not None:
            error = self._attempt(alert)
            with self._changed:
                self._changed.notify_all()
                if error is None:
                    self._counts["delivered"] += 1
                    # It may have been given up meanwhile.
                    if self._waiting and self._waiting[0] is alert:
                        self._waiting.popleft()
                    failures = 0
                    continue
                self._counts["failed"] += 1
                failures += 1
            self._pause(alert, error, failures)

    def _next(self) -> Alert | None:
        """The next alert, once there is one; None: it is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return None if self._closed else self._waiting[0]

    def _attempt(self, alert: Alert) -> BaseException | None:
        try:
            self._send(alert)
        except BaseException as error:  # noqa: BLE001  # a receiver raises anything; tried again
            return error
        return None

    def _pause(self, alert: Alert, error: BaseException, failures: int) -> None:
        """Wait before the next attempt, unless it is closed."""
        longest = min(self._retry_s * 2.0 ** min(failures - 1, 30), RETRY_MAX_S)
        pause_s = longest * random.uniform(0.5, 1.0)
        log = logger.warning if failures == 1 else logger.info
        log(
            "alert %s was not accepted by %s (%s); next attempt in %.1f s",
            alert.id,
            self.name,
            error,
            pause_s,
        )
        until = time.monotonic() + pause_s
        with self._changed:
            while not self._closed and (left_s := until - time.monotonic()) > 0:
                self._changed.wait(left_s)
