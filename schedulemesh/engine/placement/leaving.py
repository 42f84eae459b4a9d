"""What is leaving, and what of it nobody has claimed yet: capacity that an incoming task may wait for.

An agent that is being terminated frees its quota and its room when its process is gone, and a group when Ray
has removed it. Incoming agents that wait for such ends have claimed a part of what they free (``Waiting``);
the rest is unclaimed. It costs nobody's work, so an incoming task waits for it rather than have anybody else
evicted.

What leaves is told apart by who waits for it: leavers that share a waiting agent are one ``Leaving``, because
it cannot be said which of them that agent takes its part from. Who claims the rest of it waits for all of
them. So the claims on a ``Leaving`` never exceed what it frees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from schedulemesh.domain.placement import OnNode, Place
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.facts import Share, merged
from schedulemesh.engine.placement.bundles import Room
from schedulemesh.engine.placement.group_choice import is_held_only_by
from schedulemesh.engine.placement.scenario import Allocations, Removal, bundle_allocations
from schedulemesh.engine.state.agents import Agent, AgentPhase, Ending, Waiting
from schedulemesh.engine.state.cluster import Cluster
from schedulemesh.engine.state.groups import Group, GroupPhase
from schedulemesh.engine.state.mesh_state import MeshState

#: The phases of a group that Ray has not made.
_UNMADE = (GroupPhase.PLANNED, GroupPhase.CREATING)


class Leaver(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An agent that is being terminated, or a group that is being removed."""

    name: str
    #: The incoming agents that have claimed a part of what it frees.
    waiters: tuple[str, ...] = ()
    #: None: it is a group that nobody uses any more.
    agent: Agent | None = None
    #: What of the agent this was worked out from.
    phase: AgentPhase | None = None
    shares: tuple[Share, ...] = ()
    place: Place | None = None
    #: The group that is removed with it, or that it is.
    group: Group | None = None
    allocations: Allocations = ()

    def is_of(self, agent: Agent) -> bool:
        """Whether it would be worked out again from this agent."""
        same = self.agent is agent and self.phase is agent.phase
        return same and self.shares is agent.shares and self.place is agent.place


class Leaving(Removal, frozen=True, kw_only=True, gc=False):
    """Leavers that share waiting agents, and what of their capacity is unclaimed."""

    leavers: tuple[Leaver, ...]
    #: The unclaimed quota, by the pool that it belongs to.
    unclaimed: tuple[Share, ...] = ()

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents among them."""
        return tuple(leaver.agent for leaver in self.leavers if leaver.agent is not None)


class AllLeaving(msgspec.Struct, kw_only=True):
    """Everything that is leaving in one revision of the state."""

    items: tuple[Leaving, ...]
    #: What of each pool's quota is neither claimed nor to be held for anybody; None: not asked for yet.
    quota: dict[str, Resources] | None = None


def all_leaving(state: MeshState) -> tuple[Leaving, ...]:
    """Everything that is leaving, in an order that depends on the state alone. Worked out once for each
    revision of the state.
    """
    if not state.leaving and not state.groups.ending:
        return ()
    return _in_this_revision(state).items


def leaving_if_revoked(state: MeshState, revoked: Collection[str]) -> tuple[Leaving, ...]:
    """The same if the claims of these agents, which do not run yet, were revoked. Each is one with all that
    it waits for; those without such a claim come first.
    """
    agents = sorted((state.agents[name] for name in revoked), key=_incarnation)
    leavers = (*_leavers(state), *(_claim_leaver(state, agent) for agent in agents))
    items = (_leaving(state, members, revoked) for members in _sets(leavers).values())
    return tuple(sorted(items, key=lambda item: not revoked_in((item,), revoked)))


def waiting_claims(state: MeshState, revoked: Collection[str]) -> tuple[Leaving, ...]:
    """What these agents hold that wait for others, each by itself: if their claims were revoked, it would be
    free at once, whatever they wait for.
    """
    agents = (state.agents[name] for name in revoked)
    waiting = sorted((a for a in agents if isinstance(a.phase, Waiting)), key=_incarnation)
    return tuple(_leaving(state, [_claim_leaver(state, agent)], revoked) for agent in waiting)


def revoked_in(chosen: Iterable[Leaving], revoked: Collection[str]) -> frozenset[str]:
    """The agents among these whose claims were supposed to be revoked."""
    names = (leaver.name for item in chosen for leaver in item.leavers)
    return frozenset(names).intersection(revoked)


def unclaimed_quota(state: MeshState, pool_name: str) -> Resources:
    """What of a pool's quota is leaving and neither claimed nor to be held for anybody."""
    if not state.leaving:
        return NOTHING
    leaving = _in_this_revision(state)
    if leaving.quota is None:
        items = (item for item in leaving.items if not any(map(_is_held, item.agents)))
        shares = merged(share for item in items for share in item.unclaimed)
        leaving.quota = {share.pool_name: share.amount for share in shares}
    return leaving.quota.get(pool_name, NOTHING)


def _incarnation(agent: Agent) -> int:
    return agent.incarnation


def _in_this_revision(state: MeshState) -> AllLeaving:
    leaving: AllLeaving | None = state.spared.leaving
    if leaving is None:
        leaving = state.spared.leaving = AllLeaving(items=_all_leaving(state))
    return leaving


def _all_leaving(state: MeshState) -> tuple[Leaving, ...]:
    earlier, alone = state.spared.leaving_alone, {}
    items = []
    for name, members in _sets(_leavers(state)).items():
        first = members[0]
        if len(members) > 1 or not _is_alone(first):
            items.append(_leaving(state, members))
            continue
        item = earlier.get(name)
        if item is None or item.leavers[0] is not first:
            item = _leaving(state, members)
        alone[name] = item
        items.append(item)
    state.spared.leaving_alone = alone
    return tuple(items)


def _sets(leavers: Iterable[Leaver]) -> dict[str, list[Leaver]]:
    """Those that share waiting agents, by the name of the last of them."""
    sets: dict[str, list[Leaver]] = {}
    by_waiter: dict[str, str] = {}
    for leaver in leavers:
        joined = {by_waiter[name]: None for name in leaver.waiters if name in by_waiter}
        members = [member for key in joined for member in sets.pop(key)]
        members.append(leaver)
        sets[leaver.name] = members
        for member in members if joined else (leaver,):
            for name in member.waiters:
                by_waiter[name] = leaver.name
    return sets


def _is_alone(leaver: Leaver) -> bool:
    """Whether nobody waits for it, and it is in no group: what it frees depends on its agent alone."""
    agent = leaver.agent
    return not leaver.waiters and agent is not None and agent.group_id is None


def _is_held(agent: Agent) -> bool:
    ending = agent.phase
    held_for = isinstance(ending, Ending) and (ending.hold_for or ending.hold_for_client)
    return bool(held_for)


def _leavers(state: MeshState) -> Iterator[Leaver]:
    earlier = state.spared.leaving_alone
    agents = [state.agents[name] for name in state.leaving]
    for agent in sorted(agents, key=_incarnation):
        item = earlier.get(agent.spec.name)
        leaver = None if item is None else item.leavers[0]
        yield leaver if leaver and leaver.is_of(agent) else _agent_leaver(state, agent)
    for group_id in sorted(state.groups.ending):
        group = state.groups.by_id[group_id]
        yield Leaver(
            name=group_id,
            waiters=group.waiters,
            group=group,
            allocations=bundle_allocations(group),
        )


def _agent_leaver(state: MeshState, agent: Agent) -> Leaver:
    name, place = agent.spec.name, agent.place
    waiters = agent.phase.waiters if isinstance(agent.phase, Ending) else ()
    allocations: Allocations = ((place.node_id, name),) if isinstance(place, OnNode) else ()
    group = state.groups.by_id.get(agent.group_id or "")
    if group is not None and _goes_with(group, name):
        waiters = tuple(dict.fromkeys((*waiters, *group.waiters)))
        allocations = bundle_allocations(group)
    else:
        group = None
    return Leaver(
        name=name,
        waiters=waiters,
        agent=agent,
        phase=agent.phase,
        shares=agent.shares,
        place=place,
        group=group,
        allocations=allocations,
    )


def _claim_leaver(state: MeshState, agent: Agent) -> Leaver:
    """The claim of an agent that does not run yet, as if it were revoked: what it holds becomes free."""
    leaver, name = _agent_leaver(state, agent), agent.spec.name
    group = state.groups.by_id.get(agent.group_id or "")
    if group is not None and group.agent == name and group.phase in _UNMADE:
        allocations = bundle_allocations(group)
        leaver = msgspec.structs.replace(leaver, group=group, allocations=allocations)
    waits = isinstance(agent.phase, Waiting)
    return msgspec.structs.replace(leaver, waiters=(*leaver.waiters, name)) if waits else leaver


def _goes_with(group: Group, agent_name: str) -> bool:
    """Whether a group is removed with its agent if somebody needs its room."""
    return (
        group.phase is GroupPhase.READY
        and not group.reserved
        and group.agent == agent_name
        and group.promised_to is None
    )


def _leaving(state: MeshState, leavers: list[Leaver], revoked: Collection[str] = ()) -> Leaving:
    """``revoked``: agents whose claims do not count."""
    names = sorted({name for leaver in leavers for name in leaver.waiters}.difference(revoked))
    waiting = [agent for name in names if (agent := state.agents.get(name)) is not None]
    shares = [
        share for leaver in leavers if leaver.agent is not None for share in leaver.agent.shares
    ]
    promised = [
        Share(pool_name=share.pool_name, amount=NOTHING - share.amount)
        for agent in waiting
        for share in agent.promised
    ]
    allocations = tuple(entry for leaver in leavers for entry in leaver.allocations)
    node_ids = {node_id for node_id, _ in allocations}
    lacks = (lack for agent in waiting for lack in lacks_of(state, agent) if lack[0] in node_ids)
    return Leaving(
        name=leavers[-1].name,
        leavers=tuple(leavers),
        unclaimed=tuple(s for s in merged((*shares, *promised)) if s.amount.within(s.amount)),
        allocations=allocations,
        claimed=tuple(lacks),
        groups=tuple(leaver.group for leaver in leavers if leaver.group is not None),
    )


def lacks_of(state: MeshState, agent: Agent) -> Iterator[tuple[str, Resources]]:
    """What a waiting agent, or the group that is created for it, does not hold yet on each of its nodes,
    without GPUs: it holds none until it waits for nobody, and ``device_guarantees`` says what is left.
    """
    if not isinstance(agent.phase, Waiting):
        return
    place, name = agent.place, agent.spec.name
    if isinstance(place, OnNode):
        yield place.node_id, _lack(state.cluster, place.node_id, name, agent.spec.resources)
    group = state.groups.by_id.get(agent.group_id or "")
    if group is None or group.agent != name or group.phase is not GroupPhase.PLANNED:
        return
    for i, (node_id, bundle) in enumerate(zip(group.node_ids, group.shape.bundles, strict=True)):
        yield node_id, _lack(state.cluster, node_id, group.key(i), bundle)


def _lack(cluster: Cluster, node_id: str, key: str, need: Resources) -> Resources:
    node = cluster.nodes.get(node_id)
    allocation = None if node is None else node.allocations.get(key)
    without_gpu = msgspec.structs.replace(need, gpu=0)
    return without_gpu if allocation is None else without_gpu - allocation.held


def release_all(room: Room, leaving: Iterable[Leaving]) -> None:
    """Count all of this as gone from the room, apart from what others have claimed of it."""
    _move_all(room, leaving, 1)


@contextmanager
def gone(room: Room, leaving: Sequence[Leaving]) -> Iterator[None]:
    """Within the block all of this counts as gone from the room, as in ``release_all``; then not any more."""
    _move_all(room, leaving, 1)
    try:
        yield
    finally:
        _move_all(room, leaving, -1)


def _move_all(room: Room, leaving: Iterable[Leaving], sign: int) -> None:
    """Count all of this as gone (``sign`` 1), or as there again (-1)."""
    for item in leaving:
        for node_id, key in item.allocations:
            room.release(node_id, key, sign)
        for node_id, amount in item.claimed:
            room.claim(node_id, amount, sign)


def names_of(chosen: Iterable[Leaving]) -> tuple[str, ...]:
    """The agents among these leavers."""
    return tuple(agent.spec.name for leaving in chosen for agent in leaving.agents)


def groups_that_stay(state: MeshState, leaving: Iterable[Leaving]) -> Iterator[tuple[str, Group]]:
    """The groups whose agents are leaving, and that another agent may take as they are: nobody has claimed
    them or their room, and nobody has asked for their removal.
    """
    for item in leaving:
        for agent in item.agents:
            name, ending = agent.spec.name, agent.phase
            group = state.groups.by_id.get(agent.group_id or "")
            destroyed = isinstance(ending, Ending) and ending.destroy_group
            if group is not None and not destroyed and is_held_only_by(group, name):
                yield name, group
