"""Finds jobs whose work Ray has placed on other nodes than those of their claims."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.messages.job_stimuli import JobWorkObserved
from schedulemesh.runtime.jobs.claims import ByNode, ClaimOfJob

#: Seconds for which work must have been elsewhere before its claim follows: the actors of a starting job come
#: one by one, and Ray may list one that is about to end.
SETTLES_S = 3.0
#: Seconds between two moves of one claim: the claim of a job whose actors come and go all the time is not
#: moved all the time.
RESTS_S = 10.0


class ClaimFollower:
    """Says which claims are to move, once the work has been elsewhere for some time."""

    def __init__(self) -> None:
        #: When a claim may move, in seconds since 1970, by agent and incarnation.
        self._due: dict[tuple[str, int], float] = {}
        #: When it was moved last.
        self._moved: dict[tuple[str, int], float] = {}

    def due(self, claims: Iterable[ClaimOfJob], now: float) -> list[JobWorkObserved]:
        """The moves that are due. ``claims``: those of all jobs."""
        jobs = {(claim.agent_name, claim.incarnation): claim for claim in claims}
        targets = {key: following(claim) for key, claim in jobs.items()}
        self._moved = {key: at for key, at in self._moved.items() if key in targets}
        elsewhere = {key: target for key, target in targets.items() if target is not None}
        self._due = {key: self._due.get(key, self._earliest(jobs[key], now)) for key in elsewhere}
        moves = [
            JobWorkObserved(
                agent_name=key[0], incarnation=key[1], claims=tuple(sorted(target.items()))
            )
            for key, target in elsewhere.items()
            if self._due[key] <= now
        ]
        for move in moves:
            key = (move.agent_name, move.incarnation)
            self._moved[key] = now
            del self._due[key]
        return moves

    def _earliest(self, claim: ClaimOfJob, now: float) -> float:
        if claim.adopted and not claim.claimed:
            return now
        key = (claim.agent_name, claim.incarnation)
        rested = self._moved.get(key, float("-inf")) + RESTS_S
        return max(now + SETTLES_S, rested)


def following(claim: ClaimOfJob) -> ByNode | None:
    """Where the claim is to be: what the job does not use of it on one node is moved to where it uses more
    than it has claimed. None: it is there already. GPUs move as whole devices, or all of a share of one.
    """
    if claim.adopted and not claim.claimed:
        return _first_claim(claim)
    claimed = dict(claim.claimed)
    nodes = sorted(claimed.keys() | claim.used.keys())
    for there in nodes:
        for here in nodes:
            missing = claim.used.get(there, NOTHING).beyond(claimed.get(there, NOTHING))
            unused = claimed.get(here, NOTHING).beyond(claim.used.get(here, NOTHING))
            part = _movable(missing.within(unused), claimed.get(here, NOTHING))
            if part:
                claimed[there] = claimed.get(there, NOTHING) + part
                claimed[here] = claimed[here] - part
    after = {node_id: amount for node_id, amount in claimed.items() if amount}
    return None if after == {n: amount for n, amount in claim.claimed.items() if amount} else after


def _first_claim(claim: ClaimOfJob) -> ByNode | None:
    """Where the claim of an adopted job is at first: where its work is. What it does not use is on the first
    node.
    """
    claimed: dict[str, Resources] = {}
    unassigned = claim.adopted
    for node_id in sorted(claim.used):
        claimed[node_id] = claim.used[node_id].within(unassigned)
        unassigned = unassigned - claimed[node_id]
    if not claimed:
        return None
    first = min(claimed)
    claimed[first] = claimed[first] + unassigned
    return {node_id: amount for node_id, amount in claimed.items() if amount}


def _movable(part: Resources, claimed: Resources) -> Resources:
    """As much of a part of a claim as GPUs can be divided."""
    if part.gpu % UNIT and part.gpu != claimed.gpu:
        return msgspec.structs.replace(part, gpu=part.gpu // UNIT * UNIT)
    return part
