"""Stimuli about jobs: what was found out about their work in Ray."""

from __future__ import annotations

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.stimulus import Stimulus


class JobWorkObserved(Stimulus, frozen=True, kw_only=True):
    """For some time Ray has had the work of a job on other nodes than those of its claim."""

    agent_name: str
    incarnation: int
    #: What of the claim is to be on each node; altogether it is as much as before.
    claims: tuple[tuple[str, Resources], ...]


class JobBeyondClaim(Stimulus, frozen=True, kw_only=True):
    """A job holds more in Ray than it claims, wherever that is."""

    agent_name: str
    incarnation: int
    #: What of it is beyond its claim.
    beyond: Resources
    #: In seconds since 1970.
    since: float
