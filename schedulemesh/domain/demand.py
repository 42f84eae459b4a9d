"""What Ray work that does not belong to the scheduler waits for."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.resources import Resources


class ExternalDemand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An actor, a plain task, or a bundle of a placement group, that waits in Ray for room on one node."""

    amount: Resources
    #: The Ray job that created it; of a plain task it may not be known: empty.
    job_id: str
    namespace: str = ""

    def __str__(self) -> str:
        """As messages name it."""
        return f"{named_job(self.job_id, self.namespace)} waits in Ray for {self.amount}"


def named_job(job_id: str, namespace: str) -> str:
    """A Ray job, as messages name it."""
    if not job_id:
        return "a Ray job that is not known yet"
    return f"Ray job {job_id}" + (f" (namespace {namespace!r})" if namespace else "")
