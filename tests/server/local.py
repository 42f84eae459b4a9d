"""An HTTP server in this process, over a gateway to a supervisor on a fake backend: no Ray."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import httpx
import msgspec

from schedulemesh.api.tokens import GetTokenHashes
from schedulemesh.config.discovery import found
from schedulemesh.config.http import HttpSettings
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.agents import key_of, pack
from schedulemesh.protocol.answers import read_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.protocol.submissions import RunnerCode
from schedulemesh.server.serving import HttpServer


class LocalGateway:
    """Asks a supervisor that runs on a loop of its own; counts how often, and can be cut off."""

    def __init__(self, mesh):
        self.mesh = mesh
        #: Requests of clients, and how many all were, those about tokens included.
        self.asked, self.all_asked = [], 0
        self.cut_off = False
        #: Cleared: requests reach the supervisor, which does not answer, as a stopped process.
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self, request, caller=None):
        return read_answer(await self.ask_packed(request, caller))

    async def ask_packed(self, request, caller=None):
        if not isinstance(request, GetTokenHashes):
            self.asked.append(request)
        self.all_asked += 1
        if self.cut_off:
            raise SchedulerUnavailableError("the supervisor of scheduler 'mesh' cannot be reached")
        service, data = self.mesh.service, encode_request(request)
        work = service.ask(data) if caller is None else service.ask_as(pack(caller), data)
        answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.mesh.loop))
        await self.answers.wait()
        return answer[0] if isinstance(answer, tuple) else answer

    def packed_runner(self, command, sent):
        """A class that nobody loads, the command as it was parsed, and what was sent with it."""
        arguments, folder = msgspec.json.encode(command), sent.folder
        blobs = {key_of(b"runner"): b"runner", key_of(arguments): arguments}
        blobs |= {module.key: data for module, data in sent.modules}
        code = RunnerCode(
            class_key=key_of(b"runner"),
            arguments_key=key_of(arguments),
            options="{}",
            blobs=blobs,
            modules=tuple(module for module, _ in sent.modules),
        )
        if folder is None:
            return code
        key = key_of(folder.data)
        blobs[key] = folder.data
        return msgspec.structs.replace(
            code, blobs=blobs, folder_key=key, folder_suffix=folder.suffix
        )


class Api:
    """A server on a port of its own, and a client that has its token."""

    def __init__(self, mesh, folder, gateway=None, **settings):
        self.mesh, self.folder = mesh, str(folder)
        self.gateway = gateway or LocalGateway(mesh)
        self.settings = HttpSettings(port=0, folder=self.folder, **settings)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.start()

    def start(self):
        self.server = self.do(self._made())
        self.serving = asyncio.run_coroutine_threadsafe(self.server.run(), self.loop)
        self.url = self.do(self.server.address())
        self.token = found(self.folder, "space", "mesh").token
        self.client = self.client_with(self.token)
        self.gateway.asked.clear()

    async def _made(self):
        cluster = ("10.0.0.7:6379", "127.0.0.1:6379")
        return HttpServer(self.gateway, self.settings, "space", "mesh", cluster)

    def client_with(self, token):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(
            base_url=self.url, headers=headers, trust_env=False, verify=False, timeout=30
        )

    def do(self, work):
        """The result of a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    @contextmanager
    def stopped_supervisor(self):
        """Meanwhile the supervisor takes requests, and does not answer."""
        self.loop.call_soon_threadsafe(self.gateway.answers.clear)
        try:
            yield
        finally:
            self.loop.call_soon_threadsafe(self.gateway.answers.set)

    def get(self, path, status=200, **options):
        """The JSON of an answer, which has this status."""
        return self._checked(self.client.get(f"/api/v1{path}", **options), status)

    def send(self, method, path, body=None, status=200):
        return self._checked(self.client.request(method, f"/api/v1{path}", json=body), status)

    def _checked(self, answer, status):
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json()

    def end(self):
        """End the server as its actor does."""
        self.client.close()
        self.loop.call_soon_threadsafe(self.server.end)
        self.serving.result(30)

    def close(self):
        self.end()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
