"""Delivers alerts to one receiver, from a thread of its own, until each has been accepted."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice

from schedulemesh.metrics.alert_evaluation import Alert, AlertState

logger = logging.getLogger(__name__)

#: Deliveries that wait for one receiver; above it the oldest are given up, notices about tasks before alerts.
MOST_WAITING = 1000
#: Seconds between two attempts: doubled from the first to the last, each shortened at random by up to half.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
#: The longest that a receiver may ask to wait before the next attempt.
RETRY_AFTER_MAX_S = 600.0


class PartlyDeliveredError(Exception):
    """Some of those to whom a message goes have it, and others were refused: it is not sent again."""


#: Passes alerts on in one message; raises where it was not accepted.
Send = Callable[[Sequence[Alert]], None]


class Outbox:
    """The deliveries to one receiver, in their order. Any thread may call it.

    A message has up to ``at_once`` alerts, and begins ``interval_s`` seconds after the one before.
    """

    def __init__(self, name: str, send: Send, *, at_once: int = 1, interval_s: float = 0.0) -> None:
        self.name = name
        self._send = send
        self._at_once, self._interval_s = at_once, interval_s
        self._retry_s = RETRY_S
        self._changed = threading.Condition()
        self._waiting: deque[Alert] = deque()
        self._counts: Counter[str] = Counter(delivered=0, failed=0, given_up=0)
        self._closed = False
        #: Whether the scheduler ends, so that what waits is sent without an interval.
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=f"alerts to {name}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def put(self, alerts: list[Alert]) -> None:
        """Deliver these after those that wait; returns at once."""
        with self._changed:
            self._waiting.extend(alerts)
            while len(self._waiting) > MOST_WAITING:
                notices = (each for each in self._waiting if each.state is AlertState.NOTICE)
                dropped = next(notices, self._waiting[0])
                self._waiting.remove(dropped)
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
        """Send without intervals, and return once nothing waits any more, or at a time of
        ``time.monotonic``; whether nothing waits.
        """
        with self._changed:
            self._ending = True
            self._changed.notify_all()
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

    def attempt(self, alerts: Sequence[Alert]) -> BaseException | None:
        """Send alerts now, whatever waits; None: they were accepted."""
        try:
            self._send(alerts)
        except BaseException as error:  # noqa: BLE001  # a receiver raises anything; tried again
            return error
        return None

    def _run(self) -> None:
        failures = 0
        while alerts := self._next():
            began = time.monotonic()
            error = self.attempt(alerts)
            if isinstance(error, PartlyDeliveredError):
                logger.warning("alert %s by %s: %s", alerts[0].id, self.name, error)
                error = None
            with self._changed:
                self._changed.notify_all()
                if error is None:
                    self._delivered(alerts)
                else:
                    self._counts["failed"] += 1
            failures = 0 if error is None else failures + 1
            if error is None:
                self._wait(began + self._interval_s, needed=False)
            else:
                self._pause(alerts[0], error, failures)

    def _delivered(self, alerts: Sequence[Alert]) -> None:
        self._counts["delivered"] += len(alerts)
        for alert in alerts:
            # It may have been given up meanwhile.
            if self._waiting and self._waiting[0] is alert:
                self._waiting.popleft()

    def _next(self) -> list[Alert]:
        """The next alerts, once there is one; empty: it is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return [] if self._closed else list(islice(self._waiting, self._at_once))

    def _pause(self, alert: Alert, error: BaseException, failures: int) -> None:
        """Wait before the next attempt, unless it is closed."""
        longest = min(self._retry_s * 2.0 ** min(failures - 1, 30), RETRY_MAX_S)
        asked_s = min(getattr(error, "retry_after_s", 0.0), RETRY_AFTER_MAX_S)
        pause_s = max(asked_s, longest * random.uniform(0.5, 1.0))
        log = logger.warning if failures == 1 else logger.info
        log(
            "alert %s was not accepted by %s (%s); next attempt in %.1f s",
            alert.id,
            self.name,
            error,
            pause_s,
        )
        self._wait(time.monotonic() + pause_s, needed=True)

    def _wait(self, until: float, *, needed: bool) -> None:
        """Wait for a time of ``time.monotonic``, or until it is closed; unless that is needed, no longer than
        until the scheduler ends.
        """
        with self._changed:
            while not self._closed and (needed or not self._ending):
                rest_s = until - time.monotonic()
                if rest_s <= 0:
                    return
                self._changed.wait(rest_s)
