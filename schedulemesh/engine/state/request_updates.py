"""Applies facts to the remembered outcomes of requests."""

from __future__ import annotations

from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.agents import Answer


class RequestFacts:
    """Applies facts to the answers, oldest first, and to the requests in progress."""

    def __init__(self, answers: dict[str, Answer], requests: dict[str, str]) -> None:
        self._answers = answers
        self._requests = requests

    def answered(self, fact: f.RequestAnswered) -> None:
        """A request has its final outcome."""
        self._answers.pop(fact.request_id, None)
        self._answers[fact.request_id] = Answer(at=fact.at, outcome=fact.outcome)
        self._requests.pop(fact.request_id, None)

    def forgotten(self, fact: f.AnswersForgotten) -> None:
        """Old outcomes are not repeated any more."""
        while self._answers:
            oldest = next(iter(self._answers))
            if self._answers[oldest].at >= fact.before:
                return
            del self._answers[oldest]
