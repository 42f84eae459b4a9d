"""Makes the alert monitor of a scheduler, with a thread for each receiver that its settings name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schedulemesh.config.alert_receivers import ReceiverRef
from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.metrics.alert_evaluation import Alert
from schedulemesh.metrics.alert_rules import effective_rules
from schedulemesh.plugins.alerting import AlertReceiver
from schedulemesh.plugins.discovery import RECEIVER_GROUP, load_class, see_folders
from schedulemesh.runtime.alerts.chat import SERVICES
from schedulemesh.runtime.alerts.mail import MAIL_INTERVAL_S, MailSender
from schedulemesh.runtime.alerts.monitor import AlertMonitor
from schedulemesh.runtime.alerts.outbox import Outbox
from schedulemesh.runtime.alerts.webhook import WebhookSender
from schedulemesh.store.journal import Journal

#: Alerts of one message to people.
_OF_MESSAGE = 20


class _OwnReceiver:
    """Passes alerts to a receiver of the user's, which is loaded at the first one, in the thread that
    delivers: whatever its module does, the supervisor runs on.
    """

    def __init__(self, ref: ReceiverRef) -> None:
        self._ref = ref
        self._receiver: AlertReceiver | None = None

    def __call__(self, alerts: Sequence[Alert]) -> None:
        if self._receiver is None:
            see_folders(self._ref.sys_path)
            self._receiver = load_class(self._ref.path, RECEIVER_GROUP)()
        for alert in alerts:
            self._receiver.receive(alert.public())


def alerts_of(settings: SchedulerSettings, journal: Journal) -> AlertMonitor:
    """The alert monitor, not started yet, with what the journal has of its alerts."""
    rules = effective_rules(settings.alerts) if settings.alerts.enabled else ()
    scheduler = f"{settings.namespace}/{settings.name}"
    return AlertMonitor(rules, list(_outboxes(settings)), journal, scheduler)


def _outboxes(settings: SchedulerSettings) -> Iterator[Outbox]:
    for webhook in settings.alerts.webhooks:
        send = WebhookSender(webhook, settings.name, settings.namespace)
        if service := SERVICES.get(webhook.format):
            yield Outbox(webhook.name, send, at_once=_OF_MESSAGE, interval_s=service.interval_s)
        else:
            yield Outbox(webhook.name, send)
    for mail in settings.alerts.mail:
        sender = MailSender(mail, settings.name)
        yield Outbox(mail.name, sender, at_once=_OF_MESSAGE, interval_s=MAIL_INTERVAL_S)
    for ref in settings.alerts.refs:
        yield Outbox(ref.name, _OwnReceiver(ref))
