"""Sends alerts by mail (SMTP)."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from schedulemesh.config.alert_receivers import Mail, MailSecurity
from schedulemesh.metrics.alert_evaluation import Alert
from schedulemesh.runtime.alerts.outbox import PartlyDeliveredError
from schedulemesh.runtime.alerts.texts import text_of

#: Seconds between two mails.
MAIL_INTERVAL_S = 30.0
#: Bytes of a text.
_MOST_BYTES = 50_000


class MailSender:
    """Sends alerts of one scheduler to the addressees of one setting."""

    def __init__(self, mail: Mail, scheduler: str) -> None:
        self._mail = mail
        self._scheduler = scheduler

    def __call__(self, alerts: Sequence[Alert]) -> None:
        """Send alerts in one mail. Raises OSError (which errors of SMTP are) where it was not accepted, and
        PartlyDeliveredError where it was for some of the addressees.
        """
        mail, message = self._mail, self._message(alerts)
        with self._connected() as server:
            if mail.username:
                server.login(mail.username, mail.password)
            if refused := server.send_message(message):
                raise PartlyDeliveredError(f"the server refused {_reasons(refused)}")

    def _message(self, alerts: Sequence[Alert]) -> EmailMessage:
        text = text_of(alerts, self._scheduler, self._mail.language, _MOST_BYTES)
        message = EmailMessage()
        message["From"] = self._mail.sender
        message["To"] = ", ".join(self._mail.to)
        message["Subject"] = f"{text.title}: {text.lines[0]}"
        message["Date"] = formatdate()
        message["Message-ID"] = make_msgid(domain=self._mail.sender.rpartition("@")[2])
        message.set_content("\n".join(text.lines) + "\n")
        return message

    def _connected(self) -> smtplib.SMTP:
        mail = self._mail
        if mail.security is MailSecurity.TLS:
            return smtplib.SMTP_SSL(
                mail.host, mail.port, timeout=mail.timeout_s, context=ssl.create_default_context()
            )
        server = smtplib.SMTP(mail.host, mail.port, timeout=mail.timeout_s)
        if mail.security is MailSecurity.STARTTLS:
            try:
                server.starttls(context=ssl.create_default_context())
            except BaseException:
                server.close()
                raise
        return server


def _reasons(refused: Mapping[str, tuple[int, bytes]]) -> str:
    """The addressees that a server has refused, each with its answer."""
    return ", ".join(
        f"{address} ({code} {' '.join(answer.decode(errors='replace').split())})"
        for address, (code, answer) in refused.items()
    )
