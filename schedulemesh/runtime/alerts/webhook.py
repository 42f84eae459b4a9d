"""Sends alerts to a webhook over HTTP: as JSON, signed, or as the bot of a chat service takes them."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import SplitResult, urlsplit

import msgspec

from schedulemesh.config.alert_receivers import NO_CREDENTIALS, Webhook, serves_credentials
from schedulemesh.metrics.alert_evaluation import Alert
from schedulemesh.runtime.alerts.chat import SERVICES, ChatService
from schedulemesh.runtime.alerts.texts import text_of

#: "t=<seconds since 1970>,v1=<HMAC-SHA256 of t, a dot and the body, in hexadecimal digits>".
SIGNATURE_HEADER = "X-ScheduleMesh-Signature"
#: Names a delivery: the same when it is repeated.
DELIVERY_HEADER = "X-ScheduleMesh-Delivery"
_JSON_HEADERS = {"Content-Type": "application/json", "User-Agent": "schedulemesh"}
#: Headers that say in how many seconds the next attempt may come; the second one is Feishu's.
_WAIT_HEADERS = ("Retry-After", "x-ogw-ratelimit-reset")
#: Bytes that are read of the body of an answer.
_MOST_OF_ANSWER = 65_536
#: Bytes of the reason in it that are shown.
_MOST_OF_REASON = 200
#: That of a proxy without one.
_PROXY_PORT = 80


class WebhookError(Exception):
    """A webhook did not accept an alert."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        #: Seconds that it asks to wait before the next attempt; 0: it does not say.
        self.retry_after_s = retry_after_s


class WebhookSender:
    """Sends alerts of one scheduler to one webhook. It follows no redirect."""

    def __init__(self, webhook: Webhook, scheduler: str, namespace: str) -> None:
        self._webhook = webhook
        self._scheduler = {"name": scheduler, "namespace": namespace}
        self._service = SERVICES.get(webhook.format)

    def __call__(self, alerts: Sequence[Alert]) -> None:
        """Send alerts in one message, as JSON the only one. Raises WebhookError or OSError where it was not
        accepted.
        """
        if self._service is None:
            (alert,) = alerts
            self._post(*self._as_json(alert))
        else:
            self._send_text(self._service, alerts)

    def _send_text(self, service: ChatService, alerts: Sequence[Alert]) -> None:
        """Send a text for people; the answer's body says whether it was accepted."""
        text = text_of(alerts, self._scheduler["name"], self._webhook.language, service.most_bytes)
        now, secret = time.time(), self._webhook.secret
        body = msgspec.json.encode(service.body(text, now, secret))
        answer = self._post(body, _JSON_HEADERS, service.query(now, secret))
        if refusal := service.refusal(answer):
            raise WebhookError(refusal)

    def _as_json(self, alert: Alert) -> tuple[bytes, dict[str, str]]:
        """The body and the headers."""
        body = msgspec.json.encode({**alert.public(), "scheduler": self._scheduler})
        headers = {**_JSON_HEADERS, DELIVERY_HEADER: f"{alert.id}-{alert.state.value}"}
        if self._webhook.secret:
            headers[SIGNATURE_HEADER] = signature(self._webhook.secret, int(time.time()), body)
        return body, headers

    def _post(self, body: bytes, headers: dict[str, str], query: str = "") -> bytes:
        """The begin of the answer's body. Raises WebhookError or OSError."""
        parts = urlsplit(self._webhook.url)
        query = "&".join(filter(None, (parts.query, query)))
        target = (parts.path or "/") + (f"?{query}" if query else "")
        if self._webhook.proxy and parts.scheme == "http":
            target = f"http://{parts.netloc}{target}"
        connection = self._connection(parts)
        try:
            connection.connect()
            _check_address(connection.sock)
            with _ended_after(connection.sock, self._webhook.timeout_s):
                connection.request("POST", target, body, headers)
                response = connection.getresponse()
                answer = response.read(_MOST_OF_ANSWER)
        except http.client.HTTPException as error:
            raise WebhookError(f"the answer is no HTTP: {type(error).__name__}") from error
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise self._refused(response, answer)
        return answer

    def _refused(self, response: http.client.HTTPResponse, answer: bytes) -> WebhookError:
        """The error of an answer with another status than 2xx. Chat services say in the body why."""
        message = f"it answered with status {response.status}"
        if self._service is not None:
            reason = " ".join(answer[:_MOST_OF_REASON].decode(errors="replace").split())
            message = f"{message}: {reason}".rstrip(": ")
        waits = [response.headers.get(name, "") for name in _WAIT_HEADERS]
        seconds = [float(wait) for wait in waits if wait.isascii() and wait.isdigit()]
        return WebhookError(message, max(seconds, default=0.0))

    def _connection(self, parts: SplitResult) -> http.client.HTTPConnection:
        """A connection to the host, or to the proxy, which passes on what is encrypted as it is."""
        encrypted = parts.scheme == "https"
        kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
        timeout_s = self._webhook.timeout_s
        if not self._webhook.proxy:
            return kind(parts.hostname or "", parts.port, timeout=timeout_s)
        proxy = urlsplit(self._webhook.proxy)
        connection = kind(proxy.hostname or "", proxy.port or _PROXY_PORT, timeout=timeout_s)
        if encrypted:
            connection.set_tunnel(parts.hostname or "", parts.port or 443)
        return connection


def _check_address(connected: socket.socket) -> None:
    """Raise WebhookError where a name has led to an address that is sent nothing."""
    address = str(connected.getpeername()[0])
    if serves_credentials(address):
        raise WebhookError(NO_CREDENTIALS.format(address))


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
