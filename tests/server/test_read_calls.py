"""What a read costs the process of the HTTP API, as a number of calls of Python functions: the same on every
machine. The limit only ever falls.
"""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.config.http import HttpSettings
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.protocol.answers import details, encode_answer
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.server.app import application
from schedulemesh.server.connections import Connections
from schedulemesh.server.disconnection import ClientPresence
from tests.counted_calls import calls_of

#: Calls from the request that was taken apart to the last byte of its answer. With 3.12 and later, in which
#: comprehensions are no functions, they are fewer.
A_READ = 125


class OneToken:
    """Every request has the token of an operator."""

    def __init__(self):
        spec = TokenSpec(name="operator", role=Role.OPERATOR, secret_hash="")
        self.operator = TokenCaller(token=spec, address="127.0.0.1")

    async def caller(self, token, address):
        return self.operator


class Answering:
    """Answers every request with the same bytes."""

    def __init__(self, encoded):
        self.encoded = encoded

    async def ask_packed(self, request, caller=None):
        return self.encoded


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(asyncio.sleep(0))
    made.close()


async def nothing():
    """What the loop itself costs."""


def fewest_calls(loop, work):
    """Of several times: collecting garbage may call something, too."""
    return min(calls_of(lambda: loop.run_until_complete(work()))[1] for _ in range(5))


def test_what_a_read_costs_the_process_of_the_api(loop, tmp_path):
    tokens, gateway = OneToken(), Answering(encode_answer(details({"pools": 1})))
    settings = HttpSettings(port=0, folder=str(tmp_path))
    app = application(gateway, tokens, settings, None, None, Connections())
    headers = [(b"host", b"127.0.0.1:1"), (b"authorization", b"Bearer secret")]
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError("a read has no body")

    async def request():
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/status",
            "raw_path": b"/api/v1/status",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 2),
            "state": {"client": ClientPresence()},
        }
        await app(scope, receive, send)

    loop.run_until_complete(request())
    assert sent[0]["status"] == 200
    assert fewest_calls(loop, request) - fewest_calls(loop, nothing) <= A_READ
