"""Cohorts: how they are created and changed."""

from __future__ import annotations

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.engine.messages.cohort_facts import CohortEnsured
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import CohortRequested
from schedulemesh.engine.transaction import Transaction


def ensure_cohort(tx: Transaction, stimulus: CohortRequested) -> RequestOutcome:
    """Create a cohort, or change its parent or weight; the same definition again changes nothing.

    Loans that exist stay where a change of the tree separates owner and borrower.
    """
    spec, cohorts = stimulus.spec, tx.state.ledger.cohorts
    before = cohorts.specs.get(spec.name)
    if before == spec:
        return Done(change=Change.UNCHANGED)
    if spec.parent is not None and spec.parent != spec.name and spec.parent not in cohorts.specs:
        known = ", ".join(sorted(cohorts.specs)) or "none yet"
        return Refused(
            reason=Reason.COHORT_NOT_FOUND,
            error=f"there is no cohort {spec.parent!r} to be the parent of {spec.name!r}; cohorts are: "
            f"{known}. Create it with ensure_cohort first",
        )
    if spec.parent is not None and cohorts.would_be_cycle(spec.name, spec.parent):
        above = " in ".join(cohorts.upwards(spec.parent))
        return Refused(
            reason=Reason.COHORT_CYCLE,
            error=f"cohort {spec.name!r} cannot be in {spec.parent!r}, which is itself in it: {above}; "
            "choose another parent, or give one of these parent=None first",
        )
    tx.emit(CohortEnsured(spec=spec, at=tx.now))
    return Done(change=Change.CREATED if before is None else Change.CHANGED)
