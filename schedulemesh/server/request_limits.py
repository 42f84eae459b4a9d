"""What a request may have at most beside its bytes. It is counted before anything is made of it, because what
is made takes much longer, and others wait meanwhile. Nor is anything made of one in another version of HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

import h11
from h11._receivebuffer import ReceiveBuffer

from schedulemesh.api.values import MAX_NAMES
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.requests import MAX_VALUES

#: Lines and bytes of the head of a request, and bytes of the path in it: that of a name of 253 characters.
MAX_HEAD_LINES, MAX_HEAD, MAX_PATH = 100, 64 * 1024, 4 * 1024
#: Chunks of a body that may be of any size, and the bytes that there have to be for each further one.
MAX_SMALL_CHUNKS, LEAST_CHUNK = 100, 1024
#: Parameters of a query, and bytes of each as it is written: its name and its value. A cursor may fill the
#: head: it has the values of a row, which may be sentences.
MAX_PARAMETERS, MAX_PARAMETER = MAX_NAMES, 4 * 1024
#: Texts in a body in JSON, names of fields included, and bytes of each but the archive of a job.
MAX_TEXTS, MAX_TEXT = 10_000, 64 * 1024

_CURSOR = b"cursor="
#: Bytes of a body that are counted at once.
_SLICE = 1024 * 1024
#: Where the head of a request ends, as h11 reads it.
_HEAD_END = re.compile(rb"\n\r?\n")


class BoundedConnection(h11.Connection):
    """The server's end of a connection, which refuses a request that takes long to be taken apart.

    A client decides how many headers and chunks arrive together, and all of them are looked at before anybody
    else is served.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD)
        self._receive_buffer = _BoundedBuffer(self._refuse)
        self._chunks = self._bytes = 0
        #: What is too much of the request, and what is allowed; empty: nothing is.
        self.excess = ""
        #: The status with which it is refused.
        self.status = 400

    @property
    def has_begun(self) -> bool:
        """Whether something of a request has arrived that is not taken yet."""
        return bool(self._receive_buffer)

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        """See h11. Raises RemoteProtocolError for what is too much."""
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_version(event)
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._check_chunks(event)
        return event

    def _check_version(self, request: h11.Request) -> None:
        """A later version with the same first digit is answered as 1.1 (RFC 9110, 2.5); of others nobody
        knows what they mean by a head.
        """
        if not request.http_version.startswith(b"1."):
            self.status = 505
            self._refuse(f"this server speaks HTTP/1.1, not HTTP/{request.http_version.decode()}")

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        end = _HEAD_END.search(data)
        head = data if end is None else data[: end.start()]
        if (lines := head.count(b"\n") + 1) > MAX_HEAD_LINES:
            self._refuse(f"a request has up to {MAX_HEAD_LINES} headers, not {lines:,}")
        if len(head) > MAX_HEAD:
            self._refuse(f"the head of a request has up to {MAX_HEAD:,} bytes, not {len(head):,}")
        path = head.partition(b"\n")[0].partition(b"?")[0]
        if len(path) > MAX_PATH:
            self._refuse(f"the path of a request has up to {MAX_PATH:,} bytes, not {len(path):,}")

    def _check_chunks(self, data: h11.Data) -> None:
        self._chunks += data.chunk_start
        self._bytes += len(data.data)
        # The last chunk may not have arrived as a whole.
        further = self._chunks - MAX_SMALL_CHUNKS - 1
        if self._bytes < further * LEAST_CHUNK:
            self._refuse(
                f"a body in more than {MAX_SMALL_CHUNKS} chunks has {LEAST_CHUNK:,} bytes for each further "
                f"one, not {self._bytes:,} in {self._chunks:,}; send it with a Content-Length"
            )

    def _refuse(self, excess: str) -> NoReturn:
        self.excess = excess
        raise h11.RemoteProtocolError(excess)


class _BoundedBuffer(ReceiveBuffer):
    """What has arrived on a connection. It gives up to as many lines at once as a head has: what follows the
    last chunk of a body are headers, too.
    """

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        super().__init__()
        self._refuse = refuse

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """See h11. Raises what ``refuse`` raises."""
        data = bytes(self)
        end = _HEAD_END.search(data)
        lines = data.count(b"\n", 0, len(data) if end is None else end.start()) + 1
        if lines > MAX_HEAD_LINES:
            self._refuse(f"a body is followed by up to {MAX_HEAD_LINES} headers, not {lines:,}")
        return super().maybe_extract_lines()


def check_query(query: bytes) -> None:
    """Raise InvalidRequestError where a query has too many parameters, or too long ones."""
    if not query:
        return
    parameters = query.split(b"&", MAX_PARAMETERS)
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidRequestError(f"a query has up to {MAX_PARAMETERS:,} parameters")
    longest = max((len(one) for one in parameters if not one.startswith(_CURSOR)), default=0)
    if longest > MAX_PARAMETER:
        raise InvalidRequestError(
            f"a parameter of a query has up to {MAX_PARAMETER:,} bytes, its name included, not {longest:,}"
        )


def check_json(data: bytes, *, has_archive: bool = False) -> None:
    """Raise ValueError for a body in JSON of which a decoder would make too many or too long values."""
    if _count(data, b"[", b"{") > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} lists and objects")
    # Numbers, too: each value but the first one of a list or an object comes after a comma.
    if _count(data, b",") > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values, or commas in its texts")
    if _count(data, b'"') > 2 * MAX_TEXTS:
        raise ValueError(f"it has more than {MAX_TEXTS:,} texts, names of fields included")
    if has_archive:
        return
    without_escapes = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    longest = max(map(len, without_escapes.split(b'"')[1::2]), default=0)
    if longest > MAX_TEXT:
        raise ValueError(f"a text in it has up to {MAX_TEXT:,} bytes, not {longest:,}")


def _count(data: bytes, *marks: bytes) -> int:
    """How often these are in a body. Counted in slices: no other thread runs while one is counted, which
    takes half a millisecond, and 10 ms for the largest body.
    """
    begins = range(0, len(data), _SLICE)
    return sum(data.count(mark, begin, begin + _SLICE) for begin in begins for mark in marks)
