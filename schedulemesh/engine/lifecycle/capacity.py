"""Serves freed capacity after each handler. No other code reacts to something having become free."""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.engine.admission.groups import replenish
from schedulemesh.engine.admission.pending import continue_start, finish_revocations
from schedulemesh.engine.admission.queue_pass import serve_queue, serve_queue_at_tick
from schedulemesh.engine.lifecycle.children import end_orphans
from schedulemesh.engine.lifecycle.dependencies import note_ends, settle_dependencies
from schedulemesh.engine.lifecycle.elastic import follow_cores
from schedulemesh.engine.lifecycle.pools import clear_ending, finish_deletions
from schedulemesh.engine.messages.facts import GroupEnded, NodeLost, NodeSeen, PoolEnsured
from schedulemesh.engine.messages.stimuli import (
    AnyStimulus,
    ClockTicked,
    RecoveryObserved,
    TaskSubmitted,
)
from schedulemesh.engine.state.agents import Waiting
from schedulemesh.engine.transaction import Transaction

#: Facts after which pools may want other groups, or groups may fit that did not. What single agents free is
#: used at the next tick: searching the nodes for a whole group whenever one ends would cost too much.
_CHANGES = frozenset((PoolEnsured, NodeSeen, NodeLost, GroupEnded))


def serve_freed_capacity(tx: Transaction, stimulus: AnyStimulus) -> None:
    """End what ends with the tasks that this step has ended. Then give what it has freed to those who wait
    for it: first to agents, in the order in which they
    were woken, then to the tasks in the queue, then to the groups that pools lack.

    What an agent frees is part of the claims of those that wait for it since its end was handled
    (``admission.pending``), because one that is refused has its victims run again with what is free.

    A dry run changes nothing.
    """
    if isinstance(stimulus, TaskSubmitted) and stimulus.dry_run:
        return
    # Nearly always there is nothing of most of this to do, and to find that out calls nothing.
    state = tx.state
    orphans, arrays = state.running.children.orphans, state.arrays
    dependents = state.queue.dependents
    ended = orphans or arrays.over or dependents.ended or dependents.broken
    if ended or tx.revoked or tx.woken or tx.had_elastic or state.elastic:
        _serve_ended(tx)
    if state.queue.by_id:
        serve_queue(tx, stimulus)
        # A task that gets a new placement group is admitted first, and has its group created then.
        _serve_woken(tx)
    if state.groups.of_pool or state.drains.ending or orphans or arrays.over or dependents.ended:
        _serve_rest(tx, stimulus)


def serve_in_portions(tx: Transaction, stimulus: AnyStimulus) -> Iterator[None]:
    """The same on a tick that is divided: it yields where others may be served."""
    _serve_ended(tx)
    if tx.state.queue.by_id:
        yield from serve_queue_at_tick(tx)
        _serve_woken(tx)
    _serve_rest(tx, stimulus)


def _serve_ended(tx: Transaction) -> None:
    """End what ends with the tasks that have ended, and serve agents."""
    state = tx.state
    orphans, arrays, dependents = (
        state.running.children.orphans,
        state.arrays,
        state.queue.dependents,
    )
    if orphans:
        end_orphans(tx)
    if tx.had_elastic or state.elastic:
        follow_cores(tx)
    if orphans:
        _end_children(tx)
    if tx.revoked:
        finish_revocations(tx)
    if tx.woken:
        _serve_woken(tx)
    if arrays.over or dependents.ended or dependents.broken:
        settle_dependencies(tx)


def _serve_rest(tx: Transaction, stimulus: AnyStimulus) -> None:
    """Give pools the groups that they lack, and note what has ended."""
    state = tx.state
    orphans, arrays, dependents = (
        state.running.children.orphans,
        state.arrays,
        state.queue.dependents,
    )
    if state.groups.of_pool and _may_replenish(tx, stimulus):
        before = len(tx.facts)
        replenish(tx)
        if len(tx.facts) > before:
            state.queue.changed = True  # a waiting task may have one of these groups
    if state.drains.ending:
        clear_ending(tx)
    if orphans:
        _end_children(tx)
    if arrays.over or dependents.ended:
        note_ends(tx)
    if state.drains.ending:
        finish_deletions(tx)


def _end_children(tx: Transaction) -> None:
    """End the children of what was ended beside the stimulus: of extra members, whose cores have ended, and
    of tasks whose starts were given up. They may be cores themselves.
    """
    while tx.state.running.children.orphans:
        end_orphans(tx)
        follow_cores(tx)


def _serve_woken(tx: Transaction) -> None:
    """Let those agents continue that wait for nobody any more."""
    while tx.woken:
        woken, tx.woken = tx.woken, {}
        for name in woken:
            agent = tx.state.agents.get(name)
            if agent is not None and isinstance(agent.phase, Waiting):
                continue_start(tx, agent)


def _may_replenish(tx: Transaction, stimulus: AnyStimulus) -> bool:
    if isinstance(stimulus, ClockTicked | RecoveryObserved):
        return True
    return any(type(fact) in _CHANGES for fact in tx.facts)
