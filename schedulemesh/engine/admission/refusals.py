"""Builds refusals with their error messages: what was short, by how much, who holds it, what to do next.

The reason codes are in ``schedulemesh.domain.reasons``; their messages are built here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import msgspec

from schedulemesh.domain.agent import AgentSpec, Death
from schedulemesh.domain.demand import ExternalDemand
from schedulemesh.domain.node_labels import NodeLabels, spelled
from schedulemesh.domain.payloads import GangPayload, LeasePayload
from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources, like_bytes
from schedulemesh.domain.sentences import Sentence, Text, did_you_mean, say
from schedulemesh.engine.admission.contest import Contest
from schedulemesh.engine.admission.holders import (
    NAMED,
    agents_of_pool,
    agents_on,
    closest_node,
    held_by,
    holders_among,
)
from schedulemesh.engine.admission.topology import why_no_domain
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import GroupRequest, NoAssignment, no_placement
from schedulemesh.engine.placement.placers import BundlePlacement, NoPlacement
from schedulemesh.engine.placement.reserved_room import (
    only_lacks_reserved_room,
    pools_in_the_way,
    room_beside,
)
from schedulemesh.engine.preemption.search import EvictionPlan
from schedulemesh.engine.preemption.victims import evicted_tasks
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.lending import could_ever_borrow, idle_in_cohort
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node, has_labels

#: What to do where external work waits for the room.
CONTESTED_HINT = say("contested_hint")

#: How many values of a label, and how many pools, a sentence names.
_VALUES, _POOLS = 10, 100


def pool_not_found(state: MeshState, name: str) -> Refused:
    """The refusal for a pool that does not exist."""
    names = sorted(state.ledger.accounts)
    pool_names = say("names", names=names[:_POOLS]) if names else say("none_yet")
    if len(names) > _POOLS:
        pool_names = say("names_and_others", names=names[:_POOLS], count=len(names) - _POOLS)
    current_name, hint = state.pool_names.current(name), did_you_mean(name, state.ledger.accounts)
    if current_name in state.ledger.accounts:
        hint = say("pool_was_renamed", name=current_name)
    return Refused(
        reason=Reason.POOL_NOT_FOUND,
        error_text=say("no_pool", pool=name, hint=hint, pools=pool_names),
    )


def node_not_found(state: MeshState, node_id: str) -> Refused:
    """The refusal for a node that does not exist."""
    names = sorted(state.cluster.nodes)
    nodes = say("names", names=names) if names else say("none_yet")
    error = say("no_node", node=node_id, nodes=nodes)
    return Refused(reason=Reason.NODE_NOT_FOUND, error_text=error)


def pool_draining(name: str) -> Refused:
    """The refusal for a pool in which nothing new starts."""
    return Refused(
        reason=Reason.POOL_DRAINING,
        error_text=say("pool_drains", pool=name),
        hint_text=say("pool_drains_hint"),
    )


def pool_ending(name: str) -> Refused:
    """The refusal for a pool that is being deleted."""
    return Refused(
        reason=Reason.POOL_ENDING,
        error_text=say("pool_is_deleted", pool=name),
        hint_text=say("pool_is_deleted_hint"),
    )


def behind_in_strict_pool(pool_name: str, before: int) -> Refused:
    """So many tasks of a strict pool have to start before one that joins its queue."""
    return Refused(
        reason=Reason.BEHIND_QUEUE_HEAD,
        error_text=say("behind_strict", before=before, pool=pool_name),
    )


def evictions_would_delay(plan: EvictionPlan, heads: Sequence[str], *, may_wait: bool) -> Refused:
    """Evictions would make room, but delay the starts that are reserved for these tasks."""
    return Refused(
        reason=Reason.HELD_FOR_QUEUE,
        error_text=say(
            "evictions_would_delay", eviction=described_plan(plan), tasks=[*map(repr, heads)]
        ),
        hint_text="" if may_wait else say("queue_comes_first_hint"),
    )


def described_plan(plan: EvictionPlan) -> Sentence:
    """By what a plan makes room, as the subject of a sentence."""
    count = len(evicted_tasks(plan.victims))
    if plan.revoked and not count:
        return say("cancelled_starts", count=len(plan.revoked))
    if not count and plan.waits_for:
        return say("end_of_agent", agent=plan.waits_for[0])
    return say("eviction_of_tasks", count=count)


def behind_in_pool(pool_name: str, before: int, victims: int) -> Refused:
    """The eviction of so many tasks would help, and so many tasks of the pool come first."""
    return Refused(
        reason=Reason.BEHIND_QUEUE_HEAD,
        error_text=say(
            "behind_victims",
            eviction=say("eviction_of_tasks", count=victims),
            before=before,
            pool=pool_name,
            turn="",
        ),
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
        say(code, limit=limit)
        for code, limit in (("priority_from", lowest), ("priority_up_to", highest))
        if limit is not None
    ]
    return Refused(
        reason=Reason.PRIORITY_NOT_PERMITTED,
        error_text=say("priority_outside", pool=spec.name, limits=limits, priority=priority),
        hint_text=say("priority_outside_hint"),
    )


def no_matching_pool(state: MeshState) -> Refused:
    """No pool matches the selector and has a total quota that holds the task."""
    pools = "; ".join(
        f"{name} {account.spec.labels}" for name, account in sorted(state.ledger.accounts.items())
    )
    return Refused(
        reason=Reason.NO_MATCHING_POOL,
        error_text=say("no_pool_matches", pools=pools or say("none_yet")),
    )


def exceeds_pool_capacity(state: MeshState, pool_name: str, need: Resources) -> Refused:
    """The task requests more than the pool's total quota."""
    spec = state.ledger.accounts[pool_name].spec
    total, borrowed = spec.resources, NOTHING
    loans: Text = ""
    if spec.cohort is not None:
        borrowed = could_ever_borrow(state.ledger, pool_name)
        loans = say("could_borrow", amount=borrowed, cohort=spec.cohort)
        if state.policy.protects(pool_name):
            borrowed, loans = NOTHING, say("protected_borrows_nothing")
    return Refused(
        reason=Reason.EXCEEDS_POOL_CAPACITY,
        error_text=say("more_than_pool", need=need, pool=pool_name, total=total, loans=loans),
        short_quota=need.beyond(total + borrowed),
        hint_text=_bytes_hint(need),
    )


def no_flavor(
    state: MeshState, pool_name: str, need: Resources, node_labels: NodeLabels
) -> Refused:
    """The task may run in no flavor of the pool."""
    flavors = [
        say("flavor", name=flavor.name, labels=spelled(flavor.node_labels))
        for flavor in state.ledger.accounts[pool_name].spec.flavors
    ]
    labels = say("with_labels", labels=spelled(node_labels)) if node_labels else ""
    return Refused(
        reason=Reason.NO_FLAVOR,
        error_text=say("no_such_flavor", need=need, which=labels, pool=pool_name, flavors=flavors),
        hint_text=say("no_such_flavor_hint", pool=pool_name),
    )


def cluster_out_of_resources(state: MeshState, shape: GroupShape) -> Refused:
    """The task does not fit on any node that has the labels it asks for, even on an idle one."""
    if only_lacks_reserved_room(state, shape):
        return _no_room_beside_reserved(state, shape)
    need, every = shape.bundles[0], state.cluster.nodes.values()
    totals = {node.total for node in every if has_labels(node, shape)}
    if not totals:
        return Refused(
            reason=Reason.CLUSTER_OUT_OF_RESOURCES,
            error_text=no_such_node(state, shape),
            short_node=need,
            hint_text=say("labels_missing_hint"),
        )
    short = need.beyond(max(totals, key=lambda total: _closeness(need, total)))
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error_text=say(
            "no_node_even_empty",
            which=_with_labels(shape),
            need=need,
            count=len(every),
            short=short,
        ),
        short_node=short,
        hint_text=_bytes_hint(need),
    )


def no_such_node(state: MeshState, shape: GroupShape) -> Sentence:
    """That no node has the labels, and which values of these there are."""
    labels = [label for label, _ in shape.node_labels]
    every = state.cluster.nodes.values()
    parts = [say("no_node_has_labels", labels=spelled(shape.node_labels))]
    for label in labels:
        values = sorted({node.labels[label] for node in every if label in node.labels})
        named: list[str | Sentence] = [*values[:_VALUES]]
        named += [say("more_values")] if len(values) > _VALUES else []
        parts.append(
            say("values_of_label", label=label, values=named)
            if values
            else say("no_such_label", label=label)
        )
    return say("parts", parts=parts)


def no_alternative(agents: Sequence[AgentSpec], answers: Sequence[Refused], ways: int) -> Refused:
    """The refusal of an agent for which none of these ways in which it may run is possible: that of one which
    may become possible, else of the one for which the lowest priority is enough, else of the first. Its error
    says why for each, where these are all of its ``ways``; once, where it is the same for all.
    """
    if len(answers) == 1:
        return answers[0]
    passing = (Reason.BUDGET_SPENT, Reason.CLUSTER_OUT_OF_RESOURCES, Reason.OWNER_LIMIT)
    likeliest = min(answers, key=_priority_needed)
    refused = next((answer for answer in answers if answer.reason in passing), likeliest)
    if len(answers) < ways or len({str(answer.error_text) for answer in answers}) == 1:
        return refused
    parts = [
        say(
            "numbered_alternative",
            number=number,
            alternative=described(each),
            error=answer.error_text,
        )
        for number, (each, answer) in enumerate(zip(agents, answers, strict=True), start=1)
    ]
    return msgspec.structs.replace(refused, error_text=say("no_alternative", parts=parts))


def _priority_needed(refused: Refused) -> float:
    return inf if refused.sufficient_priority is None else refused.sufficient_priority


def described(agent: AgentSpec) -> Sentence:
    """The way in which an agent is to run, such as ``gpu 1 on nodes with zone=a``."""
    amount = agent.quota or say("pool_default")
    labels = agent.node_labels
    where = say("nodes_with", labels=spelled(labels)) if labels else say("any_node")
    return say("alternative", amount=amount, where=where)


def _with_labels(shape: GroupShape) -> Text:
    """Which nodes are meant, as part of a sentence; empty: all."""
    return say("with_labels", labels=spelled(shape.node_labels)) if shape.node_labels else ""


def _bytes_hint(need: Resources) -> Text:
    """What is said of a memory that is probably given in bytes; empty: it is not."""
    memory = like_bytes(need)
    return "" if memory is None else say("memory_in_bytes", bytes=memory, mb=memory / 2**20)


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
        parts.append(say("pool_lacks", pool=pool_name, short=short_quota, need=need))
        parts += _loans(state, pool_name, short_quota)
    if by_node:
        parts.append(no_node_has_room(node, shape, short_node))
    return Refused(
        reason=Reason.PREEMPTION_FAILED,
        error_text=say(
            "no_room", parts=[*parts, *held_by(holders), *_priority(enough, turned_away)]
        ),
        short_quota=short_quota,
        short_node=short_node,
        holders=holders,
        turned_away=turned_away,
        sufficient_priority=enough,
        hint_text=_way_out(pool_name, short_quota, enough, may_wait=may_wait),
    )


def _loans(state: MeshState, pool_name: str, short: Resources) -> list[Sentence]:
    """Parts of a message: what other pools have of what is short, and what the cohort has idle."""
    return [*lent_parts(state, pool_name, short), *cohort_parts(state, pool_name, short)]


def lent_parts(state: MeshState, pool_name: str, short: Resources) -> list[Sentence]:
    """Part of a message: what other pools have of what is short; empty if they have nothing."""
    lent = short.within(state.ledger.accounts[pool_name].lent)
    if not lent:
        return []
    return [say("lent_to_others", lent=lent, pools=borrowers_of(state, pool_name, short))]


def borrowers_of(state: MeshState, pool_name: str, short: Resources) -> list[Sentence]:
    """The pools that have something of what is short as a loan, or for which it is held, with how much."""
    to = [
        say("pool_amount", pool=other, amount=amount)
        for other, amount in sorted(state.ledger.lent_by(pool_name).items())
        if amount.helps(short)
    ]
    return [*to[:NAMED], say("other_pools")] if len(to) > NAMED else to


def cohort_parts(state: MeshState, pool_name: str, short: Resources) -> list[Sentence]:
    """Parts of a message: why the pool borrows no more of its cohort; empty if it is in none."""
    ledger = state.ledger
    account = ledger.accounts[pool_name]
    if account.spec.cohort is None:
        return []
    if state.policy.protects(pool_name):
        return [say("protected_does_not_borrow")]
    idle = usable = idle_in_cohort(ledger, pool_name)
    limit, used = account.spec.borrowing_limit, account.borrowed + ledger.promised_to(pool_name)
    if limit is not None:
        usable = limit.room(idle, used)
    # What it may borrow covers a part of what it asks for, and is not enough.
    code = "idle_in_cohort_and_more" if usable.helps(short) else "idle_in_cohort"
    parts = [say(code, cohort=account.spec.cohort, idle=idle, short=short)]
    if limit is not None and idle.beyond(usable).helps(short):
        parts.append(say("borrowing_limit", limit=str(limit.public()), used=used))
    return parts


def insufficient_quota(state: MeshState, refused: Refused, pool_name: str) -> Refused:
    """The same refusal for a request that may not evict, if the pool's own quota is short."""
    parts = [
        say("pool_lacks_no_eviction", pool=pool_name, short=refused.short_quota),
        *_loans(state, pool_name, refused.short_quota),
        *held_by(refused.holders),
    ]
    return Refused(
        reason=Reason.INSUFFICIENT_QUOTA,
        error_text=say("parts", parts=parts),
        short_quota=refused.short_quota,
        short_node=refused.short_node,
        holders=refused.holders,
        hint_text=say("may_evict_hint", pool=pool_name),
    )


def by_default(refused: Refused, pool_name: str, need: Resources) -> Refused:
    """The same refusal for a task that requested no resources."""
    return msgspec.structs.replace(
        refused, hint_text=say("default_hint", pool=pool_name, need=need)
    )


def no_node_has_room(node: Node | None, shape: GroupShape, short: Resources) -> Sentence:
    """Why the request fits on no node now."""
    which, external = _with_labels(shape), None if node is None else node.external_usage
    if node is None:
        return say("no_open_node", which=which)
    return say(
        "no_node_has_room",
        which=which,
        need=shape.bundles[0],
        node=node.node_id,
        lack=say("lacks", short=short) if short else say("no_device"),
        others=say("external_holds", amount=external) if external else "",
    )


def _priority(enough: float | None, turned_away: Mapping[Reason, int]) -> list[Sentence]:
    """Part of a message: the sufficient priority, or the rules that exclude the running tasks."""
    if enough is not None:
        return [say("priority_enough", priority=enough)]
    return [
        say("tasks_spared", count=count, rule=rule.value) for rule, count in turned_away.items()
    ][:NAMED]


def _way_out(
    pool_name: str, short_quota: Resources, enough: float | None, *, may_wait: bool
) -> Sentence:
    first = say("way_less") if enough is None else say("way_priority", priority=enough)
    second = say("way_resize", pool=pool_name) if short_quota else say("way_node")
    third = say("way_queue" if may_wait else "way_wait")
    return say("ways_out", ways=(first, second, third))


def no_pg_pool(pool_name: str) -> Refused:
    """The pool has no placement groups."""
    return Refused(
        reason=Reason.NO_PG_POOL,
        error_text=say("no_pool_groups", pool=pool_name),
    )


def conflicting_options(pool_name: str) -> Refused:
    """The user's Ray options and the placement group both decide where the agent runs."""
    return Refused(
        reason=Reason.CONFLICTING_OPTIONS,
        error_text=say("group_decides_node", pool=pool_name),
    )


def group_out_of_resources(state: MeshState, shape: GroupShape) -> Refused:
    """The group does not fit on the cluster, even on an idle one."""
    if only_lacks_reserved_room(state, shape):
        return _no_room_beside_reserved(state, shape)
    placement = Room(state.cluster, total=True).place(shape)
    short = NOTHING if isinstance(placement, BundlePlacement) else placement.short
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error_text=say("group_even_empty", shape=shape.described(), why=_why(shape, placement)),
        short_node=short,
        hint_text=_bytes_hint(max(shape.bundles, key=lambda bundle: bundle.memory)),
    )


def _no_room_beside_reserved(state: MeshState, shape: GroupShape) -> Refused:
    """Reserved placement groups take the room that it would have on idle nodes."""
    placement = room_beside(state).place(shape)
    short = NOTHING if isinstance(placement, BundlePlacement) else placement.short
    pool_names = pools_in_the_way(state, shape)
    pools: list[Text] = [repr(name) for name in pool_names[:NAMED]]
    if len(pool_names) > NAMED:
        pools.append(say("other_pools"))
    need = shape.bundles[0] if len(shape.bundles) == 1 else shape.described()
    return Refused(
        reason=Reason.CLUSTER_OUT_OF_RESOURCES,
        error_text=say(
            "no_room_beside_reserved",
            which=_with_labels(shape) if len(shape.bundles) == 1 else "",
            need=need,
            pools=pools,
            why=_why(shape, placement) if len(shape.bundles) > 1 else _closest(placement),
        ),
        short_node=short,
        hint_text=say("no_room_beside_reserved_hint", pools=pools),
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
    parts.append(say("and_no_eviction"))
    names = [
        g.agent
        for g in map(state.groups.by_id.get, state.groups.of_pool.get(pool_name, ()))
        if g and g.agent
    ]
    holders = holders_among(state, (name for name in names if name in state.agents))
    return Refused(
        reason=Reason.GROUP_UNPLACEABLE,
        error_text=say("parts", parts=[*parts, *held_by(holders), *_priority(enough, turned_away)]),
        short_node=short_node,
        holders=holders,
        turned_away=turned_away,
        sufficient_priority=enough,
        hint_text=_or_wait(say("smaller_bundles")) if may_wait else "",
    )


def no_group_free(
    state: MeshState, group_request: GroupRequest, assignment: NoAssignment
) -> list[Sentence]:
    """Parts of a message: why there is no placement group without an eviction."""
    pool_name, shape = group_request.pool_name, group_request.shape
    parts = [say("no_group_free", pool=pool_name, shape=shape.described())]
    if group_request.reserved is None and group_request.spec.reserved:
        parts.append(say("reserved_not_for_it"))
    if not group_request.spec.dynamic:
        parts.append(say("no_dynamic_groups"))
    elif assignment.limit:
        count, most = state.groups.dynamic_count(pool_name), group_request.spec.max_dynamic
        parts.append(say("dynamic_limit", count=count, most=most))
    if assignment.no_room:
        parts.append(say("no_room_for_group", why=_why(shape, no_placement(state, shape))))
    return parts


def external_demand(
    refused: Refused, need: Resources, contest: Contest, *, may_wait: bool
) -> Refused:
    """The same refusal where evictions would make room that external work would get."""
    return msgspec.structs.replace(
        refused,
        reason=Reason.EXTERNAL_DEMAND,
        error_text=contested_room(need, contest),
        turned_away={},
        hint_text=_or_wait(CONTESTED_HINT) if may_wait else CONTESTED_HINT,
    )


def _or_wait(way: Sentence) -> Sentence:
    """What to do, or to wait in the queue."""
    return say("ways_out", ways=(way, say("way_queue")))


def contested_room(need: Resources, contest: Contest) -> Sentence:
    """Who would get the room that evictions free on a node, or got it before."""
    node_id = contest.node_id
    if not contest.rivals:
        return say("room_was_taken", need=need, node=node_id)
    named = [_rival(demand) for demand in dict.fromkeys(contest.rivals)]
    more = [say("more_rivals")] if len(named) > NAMED else []
    return say("room_is_contested", need=need, node=node_id, rivals=[*named[:NAMED], *more])


def _rival(demand: ExternalDemand) -> Sentence:
    """External work that waits in Ray, and for what."""
    job = say("unknown_ray_job")
    if demand.job_id:
        namespace = say("namespace", namespace=demand.namespace) if demand.namespace else ""
        job = say("ray_job", job=demand.job_id, namespace=namespace)
    return say("rival", job=job, amount=demand.amount)


def unplaced(state: MeshState, pool_name: str) -> list[tuple[GroupShape, Text]]:
    """The reserved groups of a pool that do not exist, each with the reason."""
    account = state.ledger.accounts.get(pool_name)
    if account is None or account.spec.groups is None:
        return []
    failed = state.groups.counts[pool_name].error
    unplaced_groups = []
    for shape, lacking in state.groups.lacking(pool_name).items():
        placement = Room(state.cluster).place(shape)
        is_failed = failed and isinstance(placement, BundlePlacement)
        why: Text = failed if is_failed else _why(shape, placement)
        unplaced_groups += [(shape, why)] * lacking
    return unplaced_groups


def _why(shape: GroupShape, placement: BundlePlacement | NoPlacement) -> Sentence:
    if isinstance(placement, BundlePlacement):
        return say("group_is_made")
    if placement.level:
        return why_no_domain(placement)
    need = shape.bundles[placement.bundle]
    which = say("bundle", number=placement.bundle, need=need) if len(shape.bundles) > 1 else need
    if placement.node_id is None:
        return say("bundle_lacks", which=which, why=placement.reason or say("no_nodes_yet"))
    why = _closest(placement)
    if placement.reason:
        why = say("two_parts", first=why, second=placement.reason)
    return say("bundle_lacks", which=which, why=why)


def _closest(placement: BundlePlacement | NoPlacement) -> Sentence:
    """What the closest node lacks."""
    if isinstance(placement, BundlePlacement):
        return say("group_is_made")
    if placement.node_id is None:
        return say("no_nodes_yet")
    if placement.short:
        return say("closest_lacks", node=placement.node_id, short=placement.short)
    return say("closest_no_device", node=placement.node_id)


def loss_of(
    state: MeshState, agent: Agent, death: Death | None, hosts: Mapping[str, str]
) -> Sentence:
    """How an agent was lost that nobody has ended: with its node, or how its process died. ``hosts``: see
    ``Transaction.hosts``.
    """
    name, payload = agent.spec.name, agent.spec.payload
    if gone := _lost_nodes(state, agent):
        named = tuple(lost_node(hosts, node_id) for node_id in gone)
        return say("nodes_lost", count=len(gone), nodes=named, what=_what_ran(agent))
    if isinstance(payload, LeasePayload):
        return say("lease_groups_gone", lease=name)
    how = say("died_unended") if death is None else death.how
    if not isinstance(payload, GangPayload):
        return say("process_died", agent=name, how=how)
    if death is None or death.rank is None:
        return say("gang_process_died", gang=name, how=how)
    return say("gang_rank_died", rank=death.rank, gang=name, how=how)


def _lost_nodes(state: MeshState, agent: Agent) -> list[str]:
    """The nodes of an agent that the cluster no longer has."""
    group = state.groups.by_id.get(agent.group_id or "")
    members = () if agent.process is None else agent.process.members
    node_ids = [agent.node_id, *(member.node_id for member in members)]
    if group is not None:
        node_ids += group.node_ids
    existing = state.cluster.nodes if state.nodes_known else node_ids
    return sorted({node_id for node_id in node_ids if node_id and node_id not in existing})


def lost_node(hosts: Mapping[str, str], node_id: str) -> str:
    """How a lost node is named. ``hosts``: see ``Transaction.hosts``."""
    return f"{hosts[node_id]} ({node_id})" if node_id in hosts else node_id


def _what_ran(agent: Agent) -> Sentence:
    """What of an agent is on its nodes, as a clause."""
    if isinstance(agent.spec.payload, LeasePayload):
        return say("lease_had_groups", lease=agent.spec.name)
    if isinstance(agent.spec.payload, GangPayload):
        return say("gang_ran", gang=agent.spec.name)
    return say("agent_ran", agent=agent.spec.name)
