"""Builds refusals with their error messages: what was short, by how much, who holds it, what to do next.

The reason codes are in ``schedulemesh.domain.reasons``; their messages are built here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from schedulemesh.domain.agent import AgentSpec, Death
from schedulemesh.domain.node_labels import spelled
from schedulemesh.domain.payloads import GangPayload, LeasePayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources, bytes_hint
from schedulemesh.engine.admission.contest import Contest
from schedulemesh.engine.admission.holders import (
    NAMED,
    agents_of_pool,
    agents_on,
    closest_node,
    held_by,
    holders_among,
)
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import GroupRequest, NoAssignment, no_placement
from schedulemesh.engine.placement.placers import BundlePlacement, NoPlacement
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.lending import could_ever_borrow, idle_in_cohort
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node, has_labels
from schedulemesh.errors import nearest

#: The documented beginning of the message if resources are short and no eviction is sufficient.
NO_ROOM = "Insufficient resources and no available preemption candidates"

NO_NODES = "no node is known yet"

#: What to do where external work waits for the room.
CONTESTED_HINT = (
    "End that work or submit it to ScheduleMesh, set evict_despite_external_demand in the policy to evict "
    "all the same"
)

#: How many values of a label, and how many pools, a sentence names.
_VALUES, _POOLS = 10, 100

_WAIT = "or submit it with queue=True, so that it starts when a holder ends"


def pool_not_found(state: MeshState, name: str) -> Refused:
    """The refusal for a pool that does not exist."""
    names = sorted(state.ledger.accounts)
    pool_names = ", ".join(names[:_POOLS]) or "none yet"
    if len(names) > _POOLS:
        pool_names += f" and {len(names) - _POOLS:,} others"
    current_name, hint = state.pool_names.current(name), nearest(name, state.ledger.accounts)
    if current_name in state.ledger.accounts:
        hint = f", which was renamed to {current_name!r}"
    return Refused(
        reason=Reason.POOL_NOT_FOUND,
        error=f"there is no pool {name!r}{hint}; pools are: {pool_names}. "
        "Create it with create_pool or ensure_pool",
    )


def pool_draining(name: str) -> Refused:
    """The refusal for a pool in which nothing new starts."""
    return Refused(
        reason=Reason.POOL_DRAINING,
        error=f"pool {name!r} is drained, so nothing new starts in it",
        hint="Submit it with queue=True to wait, choose another pool, or end the drain with undrain_pool",
    )


def pool_ending(name: str) -> Refused:
    """The refusal for a pool that is being deleted."""
    return Refused(
        reason=Reason.POOL_ENDING,
        error=f"pool {name!r} is being deleted, so it takes nothing new",
        hint="Choose another pool, or keep this one with undrain_pool",
    )


def priority_not_permitted(spec: PoolSpec, priority: float) -> Refused | None:
    """The refusal of a priority that tasks of a pool may not have; None: they may."""
    lowest, highest = spec.min_priority, spec.max_priority
    below, above = (
        lowest is not None and priority < lowest,
        highest is not None and priority > highest,
    )
    if not below and not above:
        return None
    limits = [
        f"{word} {limit:g}"
        for word, limit in (("from", lowest), ("up to", highest))
        if limit is not None
    ]
    return Refused(
        reason=Reason.PRIORITY_NOT_PERMITTED,
        error=f"pool {spec.name!r} permits priorities {' '.join(limits)}, not {priority:g}",
        hint="Choose such a priority, or another pool",
    )


def no_matching_pool(state: MeshState) -> Refused:
    """No pool matches the selector and has a total quota that holds the task."""
    pools = "; ".join(
        f"{name} {account.spec.labels}" for name, account in sorted(state.ledger.accounts.items())
    )
    return Refused(
        reason=Reason.NO_MATCHING_POOL,
        error="no pool that could hold the task matches its pool_selector; pools are: "
        + (pools or "none yet"),
    )


def exceeds_pool_capacity(state: MeshState, pool_name: str, need: Resources) -> Refused:
    """The task requests more than the pool's total quota."""
    spec = state.ledger.accounts[pool_name].spec
    total, borrowed = spec.resources, NOTHING
    loans = ""
    if spec.cohort is not None:
        borrowed = could_ever_borrow(state.ledger, pool_name)
        loans = f" and could borrow at most {borrowed} in cohort {spec.cohort!r}"
        if state.policy.protects(pool_name):
            borrowed, loans = NOTHING, " and, as a protected pool, borrows nothing"
    return Refused(
        reason=Reason.EXCEEDS_POOL_CAPACITY,
        error=f"the task asks for {need}, but pool {pool_name!r} has {total} in total{loans}; "
        "ask for less or resize the pool",
        short_quota=need.beyond(total + borrowed),
        hint=bytes_hint(need),
    )


def cluster_out_of_resources(state: MeshState, shape: GroupShape) -> Refused:
    """The task does not fit on any node that has the labels it asks for, even on an idle one."""
    need, every = shape.bundles[0], state.cluster.nodes.values()
    totals = {node.total for node in every if has_labels(node, shape)}
    if not totals:
        return Refused(
            reason=Reason.CLUSTER_OUT_OF_RESOURCES,
            error=no_such_node(state, shape),
            short_node=need,
            hint="Ask for labels that nodes have, or add a node that has them",
        )
    short = need.beyond(max(totals, key=lambda total: _closeness(need, total)))
    which = f" with {spelled(shape.node_labels)}" if shape.node_labels else ""
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error=f"no node{which} of the cluster as it is now could hold {need}, even empty; the closest of "
        f"{len(every)} lacks {short}",
        short_node=short,
        hint=bytes_hint(need),
    )


def no_such_node(state: MeshState, shape: GroupShape) -> str:
    """That no node has the labels, and which values of these there are."""
    labels = [label for label, _ in shape.node_labels]
    every = state.cluster.nodes.values()
    parts = [f"no node of the cluster as it is now has {spelled(shape.node_labels)}"]
    for label in labels:
        values = sorted({node.labels[label] for node in every if label in node.labels})
        named = [*values[:_VALUES], *(["others"] if len(values) > _VALUES else [])]
        parts.append(
            f"values of {label} are {', '.join(named)}" if values else f"none has the label {label}"
        )
    return "; ".join(parts)


def no_alternative(agent: AgentSpec, answers: Sequence[Refused]) -> Refused:
    """The refusal of an agent for which none of the ways in which it may run is possible: that of one which
    may become possible, else of the first; its error says why for each.
    """
    if len(answers) == 1:
        return answers[0]
    passing = (Reason.BUDGET_SPENT, Reason.CLUSTER_OUT_OF_RESOURCES, Reason.OWNER_LIMIT)
    refused = next((answer for answer in answers if answer.reason in passing), answers[0])
    if len(answers) < len(agent.alternatives):
        return refused
    parts = [
        f"{number}. ({described(each)}): {answer.error}"
        for number, (each, answer) in enumerate(
            zip(agent.each_alternative, answers, strict=True), start=1
        )
    ]
    return msgspec.structs.replace(
        refused, error="none of its alternatives can start: " + "; ".join(parts)
    )


def described(agent: AgentSpec) -> str:
    """The way in which an agent is to run, such as ``gpu 1 on nodes with zone=a``."""
    amount = str(agent.resources) if agent.resources else "its pool's default"
    where = f"nodes with {spelled(agent.node_labels)}" if agent.node_labels else "any node"
    return f"{amount} on {where}"


def _closeness(need: Resources, total: Resources) -> tuple[object, ...]:
    """The more kinds of the need a node has, and the larger it is, the closer."""
    kinds = len(dict(need.within(total).items()))
    return (kinds, total.gpu, total.cpu, total.memory, total.custom)


def preemption_failed(
    state: MeshState,
    pool_name: str,
    shape: GroupShape,
    short_quota: Resources,
    by_node: bool,
    turned_away: dict[Reason, int],
    enough: float | None = None,
    *,
    may_wait: bool = False,
) -> Refused:
    """Resources are short, and no eviction is sufficient. ``enough`` is the priority that would be;
    ``may_wait``: the same submission may wait in the queue.
    """
    need = shape.bundles[0]
    node = closest_node(state, shape) if by_node else None
    short_node = NOTHING if node is None else need.beyond(node.free)
    if short_quota:
        names: Iterable[str] = agents_of_pool(state, pool_name)
    else:
        names = () if node is None else agents_on(state, node)
    holders = holders_among(state, names)
    parts = []
    if short_quota:
        parts.append(f"pool {pool_name!r} lacks {short_quota} of the {need} asked for")
        parts += _loans(state, pool_name, short_quota)
    if by_node:
        parts.append(no_node_has_room(node, shape, short_node))
    return Refused(
        reason=Reason.PREEMPTION_FAILED,
        error=f"{NO_ROOM}: "
        + "; ".join([*parts, *held_by(holders), *_priority(enough, turned_away)]),
        short_quota=short_quota,
        short_node=short_node,
        holders=holders,
        turned_away=turned_away,
        sufficient_priority=enough,
        hint=_way_out(pool_name, short_quota, enough, may_wait=may_wait),
    )


def _loans(state: MeshState, pool_name: str, short: Resources) -> list[str]:
    """Parts of a message: what other pools have of what is short, and what the cohort has idle."""
    return [*lent_parts(state, pool_name, short), *cohort_parts(state, pool_name, short)]


def lent_parts(state: MeshState, pool_name: str, short: Resources) -> list[str]:
    """Part of a message: what other pools have of what is short; empty if they have nothing."""
    ledger, parts = state.ledger, []
    account = ledger.accounts[pool_name]
    if lent := short.within(account.lent):
        to = [
            f"pool {other!r} {amount}"
            for other, amount in sorted(ledger.lent_by(pool_name).items())
            if amount.helps(short)
        ]
        named = [*to[:NAMED], *(["others"] if len(to) > NAMED else [])]
        parts.append(
            f"other pools have {lent} of it as a loan, or it is held for them: " + ", ".join(named)
        )
    return parts


def cohort_parts(state: MeshState, pool_name: str, short: Resources) -> list[str]:
    """Parts of a message: why the pool borrows no more of its cohort; empty if it is in none."""
    ledger = state.ledger
    account = ledger.accounts[pool_name]
    if account.spec.cohort is None:
        return []
    if state.policy.protects(pool_name):
        return ["a protected pool does not borrow from its cohort"]
    idle = idle_in_cohort(ledger, pool_name)
    parts = [
        f"cohort {account.spec.cohort!r} has {idle} idle for it to borrow, and it needs {short}"
    ]
    limit = account.spec.borrowing_limit
    if limit is not None and limit.room(short, account.borrowed) != short:
        parts.append(
            f"its borrowing_limit is {limit.public()}, of which {account.borrowed} is used"
        )
    return parts


def insufficient_quota(state: MeshState, refused: Refused, pool_name: str) -> Refused:
    """The same refusal for a request that may not evict, if the pool's own quota is short."""
    parts = [
        f"pool {pool_name!r} lacks {refused.short_quota}, and nobody is evicted for this request",
        *_loans(state, pool_name, refused.short_quota),
        *held_by(refused.holders),
    ]
    return Refused(
        reason=Reason.INSUFFICIENT_QUOTA,
        error="; ".join(parts),
        short_quota=refused.short_quota,
        short_node=refused.short_node,
        holders=refused.holders,
        hint=f"Ask for less, resize pool {pool_name!r}, or submit it so that it may evict others",
    )


def by_default(refused: Refused, pool_name: str, need: Resources) -> Refused:
    """The same refusal for a task that requested no resources."""
    return msgspec.structs.replace(
        refused,
        hint=f"It named no resources, so it asks for what pool {pool_name!r} gives by default: {need}. "
        "Name its resources",
    )


def no_node_has_room(node: Node | None, shape: GroupShape, short: Resources) -> str:
    """Why the request fits on no node now."""
    need = shape.bundles[0]
    which = f" with {spelled(shape.node_labels)}" if shape.node_labels else ""
    if node is None:
        return f"no node{which} takes new agents"
    lack = f"lacks {short}" if short else "has no GPU device with enough left"
    others = (
        f"; Ray work that no task claims holds {node.external_usage} there"
        if node.external_usage
        else ""
    )
    return f"no node{which} has room for {need}; the closest, {node.node_id}, {lack}{others}"


def _priority(enough: float | None, turned_away: Mapping[Reason, int]) -> list[str]:
    """Part of a message: the sufficient priority, or the rules that exclude the running tasks."""
    if enough is not None:
        return [f"priority {enough:.12g} would be enough"]
    return [
        f"{count} running task{'' if count == 1 else 's'} cannot be evicted: {rule}"
        for rule, count in turned_away.items()
    ][:NAMED]


def _way_out(
    pool_name: str, short_quota: Resources, enough: float | None, *, may_wait: bool
) -> str:
    ways = [] if enough is None else [f"submit it with priority {enough:.12g} or more"]
    ways.append("ask for less")
    ways.append(f"resize pool {pool_name!r}" if short_quota else "add a node")
    ways.append(_WAIT if may_wait else "or wait until a holder ends")
    sentence = ", ".join(ways)
    return sentence[0].upper() + sentence[1:]


def no_pg_pool(pool_name: str) -> Refused:
    """The pool has no placement groups."""
    return Refused(
        reason=Reason.NO_PG_POOL,
        error=f"pool {pool_name!r} keeps no placement groups; ensure it with "
        "pg_pool_config={'enable': True, ...}, or submit without asking for a group or several bundles",
    )


def conflicting_options(pool_name: str) -> Refused:
    """The user's Ray options and the placement group both decide where the agent runs."""
    return Refused(
        reason=Reason.CONFLICTING_OPTIONS,
        error=f"in pool {pool_name!r} agents run in placement groups; leave out "
        "scheduling_strategy and fallback_strategy",
    )


def group_out_of_resources(state: MeshState, shape: GroupShape) -> Refused:
    """The group does not fit on the cluster, even on an idle one."""
    placement = Room(state.cluster, total=True).place(shape)
    short = NOTHING if isinstance(placement, BundlePlacement) else placement.short
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error=f"the cluster as it is now could not hold the placement group {shape}, even empty: "
        + _why(shape, placement),
        short_node=short,
        hint=bytes_hint(max(shape.bundles, key=lambda bundle: bundle.memory)),
    )


def group_unplaceable(
    state: MeshState,
    group_request: GroupRequest,
    assignment: NoAssignment,
    turned_away: dict[Reason, int],
    enough: float | None = None,
    *,
    may_wait: bool = False,
) -> Refused:
    """No group is free, none can be created, and no eviction is sufficient; ``may_wait`` as above."""
    pool_name = group_request.pool_name
    parts = no_group_free(state, group_request, assignment)
    short_node = no_placement(state, group_request.shape).short if assignment.no_room else NOTHING
    parts.append("and no running task may be evicted for it")
    names = [
        g.agent
        for g in map(state.groups.by_id.get, state.groups.of_pool.get(pool_name, ()))
        if g and g.agent
    ]
    holders = holders_among(state, (name for name in names if name in state.agents))
    return Refused(
        reason=Reason.GROUP_UNPLACEABLE,
        error="; ".join([*parts, *held_by(holders), *_priority(enough, turned_away)]),
        short_node=short_node,
        holders=holders,
        turned_away=turned_away,
        sufficient_priority=enough,
        hint=f"Ask for smaller bundles, {_WAIT}" if may_wait else "",
    )


def no_group_free(
    state: MeshState, group_request: GroupRequest, assignment: NoAssignment
) -> list[str]:
    """Parts of a message: why there is no placement group without an eviction."""
    pool_name = group_request.pool_name
    parts = [f"pool {pool_name!r} has no free placement group for {group_request.shape}"]
    if group_request.reserved is None and group_request.spec.reserved:
        parts.append("its reserved ones are not for this task")
    if not group_request.spec.dynamic:
        parts.append("it makes no dynamic ones")
    elif assignment.limit:
        have = state.groups.dynamic_count(pool_name)
        parts.append(f"{have} of at most {group_request.spec.max_dynamic} dynamic ones are there")
    if assignment.no_room:
        shape = group_request.shape
        parts.append("a new one has no room: " + _why(shape, no_placement(state, shape)))
    return parts


def external_demand(
    refused: Refused, need: Resources, contest: Contest, *, may_wait: bool
) -> Refused:
    """The same refusal where evictions would make room that external work would get."""
    return msgspec.structs.replace(
        refused,
        reason=Reason.EXTERNAL_DEMAND,
        error=contested_room(need, contest),
        turned_away={},
        hint=f"{CONTESTED_HINT}, {_WAIT}" if may_wait else CONTESTED_HINT,
    )


def contested_room(need: Resources, contest: Contest) -> str:
    """Who would get the room that evictions free on a node, or got it before."""
    node_id = contest.node_id
    if not contest.rivals:
        return (
            f"an eviction would free {need} on node {node_id}, but external Ray work got the room of the "
            "last one for this task there, and work that fits there still waits in Ray"
        )
    named = [str(rival) for rival in dict.fromkeys(contest.rivals)]
    rivals = [*named[:NAMED], *(["others wait too"] if len(named) > NAMED else [])]
    return (
        f"an eviction would free {need} on node {node_id}, but work that does not belong to ScheduleMesh "
        f"would get it first: {'; '.join(rivals)}"
    )


def unplaced(state: MeshState, pool_name: str) -> list[tuple[GroupShape, str]]:
    """The reserved groups of a pool that do not exist, each with the reason."""
    account = state.ledger.accounts.get(pool_name)
    if account is None or account.spec.groups is None:
        return []
    failed = state.groups.counts[pool_name].error
    unplaced_groups = []
    for shape, lacking in state.groups.lacking(pool_name).items():
        placement = Room(state.cluster).place(shape)
        why = (
            failed if failed and isinstance(placement, BundlePlacement) else _why(shape, placement)
        )
        unplaced_groups += [(shape, why)] * lacking
    return unplaced_groups


def _why(shape: GroupShape, placement: BundlePlacement | NoPlacement) -> str:
    if isinstance(placement, BundlePlacement):
        return "it is being made"
    need = shape.bundles[placement.bundle]
    which = f"bundle {placement.bundle} ({need})" if len(shape.bundles) > 1 else str(need)
    if placement.node_id is None:
        return f"{which}: {placement.reason or NO_NODES}"
    lack = f"the closest node, {placement.node_id}, lacks {placement.short}"
    if not placement.short:
        lack = f"the closest node, {placement.node_id}, has no whole GPU left for it"
    return f"{which}: {lack}" + (f"; {placement.reason}" if placement.reason else "")


def loss_of(state: MeshState, agent: Agent, death: Death | None, hosts: Mapping[str, str]) -> str:
    """How an agent was lost that nobody has ended, as a sentence: with its node, or how its process died.
    ``hosts``: see ``Transaction.hosts``.
    """
    group = state.groups.by_id.get(agent.group_id or "")
    members = () if agent.process is None else agent.process.members
    node_ids = [agent.node_id, *(member.node_id for member in members)]
    if group is not None:
        node_ids += group.node_ids
    existing = state.cluster.nodes if state.nodes_known else node_ids
    gone = sorted({node_id for node_id in node_ids if node_id and node_id not in existing})
    if gone:
        named = [lost_node(hosts, node_id) for node_id in gone]
        nodes = f"node {named[0]} was" if len(gone) == 1 else f"nodes {', '.join(named)} were"
        return f"{nodes} lost, on which {_what_ran(agent)}"
    if isinstance(agent.spec.payload, LeasePayload):
        return f"the placement groups of lease {agent.spec.name!r} are gone from Ray"
    how = "died although nobody ended it" if death is None else death.how
    if not isinstance(agent.spec.payload, GangPayload):
        return f"the process of agent {agent.spec.name!r} {how}"
    member = "a process" if death is None or death.rank is None else f"rank {death.rank}"
    return f"{member} of gang {agent.spec.name!r} {how}"


def lost_node(hosts: Mapping[str, str], node_id: str) -> str:
    """How a lost node is named. ``hosts``: see ``Transaction.hosts``."""
    return f"{hosts[node_id]} ({node_id})" if node_id in hosts else node_id


def _what_ran(agent: Agent) -> str:
    """What of an agent is on its nodes, as a clause."""
    if isinstance(agent.spec.payload, LeasePayload):
        return f"lease {agent.spec.name!r} had placement groups"
    kind = "gang" if isinstance(agent.spec.payload, GangPayload) else "agent"
    return f"{kind} {agent.spec.name!r} ran"
