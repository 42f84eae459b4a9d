"""Groups of agents with a parallel layout: distribute batches to them and collect results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Union

from ray import ObjectRef
from ray.actor import ActorHandle

from schedulemesh.client.arguments import public_calls
from schedulemesh.client.results import SubmitResult
from schedulemesh.core.transport.handles import actor_id
from schedulemesh.core.worker_groups.declared_calls import DRIVER, declared_call
from schedulemesh.core.worker_groups.members import Member, known_of, returned, running_again
from schedulemesh.core.worker_groups.pending_result import PendingResult
from schedulemesh.core.worker_groups.sending import put, put_once
from schedulemesh.core.worker_groups.starting import (
    all_or_none,
    terminate,
)
from schedulemesh.core.worker_groups.worker_calls import WorkerCall, results
from schedulemesh.core.worker_groups.worker_facts import agreed, worker_facts
from schedulemesh.dispatch.declarations import UNDECLARED, MethodDeclaration, declarations
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.meshes import check_reports, reported_layout
from schedulemesh.dispatch.strategies import Scattered, scatter
from schedulemesh.dispatch.trees import Spec
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.user_data import UserClass, UserValue
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins.dispatch import DispatchStrategyPlugin

if TYPE_CHECKING:
    from schedulemesh.core.client.scheduler import RayScheduler

#: How often a member that died is made again, unless the submission says it.
_RETRIES = 3
#: The method with which a worker reports its coordinates.
_MESH = "parallel_mesh"
#: How data is distributed: a sharding or a tree of them, a plugin, or a name.
Strategy = Union[str, Spec, DispatchStrategyPlugin]


@public_calls
class WorkerGroup:
    """A group of agents, each with a rank in a parallel layout.

    ``handles`` are their Ray handles by rank, ``layout`` arranges the ranks (None: as the workers report with
    their method ``parallel_mesh``, all on ``dp`` if they have none), ``agents`` are their names (None:
    generated). ``timeout_s`` is the default limit for waiting for the group; None: no limit. The death of a
    worker is detected even without a limit.
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
        declared: Mapping[str, MethodDeclaration] | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        self.name = parse_name(name, "the group's name")
        self.handles = tuple(handles)
        agent_names = (
            [f"{name}-{rank}" for rank in range(len(self.handles))] if agents is None else agents
        )
        self.agents = tuple(agent_names)
        #: Identifies each worker, also across groups.
        self.workers = tuple(map(actor_id, self.handles))
        self.timeout_s = timeout_s
        self._scheduler = scheduler
        self._declared = declared
        #: The tasks of the agents, by rank; empty: they are not known.
        self._tasks = tuple(tasks)
        self.layout = self._reported() if layout is None else layout
        if not len(self.agents) == len(set(self.workers)) == len(self.handles) == self.layout.size:
            raise InvalidRequestError(
                f"group {name} has {len(self.handles)} handles ({len(set(self.workers))} of them "
                f"different) and {len(self.agents)} names; its layout {self.layout} needs {self.layout.size}"
            )

    @classmethod
    def of_agents(
        cls,
        scheduler: RayScheduler,
        name: str,
        agents: Sequence[str],
        layout: ParallelLayout | None = None,
        *,
        timeout_s: float | None = None,
    ) -> WorkerGroup:
        """The group of these agents of a scheduler, in the order of their ranks."""
        listed = scheduler.list_agents()["agents"]
        living = {agent["name"]: agent for agent in listed if agent["handle"] is not None}
        missing = [agent for agent in agents if agent not in living]
        if missing:
            raise InvalidRequestError(
                f"agents {missing} of group {name} do not run; there are {sorted(living)}"
            )
        members = [living[agent] for agent in agents]
        tasks = [agent["tasks"][0] for agent in members if len(agent["tasks"]) == 1]
        group = cls(
            name,
            [agent["handle"] for agent in members],
            layout,
            agents=agents,
            timeout_s=timeout_s,
            scheduler=scheduler,
            tasks=tasks if len(tasks) == len(members) else (),
        )
        group.check_mesh()
        return group

    @classmethod
    def submit(
        cls,
        scheduler: RayScheduler,
        name: str,
        actor_class: UserClass,
        *,
        layout: ParallelLayout | None = None,
        size: int | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        **fields: UserValue,
    ) -> WorkerGroup:
        """Start an agent per rank and return them as a group.

        ``size`` is the number of ranks if the workers report the layout. Rank r is the agent and task
        ``{name}-{r}``, with ``worker_group`` and ``rank`` among its labels. ``resources`` (of one agent),
        ``priority``, ``actor_kwargs`` and the other ``fields`` are those of ``submit_task_with_preemption``;
        by default ``on_preempted`` is "requeue" and ``max_retries`` 3, so that a member that is evicted or
        dies is made again. Raises ``GroupRefusedError`` if one is refused; those that had started are
        terminated.
        """
        ranks = size if layout is None else layout.size
        if ranks is None or (layout is not None and size not in (None, ranks)):
            raise InvalidRequestError(
                f"group {name} was given the layout {layout} and size={size}; allowed is a layout, or the "
                f"number of ranks if the workers report the layout with parallel_mesh"
            )
        names = [f"{parse_name(name, 'the group name')}-{rank}" for rank in range(ranks)]
        fields = {"on_preempted": "requeue", "max_retries": _RETRIES, **fields}

        def start(rank: int) -> SubmitResult:
            return scheduler.submit_task_with_preemption(
                names[rank],
                pool,
                actor_class,
                agent_name=names[rank],
                labels={**(labels or {}), "worker_group": name, "rank": str(rank)},
                **fields,
            )

        handles = all_or_none(scheduler, name, names, start)
        try:
            group = cls(
                name,
                handles,
                layout,
                agents=names,
                timeout_s=timeout_s,
                scheduler=scheduler,
                declared=declarations(actor_class),
                tasks=names,
            )
            group.check_mesh()
        except BaseException:
            terminate(scheduler, names, names)
            raise
        return group

    @property
    def ranks(self) -> range:
        """Its ranks, from 0."""
        return range(self.layout.size)

    def call(self, method: str, *args: UserValue, **kwargs: UserValue) -> PendingResult:
        """Call a method as its class declares it with ``schedulemesh.dispatch.dispatch``.

        A method without a declaration is called on every rank with the same arguments. Equal values are put
        into Ray's object store once. Raises ``InvalidRequestError`` if the arguments contradict the
        declaration.
        """
        self.require(method)
        declared = self._declaration(method) or UNDECLARED
        return declared_call(self, method, declared, {**dict(enumerate(args)), **kwargs})

    def __getattr__(self, name: str) -> Callable[..., PendingResult]:
        """A method that the workers' class declares: ``group.update(batch)`` is
        ``group.call("update", batch)``.
        """
        handles = self.__dict__.get("handles", ())
        exists = not name.startswith("_") and any(hasattr(handle, name) for handle in handles)
        if exists and self._declaration(name) is not None:
            return partial(self.call, name)
        advice = (
            f"its workers declare nothing of their method {name!r}; use call({name!r}, …), or declare it "
            f"with @dispatch"
            if exists
            else "allowed are its own calls, and the methods that its workers declare with @dispatch"
        )
        raise AttributeError(
            f"group {self.__dict__.get('name')} has no attribute {name!r}: {advice}",
            name=name,
            obj=self,
        )

    def dispatch(
        self,
        method: str,
        data: UserValue,
        strategy: Strategy | None = None,
        *,
        source: WorkerGroup | None = None,
        arguments: Mapping[str, UserValue] | None = None,
    ) -> PendingResult:
        """Distribute the data and call a method on every rank with its part, None if it gets nothing.

        ``strategy`` is a ``Sharding``, a tree of them, a plugin, or a name: "data_parallel", "every_rank",
        "replicate" or that of an installed one (see ``schedulemesh.dispatch.scatter``); None: the one that
        the method declares, else "data_parallel". Equal parts are put into Ray's object store once.
        ``arguments`` are passed to every rank by name. A plugin sees ``source`` as ``workers_a``; None: the
        driver.

        The data may be the pending result of a call to any group: its rows then pass from worker to worker.
        Each result has the rows of the part that its worker was given, and the strategy is a built-in name or
        a ``Sharding`` of the rows; ``pending["ids"]`` is one key of
        results that are dicts.

        Tensors arrive on the CPU, as the worker's own copy; NumPy arrays as read-only views. Raises
        ``InvalidRequestError`` if the data does not fit the strategy, there is no such method, or it is
        declared to be called without rows.
        """
        self.require(method)
        declared = self._declaration(method)
        if declared is not None and not declared.splits_rows:
            raise InvalidRequestError(
                f"{method} of group {self.name} is declared {declared.mode.value}, which splits no rows; use "
                f"call({method!r}, …), or declare it DP_COMPUTE_PROTO"
            )
        if strategy is None:
            strategy = "data_parallel" if declared is None else declared.strategy
        named = {name: put(each) for name, each in (arguments or {}).items()}
        earlier: Sequence[WorkerCall] = ()
        rank_parts: Sequence[UserValue]
        if isinstance(data, PendingResult):
            handed = data.handed_on(strategy, self.layout)
            scattered = Scattered(parts=handed.parts, sharded=handed.sharded)
            rank_parts, earlier = handed.parts, data.calls
        else:
            scattered = scatter(data, strategy, DRIVER if source is None else source, self)
            rank_parts = put_once(scattered.parts)
        calls = [self.ask(rank, method, part, **named) for rank, part in enumerate(rank_parts)]
        return PendingResult(calls, self.timeout_s, scattered, earlier, declared=declared)

    def _declaration(self, method: str) -> MethodDeclaration | None:
        """What the workers' class declares of a method; None: nothing. The workers are asked once."""
        if self._declared is None:
            refs = [handle.__ray_call__.remote(worker_facts) for handle in self.handles]
            calls = [self._call(rank, method, ref) for rank, ref in enumerate(refs)]
            facts = results(calls, self.timeout_s)
            self._declared = agreed([each.declared for each in facts], self.agents, self.name)
        return self._declared.get(method)

    def wait_until_ready(self, timeout_s: float | None = None) -> tuple[int, ...]:
        """Wait until all ranks run, also those that died or were evicted; return those that were made again.

        A member that was evicted returns with its saved state when it fits again, one that died from the
        state that was saved last; what it held beside that, such as weights, has to be moved to it again.
        Calls then reach the new workers. Raises ``WorkerDiedError`` for a member that will not run again, and
        ``WorkerTimeoutError`` after ``timeout_s`` seconds (None: the group's limit), with what is known.
        """
        if self._scheduler is None or not self._tasks:
            raise InvalidRequestError(
                f"of group {self.name} the scheduler's tasks are not known, one of each agent; allowed are "
                f"groups of submit, and of of_agents if each agent has one task"
            )
        members = [
            Member(group=self.name, rank=rank, agent=agent, task=task, handle=handle)
            for rank, (agent, task, handle) in enumerate(
                zip(self.agents, self._tasks, self.handles, strict=True)
            )
        ]
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        handles = running_again(self._scheduler, members, timeout_s)
        self.handles = tuple(handles)
        self.workers = tuple(map(actor_id, handles))
        changed = returned(members, handles)
        if changed:
            self.check_mesh()
        return changed

    def check_mesh(self) -> None:
        """Raise ``InvalidRequestError`` if workers report other coordinates than they have in the layout."""
        if hasattr(self.handles[0], _MESH):
            check_reports(self.layout, self._meshes(), self.agents, f"group {self.name}")

    def stop(self) -> None:
        """Terminate the group's agents, and with them their tasks."""
        if self._scheduler is None:
            raise InvalidRequestError(
                f"group {self.name} was made of handles and knows no scheduler; end its agents there"
            )
        terminate(self._scheduler, self.agents, self._tasks)

    def _reported(self) -> ParallelLayout:
        """The layout that the workers report; all on dp if they report none."""
        complete = 0 < len(self.handles) == len(self.agents)
        if complete and hasattr(self.handles[0], _MESH):
            return reported_layout(self._meshes(), self.agents, self.name)
        return ParallelLayout.of(dp=len(self.handles))

    def _meshes(self) -> list[UserValue]:
        """What each worker reports."""
        self.require(_MESH, "the other workers report their coordinates with it")
        return results([self.ask(rank, _MESH) for rank in range(len(self.handles))], self.timeout_s)

    def require(self, method: str, advice: str = "") -> None:
        """Raise ``InvalidRequestError`` if an agent has no such method."""
        for rank, handle in enumerate(self.handles):
            if not hasattr(handle, method):
                raise InvalidRequestError(
                    f"rank {rank} (agent {self.agents[rank]}) of group {self.name} has no method "
                    f"{method!r}" + (f"; {advice}" if advice else "")
                )

    def ask(self, rank: int, method: str, *args: UserValue, **kwargs: UserValue) -> WorkerCall:
        """Call a method of one rank."""
        return self._call(rank, method, getattr(self.handles[rank], method).remote(*args, **kwargs))

    def ask_many(self, rank: int, method: str, answers: int, *args: UserValue) -> list[WorkerCall]:
        """Call a method of one rank that returns ``answers`` (2 or more) values as separate Ray objects."""
        bound = getattr(self.handles[rank], method).options(num_returns=answers)
        return [self._call(rank, method, ref) for ref in bound.remote(*args)]

    def ask_directly(self, rank: int, method: str, transport: str, *args: UserValue) -> WorkerCall:
        """Call a method of one rank whose tensors are received by a direct transport."""
        bound = getattr(self.handles[rank], method).options(tensor_transport=transport)
        return self._call(rank, method, bound.remote(*args))

    def _call(self, rank: int, method: str, ref: ObjectRef) -> WorkerCall:
        scheduler, tasks = self._scheduler, self._tasks
        return WorkerCall(
            group=self.name,
            rank=rank,
            agent=self.agents[rank],
            method=method,
            ref=ref,
            known=partial(known_of, scheduler, tasks[rank]) if scheduler and tasks else None,
        )
