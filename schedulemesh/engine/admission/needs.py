"""What a submission asks for: resources, how they are paid, and what of its pool's placement groups."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.flavors import counted
from schedulemesh.domain.payloads import AgentPayload, JobPayload
from schedulemesh.domain.placement import MAX_BUNDLES
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import UNIT, Resources, sum_of
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.domain.topology import with_levels
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import (
    FOR_GANGS,
    GroupRequest,
    could_ever_have,
    group_request_of,
)
from schedulemesh.engine.placement.reserved_room import could_hold
from schedulemesh.engine.state.groups import shape_on_node
from schedulemesh.engine.state.lending import could_ever_borrow, is_surely_short, pay_with_loans
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue_classes import Places
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.quota import Payment, can_pay
from schedulemesh.engine.state.ways import is_covered, ways_of_task


def need_of(state: MeshState, task: QueuedTask) -> Resources:
    """The resources that a queued task asks for, as it prefers to run."""
    return need_of_submission(state, task.common)


def need_of_submission(state: MeshState, submission: TaskSubmitted) -> Resources:
    """The resources that a submission to a pool asks for, in the way of running that its agent has."""
    if submission.default_resources:
        return state.ledger.accounts[submission.agent.pool_name].spec.default_agent()
    return submission.agent.resources


def quota_need_of(state: MeshState, task: QueuedTask) -> Resources:
    """What a queued task asks for of its pool's quota, in the flavor that it has."""
    return quota_need_of_submission(state, task.common)


def quota_need_of_submission(state: MeshState, submission: TaskSubmitted) -> Resources:
    """What a submission to a pool asks for of its quota, in the way of running that its agent has."""
    need, flavor = need_of_submission(state, submission), submission.agent.flavor
    return need if flavor is None else flavor.quota_of(need)


def could_ever_pay(state: MeshState, pool_name: str, need: Resources) -> bool:
    """Whether a pool could hold so much if nothing else ran: by its own quota, or with loans."""
    spec = state.ledger.accounts[pool_name].spec
    if need.fits(spec.resources):
        return True
    if spec.cohort is None or state.policy.protects(pool_name):
        return False
    return need.beyond(spec.resources).fits(could_ever_borrow(state.ledger, pool_name))


def ruled_out(
    state: MeshState, submission: TaskSubmitted, pool_name: str, need: Resources
) -> Reason | None:
    """Why a pool as it is defined could not hold this even if nothing else ran, whatever nodes there are:
    it may run in none of the pool's flavors; its quota is too small, or its owner's limit; or it keeps no
    placement groups and they are asked for, or the other way round. None: it could.
    """
    flavor, quota_need, ledger = submission.agent.flavor, need, state.ledger
    if flavor is not None:
        quota_need = flavor.quota_of(need)
    elif pool_name in ledger.flavored and is_covered(ledger.accounts[pool_name].spec, need):
        return Reason.NO_FLAVOR
    if not could_ever_pay(state, pool_name, quota_need):
        return Reason.EXCEEDS_POOL_CAPACITY
    owner = None if submission.task is None else submission.task.owner
    if owner is not None and pool_name in state.owners.limited:
        amount = need if need is quota_need else counted(need, quota_need)
        if state.owners.exceeds(pool_name, owner, amount) is not None:
            return Reason.EXCEEDS_OWNER_LIMIT
    agent = submission.agent
    if agent.payload.adopts:
        return None
    if state.ledger.accounts[pool_name].spec.groups is None:
        alone = isinstance(agent.payload, AgentPayload) or agent.own_group is None
        if submission.for_group or (
            len(agent.bundles) > 1 and isinstance(agent.payload, AgentPayload)
        ):
            return Reason.NO_PG_POOL
        if alone:
            return None
    if submission.choose_node:
        return None
    return Reason.CONFLICTING_OPTIONS


def why_ruled_out(state: MeshState, task: QueuedTask) -> Reason | None:
    """Why its pool as it is defined could not hold a queued task, even if nothing else ran: what rules out
    the first of its alternatives. None: it could.
    """
    reasons = [
        ruled_out(state, each.common, each.pool_name, need_of(state, each))
        for each in ways_of_task(state.ledger, task)
    ]
    return None if None in reasons else reasons[0]


def is_ruled_out(state: MeshState, task: QueuedTask) -> bool:
    """Whether its pool as it is defined could not hold a queued task even if nothing else ran."""
    return why_ruled_out(state, task) is not None


def could_start_alone(state: MeshState, task: QueuedTask) -> bool:
    """Whether a queued task could start if nothing else ran, on the nodes that there are."""
    return any(could_start_alone_in(state, each) for each in ways_of_task(state.ledger, task))


def could_start_alone_in(state: MeshState, task: QueuedTask) -> bool:
    """The same in the way of running that its agent has, whatever its alternatives are."""
    if ruled_out(state, task.submission, task.pool_name, need_of(state, task)) is not None:
        return False
    if not task.submission.choose_node or not state.nodes_known:
        return True
    need = need_of(state, task)
    group_request = groups_asked(state, task.submission, task.pool_name, need)
    if group_request is not None:
        return could_ever_have(state, group_request)
    return could_hold(state, shape_on_node(task.submission.agent, need))


def claim_payment(state: MeshState, pool_name: str, need: Resources, client: str | None) -> Payment:
    """How a claim is paid with what is free in its pool and idle in its cohort."""
    protected = state.policy.protected_pools
    return pay_with_loans(state.ledger, pool_name, need, client, protected=protected)


def can_be_paid(state: MeshState, pool_name: str, need: Resources, client: str | None) -> bool:
    """Whether ``claim_payment`` would leave nothing short."""
    if can_pay(state.ledger, pool_name, need, client):
        return True
    account = state.ledger.accounts[pool_name]
    if account.spec.cohort is None or is_surely_short(state.ledger, pool_name, need):
        return False
    return not claim_payment(state, pool_name, need, client).short


def groups_asked(
    state: MeshState, submission: TaskSubmitted, pool_name: str, need: Resources
) -> GroupRequest | None:
    """What a submission to this pool asks of placement groups; None: it runs without one."""
    agent, task = submission.agent, submission.task
    is_job = isinstance(agent.payload, JobPayload)
    spec = state.ledger.accounts[pool_name].spec.groups
    if agent.payload.adopts or (spec is None and isinstance(agent.payload, AgentPayload)):
        return None
    bundles = bundles_of(state, agent, need)
    if agent.own_group is not None or (is_job and len(bundles) > 1):
        spec = spec or FOR_GANGS
    if spec is None:
        return None
    return group_request_of(
        state,
        pool_name,
        FOR_GANGS if is_job else spec,
        bundles,
        DEFAULT_PRIORITY if task is None else task.priority,
        agent.labels if task is None else task.labels,
        None if isinstance(agent.payload, AgentPayload) else agent.payload,
        virtual=is_job,
        node_labels=agent.node_labels,
        topology=(
            with_levels(task.topology, state.policy.topology_levels)
            if task is not None and task.topology
            else None
        ),
    )


def on_nodes(each: Iterable[TaskSubmitted]) -> Places:
    """Where a submission runs in each of its alternatives, and with how much, if in a pool that keeps no
    groups it runs on a node whatever the nodes are; empty: it does not, or may not. For equal places mostly
    the same object.
    """
    places = []
    for submission in each:
        agent = submission.agent
        by_group = agent.own_group is not None or isinstance(agent.payload, JobPayload)
        if by_group or submission.default_resources or not submission.choose_node:
            return ()
        places.append((agent.node_labels, agent.resources))
    return _shared(tuple(places))


@lru_cache(maxsize=4096)
def _shared(places: Places) -> Places:
    """The first of these places that are equal."""
    return places


def bundles_of(state: MeshState, agent: AgentSpec, need: Resources) -> tuple[Resources, ...]:
    """The parts of what an agent needs, each of which is on one node.

    A job for which no node is large enough beside the reserved placement groups, or which says how its parts
    are placed, is divided: into a part for each GPU, or for each CPU where it needs no GPU.
    """
    if agent.bundles:
        return agent.bundles
    if not isinstance(agent.payload, JobPayload) or not state.cluster.nodes:
        return (need,)
    if not agent.payload.strategy and could_hold(state, shape_on_node(agent, need)):
        return (need,)
    return divided(need, min((need.gpu or need.cpu) // UNIT, MAX_BUNDLES))


def divided(need: Resources, count: int) -> tuple[Resources, ...]:
    """Resources in so many equal parts, one or more; the first one has what cannot be divided."""
    if count < 2:
        return (need,)
    part = Resources(
        cpu=need.cpu // count,
        memory=need.memory // count,
        gpu=need.gpu // UNIT // count * UNIT,
        custom=tuple((name, units // count) for name, units in need.custom if units // count),
    )
    others = (part,) * (count - 1)
    return (need - sum_of(others), *others)
