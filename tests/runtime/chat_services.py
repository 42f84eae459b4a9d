"""Servers that accept and refuse as the bots of chat services are documented to, and a mail server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

SECRET = "SECabc"
#: Bytes of a request that Feishu takes.
_FEISHU_MOST = 20_000
#: Seconds by which a signature may be old: DingTalk and Feishu allow an hour.
_MAX_AGE_S = 3600


def _signature(key, message):
    digest = hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def feishu(query, body):
    at = body.get("timestamp", "0")
    signed = body.get("sign") == _signature(f"{at}\n{SECRET}", "")
    if not signed or abs(time.time() - int(at)) > _MAX_AGE_S:
        return {"code": 19021, "msg": "sign match fail or timestamp is not within one hour"}
    if len(json.dumps(body, ensure_ascii=False).encode()) > _FEISHU_MOST:
        return {"code": 9499, "msg": "Bad Request"}
    post = body["content"]["post"]["zh_cn"]
    lines = [part["text"] for line in post["content"] for part in line]
    if body["msg_type"] != "post" or {p["tag"] for line in post["content"] for p in line} != {
        "text"
    }:
        return {"code": 9499, "msg": "Bad Request"}
    return "\n".join([post["title"], *lines]), {"StatusCode": 0, "code": 0, "msg": "success"}


def dingtalk(query, body):
    if query.get("access_token") != ["T0KEN"]:
        return {"errcode": 300001, "errmsg": "token is not exist"}
    at = query.get("timestamp", ["0"])[0]
    signed = query.get("sign") == [_signature(SECRET, f"{at}\n{SECRET}")]
    if not signed or abs(time.time() - int(at) / 1000) > _MAX_AGE_S:
        return {"errcode": 310000, "errmsg": "sign not match"}
    return _text(body)


def wecom(query, body):
    if query.get("key") != ["KEY"]:
        return {"errcode": 93000, "errmsg": "invalid webhook url"}
    if len(body["text"]["content"].encode()) > 2048:
        return {"errcode": 40058, "errmsg": "text.content exceed max length 2048"}
    # In its texts <@USER> mentions people, which no message of ours is to do.
    assert "<@" not in body["text"]["content"]
    return _text(body)


def _text(body):
    if body["msgtype"] != "text":
        return {"errcode": 40008, "errmsg": "invalid message type"}
    return body["text"]["content"], {"errcode": 0, "errmsg": "ok"}


def slack(query, body):
    if set(body) != {"text"}:
        return Status(400, "invalid_payload")
    return (body["text"], "ok") if body["text"] else Status(400, "no_text")


class Status(NamedTuple):
    """An answer of Slack, or of what is before a service, with another status than 200."""

    code: int
    text: str
    headers: dict[str, str] = {}  # noqa: RUF012  # it is not changed


class ChatServer:
    """A bot's address. Answers have the status 200, as those of the first three services do, or that of a
    Status.
    """

    def __init__(self, service, refusals=()):
        #: Answers that come first.
        self.refusals = list(refusals)
        self.accepted: queue.Queue[str] = queue.Queue()
        self.attempts = 0
        #: What the request line had.
        self.targets: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.attempts += 1
                outer.targets.append(self.path)
                answer = outer.refusals.pop(0) if outer.refusals else None
                if answer is None:
                    answer = service(parse_qs(urlsplit(self.path).query), body)
                status = answer if isinstance(answer, Status) else Status(200, "")
                if isinstance(answer, Status):
                    answer = status.text
                if isinstance(answer, tuple):
                    text, answer = answer
                    outer.accepted.put(text)
                data = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(status.code)
                for name, value in status.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data.encode())

            def log_message(self, *_args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.address}/robot/send?access_token=T0KEN&key=KEY"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class MailServer:
    """A mail server on this machine, with a login and without encryption."""

    def __init__(self, unknown=()):
        #: Addressees that it refuses.
        self.unknown = unknown
        #: The addressees and the lines of each mail.
        self.received: queue.Queue[tuple[list[str], bytes]] = queue.Queue()
        #: All that clients have said.
        self.commands: list[str] = []
        outer = self

        class Handler(StreamRequestHandler):
            def handle(self):
                addressees = []
                self.wfile.write(b"220 ready\r\n")
                for line in self.rfile:
                    command = line.decode().strip()
                    outer.commands.append(command)
                    match command.split(maxsplit=1)[0].upper():
                        case "EHLO":
                            answer = "250-host\r\n250 AUTH PLAIN"
                        case "AUTH":
                            answer = "235 welcome"
                        case "RCPT":
                            address = command.partition("<")[2].rstrip(">")
                            if address in outer.unknown:
                                answer = "550 5.1.1 no such user"
                            else:
                                addressees.append(address)
                                answer = "250 ok"
                        case "DATA":
                            self.wfile.write(b"354 go on\r\n")
                            data = b"".join(iter(self.rfile.readline, b".\r\n"))
                            outer.received.put((addressees, data))
                            answer = "250 accepted"
                        case "QUIT":
                            self.wfile.write(b"221 bye\r\n")
                            return
                        case _:
                            answer = "250 ok"
                    self.wfile.write(f"{answer}\r\n".encode())

        self._server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        """Afterwards nothing listens there."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
