"""The bases of all stimuli; see ``stimuli``, where they are listed."""

from __future__ import annotations

import msgspec


class Stimulus(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Base of all stimuli. A client's submission is one from the start, and travels as bytes."""


class RequestStimulus(Stimulus, frozen=True, kw_only=True):
    """Base of the stimuli whose outcome is remembered: a repetition with the same id changes nothing."""

    #: None: repetitions are not recognised.
    request_id: str | None = None
