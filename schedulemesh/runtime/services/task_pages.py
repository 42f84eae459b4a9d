"""Listings and their pages, looked at in portions between which others are served. So a dashboard costs
others little, however many tasks wait; of tasks only the rows of the page are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.pages import ListPage, PageQuery, Selected, Selection
from schedulemesh.api.preemption import MAX_PREEMPTIONS, ListPreemptions
from schedulemesh.api.states import ListSavedStates
from schedulemesh.api.tasks import ListTasks
from schedulemesh.domain.task import INTERNAL, TaskSpec
from schedulemesh.engine.admission.refusals import pool_not_found
from schedulemesh.engine.explanation.waiting import WaitCauses
from schedulemesh.engine.state.agents import Agent, kind_of
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.answers import Details, Listed, Refusal, WithHandles, details, listed
from schedulemesh.runtime.backend import Handle
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.preemption_rows import preemption_row, selected
from schedulemesh.runtime.queries import StateView, queued_task, saved_state
from schedulemesh.runtime.services.jobs import JobService
from schedulemesh.runtime.services.queue_rows import queue_row
from schedulemesh.runtime.services.running import RunningSupervisor, Service

#: The order of the queue, in which it needs not be sorted.
_OF_QUEUE = (("pool_name", False), ("position", False), ("task_id", False))

_OF_SPEC = frozenset(TaskSpec.__struct_fields__) - INTERNAL

Task = RunningTask | QueuedTask
Row = Mapping[str, object]
MakeRow = Callable[[], Row]


class TaskPages(Service):
    """Lists tasks, agents, preemptions and saved states, and pages of them and of jobs."""

    def __init__(self, running: RunningSupervisor, jobs: JobService) -> None:
        super().__init__(running)
        self._jobs = jobs

    @handler
    async def page(self, request: ListPage) -> Details:
        """The page; what it shows is durable. Raises InvalidRequestError for a cursor of another listing."""
        if request.listing not in ("tasks", "queue"):
            return await self._page_of_rows(request)
        reactor = self._reactor
        while True:
            await reactor.until_consistent()
            engine = reactor.engine
            selected = await self._selected(request)
            if reactor.engine is not engine:
                continue
            rows = await self._rows(selected.items, of_queue=request.listing == "queue")
            await reactor.flushed()
            if reactor.engine is engine:
                return Details(
                    facts={"items": rows, "total": selected.total, "more": selected.more}
                )

    @handler
    async def all(self, _: ListTasks) -> Listed:
        """Every task: those that run, then those that wait in the order of each queue."""
        reactor = self._reactor
        while True:
            await reactor.until_consistent()
            engine, state = reactor.engine, reactor.state
            waiting = [t for name in sorted(state.queue.pools) for t in state.queue.of_pool(name)]
            tasks: list[Task] = [*state.running.by_id.values(), *waiting]
            rows = await self._rows(tasks, of_queue=False)
            await reactor.flushed()
            if reactor.engine is engine:
                return listed(rows)

    @handler
    async def agents(self, request: ListAgents) -> WithHandles | Refusal:
        """Each agent of a pool, or of all, with its Ray handle; of a gang with those of all members."""
        await self._reactor.until_consistent()
        state, name = self._reactor.state, request.pool_name
        if name is not None and name not in state.ledger.accounts:
            return Refusal(refused=pool_not_found(state, name))
        rows_and_handles = await self._agents_of(name)
        handles = [handle for _, of_agent in rows_and_handles for handle in of_agent]
        return WithHandles(answer=listed([row for row, _ in rows_and_handles]), handles=handles)

    async def _agents_of(self, pool_name: str | None) -> list[tuple[Row, list[Handle | None]]]:
        def begin() -> list[Callable[[], tuple[Row, list[Handle | None]]]]:
            view = self._view(self._reactor.state)
            return [partial(_with_handles, view, agent) for agent in view.agents(pool_name)]

        return await self._reactor.read_rows(begin)

    @handler
    async def preemptions(self, request: ListPreemptions) -> Listed:
        """The preemptions that are asked for, those in progress included, newest last."""

        def begin() -> list[MakeRow]:
            records = self._reactor.state.evictions.records.values()
            return [partial(preemption_row, record) for record in selected(records, request)]

        return listed(await self._reactor.read_rows(begin))

    @handler
    async def saved_states(self, _: ListSavedStates) -> Listed:
        """Every task with a stored state, and every lost task: running, preempted or lost."""

        def begin() -> list[MakeRow]:
            entries = self._view(self._reactor.state).saved_states()
            return [partial(saved_state, entry) for entry in entries]

        return listed(await self._reactor.read_rows(begin))

    async def _page_of_rows(self, request: ListPage) -> Details:
        """A page of a listing whose rows are all made."""
        rows: Sequence[Row]
        match request.listing:
            case "agents":
                rows = [row for row, _ in await self._agents_of(None)]
            case "jobs":
                rows = (await self._jobs.list(ListJobs())).rows
            case "preemptions":
                rows = (await self.preemptions(ListPreemptions(limit=MAX_PREEMPTIONS))).rows
            case _:
                rows = (await self.saved_states(ListSavedStates())).rows
        selection = Selection[Row](request.page, lambda row, field: row.get(field))
        await self._reactor.turns.each(rows, selection.add)
        return details(selection.selected()._asdict())

    async def _selected(self, request: ListPage) -> Selected:
        """The tasks of the page."""
        state, query = self._reactor.state, request.page
        if request.listing == "queue" and _is_beginning(query):
            return _beginning(state, query.limit)
        tasks: list[Task] = list(state.queue.by_id.values())
        if request.listing == "tasks":
            tasks = [*state.running.by_id.values(), *tasks]
        now = self._reactor.now()
        fields = _Fields(state, self._reactor.engine.wait_causes(now), now)
        selection = Selection[Task](query, fields.value)

        def add(portion: Sequence[Task]) -> None:
            # What has ended meanwhile is not listed.
            selection.add(filter(fields.is_there, portion))

        await self._reactor.turns.each(tasks, add)
        return selection.selected()

    async def _rows(self, tasks: Sequence[Task], *, of_queue: bool) -> list[Row]:
        """The rows of tasks that are still there when theirs is made."""
        make, rows = self._row_maker(of_queue=of_queue), list[Row]()

        def add(portion: Sequence[Task]) -> None:
            rows.extend(row for task in portion if (row := make(task)) is not None)

        await self._reactor.turns.each(tasks, add)
        return rows

    def _row_maker(self, *, of_queue: bool) -> Callable[[Task], Row | None]:
        """Makes the row of a task; None: it waits no more."""
        state, now = self._reactor.state, self._reactor.now()
        view, positions = self._view(state), _Positions(state)
        causes = self._reactor.engine.wait_causes(now)

        def row_of(task: Task) -> Row | None:
            if isinstance(task, RunningTask):
                # It has ended, if it is not there; a page shows what was there when it was looked at.
                return view.running_task(task)
            if state.queue.by_id.get(task.task_id) is not task:
                return None
            row = queue_row(state, task, positions.position_of(task), causes, now)
            return row.public() if of_queue else queued_task(row)

        return row_of

    def _view(self, state: MeshState) -> StateView:
        return StateView(state, self._agents, self._groups, self._reactor.now())


def _with_handles(view: StateView, agent: Agent) -> tuple[Row, list[Handle | None]]:
    return view.agent(agent), view.handles(agent)


class _Positions:
    """The positions of waiting tasks as all rows have them: those that may not start follow one another."""

    def __init__(self, state: MeshState) -> None:
        self._queue = state.queue
        self._may_not_start: dict[str, int] | None = None

    def position_of(self, task: QueuedTask) -> int:
        """The position of a task that waits."""
        if task.queue_class is not None:
            return self._queue.position(task)
        if self._may_not_start is None:
            self._may_not_start = self._counted()
        return self._may_not_start.get(task.task_id, self._queue.size(task.pool_name))

    def _counted(self) -> dict[str, int]:
        positions: dict[str, int] = {}
        last = {
            name: sum(len(c.entries) for c in pool.classes.values())
            for name, pool in self._queue.pools.items()
        }
        for task_id, task in self._queue.by_id.items():
            if task.queue_class is None:
                last[task.pool_name] += 1
                positions[task_id] = last[task.pool_name]
        return positions


class _Fields:
    """The values of the fields of tasks, without making their rows where that is possible."""

    def __init__(self, state: MeshState, causes: WaitCauses, now: float) -> None:
        self._state, self._causes, self._now = state, causes, now
        self._positions = _Positions(state)

    def is_there(self, task: Task) -> bool:
        """Whether a task still runs or waits."""
        if isinstance(task, RunningTask):
            return self._state.running.by_id.get(task.spec.task_id) is task
        return self._state.queue.by_id.get(task.task_id) is task

    def value(self, task: Task, field: str) -> object:
        """The value of a field as a row has it; None where it has none."""
        spec = task.spec
        if field in _OF_SPEC:
            return getattr(spec, field)
        if isinstance(task, RunningTask):
            return self._of_running(task, field)
        if field in _OF_WAITING:
            return _OF_WAITING[field](task)
        if field == "position":
            return self._positions.position_of(task)
        if field == "reason":
            return self._causes.cause_of(task).reason
        if field == "waiting_time":
            return max(0.0, self._now - task.queued_at)
        row = queue_row(self._state, task, 0, self._causes, self._now)
        return {**row.public(), **queued_task(row)}.get(field)

    def _of_running(self, task: RunningTask, field: str) -> object:
        match field:
            case "agent_name":
                return task.agent_name
            case "kind":
                return kind_of(self._state.agents, task.agent_name)
            case "phase":
                return task.phase.value
            case "node_id":
                agent = self._state.agents.get(task.agent_name)
                return None if agent is None else agent.node_id
            case "started_at":
                return task.started_at
            case "remaining_time":
                return task.remaining(self._now)
            case _:
                return None


_OF_WAITING: dict[str, Callable[[QueuedTask], object]] = {
    "agent_name": lambda task: task.submission.agent.name,
    "kind": lambda task: task.submission.agent.kind,
    "phase": lambda _: "queued",
    "state": lambda _: "queued",
    "node_id": lambda _: None,
    "started_at": lambda _: None,
    "remaining_time": lambda task: task.spec.estimated_duration or 0.0,
    "held": lambda task: task.held,
    "queued_at": lambda task: task.queued_at,
    "arrived_at": lambda task: task.arrived_at,
    "not_before": lambda task: task.not_before or None,
    "preemptions": lambda task: task.attempts.preemptions,
}


def _is_beginning(query: PageQuery) -> bool:
    return query.order == _OF_QUEUE and query.after is None and not (query.fields or query.labels)


def _beginning(state: MeshState, limit: int) -> Selected:
    """The first tasks of the queue, in its own order."""
    names = sorted(state.queue.pools)
    total = sum(map(state.queue.size, names))
    in_order = (task for name in names for task in state.queue.of_pool(name))
    items = list(islice(in_order, limit))
    return Selected(items, total, total > len(items))
