"""What the scheduler knows of the members of a group, and how it has them made again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from schedulemesh.api.tasks import TaskStatus
from schedulemesh.core.transport.handles import actor_id
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.errors import ScheduleMeshError, WorkerDiedError, WorkerTimeoutError

if TYPE_CHECKING:
    from schedulemesh.core.client.scheduler import RayScheduler

#: Seconds for which the scheduler may not have noticed yet that a worker is dead.
_NOTICE_S = 2.0
_LOOK_S = 0.1


class Member(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A rank of a group that a scheduler has started."""

    group: str
    rank: int
    agent: str
    task: str
    handle: ActorHandle

    def __str__(self) -> str:
        """Rank, agent and group."""
        return f"rank {self.rank} (agent {self.agent}) of group {self.group}"


def known_of(scheduler: RayScheduler, task: str) -> str:
    """What the scheduler knows of a task whose worker has just died, as a sentence."""
    try:
        explanation = _noticed(scheduler, task)
    except ScheduleMeshError as error:
        return f"Its scheduler cannot be asked: {error}"
    if not explanation["success"]:
        return f"Of its task {task} nothing is known: {explanation['error']}"
    eviction = explanation.get("eviction") or {}
    why = f", evicted for {eviction.get('by_task') or 'a request'}" if eviction else ""
    detail = f": {explanation['error']}" if explanation.get("error") else ""
    advice = ""
    if explanation["state"] not in ENDED_STATES:
        advice = "; wait_until_ready() waits until it runs again"
    return f"Its task {task} is {explanation['state']}{why}{detail}{advice}"


def _noticed(scheduler: RayScheduler, task: str) -> Mapping[str, Any]:
    """The explanation of a task after the scheduler has noticed that its worker is dead."""
    until = time.monotonic() + _NOTICE_S
    while True:
        explanation: Mapping[str, Any] = scheduler.explain(task)
        if explanation.get("state") != "running" or time.monotonic() > until:
            return explanation
        time.sleep(_LOOK_S)


def running_again(
    scheduler: RayScheduler, members: Sequence[Member], timeout_s: float | None
) -> list[ActorHandle]:
    """The handles of the members, once all of them run and answer.

    Members that are lost are rebuilt, those that wait in the queue are waited for. Raises ``WorkerDiedError``
    for one that will not run again, and ``WorkerTimeoutError`` after ``timeout_s`` seconds (None: never).
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        absent = _absent(scheduler, members, until)
        if not absent:
            agents = {each["name"]: each for each in scheduler.list_agents()["agents"]}
            rows = [agents.get(member.agent, {}) for member in members]
            # One whose process is known to be dead has none, though it is still listed as running.
            handles = [each.get("handle") for each in rows if each.get("state") == "running"]
            handles = [handle for handle in handles if handle is not None]
            if len(handles) == len(members) and _answer(handles, until):
                return handles
        if until is not None and time.monotonic() >= until:
            raise _late(scheduler, absent or list(members), timeout_s)
        time.sleep(_LOOK_S)


def _absent(
    scheduler: RayScheduler, members: Sequence[Member], until: float | None
) -> list[Member]:
    """Members whose tasks do not run, after those that are lost were rebuilt, and a wait for the others."""
    by_task = {member.task: member for member in members}
    _rebuild(scheduler, by_task, _states(scheduler, members, 0.0))
    remaining_s = None if until is None else max(until - time.monotonic(), 0.0)
    states = _states(scheduler, members, remaining_s)
    return [by_task[task] for task, status in states.items() if status["state"] != "running"]


def _states(
    scheduler: RayScheduler, members: Sequence[Member], timeout_s: float | None
) -> dict[str, TaskStatus]:
    """The states of the members' tasks, when all run or have ended, or the time is over."""
    answer = scheduler.wait([member.task for member in members], timeout_s, "running")
    if not answer["success"]:
        raise _gone(members[0], answer["error"])
    return {status["task_id"]: status for status in answer["tasks"]}


def _rebuild(
    scheduler: RayScheduler, by_task: Mapping[str, Member], states: Mapping[str, TaskStatus]
) -> None:
    """Have members rebuilt whose tasks have ended. Raises ``WorkerDiedError`` if one cannot be."""
    ended = {task: status for task, status in states.items() if status["state"] in ENDED_STATES}
    if not ended:
        return
    scheduler.ensure_agent_health()
    for task, status in ended.items():
        if scheduler.explain(task)["state"] in ENDED_STATES:
            raise _gone(by_task[task], f"its task is {status['state']}: {status.get('error', '')}")


def _answer(handles: Sequence[Any], until: float | None) -> bool:
    """Whether all processes answer; False: one of them is dead, or the time is over."""
    remaining_s = None if until is None else max(until - time.monotonic(), 0.0)
    pings = [handle.__ray_ready__.remote() for handle in handles]
    try:
        ready, _ = ray.wait(pings, num_returns=len(pings), timeout=remaining_s)
        ray.get(ready)
    except RayActorError:
        return False
    return len(ready) == len(pings)


def returned(members: Sequence[Member], handles: Sequence[ActorHandle]) -> tuple[int, ...]:
    """The ranks whose workers are other ones than before."""
    pairs = zip(members, handles, strict=True)
    return tuple(
        member.rank for member, handle in pairs if actor_id(member.handle) != actor_id(handle)
    )


def _gone(member: Member, why: str) -> WorkerDiedError:
    return WorkerDiedError(
        f"{member} does not run again: {why}. Start it again with restore_task, or make a new group",
        member.group,
        member.rank,
        member.agent,
        "wait_until_ready",
    )


def _late(
    scheduler: RayScheduler, members: Sequence[Member], timeout_s: float | None
) -> WorkerTimeoutError:
    first = members[0]
    more = f", and {len(members) - 1} more" if len(members) > 1 else ""
    explanation = scheduler.explain(first.task)
    return WorkerTimeoutError(
        f"{first}{more} did not run again within {timeout_s:g} s: its task is "
        f"{explanation.get('state', 'unknown')}: {explanation.get('error', '')}",
        first.group,
        first.rank,
        first.agent,
        "wait_until_ready",
    )
