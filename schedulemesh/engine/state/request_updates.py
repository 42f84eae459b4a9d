"""The remembered outcomes of requests, and which of them are given up where there are too many."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.request_ids import key_of_content, owner_of
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.outcomes import RequestOutcome
from schedulemesh.engine.state.agents import RememberedAnswer

#: How many outcomes are kept of the requests with one token (all requests without one count as those of one),
#: and of all, and their bytes. The oldest go first: of the token that has too many, else of that with most.
KEPT_OF_TOKEN, BYTES_OF_TOKEN = 50_000, 16 * 1024 * 1024
KEPT, KEPT_BYTES = 200_000, 64 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RequestOutcome)


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """A remembered outcome, encoded: it takes a fraction of the memory, and is hardly ever asked for."""

    at: float
    packed: bytes

    @property
    def outcome(self) -> RequestOutcome:
        """The outcome."""
        outcome: RequestOutcome = _decoder.decode(self.packed)
        return outcome


class RememberedOutcomes(dict[str, Remembered]):
    """The outcomes of requests by id, the first given first; changed by its methods only."""

    def __init__(self) -> None:
        super().__init__()
        #: The ids of each token's requests, and the bytes of their outcomes; see ``owner_of``.
        self._ids: dict[str, dict[str, None]] = {}
        self._bytes: dict[str, int] = {}
        self._all_bytes = 0
        #: Ids with a content by what those of the same key have in common.
        self.by_key: dict[str, str] = {}

    def note(self, request_id: str, at: float, outcome: RequestOutcome) -> None:
        """Remember an outcome."""
        if request_id in self:
            self.forget(request_id)
        remembered = self[request_id] = Remembered(at, _encoder.encode(outcome))
        owner = owner_of(request_id)
        self._ids.setdefault(owner, {})[request_id] = None
        self._count(owner, len(remembered.packed))
        if key := key_of_content(request_id):
            self.by_key[key] = request_id
        ids = self._ids[owner]
        # The newest is kept, however large it is.
        while len(ids) > KEPT_OF_TOKEN or (len(ids) > 1 and self._bytes[owner] > BYTES_OF_TOKEN):
            self.forget(next(iter(ids)))
        while len(self) > KEPT or (len(self) > 1 and self._all_bytes > KEPT_BYTES):
            most = max(self._bytes, key=lambda each: (self._bytes[each], each))
            self.forget(next(iter(self._ids[most])))

    def forget(self, request_id: str) -> None:
        """Remember an outcome no more."""
        owner, size = owner_of(request_id), len(self.pop(request_id).packed)
        del self._ids[owner][request_id]
        self._count(owner, -size)
        if not self._ids[owner]:
            del self._ids[owner], self._bytes[owner]
        if key := key_of_content(request_id):
            self.by_key.pop(key, None)

    def restore(self, answers: Iterable[tuple[str, RememberedAnswer]]) -> None:
        """Add what was remembered before, the first given first."""
        for request_id, answer in answers:
            self.note(request_id, answer.at, answer.outcome)

    def _count(self, owner: str, size: int) -> None:
        self._bytes[owner] = self._bytes.get(owner, 0) + size
        self._all_bytes += size


class RequestFacts:
    """Applies facts to the answers, oldest first, and to the requests in progress."""

    def __init__(self, answers: RememberedOutcomes, requests: dict[str, str]) -> None:
        self._answers = answers
        self._requests = requests

    def answered(self, fact: f.RequestAnswered) -> None:
        """A request has its final outcome."""
        self._answers.note(fact.request_id, fact.at, fact.outcome)
        self._requests.pop(fact.request_id, None)

    def forgotten(self, fact: f.AnswersForgotten) -> None:
        """Old outcomes are not repeated any more."""
        while self._answers:
            oldest = next(iter(self._answers))
            if self._answers[oldest].at >= fact.before:
                return
            self._answers.forget(oldest)
