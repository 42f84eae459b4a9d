"""A request of 16 MB goes through both processes, and neither event loop copies it."""

from __future__ import annotations

import base64
import threading

import msgspec
import pytest

from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.tasks import SubmitMany
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol import large_bytes, requests
from schedulemesh.protocol.agents import key_of, pack
from schedulemesh.protocol.requests import encode_in_parts, encode_request
from schedulemesh.server import app
from schedulemesh.server.app import MSGPACK
from schedulemesh.server.guard import MAX_BODY
from schedulemesh.server.supervisor_socket import SupervisorSocket
from tests.server.local import Api, LocalGateway
from tests.server.work import CLASS, ask, submission

BLOB = b"x" * (MAX_BODY - 100_000)


class OverSocket(LocalGateway):
    """Asks the supervisor over its socket, as the process of the HTTP API does."""

    way = None

    async def ask_packed(self, request, caller=None):
        if self.way is None:
            self.way = SupervisorSocket(self.mesh.service._socket.address)
        parts, packed = encode_in_parts(request), b"" if caller is None else pack(caller)
        answer = await self.way.ask(parts, b"", packed, 30.0, waits=request.waits)
        if answer is None:  # a connection is being made, on which it is not asked meanwhile
            return await super().ask_packed(request, caller)
        if sum(map(len, parts)) > large_bytes.SLICE:
            self.asked.append(len(parts))
        return answer


@pytest.fixture
def api(mesh, tmp_path):
    ask(mesh, EnsurePool(name="p", resources=parse_resources({"cpu": 1}), labels={}))
    made = Api(mesh, tmp_path / "home", gateway=OverSocket(mesh))
    yield made
    made.client.close()
    if made.gateway.way is not None:
        made.loop.call_soon_threadsafe(made.gateway.way.close)
    made.close()


@pytest.fixture
def copies(monkeypatch):
    """The threads that copied something large."""
    threads = []

    def noted(parts):
        threads.append(threading.current_thread())
        return large_bytes.joined(parts)

    monkeypatch.setattr(app, "joined", noted)
    monkeypatch.setattr(requests, "joined", noted)
    return threads


def stored(mesh, blob):
    return mesh.do(mesh.running.reactor.blob(key_of(blob)))


def test_a_packed_request_is_read_sent_and_stored(api, mesh, copies):
    blobs = {key_of(CLASS): CLASS, key_of(BLOB): BLOB}
    content = encode_request(SubmitMany(submissions=(submission("t"),), blobs=blobs))
    headers = {"content-type": MSGPACK}
    answer = api.client.post("/api/v1/requests", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    assert stored(mesh, BLOB) == BLOB
    assert api.gateway.asked[-1] == 4, "in parts, one of which is what is stored"
    assert len(copies) == 3, "of the body, and of what is stored in each of the processes"
    assert not {api.thread, mesh.thread} & set(copies)


def test_a_job_with_its_folder_is_sent_and_stored(api, mesh, copies):
    folder = BLOB[:12_000_000]
    job = {"task_id": "j", "entrypoint": ["true"], "pool_name": "p", "queue": True}
    archive = base64.b64encode(folder).decode()
    content = msgspec.json.encode({**job, "archive": archive})
    answer = api.client.post("/api/v1/jobs", content=content)
    assert answer.status_code == 200, answer.text
    assert stored(mesh, folder) == folder
    assert not {api.thread, mesh.thread} & set(copies)
