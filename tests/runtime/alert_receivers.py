"""Receivers of alerts: an HTTP server as webhook, and a class of one's own."""

from __future__ import annotations

import json
import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from schedulemesh.plugins.alerting import AlertReceiver
from schedulemesh.runtime.alerts.webhook import DELIVERY_HEADER, SIGNATURE_HEADER, signature

SECRET = "a secret"


class WebhookServer:
    """A real HTTP server. It answers with these statuses, one after the other, and then with 204."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        #: What was posted and accepted: (delivery, alert).
        self.accepted: queue.Queue = queue.Queue()
        self.attempts = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.attempts += 1
                status = outer.statuses.pop(0) if outer.statuses else 204
                if status < 300:
                    at = int(self.headers[SIGNATURE_HEADER].partition(",")[0].removeprefix("t="))
                    assert self.headers[SIGNATURE_HEADER] == signature(SECRET, at, body)
                    outer.accepted.put((self.headers[DELIVERY_HEADER], json.loads(body)))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/hooks/alerts?team=a"

    def next(self, timeout_s=20.0):
        """The next accepted delivery: the alert, whose id and state its header has."""
        delivery, alert = self.accepted.get(timeout=timeout_s)
        assert delivery == f"{alert['id']}-{alert['state']}"
        return alert

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Recording(AlertReceiver):
    """Keeps what it is given; raises as often as it is told to."""

    received: queue.Queue = queue.Queue()
    failures = 0
    error: type[BaseException] = RuntimeError

    def receive(self, alert):
        if type(self).failures:
            type(self).failures -= 1
            raise self.error("not now")
        self.received.put(alert)


class DrippingServer:
    """A server that answers one connection with a byte now and then, and never with a whole line."""

    def __init__(self):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/"
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        connection, _ = self.listening.accept()
        with connection:
            while not self.ended.wait(0.02):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    def close(self):
        self.ended.set()
        self.thread.join()
        self.listening.close()
