"""Evaluates alert rules: which alerts are pending, which fire, and which were resolved.

An alert is a rule with a set of labels. It is pending while its condition holds, fires once that has lasted
for the rule's duration, and is resolved when the condition holds no longer, or its values are gone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from enum import Enum

import msgspec

from schedulemesh.api.metrics import AlertInfo
from schedulemesh.config.alerts import Severity
from schedulemesh.metrics.alert_conditions import LabelSet, Samples
from schedulemesh.metrics.alert_rules import Rule, filled_in

#: Alerts of one rule that exist at the same time; further sets of labels are left out.
MOST_OF_A_RULE = 100
#: Resolved alerts that are remembered.
MOST_RESOLVED = 200
#: The rule that a test of receivers has.
TEST_RULE = "test"


class AlertState(str, Enum):
    """What an alert is."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    #: It tells of something that has happened; it neither fires nor is resolved, and is not listed.
    NOTICE = "notice"


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An alert. Times are seconds since 1970."""

    #: Of this time that the condition holds; the same until the alert is resolved.
    id: str
    rule: str
    labels: LabelSet
    state: AlertState
    severity: str
    summary: str
    action: str
    #: The last value for which the condition held.
    value: float
    threshold: float
    #: Since when the condition has held.
    active_at: float
    fired_at: float | None = None
    resolved_at: float | None = None

    def public(self) -> AlertInfo:
        """The alert as callers and receivers see it."""
        return {
            "id": self.id,
            "rule": self.rule,
            "state": self.state.value,
            "severity": self.severity,
            "labels": dict(self.labels),
            # JSON has no infinity: that is a quota of 0 in use.
            "value": self.value if math.isfinite(self.value) else None,
            "threshold": self.threshold,
            "summary": self.summary,
            "action": self.action,
            "active_at": self.active_at,
            "fired_at": self.fired_at,
            "resolved_at": self.resolved_at,
        }


Key = tuple[str, LabelSet]


class AlertBoard:
    """The alerts of one scheduler. ``scheduler`` is part of their ids."""

    def __init__(
        self, scheduler: str, firing: Iterable[Alert] = (), resolved: Iterable[Alert] = ()
    ) -> None:
        self._scheduler = scheduler
        #: Pending and firing alerts.
        self.active: dict[Key, Alert] = {(alert.rule, alert.labels): alert for alert in firing}
        #: The last ones that were resolved, oldest first.
        self.resolved: list[Alert] = list(resolved)

    def evaluate(self, rules: Iterable[Rule], samples: Samples, now: float) -> list[Alert]:
        """Evaluate these rules; returns the alerts that fire or are resolved now, which are told once."""
        return [alert for rule in rules for alert in self._evaluate_rule(rule, samples, now)]

    def drop_others(self, rules: Iterable[Rule], now: float) -> list[Alert]:
        """Resolve the alerts of rules that are no longer among these."""
        rule_ids = {rule.id for rule in rules}
        return self._end([key for key in self.active if key[0] not in rule_ids], now)

    def test_alert(self, now: float) -> Alert:
        """What receivers are tested with: an alert of no rule."""
        return Alert(
            id=f"{TEST_RULE}-{hashlib.sha256(f'{self._scheduler} {now}'.encode()).hexdigest()[:16]}",
            rule=TEST_RULE,
            labels=(),
            state=AlertState.FIRING,
            severity=Severity.INFO.value,
            summary="This is a test message.",
            action="That it has arrived shows that alerts reach you here. Nothing needs to be done.",
            value=0.0,
            threshold=0.0,
            active_at=now,
            fired_at=now,
        )

    def firing(self) -> list[Alert]:
        """The alerts that fire."""
        return [alert for alert in self.active.values() if alert.state is AlertState.FIRING]

    def all(self) -> list[Alert]:
        """Those that fire, those that are pending, and the last that were resolved, newest first."""
        pending = [a for a in self.active.values() if a.state is AlertState.PENDING]
        active = sorted(self.firing(), key=_since) + sorted(pending, key=_since)
        return [*active, *reversed(self.resolved)]

    def _evaluate_rule(self, rule: Rule, samples: Samples, now: float) -> list[Alert]:
        """Bring the alerts of a rule up to date with these samples; those whose state has changed."""
        holds = rule.condition.holds_for(samples)
        former = [key for key in self.active if key[0] == rule.id]
        changed = self._end([key for key in former if key[1] not in holds], now)
        room = MOST_OF_A_RULE - sum(key[1] in holds for key in former)
        for labels, value in holds.items():
            previous = self.active.get((rule.id, labels))
            if previous is None:
                room -= 1
                if room < 0:
                    continue
                previous = self._pending(rule, labels, now)
            alert = _continued(msgspec.structs.replace(previous, value=value), rule, now)
            self.active[rule.id, labels] = alert
            if alert.state is not previous.state:
                changed.append(alert)
        return changed

    def _pending(self, rule: Rule, labels: LabelSet, now: float) -> Alert:
        named = msgspec.json.encode((self._scheduler, rule.id, labels, now))
        return Alert(
            id=f"{rule.id}-{hashlib.sha256(named).hexdigest()[:16]}",
            rule=rule.id,
            labels=labels,
            state=AlertState.PENDING,
            severity=rule.severity.value,
            summary=filled_in(rule.summary, labels),
            action=filled_in(rule.action, labels),
            value=0.0,
            threshold=rule.condition.threshold,
            active_at=now,
        )

    def _end(self, keys: Iterable[Key], now: float) -> list[Alert]:
        """End alerts; those of them that fired, which are resolved."""
        ended = [self.active.pop(key) for key in keys]
        resolved = [
            msgspec.structs.replace(alert, state=AlertState.RESOLVED, resolved_at=now)
            for alert in ended
            if alert.state is AlertState.FIRING
        ]
        self.resolved = [*self.resolved, *resolved][-MOST_RESOLVED:]
        return resolved


def _continued(alert: Alert, rule: Rule, now: float) -> Alert:
    """The alert, firing if its condition has held for long enough."""
    if alert.state is AlertState.FIRING or now - alert.active_at < rule.for_s:
        return alert
    return msgspec.structs.replace(alert, state=AlertState.FIRING, fired_at=now)


def _since(alert: Alert) -> tuple[float, str, LabelSet]:
    return alert.active_at, alert.rule, alert.labels
