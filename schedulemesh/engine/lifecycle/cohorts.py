"""Cohorts: how they are created, changed, renamed and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.resources import NOTHING
from schedulemesh.domain.sentences import Sentence, did_you_mean, say
from schedulemesh.engine.admission.needs import is_ruled_out
from schedulemesh.engine.messages.cohort_facts import CohortDeleted, CohortEnsured, CohortRenamed
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.stimuli import (
    CohortDeletionRequested,
    CohortRenameRequested,
    CohortRequested,
)
from schedulemesh.engine.state.cohort_updates import all_loans, loans_within_trees
from schedulemesh.engine.state.cohorts import CohortTree
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction

#: How many tasks a warning names.
_NAMED = 3


def ensure_cohort(tx: Transaction, stimulus: CohortRequested) -> RequestOutcome:
    """Create a cohort, or change its parent or weight; the same definition again changes nothing.

    Loans that exist stay where a change of the tree separates owner and borrower, and the owner may reclaim
    them.
    """
    spec, cohorts = stimulus.spec, tx.state.ledger.cohorts
    before = cohorts.specs.get(spec.name)
    if before == spec:
        return Done(change=Change.UNCHANGED)
    if before is not None and stimulus.must_be_new:
        return _cohort_exists(say("cohort_has_other_definition", cohort=spec.name))
    if spec.parent is not None and spec.parent != spec.name and spec.parent not in cohorts.specs:
        return _cohort_not_found(cohorts, spec.parent, below=spec.name)
    if spec.parent is not None and cohorts.would_be_cycle(spec.name, spec.parent):
        above = tuple(cohorts.upwards(spec.parent))
        error = say("cohort_above_itself", cohort=spec.name, parent=spec.parent, above=above)
        return Refused(reason=Reason.COHORT_CYCLE, error_text=error)
    loans, pools = loans_within_trees(tx.state.ledger), set(_tree_of(cohorts, spec.name))
    tx.emit(CohortEnsured(spec=spec, at=tx.now))
    change = Change.CREATED if before is None else Change.CHANGED
    pools.update(_tree_of(cohorts, spec.name))
    warnings = (*loans_outside(tx.state, loans), *waits_in_vain(tx.state, pools))
    return Done(change=change, warning_texts=warnings)


def delete_cohort(tx: Transaction, stimulus: CohortDeletionRequested) -> RequestOutcome:
    """Delete a cohort in which no pool and no cohort is."""
    cohorts, name = tx.state.ledger.cohorts, stimulus.name
    if name not in cohorts.specs:
        return _cohort_not_found(cohorts, name)
    accounts = tx.state.ledger.accounts.values()
    pools = sorted(a.spec.name for a in accounts if a.spec.cohort == name)
    below = sorted(spec.name for spec in cohorts.specs.values() if spec.parent == name)
    if pools or below:
        members = [_members("pool_in_it", "pools_in_it", pools)] if pools else []
        members += [_members("cohort_in_it", "cohorts_in_it", below)] if below else []
        return Refused(
            reason=Reason.COHORT_IN_USE,
            error_text=say("cohort_is_used", cohort=name, members=members),
            hint_text=say("cohort_is_used_hint"),
        )
    tx.emit(CohortDeleted(name=name, at=tx.now))
    return Done(change=Change.DELETED)


def rename_cohort(tx: Transaction, stimulus: CohortRenameRequested) -> RequestOutcome:
    """Give a cohort another name that no other cohort has."""
    cohorts, name, new_name = tx.state.ledger.cohorts, stimulus.name, stimulus.new_name
    if name not in cohorts.specs:
        return _cohort_not_found(cohorts, name)
    if name == new_name:
        return Done(change=Change.UNCHANGED)
    if new_name in cohorts.specs:
        return _cohort_exists(say("cohort_name_taken", cohort=new_name))
    tx.emit(CohortRenamed(name=name, new_name=new_name, at=tx.now))
    return Done(change=Change.CHANGED)


def _members(one: str, several: str, names: list[str]) -> Sentence:
    """What is in a cohort; the codes for one name and for several."""
    shown, more = [*map(repr, names[:_NAMED])], ", …" if len(names) > _NAMED else ""
    return say(one if len(names) == 1 else several, names=shown, more=more)


def _cohort_not_found(cohorts: CohortTree, name: str, below: str | None = None) -> Refused:
    """The refusal for a cohort that does not exist; ``below``: the one whose parent it was to be."""
    names, near = sorted(cohorts.specs), did_you_mean(name, cohorts.specs)
    listed = say("names", names=names) if names else say("none_yet")
    error = say("no_cohort", cohort=name, near=near, cohorts=listed)
    if below is not None:
        error = say("no_parent_cohort", cohort=name, name=below, near=near, cohorts=listed)
    return Refused(reason=Reason.COHORT_NOT_FOUND, error_text=error)


def _cohort_exists(error: Sentence) -> Refused:
    return Refused(reason=Reason.COHORT_EXISTS, error_text=error)


def _tree_of(cohorts: CohortTree, name: str) -> Iterator[str]:
    """The pools of the tree that a cohort is in."""
    return cohorts.pools_below(cohorts.upwards(name)[-1])


def loans_outside(state: MeshState, before: set[tuple[str, str]]) -> tuple[Sentence, ...]:
    """The warnings of loans that the tree of cohorts does not allow any more; ``before``: those that it
    allowed.
    """
    ledger, loans = state.ledger, all_loans(state.ledger)
    return tuple(
        say("loan_outside_cohort", owner=owner, borrower=borrower, amount=loans[owner, borrower])
        for owner, borrower in sorted(before - loans_within_trees(ledger))
    )


def waits_in_vain(state: MeshState, pool_names: Iterable[str]) -> tuple[Sentence, ...]:
    """The warnings of tasks that wait in these pools, which cannot hold them as they are defined now."""
    return tuple(
        warning
        for pool_name in sorted(set(pool_names) & state.queue.pools.keys())
        if (warning := _waits_in_vain(state, pool_name)) is not None
    )


def _waits_in_vain(state: MeshState, pool_name: str) -> Sentence | None:
    tasks = [task for task in state.queue.firsts_of(pool_name) if is_ruled_out(state, task)]
    count = sum(len(task.queue_class.entries) for task in tasks if task.queue_class is not None)
    if not count:
        return None
    names = [repr(task.task_id) for task in tasks[:_NAMED]]
    named = say("firsts_and_others" if count > len(names) else "names", names=names)
    return say("wait_in_vain", count=count, pool=pool_name, tasks=named)


def loans_beyond_limits(state: MeshState, pool_name: str) -> tuple[Sentence, ...]:
    """The warnings of limits of a pool that are below what is on loan."""
    account = state.ledger.accounts[pool_name]
    limits = (
        ("lent_above_limit", account.spec.lending_limit, account.lent),
        ("borrowed_above_limit", account.spec.borrowing_limit, account.borrowed),
    )
    return tuple(
        say(code, pool=pool_name, amount=amount)
        for code, limit, amount in limits
        if limit is not None and limit.room(amount, NOTHING) != amount
    )
