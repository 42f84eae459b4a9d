"""Open pages without a browser: each follows the stream, and reads its screen when something has changed, as
``live.js`` does. A process of its own, so that it shares no interpreter with what is measured.

``python -m tests.server.open_pages URL TOKEN...`` reads how many pages to have of each token from each line
of its input, and prints how often they have read their screens since the last line.
"""

from __future__ import annotations

import asyncio
import sys
import time

import httpx

#: What is looked at, in turn.
LIVE = ("/", "/queue", "/nodes", "/evictions", "/task?id=task-1999")
#: As in ``live.js``, in seconds: between two reads at least, and of a slow server so many times what it took.
LEAST_S, PATIENCE = 0.6, 5.0


class Pages:
    """The pages that one person has open."""

    def __init__(self, url, token):
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits)
        self._url, self._token, self._tasks = url, token, []
        self.reads = 0

    async def sign_in(self):
        form = {"token": self._token}
        await self._client.post("/sign-in", data=form, headers={"origin": self._url})

    async def be(self, count):
        """Have so many, each of which has its first screen."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        begun = [asyncio.Event() for _ in range(count)]
        self._tasks = [
            asyncio.ensure_future(self._page(LIVE[number % len(LIVE)], event))
            for number, event in enumerate(begun)
        ]
        await asyncio.gather(*(event.wait() for event in begun))

    async def _page(self, path, begun):
        changed = asyncio.Event()
        async with self._client.stream("GET", "/live", timeout=None) as stream:
            stream.raise_for_status()
            reading = asyncio.ensure_future(self._read(path, changed, begun))
            try:
                async for line in stream.aiter_lines():
                    if line == "event: changed":
                        changed.set()
            finally:
                reading.cancel()

    async def _read(self, path, changed, begun):
        while True:
            changed.clear()
            began = time.monotonic()
            (await self._client.get(path)).raise_for_status()
            self.reads += 1
            begun.set()
            # Not before the least pause after a read.
            await asyncio.sleep(max(LEAST_S, PATIENCE * (time.monotonic() - began)))
            await changed.wait()


async def main(url, *tokens):
    people = [Pages(url, token) for token in tokens]
    for pages in people:
        await pages.sign_in()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        reads = sum(pages.reads for pages in people)
        # One person after the other: a server closes connections where too many have sent no token yet.
        for pages in people:
            await pages.be(int(line))
        print(reads, flush=True)
        for pages in people:
            pages.reads = 0


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
