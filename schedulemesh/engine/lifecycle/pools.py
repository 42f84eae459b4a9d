"""Pools: how they are defined, made smaller, renamed and deleted.

A pool may be made smaller than what is in use. It then holds more than its quota until enough has ended:
nothing new is charged to it, and what it has lent beyond its quota is called back (``call_back``).

A pool that is deleted must not be in use: no agent of it exists, nothing waits in its queue, and no other
pool holds quota of it. With a drain

- it takes nothing new, and what waits is cancelled; where very many tasks wait, the next steps cancel the
  rest;
- what runs is evicted as by any drain of a pool, but does not wait again;
- what it has lent is called back, and its placement groups are removed.

It is deleted by the step that ends the last use of it. ``undrain_pool`` keeps it until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.node_labels import selects
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Change, PreemptionReason, Reason
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, size_text, sum_of
from schedulemesh.domain.sentences import Sentence, did_you_mean, say
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.admission.admit import evict_instruction
from schedulemesh.engine.admission.groups import drop_if_unwanted
from schedulemesh.engine.admission.queue_pass import cancel
from schedulemesh.engine.admission.refusals import pool_ending, pool_not_found
from schedulemesh.engine.lifecycle.budgets import advance_budgets
from schedulemesh.engine.lifecycle.cohorts import loans_beyond_limits, loans_outside, waits_in_vain
from schedulemesh.engine.lifecycle.drain import advance_drains
from schedulemesh.engine.messages.drain_facts import DrainStarted
from schedulemesh.engine.messages.facts import (
    AgentEnding,
    EvictionStarted,
    HoldShrank,
    PoolEnsured,
)
from schedulemesh.engine.messages.outcomes import Done, Refused, RequestOutcome
from schedulemesh.engine.messages.pool_facts import PoolDeleted, PoolRenamed
from schedulemesh.engine.messages.stimuli import (
    PoolDeletionRequested,
    PoolRenameRequested,
    PoolRequested,
)
from schedulemesh.engine.preemption.reclaim import price_of
from schedulemesh.engine.preemption.savable import can_be_saved
from schedulemesh.engine.state.agents import Agent, Ending, Running
from schedulemesh.engine.state.cohort_updates import all_loans, loans_within_trees
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.shares import Shares
from schedulemesh.engine.transaction import Transaction

#: How many agents or tasks a refusal names.
_NAMED = 3
#: How many tasks that wait in a pool which is being deleted are cancelled at once: 250 take 15 ms.
_CANCELLED = 250


def ensure_pool(tx: Transaction, stimulus: PoolRequested) -> RequestOutcome:
    """Create a pool, or change its definition; the same definition again changes nothing."""
    spec = stimulus.spec
    account = tx.state.ledger.accounts.get(spec.name)
    alone = _in_similar_cohort(tx.state, spec)
    if account is None:
        tx.emit(PoolEnsured(spec=spec, at=tx.now))
        return Done(change=Change.CREATED, warning_texts=(*alone, *_too_big(tx.state, spec)))
    if spec.name in tx.state.drains.ending and stimulus.must_last:
        return pool_ending(spec.name)
    if account.spec == spec:
        if any(pool_name == spec.name for pool_name, _ in tx.state.groups.dropped):
            tx.emit(PoolEnsured(spec=spec, at=tx.now))
        return Done(change=Change.UNCHANGED)
    if stimulus.must_be_new:
        return Refused(
            reason=Reason.POOL_EXISTS,
            error_text=say(
                "pool_has_other_definition", pool=spec.name, quota=account.spec.resources
            ),
        )
    loans, pools = loans_within_trees(tx.state.ledger), _pools_beside(tx.state, spec.name)
    tx.emit(PoolEnsured(spec=spec, at=tx.now))
    advance_budgets(tx)
    _reshape_groups(tx, spec.name)
    call_back(tx, spec.name)
    warnings = (
        *alone,
        *_ends_soon(tx.state, spec.name),
        *_above_quota(tx.state, spec.name),
        *_too_big(tx.state, spec),
        *loans_outside(tx.state, loans),
        *loans_beyond_limits(tx.state, spec.name),
        *waits_in_vain(tx.state, (*pools, *_pools_beside(tx.state, spec.name))),
    )
    return Done(change=Change.CHANGED, warning_texts=warnings)


def delete_pool(tx: Transaction, stimulus: PoolDeletionRequested) -> RequestOutcome:
    """Delete a pool that nothing uses; with a drain, one that is in use is deleted when that has ended."""
    state, name = tx.state, stimulus.pool_name
    if name not in state.ledger.accounts:
        return pool_not_found(state, name)
    holders = tuple(_holders(state, name))
    drain, deadline = state.drains.pools.get(name), None
    if stimulus.deadline_s is not None:
        deadline = tx.now + stimulus.deadline_s
    if holders and not stimulus.drain and (drain is None or not drain.deletes):
        return Refused(
            reason=Reason.POOL_IN_USE,
            error_text=say("pool_is_used", pool=name, users=holders),
            hint_text=say("pool_is_used_hint"),
        )
    warnings = _dangling(state, name)
    if drain is not None and drain.deletes and (drain.deadline == deadline or not stimulus.drain):
        return Done(change=Change.UNCHANGED)
    tx.emit(
        DrainStarted(
            pool_name=name, at=tx.now, deadline=deadline, client=stimulus.client, deletes=True
        )
    )
    advance_drains(tx)
    clear_ending(tx)
    finish_deletions(tx)
    gone = name not in state.ledger.accounts
    return Done(change=Change.DELETED if gone else Change.ENDING, warning_texts=warnings)


def rename_pool(tx: Transaction, stimulus: PoolRenameRequested) -> RequestOutcome:
    """Give a pool another name that no other pool has."""
    state, name, new_name = tx.state, stimulus.pool_name, stimulus.new_name
    if name not in state.ledger.accounts:
        return pool_not_found(state, name)
    if name == new_name:
        return Done(change=Change.UNCHANGED)
    if new_name in state.ledger.accounts:
        return Refused(
            reason=Reason.POOL_EXISTS,
            error_text=say("pool_name_taken", pool=name, name=new_name),
        )
    tx.emit(PoolRenamed(pool_name=name, new_name=new_name, at=tx.now))
    return Done(change=Change.CHANGED)


def clear_ending(tx: Transaction) -> None:
    """Cancel what waits in pools that are being deleted, some of it in each step so that others are served
    meanwhile, call back what they lend, and remove their groups and what is held for them.
    """
    state = tx.state
    for name in tuple(state.drains.ending):
        for task in tuple(state.queue.of_pool(name, end=_CANCELLED)):
            error = f"pool {name!r} is being deleted; submit it to another pool"
            cancel(tx, task, Reason.POOL_ENDING, error)
        call_back(tx, name)
        _reshape_groups(tx, name)
        for key, hold in tuple(state.ledger.holds.items()):
            if name in (hold.for_pool, *(share.pool_name for share in hold.shares)):
                tx.emit(HoldShrank(hold_id=key, at=tx.now))


def has_more_to_cancel(state: MeshState) -> bool:
    """Whether tasks wait in pools that are being deleted, or can never start because of what they depend on,
    so that the next step cancels further ones.
    """
    return bool(state.queue.dependents.broken) or any(
        name in state.queue.pools for name in state.drains.ending
    )


def finish_deletions(tx: Transaction) -> None:
    """Delete the pools that are to be deleted and that nothing uses any more."""
    state = tx.state
    for name in tuple(state.drains.ending):
        if state.agents_of[name] or name in state.queue.pools or state.groups.of_pool.get(name):
            continue
        if not any(_holders(state, name)):
            tx.emit(PoolDeleted(pool_name=name, at=tx.now))


def call_back(tx: Transaction, owner: str) -> None:
    """Evict borrowers until the pool lends no more than its quota has room for; all of them where it is being
    deleted. Those of the pool with the highest share first, then the lowest price (see ``reclaim``), then the
    newest start, then the lower name. Those that cannot save their state stay where the policy says so.
    """
    state, ends = tx.state, owner in tx.state.drains.ending
    account = state.ledger.accounts[owner]
    excess = account.lent if ends else account.above.within(account.lent)
    excess = excess.beyond(sum_of(_lent_to(a, owner) for a in _borrowers(state, owner, Ending)))
    if not excess:
        return
    for agent in _in_order(tx, list(_borrowers(state, owner, Running))):
        if not _lent_to(agent, owner).helps(excess):
            continue
        if not ends and not state.policy.reclaim_unsavable and not can_be_saved(state, agent):
            continue
        excess = excess.beyond(_lent_to(agent, owner))
        _evict(tx, agent)
        if not excess:
            return


def _borrowers(state: MeshState, owner: str, phase: type[Ending | Running]) -> Iterator[Agent]:
    """The agents of other pools in this phase that hold quota of the owner."""
    for borrower in sorted(state.ledger.lent_by(owner)):
        for name in sorted(state.agents_of[borrower]):
            agent = state.agents[name]
            if isinstance(agent.phase, phase) and _lent_to(agent, owner):
                yield agent


def _lent_to(agent: Agent, owner: str) -> Resources:
    return sum_of(share.amount for share in agent.shares if share.pool_name == owner)


def _in_order(tx: Transaction, agents: list[Agent]) -> list[Agent]:
    """The agents in the order in which they are called back."""
    state = tx.state
    shares = Shares(state, tx.now).keys({agent.spec.pool_name for agent in agents})
    ranks = {key: -rank for rank, key in enumerate(sorted(set(shares.values())))}

    def order(agent: Agent) -> tuple[int, float, float, str]:
        tasks = [state.running.by_id[i] for i in state.running.on_agent(agent.spec.name)]
        price = sum(price_of(task, tx.now) for task in tasks)
        newest = max((task.started_at for task in tasks), default=agent.admitted_at)
        return (ranks[shares[agent.spec.pool_name]], price, -newest, agent.spec.name)

    return sorted(agents, key=order)


def _evict(tx: Transaction, agent: Agent) -> None:
    name, running = agent.spec.name, tx.state.running
    for task_id in running.on_agent(name):
        if running.by_id[task_id].phase is TaskPhase.RUNNING:
            tx.emit(
                EvictionStarted(task_id=task_id, at=tx.now, reason=PreemptionReason.CALLED_BACK)
            )
    tx.emit(AgentEnding(agent_name=name, reason=EndReason.PREEMPTED, at=tx.now))
    tx.instruct(evict_instruction(tx.state, name))


def _holders(state: MeshState, name: str) -> Iterator[Sentence]:
    """What uses a pool: its agents, what waits in its queue, and what it lends."""
    agents = sorted(state.agents_of[name])
    if agents:
        tasks = [task_id for agent in agents for task_id in state.running.on_agent(agent)]
        code, names = ("pool_runs_tasks", tasks) if tasks else ("pool_runs_agents", agents)
        yield _counted(code, len(names), names[:_NAMED])
    if (queue := state.queue.pools.get(name)) is not None:
        firsts = [task.task_id for task in state.queue.of_pool(name, end=_NAMED)]
        yield _counted("pool_queues_tasks", queue.size, firsts)
    for (owner, borrower), amount in sorted(all_loans(state.ledger).items()):
        if owner == name:
            yield say("pool_has_lent", borrower=borrower, amount=amount)


def _counted(code: str, count: int, firsts: list[str]) -> Sentence:
    """How many there are that use a pool, and the names of the first ones."""
    more = ", …" if count > len(firsts) else ""
    return say(code, count=count, names=[*map(repr, firsts)], more=more)


def _dangling(state: MeshState, name: str) -> tuple[Sentence, ...]:
    """The warnings of what goes on naming a pool that is deleted."""
    tokens = [
        token.name
        for token in state.tokens.values()
        if name in token.pools or name in (token.evict_pools or ())
    ]
    users = [say("named_by_token", token=token) for token in tokens[:_NAMED]]
    if len(tokens) > _NAMED:
        users.append(say("named_by_tokens", count=len(tokens) - _NAMED))
    if state.policy.protects(name):
        users.append(say("named_by_policy"))
    return (say("pool_still_named", pool=name, users=users),) if users else ()


def _ends_soon(state: MeshState, name: str) -> tuple[Sentence, ...]:
    """The warning of a change of a pool that is being deleted."""
    ends = name in state.drains.ending
    return (say("pool_ends_nevertheless", pool=name),) if ends else ()


def _above_quota(state: MeshState, name: str) -> tuple[Sentence, ...]:
    """The warning of a quota that is less than what is in use."""
    account = state.ledger.accounts[name]
    if not account.above:
        return ()
    in_use = dict((account.reserved + account.used).items())
    kinds = [
        say(
            "kind_above_quota",
            kind=kind,
            used=_number(kind, in_use[kind]),
            above=_number(kind, units),
        )
        for kind, units in account.above.items()
    ]
    lent = account.above.within(account.lent)
    further = say("lent_is_called_back") if lent else ""
    return (say("pool_above_quota", pool=name, kinds=kinds, further=further),)


def _number(kind: str, units: int) -> str:
    """An amount of a kind as people read it, without the kind."""
    return size_text(units / UNIT) if kind == "memory" else f"{units / UNIT:g}"


def _pools_beside(state: MeshState, pool_name: str) -> tuple[str, ...]:
    """A pool and those of its tree of cohorts; none where nothing waits."""
    if not state.queue.pools:
        return ()
    return (pool_name, *state.ledger.cohorts.neighbours(pool_name).names)


def _in_similar_cohort(state: MeshState, spec: PoolSpec) -> tuple[Sentence, ...]:
    """The warning of a cohort that a pool is to begin, and whose name is like that of another one."""
    cohorts = state.ledger.cohorts.specs
    if spec.cohort is None or spec.cohort in cohorts:
        return ()
    near = did_you_mean(spec.cohort, cohorts)
    warning = say("cohort_is_new", cohort=spec.cohort, near=near, pool=spec.name)
    return (warning,) if near else ()


def _too_big(state: MeshState, spec: PoolSpec) -> tuple[Sentence, ...]:
    """The warning of a quota that exceeds all nodes together."""
    if not state.nodes_known:
        return ()
    total = sum((node.total for node in state.cluster.nodes.values()), NOTHING)
    for flavor in spec.flavors:
        nodes = (n for n in state.cluster.nodes.values() if selects(flavor.node_labels, n.labels))
        of_nodes = sum_of(node.total for node in nodes)
        total += flavor.quota_of(of_nodes).beyond(of_nodes)
    if spec.resources.fits(total):
        return ()
    beyond, quota = spec.resources.beyond(total), spec.resources
    warning = say("quota_above_nodes", pool=spec.name, quota=quota, total=total, beyond=beyond)
    return (warning,)


def _reshape_groups(tx: Transaction, pool_name: str) -> None:
    """Free groups that the definition does not keep go; others when their agents have left."""
    table = tx.state.groups
    for group_id in tuple(table.of_pool.get(pool_name, ())):
        drop_if_unwanted(tx, table.by_id[group_id])
