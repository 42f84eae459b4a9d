"""The ids by which repeated requests are recognised.

An id of a request that came with a token is ``OWNER.KEY.CONTENT``, each a hash: of the token's name; of what
the caller gave as the id; and, where that is a key that people choose (``Idempotency-Key``), of what the
request says, so that the same key of another request is found out. Every other id is one whole.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from hashlib import sha256

import msgspec

_FORM = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{32})\.([0-9a-f]{16})?")
_KEYED = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{16}")


def new_request_id() -> str:
    """An id for a request of a caller who gave none."""
    return uuid.uuid4().hex


def keyed(key: Sequence[str], content: bytes) -> str:
    """The id of a request with a key that a caller chose, to be bound to its token."""
    return f"{_hash(*key)[:32]}.{sha256(content).hexdigest()[:16]}"


def bound_id(token: str, request_id: str) -> str:
    """The id of a request that comes with a token: nobody repeats a request of another one by its id."""
    key, _, content = (
        request_id.partition(".") if _KEYED.fullmatch(request_id) else (request_id, "", "")
    )
    return f"{_hash(token)[:16]}.{_hash(token, key)[:32]}.{content}"


def portion_id(request_id: str, number: int) -> str:
    """The id of a portion of a request; that of the first is the request's own."""
    if not number:
        return request_id
    match = _FORM.fullmatch(request_id)
    if match is None:
        return _hash(request_id, str(number))
    return f"{match[1]}.{_hash(match[2], str(number))[:32]}."


def owner_of(request_id: str) -> str:
    """The hash of the name of the token that a request came with; empty: with none."""
    match = _FORM.fullmatch(request_id)
    return match[1] if match else ""


def key_of_content(request_id: str) -> str:
    """What ids of the same key have in common; empty: nothing is known of the content."""
    match = _FORM.fullmatch(request_id)
    return f"{match[1]}.{match[2]}." if match and match[3] else ""


def _hash(*parts: str) -> str:
    return sha256(msgspec.json.encode(parts)).hexdigest()
