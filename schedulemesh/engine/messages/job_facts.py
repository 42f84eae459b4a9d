"""Facts about the claims of jobs."""

from __future__ import annotations

from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.fact import Fact


class JobClaimMoved(Fact, tag="job_claim_moved", frozen=True, kw_only=True):
    """The claim of a job is on other nodes from now on, where Ray has placed the job's work. Its size has not
    changed, and its runner is where it was.
    """

    agent_name: str
    #: The virtual group that holds the claim; a new one if the claim was held without one.
    group_id: str
    #: What is claimed on each node, sorted by node.
    parts: tuple[tuple[str, Resources], ...]
    at: float
