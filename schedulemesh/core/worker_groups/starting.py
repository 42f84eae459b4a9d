"""Starts the agents of a group, all or none, and terminates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ray.actor import ActorHandle

from schedulemesh.client.results import SubmitResult
from schedulemesh.errors import GroupRefusedError

if TYPE_CHECKING:
    from schedulemesh.core.client.scheduler import RayScheduler

#: Agents of a group that are started or terminated at a time.
_AT_A_TIME = 16
_T = TypeVar("_T")


def all_or_none(
    scheduler: RayScheduler, group: str, names: Sequence[str], start: Callable[[int], SubmitResult]
) -> list[ActorHandle]:
    """The handles of all agents; if one does not start, the others are terminated.

    Raises ``GroupRefusedError`` with the answer of the first that was refused.
    """
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        started = [threads.submit(start, rank) for rank in range(len(names))]
    outcomes: list[Any] = [each.exception() or each.result() for each in started]
    runs = [isinstance(outcome, Mapping) and outcome["success"] for outcome in outcomes]
    handles = [
        outcome["agent"]["handle"] if runs else None
        for outcome, runs in zip(outcomes, runs, strict=True)
    ]
    if all(handle is not None for handle in handles):
        return handles
    ran = [name for name, runs in zip(names, runs, strict=True) if runs]
    terminate(scheduler, ran, ran)
    failed = handles.index(None)
    if isinstance(outcomes[failed], BaseException):
        raise outcomes[failed]
    why = outcomes[failed].get("error", "it has ended or was evicted before its start was answered")
    raise GroupRefusedError(
        f"group {group} was not started: agent {names[failed]}: {why}", outcomes[failed]
    )


def terminate(scheduler: RayScheduler, agents: Sequence[str], tasks: Sequence[str] = ()) -> None:
    """Cancel tasks, which may wait to be started again, and terminate agents."""
    if tasks:
        scheduler.cancel_tasks(list(tasks))
    _at_once(scheduler.delete_agent, agents)


def _at_once(act: Callable[[str], _T], names: Sequence[str]) -> list[_T]:
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(act, names))
