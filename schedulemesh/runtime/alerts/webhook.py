"""Sends alerts to a webhook: JSON over HTTP, signed."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import msgspec

from schedulemesh.config.alerts import Webhook
from schedulemesh.metrics.alert_evaluation import Alert

#: "t=<seconds since 1970>,v1=<HMAC-SHA256 of t, a dot and the body, in hexadecimal digits>".
SIGNATURE_HEADER = "X-ScheduleMesh-Signature"
#: Names a delivery: the same when it is repeated.
DELIVERY_HEADER = "X-ScheduleMesh-Delivery"


class WebhookError(Exception):
    """A webhook did not accept an alert."""


class WebhookSender:
    """Sends alerts of one scheduler to one webhook. It follows no redirect and uses no proxy."""

    def __init__(self, webhook: Webhook, scheduler: str, namespace: str) -> None:
        self._webhook = webhook
        self._scheduler = {"name": scheduler, "namespace": namespace}

    def __call__(self, alert: Alert) -> None:
        """Send an alert. Raises WebhookError or OSError where it was not accepted."""
        body = msgspec.json.encode({**alert.public(), "scheduler": self._scheduler})
        parts = urlsplit(self._webhook.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.hostname or "", parts.port, timeout=self._webhook.timeout_s)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.connect()
            with _ended_after(connection.sock, self._webhook.timeout_s):
                connection.request("POST", target, body, self._headers(alert, body))
                status = connection.getresponse().status
        except http.client.HTTPException as error:
            raise WebhookError(f"the answer is no HTTP: {type(error).__name__}") from error
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise WebhookError(f"it answered with status {status}")

    def _headers(self, alert: Alert, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "schedulemesh",
            DELIVERY_HEADER: f"{alert.id}-{alert.state.value}",
        }
        if self._webhook.secret:
            headers[SIGNATURE_HEADER] = signature(self._webhook.secret, int(time.time()), body)
        return headers


@contextmanager
def _ended_after(connected: socket.socket, seconds: float) -> Iterator[None]:
    """End what is done with the connection after so many seconds: the timeout of a socket begins anew with
    each byte that arrives. Raises WebhookError then.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError):
            # Not that of a TLS socket, which another thread is reading.
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise WebhookError(f"it did not answer within {seconds:.6g} s")


def signature(secret: str, at: int, body: bytes) -> str:
    """The value of ``SIGNATURE_HEADER`` for a body that is sent at this time, in seconds since 1970."""
    signed = b"%d." % at + body
    return f"t={at},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
