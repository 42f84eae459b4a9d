"""The alerts of a running supervisor: what is kept of them in the journal, and who receives them.

What fires is noted in the journal before it is delivered, so a supervisor that was restarted neither raises
it again nor forgets to deliver it. A delivery may be repeated; its id tells.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from schedulemesh.api.metrics import AlertDelivery, AlertInfo
from schedulemesh.errors import InvalidRequestError, JournalError, nearest
from schedulemesh.metrics import catalogue as c
from schedulemesh.metrics.alert_conditions import Samples
from schedulemesh.metrics.alert_evaluation import Alert, AlertBoard, AlertState
from schedulemesh.metrics.alert_rules import Rule
from schedulemesh.metrics.values import Family, Sample
from schedulemesh.runtime.alerts.notices import cursor_of
from schedulemesh.runtime.alerts.outbox import Outbox
from schedulemesh.runtime.threads import in_thread
from schedulemesh.store.journal import Journal

logger = logging.getLogger(__name__)

#: The journal's note of alerts.
_NOTE = "alerts"
#: Seconds that the end of a scheduler waits for receivers.
_DRAIN_S = 2.0
#: The states of alerts that are counted.
_COUNTED = (AlertState.PENDING, AlertState.FIRING)
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}


class _Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is noted in the journal."""

    firing: list[Alert] = []
    resolved: list[Alert] = []
    #: What has not been accepted yet, by receiver.
    waiting: dict[str, list[Alert]] = {}


class AlertMonitor:
    """Holds the alerts of one scheduler. All of it runs on one event loop."""

    def __init__(
        self, rules: Sequence[Rule], outboxes: Sequence[Outbox], journal: Journal, scheduler: str
    ) -> None:
        self.rules = rules
        self._outboxes = outboxes
        #: Where notes about what was delivered are kept.
        self.journal = journal
        saved_alerts = _noted(journal)
        self._board = AlertBoard(scheduler, saved_alerts.firing, saved_alerts.resolved)
        for outbox in outboxes:
            outbox.put(saved_alerts.waiting.get(outbox.name, []))
        self._in_journal = self._gist({})

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that the rules read."""
        names = (rule.condition.expression.metrics for rule in self.rules)
        return frozenset(name for metrics in names for name in metrics)

    def start(self) -> None:
        """Begin to deliver, first what an earlier process did not."""
        for outbox in self._outboxes:
            outbox.start()

    async def evaluate(self, samples: Samples, now: float) -> None:
        """Evaluate the rules with samples of now, in seconds since 1970, and deliver what has changed."""
        changed_alerts = self._board.drop_others(self.rules, now)
        for rule in self.rules:
            changed_alerts += self._board.evaluate([rule], samples, now)
            # With thousands of pools and agents a rule takes milliseconds; other work gets its turn.
            await asyncio.sleep(0)
        for alert in changed_alerts:
            _log(alert)
        waiting = {outbox.name: [*_alerts_in(outbox), *changed_alerts] for outbox in self._outboxes}
        await self._keep(waiting)
        if changed_alerts:
            for outbox in self._outboxes:
                outbox.put(changed_alerts)

    @property
    def receivers(self) -> list[str]:
        """The names of the receivers."""
        return [outbox.name for outbox in self._outboxes]

    def send(self, receiver: str, notice: Alert) -> None:
        """Deliver a notice to this receiver."""
        self._outbox(receiver).put([notice])

    def notices_waiting(self, receiver: str) -> int:
        """How many notices have not been delivered to this receiver."""
        return sum(alert.state is AlertState.NOTICE for alert in self._outbox(receiver).waiting())

    def delivered_notices(self, receiver: str, read: int) -> int:
        """The last event up to which this receiver was told, where the events up to ``read`` were read."""
        waiting = self._outbox(receiver).waiting()
        cursors = (cursor_of(alert) for alert in waiting if alert.state is AlertState.NOTICE)
        return min((cursor - 1 for cursor in cursors), default=read)

    def _outbox(self, receiver: str) -> Outbox:
        return next(outbox for outbox in self._outboxes if outbox.name == receiver)

    async def test(self, receiver: str | None, now: float) -> list[AlertDelivery]:
        """Send a test message to each receiver, or to one, at once; what became of them, in their order.
        Raises InvalidRequestError where there is no such receiver.
        """
        names = self.receivers
        if not names:
            raise InvalidRequestError(
                "this scheduler has no receivers of alerts; they are set when it is started (`alerts`, or "
                "`schedulemesh start --alerts FILE`)"
            )
        if receiver is not None and receiver not in names:
            raise InvalidRequestError(
                f"there is no receiver of alerts {receiver!r}{nearest(receiver, names)}; there are "
                + ", ".join(names)
            )
        alert = self._board.test_alert(now)
        chosen = [each for each in self._outboxes if receiver in (None, each.name)]
        attempts = (in_thread(functools.partial(each.attempt, [alert])) for each in chosen)
        errors = await asyncio.gather(*attempts)
        return [
            AlertDelivery(receiver=each.name, accepted=error is None, error=_told(error))
            for each, error in zip(chosen, errors, strict=True)
        ]

    def rows(self) -> list[AlertInfo]:
        """The alerts that fire, those that are pending, and the last that were resolved."""
        return [alert.public() for alert in self._board.all()]

    def families(self) -> Iterator[Family]:
        """How many alerts there are by rule, and how their deliveries go."""
        counts = Counter((a.rule, a.severity, a.state) for a in self._board.active.values())
        rule_states = [
            (rule.id, rule.severity.value, state) for rule in self.rules for state in _COUNTED
        ]
        keys = dict.fromkeys([*rule_states, *counts])
        yield c.ALERTS, [Sample((r, s, state.value), counts[r, s, state]) for r, s, state in keys]
        yield (
            c.ALERT_DELIVERIES,
            [
                Sample((outbox.name, outcome), count)
                for outbox in self._outboxes
                for outcome, count in outbox.counts().items()
            ],
        )
        yield (
            c.ALERT_DELIVERIES_WAITING,
            [Sample((outbox.name,), len(outbox.waiting())) for outbox in self._outboxes],
        )

    async def end(self, now: float) -> None:
        """Resolve all alerts, because the scheduler ends, and deliver that if receivers take it at once."""
        resolved_alerts = self._board.drop_others((), now)
        until = time.monotonic() + _DRAIN_S
        for outbox in self._outboxes:
            outbox.put(resolved_alerts)
        for outbox in self._outboxes:
            await in_thread(functools.partial(outbox.drained, until))
        self.close()

    def close(self) -> None:
        """End the deliveries."""
        for outbox in self._outboxes:
            outbox.close()

    async def _keep(self, waiting: dict[str, list[Alert]]) -> None:
        """Note the alerts in the journal if that has changed; where it fails, the next evaluation tries."""
        gist = self._gist(waiting)
        if gist == self._in_journal:
            return
        alerts_to_save = _Kept(
            firing=self._board.firing(), resolved=self._board.resolved, waiting=waiting
        )
        data = msgspec.msgpack.encode(alerts_to_save)
        try:
            await in_thread(functools.partial(self.journal.put_note, _NOTE, data))
        except JournalError as error:
            logger.warning(
                "alerts cannot be noted in the journal, and may be raised again: %s", error
            )
        else:
            self._in_journal = gist

    def _gist(self, waiting: dict[str, list[Alert]]) -> object:
        """What has to be noted, without values that always change."""
        ids = {
            name: [(a.id, a.state) for a in alerts] for name, alerts in waiting.items() if alerts
        }
        resolved = [alert.id for alert in self._board.resolved]
        return [alert.id for alert in self._board.firing()], resolved, ids


def _noted(journal: Journal) -> _Kept:
    """What an earlier process noted; a note that cannot be read says nothing, and that is logged."""
    try:
        data = journal.note(_NOTE)
        return _Kept() if data is None else msgspec.msgpack.decode(data, type=_Kept)
    except (JournalError, msgspec.MsgspecError) as error:
        logger.warning("alerts that fired before may be raised again: %s", error)
        return _Kept()


def _alerts_in(outbox: Outbox) -> list[Alert]:
    """What waits there, without notices, which are sent again by the events that they are about."""
    return [alert for alert in outbox.waiting() if alert.state is not AlertState.NOTICE]


def _told(error: BaseException | None) -> str:
    """What an error says; empty: there was none."""
    return "" if error is None else str(error) or type(error).__name__


def _log(alert: Alert) -> None:
    fires = alert.state is AlertState.FIRING
    level = _LEVELS[alert.severity] if fires else logging.INFO
    logger.log(
        level,
        "alert %s %s: %s (value %.6g, threshold %.6g)",
        alert.rule,
        "fires" if fires else "is resolved",
        alert.summary,
        alert.value,
        alert.threshold,
    )
