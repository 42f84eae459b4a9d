"""A client of a stream of events, on a connection of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx


class Message(NamedTuple):
    """What one block of a stream says."""

    event: str
    id: int | None
    data: Any
    comment: str


class Stream:
    """A stream that is read in the calling thread."""

    def __init__(self, url, token, **options):
        headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
        self._client = httpx.Client(
            base_url=url, headers=headers, trust_env=False, verify=False, timeout=30
        )
        self._opened = self._client.stream("GET", "/api/v1/events/stream", params=options)
        self.answer = self._opened.__enter__()
        if self.answer.status_code != 200:
            self.answer.read()
        self._lines = self.answer.iter_lines()
        #: The position, as a client keeps it to resume.
        self.cursor = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def next(self) -> Message:
        """The next block. Raises StopIteration at the end of the stream."""
        found = {"event": "message", "id": None, "data": None, "comment": ""}
        while line := next(self._lines):
            name, _, value = line.partition(": ")
            if not name or line.startswith(":"):
                found["comment"] = line.lstrip(": ")
            elif name == "id":
                found["id"] = self.cursor = int(value)
            elif name == "data":
                found["data"] = json.loads(value)
            elif name in found:
                found[name] = value
        return Message(**found)

    def until(self, wanted: Callable[[Message], bool]) -> list[Message]:
        """The blocks up to the first that is wanted."""
        found = [self.next()]
        while not wanted(found[-1]):
            found.append(self.next())
        return found

    def events(self, count: int) -> list[dict[str, Any]]:
        """The next so many events of the history."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            message = self.next()
            if message.event == "message" and message.data is not None:
                assert message.id == message.data["cursor"]
                found.append(message.data)
        return found
