"""Groups of agents with a parallel layout: distribute batches to them and collect results."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Union, cast

import ray
from ray import ObjectRef, cloudpickle
from ray.actor import ActorHandle

from schedulemesh.core.client.arguments import public_calls
from schedulemesh.core.client.results import SubmitResult
from schedulemesh.core.transport.arrays import wrapped
from schedulemesh.core.transport.handles import actor_id
from schedulemesh.core.worker_groups.array_trees import Path, spelled
from schedulemesh.core.worker_groups.pending_result import PendingResult
from schedulemesh.core.worker_groups.worker_calls import Call
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.strategies import Scattered, Workers, scatter
from schedulemesh.dispatch.trees import Spec
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.user_data import UserClass, UserValue
from schedulemesh.errors import GroupRefusedError, InvalidRequestError
from schedulemesh.plugins.dispatch import DispatchStrategyPlugin

if TYPE_CHECKING:
    from schedulemesh.core.client.scheduler import RayScheduler

#: How data is distributed: a sharding or a tree of them, a plugin, or a name.
Strategy = Union[str, Spec, DispatchStrategyPlugin]
#: The holder of the data before it is dispatched, unless another group is given.
DRIVER = Workers(name="driver", layout=ParallelLayout.of())
#: Agents of a group that are started or terminated at a time.
_AT_A_TIME = 16
_T = TypeVar("_T")


class SchedulerFacade(Protocol):
    """A scheduler object that passes calls on to a RayScheduler, as SimpleScheduler does."""

    scheduler: RayScheduler


@public_calls
class WorkerGroup:
    """A group of agents, each with a rank in a parallel layout.

    ``handles`` are their Ray handles by rank, ``layout`` arranges the ranks (None: all on ``dp``), ``agents``
    are their names (None: generated). ``timeout_s`` is the default limit for waiting for the group; None: no
    limit. The death of a worker is detected even without a limit.
    """

    def __init__(
        self,
        name: str,
        handles: Sequence[ActorHandle],
        layout: ParallelLayout | None = None,
        *,
        agents: Sequence[str] | None = None,
        timeout_s: float | None = None,
        scheduler: RayScheduler | None = None,
    ) -> None:
        self.name = parse_name(name, "the group's name")
        self.handles = tuple(handles)
        self.layout = ParallelLayout.of(dp=len(self.handles)) if layout is None else layout
        given = (
            [f"{name}-{rank}" for rank in range(len(self.handles))] if agents is None else agents
        )
        self.agents = tuple(given)
        #: Identifies each worker, also across groups.
        self.workers = tuple(map(actor_id, self.handles))
        self.timeout_s = timeout_s
        self._scheduler = scheduler
        if not len(self.agents) == len(set(self.workers)) == len(self.handles) == self.layout.size:
            raise InvalidRequestError(
                f"group {name} has {len(self.handles)} handles ({len(set(self.workers))} of them "
                f"different) and {len(self.agents)} names; its layout {self.layout} needs {self.layout.size}"
            )

    @classmethod
    def of_agents(
        cls,
        scheduler: RayScheduler | SchedulerFacade,
        name: str,
        agents: Sequence[str],
        layout: ParallelLayout | None = None,
        *,
        timeout_s: float | None = None,
    ) -> WorkerGroup:
        """The group of these agents of a scheduler, in the order of their ranks."""
        listed = _plain(scheduler).list_agents()["agents"]
        living = {agent["name"]: agent["handle"] for agent in listed if agent["handle"] is not None}
        missing = [agent for agent in agents if agent not in living]
        if missing:
            raise InvalidRequestError(
                f"agents {missing} of group {name} do not run; there are {sorted(living)}"
            )
        handles = [living[agent] for agent in agents]
        return cls(
            name, handles, layout, agents=agents, timeout_s=timeout_s, scheduler=_plain(scheduler)
        )

    @classmethod
    def submit(
        cls,
        scheduler: RayScheduler | SchedulerFacade,
        name: str,
        actor_class: UserClass,
        *,
        layout: ParallelLayout,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        **fields: UserValue,
    ) -> WorkerGroup:
        """Start an agent per rank and return them as a group.

        Rank r is the agent and task ``{name}-{r}``, with ``worker_group`` and ``rank`` among its labels.
        ``resources`` (of one agent), ``priority``, ``actor_kwargs`` and the other ``fields`` are those of
        ``submit_task_with_preemption``. Raises ``GroupRefusedError`` if one is refused; those that had
        started are terminated.
        """
        scheduler = _plain(scheduler)
        names = [f"{parse_name(name, 'the group name')}-{rank}" for rank in range(layout.size)]

        def start(rank: int) -> SubmitResult:
            return scheduler.submit_task_with_preemption(
                names[rank],
                pool,
                actor_class,
                agent_name=names[rank],
                labels={**(labels or {}), "worker_group": name, "rank": str(rank)},
                **fields,
            )

        handles = _all_or_none(scheduler, name, names, start)
        return cls(name, handles, layout, agents=names, timeout_s=timeout_s, scheduler=scheduler)

    @property
    def ranks(self) -> range:
        """Its ranks, from 0."""
        return range(self.layout.size)

    def call(self, method: str, *args: UserValue, **kwargs: UserValue) -> PendingResult:
        """Call a method on every rank with the same arguments, which are put into Ray's object store once."""
        self.require(method)
        given = [ray.put(wrapped(each)) for each in args]
        named = {name: ray.put(wrapped(each)) for name, each in kwargs.items()}
        return PendingResult(
            [self.ask(rank, method, *given, **named) for rank in self.ranks], self.timeout_s
        )

    def dispatch(
        self,
        method: str,
        data: UserValue,
        strategy: Strategy = "data_parallel",
        *,
        source: WorkerGroup | None = None,
        arguments: Mapping[str, UserValue] | None = None,
    ) -> PendingResult:
        """Distribute the data and call a method on every rank with its part, None if it gets nothing.

        ``strategy`` is a ``Sharding``, a tree of them, a plugin, or a name: "data_parallel", "every_rank",
        "replicate" or that of an installed one (see ``schedulemesh.dispatch.scatter``). Equal parts are put
        into Ray's object store once. ``arguments`` are passed to every rank by name. A plugin sees ``source``
        as ``workers_a``; None: the driver.

        The data may be the pending result of a call to any group: its rows then pass from worker to worker.
        Each result has the rows of the part that its worker was given, and the strategy is a built-in name or
        a ``Sharding`` of the rows; ``pending["ids"]`` hands on one key of dicts.

        Tensors arrive on the CPU, as the worker's own copy; NumPy arrays as read-only views. Raises
        ``InvalidRequestError`` if the data does not fit the strategy or there is no such method.
        """
        self.require(method)
        named = {name: ray.put(wrapped(each)) for name, each in (arguments or {}).items()}
        if isinstance(data, PendingResult):
            return self._handed_on(method, data, strategy, named)
        scattered = scatter(data, strategy, DRIVER if source is None else source, self)
        refs = {
            id(part): _put(part) for part in {id(part): part for part in scattered.parts}.values()
        }
        calls = [
            self.ask(rank, method, refs[id(part)], **named)
            for rank, part in enumerate(scattered.parts)
        ]
        return PendingResult(calls, self.timeout_s, scattered)

    def _handed_on(
        self,
        method: str,
        pending: PendingResult,
        strategy: Strategy,
        named: Mapping[str, ObjectRef],
    ) -> PendingResult:
        found = pending.handed_on(strategy, self.layout)
        calls = [self.ask(rank, method, part, **named) for rank, part in enumerate(found.parts)]
        scattered = Scattered(parts=found.parts, sharded=found.sharded)
        return PendingResult(calls, self.timeout_s, scattered, pending.calls)

    def stop(self) -> None:
        """Terminate the group's agents, and with them their tasks."""
        if self._scheduler is None:
            raise InvalidRequestError(
                f"group {self.name} was made of handles and knows no scheduler; end its agents there"
            )
        _at_once(self._scheduler.delete_agent, self.agents)

    def require(self, method: str, advice: str = "") -> None:
        """Raise ``InvalidRequestError`` if an agent has no such method."""
        for rank, handle in enumerate(self.handles):
            if not hasattr(handle, method):
                raise InvalidRequestError(
                    f"rank {rank} (agent {self.agents[rank]}) of group {self.name} has no method "
                    f"{method!r}" + (f"; {advice}" if advice else "")
                )

    def ask(self, rank: int, method: str, *args: UserValue, **kwargs: UserValue) -> Call:
        """Call a method of one rank."""
        return self._call(rank, method, getattr(self.handles[rank], method).remote(*args, **kwargs))

    def ask_many(self, rank: int, method: str, answers: int, *args: UserValue) -> list[Call]:
        """Call a method of one rank that returns ``answers`` (2 or more) values as separate Ray objects."""
        bound = getattr(self.handles[rank], method).options(num_returns=answers)
        return [self._call(rank, method, ref) for ref in bound.remote(*args)]

    def _call(self, rank: int, method: str, ref: ObjectRef) -> Call:
        return Call(group=self.name, rank=rank, agent=self.agents[rank], method=method, ref=ref)


def _put(part: UserValue) -> ObjectRef:
    """The object reference of a part; a strategy may return references itself."""
    if isinstance(part, ray.ObjectRef):
        return part
    try:
        return ray.put(wrapped(part))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        path, value, reason = _first_unsendable(part, ()) or ((), part, error)
        raise InvalidRequestError(
            f"at {spelled(path)} lies a {type(value).__name__}, which cannot be sent: {reason}; allowed is "
            f"what pickle can pickle"
        ) from None


def _first_unsendable(value: UserValue, path: Path) -> tuple[Path, UserValue, Exception] | None:
    """The first leaf of a tree that cannot be pickled: its path, itself, and why."""
    if isinstance(value, (Mapping, list, tuple)):
        members = value.items() if isinstance(value, Mapping) else enumerate(value)
        found = (_first_unsendable(member, (*path, key)) for key, member in members)
        return next(filter(None, found), None)
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001  # a class of the user's may raise anything
        return path, value, error
    return None


def _plain(scheduler: RayScheduler | SchedulerFacade) -> RayScheduler:
    """The RayScheduler of a SimpleScheduler."""
    return cast("RayScheduler", getattr(scheduler, "scheduler", scheduler))


def _at_once(act: Callable[[str], _T], given: Sequence[str]) -> list[_T]:
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return list(threads.map(act, given))


def _all_or_none(
    scheduler: RayScheduler, group: str, names: Sequence[str], start: Callable[[int], SubmitResult]
) -> list[ActorHandle]:
    """The handles of all agents; if one does not start, the others are terminated."""
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        started = [threads.submit(start, rank) for rank in range(len(names))]
    outcomes: list[Any] = [each.exception() or each.result() for each in started]
    runs = [isinstance(outcome, Mapping) and outcome["success"] for outcome in outcomes]
    if all(runs):
        return [outcome["agent"]["handle"] for outcome in outcomes]
    _at_once(scheduler.delete_agent, [name for name, ran in zip(names, runs, strict=True) if ran])
    failed = runs.index(False)
    if isinstance(outcomes[failed], BaseException):
        raise outcomes[failed]
    raise GroupRefusedError(
        f"group {group} was not started: agent {names[failed]}: {outcomes[failed]['error']}",
        outcomes[failed],
    )
