"""What a queued task is short of, by how much, and who holds it: quota, nodes, placement groups."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.sentences import Text, say
from schedulemesh.engine.admission.admit import Request
from schedulemesh.engine.admission.holders import (
    agents_of_pool,
    agents_on,
    closest_node,
    held_by,
    holders_among,
)
from schedulemesh.engine.admission.refusals import (
    borrowers_of,
    cohort_parts,
    no_group_free,
    no_node_has_room,
)
from schedulemesh.engine.admission.windows import closed_by_window
from schedulemesh.engine.messages.explanation import ExternalUsage, Finding
from schedulemesh.engine.messages.outcomes import Holder
from schedulemesh.engine.placement.group_choice import NoAssignment, no_placement
from schedulemesh.engine.state.device_guarantees import has_room
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node

#: How many nodes a sentence names.
_NAMED = 3


class Shortage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is short; nothing where the task fits."""

    findings: tuple[Finding, ...] = ()
    quota: Resources = NOTHING
    node: Resources = NOTHING
    holders: tuple[Holder, ...] = ()
    external: tuple[ExternalUsage, ...] = ()


def shortage_of(state: MeshState, request: Request, now: float) -> Shortage:
    """What the request lacks now; quota comes before nodes."""
    short = request.payment.short
    names: Iterable[str] = ()
    findings: list[Finding] = []
    node = closest_node(state, request.node_shape) if request.by_node else None
    if node is not None:
        names = agents_on(state, node)
    if short:
        names = agents_of_pool(state, request.pool_name)
    elif isinstance(request.assignment, NoAssignment):
        names = _agents_with_groups(state, request.pool_name)
    holders = holders_among(state, names)
    if short:
        findings += _quota(state, request, short, holders, now)
    short_node = NOTHING if node is None else request.need.beyond(node.free)
    external: tuple[ExternalUsage, ...] = ()
    if request.unassigned:
        node_holders = () if short else holders
        node_findings, external = _nodes(state, request, node, short_node, node_holders, now)
        findings += node_findings
    if (
        isinstance(request.assignment, NoAssignment)
        and request.assignment.no_room
        and request.group_request
    ):
        short_node = no_placement(state, request.group_request.shape).short
    return Shortage(
        findings=tuple(findings),
        quota=short,
        node=short_node,
        holders=holders,
        external=external,
    )


def cause_of_shortage(state: MeshState, request: Request, now: float) -> tuple[Reason, Resources]:
    """The reason of the first finding that ``shortage_of`` makes for a request that does not fit, and what is
    short; without who holds it, which takes long.
    """
    if request.payment.short:
        return Reason.INSUFFICIENT_QUOTA, request.payment.short
    assignment, group_request = request.assignment, request.group_request
    short = NOTHING
    if request.by_node and (node := closest_node(state, request.node_shape)) is not None:
        short = request.need.beyond(node.free)
    if isinstance(assignment, NoAssignment) and assignment.no_room and group_request:
        short = no_placement(state, group_request.shape).short
    shape, need = request.on_a_node
    able = state.cluster.with_labels(shape)
    in_window = closed_by_window(state, request.stimulus, shape, need, now)
    if in_window is not None:
        return in_window.reason, short
    if any(node.cordoned and has_room(node, need) for node in able):
        return Reason.NODES_CORDONED, short
    if _external(able, need):
        return Reason.EXTERNAL_RAY_WORK, short
    in_group = group_request is not None and isinstance(assignment, NoAssignment)
    return Reason.GROUP_UNPLACEABLE if in_group else Reason.INSUFFICIENT_RESOURCES, short


def _quota(
    state: MeshState,
    request: Request,
    short: Resources,
    holders: tuple[Holder, ...],
    now: float,
) -> list[Finding]:
    """The quota that is short, the loans, and what is held for others."""
    pool_name = request.pool_name
    account = state.ledger.accounts[pool_name]
    parts = [
        say("pool_lacks", pool=pool_name, short=short, need=request.quota_need),
        say("quota_free", free=account.free, quota=account.spec.resources),
        *held_by(holders),
    ]
    findings = [
        Finding(
            reason=Reason.INSUFFICIENT_QUOTA,
            error_text=say("parts", parts=parts),
            hint_text=say("pool_lacks_hint", pool=pool_name),
        )
    ]
    on_hold, until = _on_hold(state, request)
    if on_hold:
        findings.append(
            Finding(
                reason=Reason.QUOTA_ON_HOLD,
                error_text=say("quota_held_for_others", amount=on_hold, pool=pool_name),
                hint_text=say("quota_held_for_others_hint", wait=max(0.0, until - now)),
            )
        )
    lent = short.within(account.lent - on_hold.within(account.lent))
    if lent:
        findings.append(_loans(state, pool_name, short, lent))
    if cohort := cohort_parts(state, pool_name, short):
        findings.append(
            Finding(
                reason=Reason.COHORT_EXHAUSTED,
                error_text=say("parts", parts=cohort),
                hint_text=say("cohort_hint"),
            )
        )
    return findings


def _loans(state: MeshState, pool_name: str, short: Resources, lent: Resources) -> Finding:
    """To whom the pool has lent what is short, and whether it gets that back for this task."""
    account = state.ledger.accounts[pool_name]
    reclaim: Text = ""
    hint = "loan_ends"
    if account.spec.cohort is not None and short.fits(account.lent):
        reclaim, hint = say("loan_reclaimed"), "loan_hint"
    elif account.spec.cohort is not None:
        reclaim = say("loan_not_reclaimed", lack=short.beyond(account.lent))
    return Finding(
        reason=Reason.QUOTA_ON_LOAN,
        error_text=say(
            "lent_quota",
            pool=pool_name,
            lent=lent,
            borrowers=borrowers_of(state, pool_name, short),
            reclaim=reclaim,
        ),
        hint_text=say(hint),
    )


def _on_hold(state: MeshState, request: Request) -> tuple[Resources, float]:
    """What others may use of its pool's quota for a while, and until when the last of it is held."""
    usable = {key for key, _ in state.ledger.holds_for(request.pool_name, request.stimulus.client)}
    on_hold, until = NOTHING, 0.0
    for key, hold in state.ledger.holds.items():
        for share in hold.shares:
            if key not in usable and share.pool_name == request.pool_name:
                on_hold, until = on_hold + share.amount, max(until, hold.until)
    return on_hold, until


def _nodes(
    state: MeshState,
    request: Request,
    node: Node | None,
    short: Resources,
    holders: tuple[Holder, ...],
    now: float,
) -> tuple[list[Finding], tuple[ExternalUsage, ...]]:
    """Why it has no place to run: nodes that are closed, work that is not ours, or agents."""
    findings = []
    shape, need = request.on_a_node
    able = state.cluster.with_labels(shape)
    in_window = closed_by_window(state, request.stimulus, shape, need, now)
    if in_window is not None:
        findings.append(
            Finding(
                reason=in_window.reason,
                error_text=in_window.error_text,
                hint_text=in_window.hint_text,
            )
        )
    cordoned = sorted(
        n.node_id for n in able if n.cordoned and has_room(n, need) and not _by_window(state, n)
    )
    if cordoned:
        findings.append(_closed(state, cordoned, need))
    external = _external(able, need)
    if external:
        most = external[0]
        findings.append(
            Finding(
                reason=Reason.EXTERNAL_RAY_WORK,
                error_text=say(
                    "external_room", node=most.node_id, need=need, external=most.resources
                ),
                hint_text=say("external_room_hint"),
            )
        )
    # Where a window closes all nodes to the task, no node is short of anything.
    if in_window is None or node is not None or request.group_request is not None:
        findings.append(_no_place(state, request, node, short, holders))
    return findings, external


def _by_window(state: MeshState, node: Node) -> bool:
    """Whether only a maintenance window closes a node to the task that is explained."""
    drain = state.drains.nodes.get(node.node_id)
    return node.node_id in state.cluster.set_aside or (drain is not None and bool(drain.window))


def _closed(state: MeshState, node_ids: list[str], need: Resources) -> Finding:
    """These nodes would have room, but take no new agents: the first is cordoned or drained."""
    first = node_ids[0]
    nodes = say("names", names=node_ids[:_NAMED])
    if len(node_ids) > _NAMED:
        nodes = say("names_and_more", names=nodes, more=len(node_ids) - _NAMED)
    drain = state.drains.nodes.get(first)
    if drain is None:
        why, hint = say("node_cordoned"), say("node_cordoned_hint", node=first)
    elif drain.client:
        why, hint = say("node_drained"), say("node_drained_hint", node=first)
    else:
        why, hint = say("ray_drains_node"), say("ray_drains_node_hint")
    return Finding(
        reason=Reason.NODES_CORDONED,
        error_text=say("nodes_closed", nodes=nodes, need=need, why=why),
        hint_text=hint,
    )


def _no_place(
    state: MeshState,
    request: Request,
    node: Node | None,
    short: Resources,
    holders: tuple[Holder, ...],
) -> Finding:
    assignment, group_request = request.assignment, request.group_request
    if group_request is not None and isinstance(assignment, NoAssignment):
        parts = [*no_group_free(state, group_request, assignment), *held_by(holders)]
        return Finding(
            reason=Reason.GROUP_UNPLACEABLE,
            error_text=say("parts", parts=parts),
            hint_text=say("group_hint"),
        )
    parts = [no_node_has_room(node, request.node_shape, short), *held_by(holders)]
    return Finding(
        reason=Reason.INSUFFICIENT_RESOURCES,
        error_text=say("parts", parts=parts),
        hint_text=say("node_hint"),
    )


def _external(nodes: Iterable[Node], need: Resources) -> tuple[ExternalUsage, ...]:
    """Those open nodes that would have room without the work that is not ours, the least of it first."""
    blocked_nodes = [
        node
        for node in nodes
        # Compared, because to ask 10,000 of them for their truth calls as many functions.
        if node.external_usage != NOTHING and not node.cordoned and _would_fit(node, need)
    ]
    blocked_nodes.sort(key=lambda node: (_size(node.external_usage), node.node_id))
    return tuple(
        ExternalUsage(node_id=n.node_id, resources=n.external_usage) for n in blocked_nodes[:_NAMED]
    )


def _would_fit(node: Node, need: Resources) -> bool:
    return not need.fits(node.free) and need.fits(node.free + node.external_usage)


def _agents_with_groups(state: MeshState, pool_name: str) -> list[str]:
    groups = map(state.groups.by_id.get, state.groups.of_pool.get(pool_name, ()))
    names = (group.agent for group in groups if group is not None and group.agent is not None)
    return [name for name in names if name in state.agents]


def _size(amount: Resources) -> tuple[int, int, int]:
    return (amount.gpu, amount.cpu, amount.memory)
