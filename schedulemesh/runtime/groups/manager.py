"""Creates and removes placement groups as the engine instructs, and detects lost ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

from schedulemesh.domain.placement import GroupShape
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.engine.messages.instructions import CreateGroup
from schedulemesh.engine.messages.stimuli import GroupCreated, GroupCreateFailed
from schedulemesh.engine.state.groups import Group, GroupPhase, GroupTable
from schedulemesh.runtime.agents.endings import Endings
from schedulemesh.runtime.backend import (
    Backend,
    BackendError,
    BundleSlot,
    GroupMember,
    GroupView,
    RayGroupRequest,
)
from schedulemesh.runtime.retries import until_answered

logger = logging.getLogger(__name__)

#: How the ids of groups begin of which the engine knows nothing: see rooms.py.
ROOM = "room:"
#: Seconds between two checks of a group that Ray is placing or removing: doubled from the first to the last.
_LOOK_S, _LOOK_MAX_S = 0.002, 0.5
#: Seconds that a look at the cluster waits for the removal of lost and late groups.
REMOVED_S = 2.0
#: Seconds that the removal of all groups may take at the end.
_LEAVE_S = 30.0
#: Seconds between two looks whether a group is unused; Ray's view lags as much.
_UNUSED_S = 0.1
#: Seconds for foreign actors in a group to end; after that the group is removed.
_VACATE_S = 5.0


class Groups:
    """The groups of one scheduler in Ray, by the engine's ids. They are detached, and carry our mark in
    their names. Of virtual groups there is nothing in Ray, and all that concerns them is done at once.
    """

    def __init__(self, backend: Backend, scheduler: str, namespace: str) -> None:
        self._backend = backend
        # Ray does not show a group's namespace, so its name contains it.
        self._mark = f"schedulemesh:{_quoted(scheduler)}@{_quoted(namespace)}:group:"
        self._namespace = namespace
        #: Ray's id and the shape of every group that was created or taken over.
        self._slots: dict[str, BundleSlot] = {}
        #: Requests to create a group that have no answer yet.
        self._creating: set[asyncio.Future[GroupView]] = set()
        #: Whether all groups are being removed for good, so that none is created any more.
        self._is_leaving = False
        #: A group is created or removed by one task at a time. Its lock is there while any task has it or
        #: waits for it, of which there are so many.
        self._locks: dict[str, asyncio.Lock] = {}
        self._lock_users: Counter[str] = Counter()
        #: How many removals of a group are under way; waiting for its placement ends.
        self._removing: Counter[str] = Counter()
        self._changed = asyncio.Event()
        #: Groups that the journal does not know: see orphans.py.
        self.orphans: set[str] = set()
        #: The groups whose creation was ordered and has not ended.
        self._ordered: set[str] = set()
        #: Returns once this supervisor has been shown to have no successor, whose group or actors it might
        #: remove; see Reactor.confirmed.
        self.confirmed: Callable[[], Awaitable[None]] = _without_journal

    def name(self, group_id: str) -> str:
        """The group's name in Ray."""
        return self._mark + group_id

    def slot(self, group_id: str) -> BundleSlot | None:
        """The first bundle of a group; None: there is no such group."""
        return self._slots.get(group_id)

    def adopt(self, group_id: str, slot: BundleSlot) -> None:
        """Take over a group that a former supervisor created and the engine does not know."""
        self._slots[group_id] = slot

    def notify(self) -> None:
        """Notify waiters that the state of a group has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, timeout_s: float) -> None:
        """Return when the state of any group has changed, or when the time is over."""
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def removed_from(self, table: GroupTable, within_s: float) -> bool:
        """Wait while groups are being removed and nobody gets their room; False: within_s was not enough."""
        until = time.monotonic() + within_s
        while any(table.by_id[group_id].leaves_for is None for group_id in table.ending):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            await self.changed(left_s)
        return True

    async def create(self, order: CreateGroup) -> GroupCreated | GroupCreateFailed | None:
        """Create the group and wait until Ray has placed it; an existing group of its name is taken over.

        A group that is not placed in time is removed again. None: it was removed meanwhile, or is being
        created already: a recovery orders again what was ordered just before.
        """
        if order.group_id in self._ordered:
            return None
        self._ordered.add(order.group_id)
        try:
            async with self._locked(order.group_id):
                return await self._create(order)
        finally:
            self._ordered.discard(order.group_id)

    async def _create(self, order: CreateGroup) -> GroupCreated | GroupCreateFailed | None:
        try:
            error = await self._create_and_place(order)
        except BackendError as refused:
            error = f"Ray refused to make it: {refused}"
        except Exception as failed:  # logged: the result tells of it
            logger.exception("placement group %s was not made", order.group_id)
            error = f"it could not be made: {failed!r}"
        if order.group_id in self._removing:
            return None
        if not error:
            return GroupCreated(group_id=order.group_id)
        logger.warning("placement group %s was not made: %s", order.group_id, error)
        await self.confirmed()
        await self._withdraw(order.group_id)
        return GroupCreateFailed(group_id=order.group_id, error=error)

    async def remove(self, group_id: str) -> None:
        """Remove the group, and return once Ray reports it as removed."""
        self._removing[group_id] += 1
        try:
            async with self._locked(group_id):
                await self._withdraw(group_id)
        finally:
            self._removing[group_id] -= 1
            if not self._removing[group_id]:
                del self._removing[group_id]

    async def vacate(
        self,
        group_id: str,
        ours: Collection[str],
        protected: Collection[str] = (),
        still_ours: Callable[[], bool] = lambda: True,
    ) -> list[GroupMember]:
        """End the foreign actors in a group, such as detached children of an earlier agent. ``ours``: the
        names of those that belong there; ``protected``: of those that must not be ended; ``still_ours``:
        whether the caller still has the group. Returns those that are left when the time is over or the
        caller has it no more; none: it is vacant.
        """
        slot = self._slots.get(group_id)
        until, wait_s = time.monotonic() + _VACATE_S, _LOOK_S
        if slot is not None and slot.shape.virtual:
            return []
        while slot is not None and (remaining := await self._foreign_members(slot.ray_id, ours)):
            if time.monotonic() > until or any(member.name in protected for member in remaining):
                return remaining
            await self.confirmed()
            if not still_ours():
                return remaining
            await self._backend.end_members([member.actor_id for member in remaining])
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LOOK_MAX_S)
        return []

    async def is_vacant(self, group_id: str) -> bool:
        """Whether there is such a group in Ray, and no actor in it."""
        slot = self._slots.get(group_id)
        return slot is not None and not await self._backend.members(slot.ray_id)

    async def has_only(self, group_id: str, ours: Collection[str]) -> bool:
        """Whether there is such a group, and in it no actor but those of these names."""
        slot = self._slots.get(group_id)
        if slot is None or slot.shape.virtual:
            return slot is not None
        return not await self._foreign_members(slot.ray_id, ours)

    async def _foreign_members(self, ray_id: str, ours: Collection[str]) -> list[GroupMember]:
        members = await self._backend.members(ray_id)
        return [
            m for m in members if (m.namespace, m.name) not in {(self._namespace, n) for n in ours}
        ]

    async def is_unused(self, group_id: str, within_s: float) -> bool:
        """Wait until nothing runs in a group and nothing waits for it; False: within_s was not enough."""
        slot = self._slots.get(group_id)
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while slot is not None and await self._backend.group_in_use(slot.ray_id):
            if loop.time() > until:
                return False
            await asyncio.sleep(_UNUSED_S)
        return True

    async def create_again(self, order: CreateGroup) -> GroupCreateFailed | None:
        """Remove a group with everything in it, and create it again: the handles of the former one are void.

        Returns why that failed; None: it is there again, is to be removed, or was.
        """
        # A removal that is requested meanwhile comes after the creation: in between it would find nothing.
        async with self._locked(order.group_id):
            if order.group_id not in self._slots:
                return None  # a removal that was requested before has come first
            await self._withdraw(order.group_id)
            made = await self._create(order)
        return made if isinstance(made, GroupCreateFailed) else None

    async def living(self) -> dict[str, GroupView]:
        """Every group with our mark that is not removed."""
        return {
            view.name.removeprefix(self._mark): view
            for view in await self._backend.groups()
            if view.name.startswith(self._mark)
        }

    async def recover(
        self,
        table: GroupTable,
        living: Mapping[str, GroupView],
        endings: Endings,
        *,
        keep_all: bool = False,
    ) -> frozenset[str]:
        """After a recovery: take over the groups of the state, and remove all others of those that live but
        ``orphans``, or with ``keep_all`` none: then all unknown ones are orphans.

        Returns which groups of the state exist. A group on other nodes than in the state is removed, too;
        until it is, it exists. Removals that take long go on by themselves.
        """
        living = {name: view for name, view in living.items() if not name.startswith(ROOM)}
        unknown = living.keys() - table.by_id.keys()
        self.orphans = set(unknown) if keep_all else self.orphans & unknown
        misplaced = {}
        for group_id, view in living.items():
            group = table.by_id.get(group_id)
            if group is not None and not _is_elsewhere(group, view):
                self._slots[group_id] = BundleSlot(ray_id=view.ray_id, shape=group.shape)
            elif group_id not in self.orphans:
                misplaced[group_id] = view
        late = await self._remove_misplaced(misplaced, endings)
        for group_id, group in table.by_id.items():
            if group.shape.virtual and group.phase in (GroupPhase.READY, GroupPhase.ENDING):
                self._slots[group_id] = BundleSlot(ray_id="", shape=group.shape)
        return frozenset(self._slots) | late

    async def _remove_misplaced(
        self, views: Mapping[str, GroupView], endings: Endings
    ) -> frozenset[str]:
        """Remove groups of ours that have no place in the state. Returns those that are not removed after a
        while; their removal goes on by itself.
        """
        removals = {
            endings.begin(
                (group_id, "group"), partial(self._remove_unknown, group_id, view)
            ): group_id
            for group_id, view in views.items()
        }
        if not removals:
            return frozenset()
        _, late = await asyncio.wait(removals, timeout=REMOVED_S)
        return frozenset(removals[removal] for removal in late)

    async def remove_orphans(self) -> None:
        """Remove the groups that the journal does not know."""
        living = await self.living()
        for group_id in self.orphans & living.keys():
            await self._remove_unknown(group_id, living[group_id])
        self.orphans.clear()

    async def remove_late(
        self, table: GroupTable, still_writes: Callable[[], Awaitable[bool]], endings: Endings
    ) -> None:
        """Remove the groups that exist now and did not after the recovery, because Ray had not yet executed
        the request of a former supervisor; none where they may be those of a successor. What takes longer
        goes on by itself.
        """
        living = await self.living()
        if not any(self._is_late(group_id, table) for group_id in living):
            return
        if not await still_writes():
            return
        late = {name: view for name, view in living.items() if self._is_late(name, table)}
        await self._remove_misplaced(late, endings)

    def _is_late(self, group_id: str, table: GroupTable) -> bool:
        """Whether nobody knows of a group, or is creating or removing it."""
        known_ids = (table.by_id, self._slots, self._locks, self.orphans)
        return not any(group_id in groups for groups in known_ids)

    async def _remove_unknown(self, group_id: str, view: GroupView) -> None:
        """Remove a group of ours that has no place in the state."""
        logger.warning("placement group %s is ours, but has no place; removing it", group_id)
        self._slots[group_id] = BundleSlot(ray_id=view.ray_id, shape=GroupShape(bundles=()))
        await self.remove(group_id)

    async def remove_all(self) -> None:
        """Remove every group of ours, also one that is being created."""
        try:
            await asyncio.wait_for(self._remove_all(), _LEAVE_S)
        except (asyncio.TimeoutError, TimeoutError, BackendError) as error:
            logger.warning("placement groups may be left in Ray: %s", error or "it does not answer")

    async def _remove_all(self) -> None:
        self._is_leaving = True
        if self._creating:
            await asyncio.wait(self._creating)
        for group_id, view in (await self.living()).items():
            self._slots[group_id] = BundleSlot(ray_id=view.ray_id, shape=GroupShape(bundles=()))
        await asyncio.gather(*(self._withdraw(group_id) for group_id in list(self._slots)))

    async def _create_and_place(self, order: CreateGroup) -> str:
        """Create a group and wait until Ray has placed it; why it is not placed, or empty."""
        slot = self._slots.get(order.group_id)
        view: GroupView | None
        if order.shape.virtual:
            self._slots[order.group_id] = BundleSlot(ray_id="", shape=order.shape)
            return ""
        if slot is None:
            view = await self._made(order)
            self._slots[order.group_id] = BundleSlot(ray_id=view.ray_id, shape=order.shape)
        else:
            view = await self._backend.group(slot.ray_id)
        view = await self._wait_for_placement(order, view)
        if view is None:
            return "somebody else removed it"
        if not view.placed:
            return await self._why_not(order)
        if view.node_ids != order.node_ids:
            return f"Ray placed it on {', '.join(view.node_ids)} instead of {', '.join(order.node_ids)}"
        return ""

    async def _made(self, order: CreateGroup) -> GroupView:
        """The group, created now, or the one that has its name."""
        request = RayGroupRequest(
            name=self.name(order.group_id), shape=order.shape, node_ids=order.node_ids
        )
        try:
            return await self._create_in_ray(request)
        except BackendError:
            # The name is taken if a call of a previous supervisor was still pending in Ray.
            # Also if the call was executed and only its answer was lost.
            living = await until_answered("asking for the placement groups", self.living)
            view = living.get(order.group_id)
            if view is None:
                raise
            return view

    async def _create_in_ray(self, request: RayGroupRequest) -> GroupView:
        """Have Ray create the group. If the caller is cancelled, the answer is still waited for, so that
        ``remove_all`` misses no group.
        """
        if self._is_leaving:
            raise BackendError("the scheduler is being shut down")
        creating = asyncio.ensure_future(self._backend.create_group(request))
        self._creating.add(creating)
        creating.add_done_callback(self._creating.discard)
        return await asyncio.shield(creating)

    async def _wait_for_placement(
        self, order: CreateGroup, view: GroupView | None
    ) -> GroupView | None:
        """A group that was like this just now, once it is placed, its time is over or it is being removed;
        None: Ray has it no more.
        """
        until, wait_s = time.monotonic() + order.wait_s, _LOOK_S
        while view is not None and not view.placed:
            if time.monotonic() >= until or order.group_id in self._removing:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LOOK_MAX_S)
            view = await self._backend.group(view.ray_id)
        return view

    async def _withdraw(self, group_id: str) -> None:
        """Remove what exists of a group; retried until Ray reports it as removed."""
        slot = self._slots.pop(group_id, None)
        if slot is not None and slot.shape.virtual:
            return
        wait_s = _LOOK_S
        while slot is not None:
            try:
                await self._backend.remove_group(slot.ray_id)
                if await self._backend.group(slot.ray_id) is None:
                    return
            except BackendError as error:
                logger.warning("placement group %s cannot be removed yet: %s", group_id, error)
            except Exception:  # logged: it is tried again
                logger.exception("placement group %s cannot be removed yet", group_id)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LOOK_MAX_S)

    async def _why_not(self, order: CreateGroup) -> str:
        """Which bundle lacks which resources on which node, by Ray's view."""
        free = {view.node_id: view.free for view in await self._backend.nodes()}
        return f"not placed within {order.wait_s:g} s: {lacking(order, free)}"

    @contextlib.asynccontextmanager
    async def _locked(self, group_id: str) -> AsyncIterator[None]:
        """Wait until all that came before have created or removed the group, and let others wait."""
        self._lock_users[group_id] += 1
        try:
            async with self._locks.setdefault(group_id, asyncio.Lock()):
                yield
        finally:
            self._lock_users[group_id] -= 1
            if not self._lock_users[group_id]:
                del self._lock_users[group_id], self._locks[group_id]


def _quoted(name: str) -> str:
    """A name as part of a mark, so that the mark of one scheduler is never the beginning of another's."""
    for char in "%:@":
        name = name.replace(char, f"%{ord(char):02X}")
    return name


async def _without_journal() -> None:
    """Where there is no journal, or it cannot be read, nobody can have taken it over."""


def lacking(order: CreateGroup, free: dict[str, Resources]) -> str:
    """Which bundle of a group lacks which resources on which node; bundles on one node count in order."""
    remaining = dict(free)
    for index, (need, node_id) in enumerate(zip(order.shape.bundles, order.node_ids, strict=True)):
        if node_id not in remaining:
            return f"bundle {index} is to stand on node {node_id}, which is gone"
        short = need.beyond(remaining[node_id])
        if short:
            return (
                f"bundle {index} needs {need} on node {node_id}, which lacks {short}: "
                f"{remaining[node_id].beyond(NOTHING)} is free there"
            )
        remaining[node_id] = remaining[node_id] - need
    return "its nodes seem to have room, but Ray has not placed it there"


def groups_gone(
    table: GroupTable, before: Iterable[str], living: dict[str, GroupView]
) -> list[tuple[str, str]]:
    """The groups that were ready ``before`` and are not where the state has them any more, and why."""
    gone = []
    for group_id in before:
        group, view = table.by_id.get(group_id), living.get(group_id)
        if group is None or group.phase is not GroupPhase.READY:
            continue
        if view is None:
            gone.append((group_id, "somebody else removed it"))
        elif _is_elsewhere(group, view):
            gone.append((group_id, "Ray took it from its nodes"))
    return gone


def ready_groups(table: GroupTable) -> list[str]:
    """The groups that are ready according to the state, and so exist in Ray."""
    return [
        group_id
        for group_id, group in table.by_id.items()
        if group.phase is GroupPhase.READY and not group.shape.virtual
    ]


def _is_elsewhere(group: Group, view: GroupView) -> bool:
    """Whether Ray has placed the group on other nodes, or has to place it again, or lacks a part of it."""
    if view.state in ("RESCHEDULING", "INCOMPLETE"):
        return True
    return view.placed and view.node_ids != group.node_ids
