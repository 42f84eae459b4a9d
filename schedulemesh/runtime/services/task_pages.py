"""Listings and their pages, looked at in portions between which others are served. So a dashboard costs
others little, however many tasks wait; of tasks only the rows of the page are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.calls import CALLS
from schedulemesh.api.pages import (
    ListPage,
    PageQuery,
    Scalar,
    Selected,
    Selection,
    foreign_cursor,
)
from schedulemesh.api.preemption import ListPreemptions
from schedulemesh.api.states import ListSavedStates
from schedulemesh.api.tasks import ListTasks
from schedulemesh.domain.priorities import class_of, own_class_of
from schedulemesh.domain.task import INTERNAL, TaskSpec
from schedulemesh.engine.admission.needs import why_ruled_out
from schedulemesh.engine.admission.refusals import pool_not_found
from schedulemesh.engine.admission.time_limits import run_limit
from schedulemesh.engine.explanation.waiting import WaitCauses
from schedulemesh.engine.state.agents import Agent, kind_of
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import Queue
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.tasks import RunningTask
from schedulemesh.protocol.answers import Details, Listed, Refusal, WithHandles, details, listed
from schedulemesh.runtime.backend import Handle
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.preemption_rows import of_tasks, preemption_row, selected
from schedulemesh.runtime.queries import StateView, limit_at, picked, queued_task, saved_state
from schedulemesh.runtime.services.jobs import JobService
from schedulemesh.runtime.services.queue_rows import QueueRows, expected_duration, in_order
from schedulemesh.runtime.services.running import RunningSupervisor, Service

#: The fields that distinguish the rows of each listing that has pages; the last one is an id.
_KEYS: dict[str, tuple[str, ...]] = {
    listing.paged: listing.key for call in CALLS for listing in call.listings if listing.paged
}

_OF_SPEC = frozenset(TaskSpec.__struct_fields__) - INTERNAL

Task = RunningTask | QueuedTask
Row = Mapping[str, object]
MakeRow = Callable[[], Row | None]
#: What makes each row, with the values of the fields that distinguish it.
KeyedMakers = Sequence[tuple[tuple[Scalar, ...], MakeRow]]
#: Ids of rows; None: all.
Ids = Collection[Scalar] | None


class TaskPages(Service):
    """Lists tasks, agents, preemptions and saved states, and pages of them and of jobs."""

    def __init__(self, running: RunningSupervisor, jobs: JobService) -> None:
        super().__init__(running)
        self._jobs = jobs
        #: By listing: what makes the rows with these ids.
        self._makers: dict[str, Callable[[Ids], KeyedMakers]] = {
            "agents": self._agents_by_name,
            "jobs": self._jobs_by_id,
            "preemptions": self._preemptions_by_time,
            "saved_states": self._saved_states,
        }

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
    async def all(self, request: ListTasks) -> Listed:
        """The tasks: those that run, then those that wait in the order of each queue."""
        reactor = self._reactor
        while True:
            await reactor.until_consistent()
            engine, state = reactor.engine, reactor.state
            tasks: list[Task] = [*picked(state.running.by_id, request.task_ids)]
            tasks += in_order(state.queue, request.task_ids)
            rows = await self._rows(tasks, of_queue=False)
            await reactor.flushed()
            if reactor.engine is engine:
                return listed(rows)

    @handler
    async def agents(self, request: ListAgents) -> WithHandles | Refusal:
        """Each agent that is asked for, with its Ray handle; a gang with those of all members."""
        await self._reactor.until_consistent()
        state, name = self._reactor.state, request.pool_name
        if name is not None and name not in state.ledger.accounts:
            return Refusal(refused=pool_not_found(state, name))

        def begin() -> list[Callable[[], tuple[Row, list[Handle | None]]]]:
            view = self._view(self._reactor.state)
            agents = view.agents(name, request.names)
            return [partial(_with_handles, view, agent) for agent in agents]

        rows_and_handles = await self._reactor.read_rows(begin)
        handles = [handle for _, of_agent in rows_and_handles for handle in of_agent]
        return WithHandles(answer=listed([row for row, _ in rows_and_handles]), handles=handles)

    @handler
    async def preemptions(self, request: ListPreemptions) -> Listed:
        """The preemptions that are asked for, those in progress included, newest last."""

        def begin() -> list[MakeRow]:
            records = self._reactor.state.evictions.records.values()
            return [partial(preemption_row, record) for record in selected(records, request)]

        return listed(await self._reactor.read_rows(begin))

    @handler
    async def saved_states(self, request: ListSavedStates) -> Listed:
        """Every task with a stored state, and every lost task: running, preempted or lost."""

        def begin() -> list[MakeRow]:
            return [make for _, make in self._saved_states(request.task_ids)]

        return listed(await self._reactor.read_rows(begin))

    async def _page_of_rows(self, request: ListPage) -> Details:
        """A page of a listing of which each row is made, unless they are asked for by id or in the order of
        what distinguishes them.
        """
        query, key = request.page, _KEYS[request.listing]
        makers, ids = self._makers[request.listing], query.values_of(key[-1])
        if query.is_filtered_by_others_than(key[-1]) or query.order != _in_order_of(key):
            rows = await self._reactor.read_rows(lambda: [make for _, make in makers(ids)])
            selection = Selection[Row](query, lambda row, field: row.get(field))
            await self._reactor.turns.each(rows, selection.add)
            chosen = selection.selected()
        else:
            chosen = await self._cut(lambda: makers(ids), query)
        if request.listing == "jobs":
            await self._jobs.with_claims(chosen.items)
        return details(chosen._asdict())

    async def _cut(self, keyed: Callable[[], KeyedMakers], query: PageQuery) -> Selected:
        """The rows after the cursor, of which no others are made."""
        total, following = 0, 0

        def begin() -> list[MakeRow]:
            nonlocal total, following
            makers = keyed()
            total = len(makers)
            makers = _in_page_order(makers, query.after)
            following = len(makers) - query.limit
            return [make for _, make in makers[: query.limit]]

        rows = await self._reactor.read_rows(begin)
        return Selected(rows, total, following > 0)

    def _agents_by_name(self, names: Ids) -> KeyedMakers:
        view = self._view(self._reactor.state)
        return [((a.spec.name,), partial(view.agent, a)) for a in view.agents(names=names)]

    def _jobs_by_id(self, task_ids: Ids) -> KeyedMakers:
        return [((task_id,), make) for task_id, make in self._jobs.row_makers(task_ids)]

    def _preemptions_by_time(self, task_ids: Ids) -> KeyedMakers:
        records = self._reactor.state.evictions.records.values()
        return [
            ((record.decided_at, record.task.task_id), partial(preemption_row, record))
            for record in of_tasks(records, task_ids)
        ]

    def _saved_states(self, task_ids: Ids) -> KeyedMakers:
        saved = self._view(self._reactor.state).saved_states(task_ids)
        return [((entry[0].task_id,), partial(saved_state, entry)) for entry in saved]

    async def _selected(self, request: ListPage) -> Selected:
        """The tasks of the page."""
        state, query = self._reactor.state, request.page
        in_own_order = query.order == _in_order_of(_KEYS[request.listing])
        is_whole = not query.is_filtered_by_others_than("pool_name")
        if request.listing == "queue" and in_own_order and is_whole:
            return _page_of_queue(state.queue, query)
        ids = query.values_of("task_id")
        tasks: list[Task] = [*picked(state.queue.by_id, ids)]
        if request.listing == "tasks":
            tasks = [*picked(state.running.by_id, ids), *tasks]
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
        view, queue = self._view(state), state.queue
        rows = QueueRows(state, self._reactor.engine.wait_causes(now), now)

        def row_of(task: Task) -> Row | None:
            if isinstance(task, RunningTask):
                # It has ended, if it is not there; a page shows what was there when it was looked at.
                return view.running_task(task)
            if queue.by_id.get(task.task_id) is not task:
                return None
            row = rows.row(task, queue.position(task))
            return row.public() if of_queue else queued_task(row, state.policy.links)

        return row_of

    def _view(self, state: MeshState) -> StateView:
        return StateView(state, self._agents, self._groups, self._reactor.now())


def _with_handles(view: StateView, agent: Agent) -> tuple[Row, list[Handle | None]]:
    return view.agent(agent), view.handles(agent)


class _Fields:
    """The values of the fields of tasks, without making their rows where that is possible."""

    def __init__(self, state: MeshState, causes: WaitCauses, now: float) -> None:
        self._state, self._causes, self._now = state, causes, now

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
        if field == "priority_class":
            own_classes = self._state.policy.priority_classes
            return class_of(spec.priority, own_class_of(spec.priority, own_classes))
        if isinstance(task, RunningTask):
            return self._of_running(task, field)
        if field in _OF_WAITING:
            return _OF_WAITING[field](task)
        return self._of_waiting(task, field)

    def _of_waiting(self, task: QueuedTask, field: str) -> object:
        state = self._state
        match field:
            case "position":
                return state.queue.position(task)
            case "reason":
                return self._causes.cause_of(task).reason
            case "waiting_time":
                return max(0.0, self._now - task.queued_at)
            case "expected_duration":
                return expected_duration(state, task)[0]
            case "estimated_from":
                return expected_duration(state, task)[1]
            case "run_limit_s":
                return run_limit(state, task.pool_name, task.spec)
            case "cannot_start":
                return why_ruled_out(state, task)
            case _:
                return None

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
            case "limit_at":
                return limit_at(task)
            case "alternative":
                agent = self._state.agents.get(task.agent_name)
                return 0 if agent is None else agent.spec.taken
            case "flavor":
                agent = self._state.agents.get(task.agent_name)
                return "" if agent is None else agent.spec.taken_flavor
            case _:
                return None


_OF_WAITING: dict[str, Callable[[QueuedTask], object]] = {
    "agent_name": lambda task: task.agent_name,
    "kind": lambda task: task.common.agent.kind,
    "phase": lambda _: "queued",
    "state": lambda _: "queued",
    "node_id": lambda _: None,
    "started_at": lambda _: None,
    "remaining_time": lambda task: task.spec.estimated_duration or 0.0,
    "limit_at": lambda _: None,
    "alternative": lambda _: 0,
    "flavor": lambda _: "",
    "held": lambda task: task.held,
    "queued_at": lambda task: task.queued_at,
    "arrived_at": lambda task: task.arrived_at,
    "not_before": lambda task: task.not_before or None,
    "reserved_start": lambda task: None if task.reservation is None else task.reservation.at,
    "preemptions": lambda task: task.attempts.preemptions,
}


def _in_order_of(key: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """The order of rows by these fields."""
    return tuple((field, False) for field in key)


def _in_page_order(makers: KeyedMakers, after: tuple[Scalar, ...] | None) -> KeyedMakers:
    """The rows in the order of their keys, without those up to the cursor. Raises InvalidRequestError for a
    cursor that cannot be compared with them.
    """
    try:
        later = makers if after is None else [entry for entry in makers if entry[0] > after]
        return sorted(later, key=itemgetter(0))
    except TypeError:
        raise foreign_cursor() from None


def _page_of_queue(queue: Queue, query: PageQuery) -> Selected:
    """The tasks after the cursor, in the order of the queue of each pool that is asked for."""
    pools = query.values_of("pool_name")
    names = sorted(name for name in queue.pools if pools is None or name in pools)
    first, begin = ("", 0) if query.after is None else _place_after(queue, query.after)
    in_order = (
        task
        for name in names
        if name >= first
        for task in queue.of_pool(name, begin if name == first else 0)
    )
    items = [*islice(in_order, query.limit + 1)]
    total = sum(map(queue.size, names))
    return Selected(items[: query.limit], total, len(items) > query.limit)


def _place_after(queue: Queue, after: tuple[Scalar, ...]) -> tuple[str, int]:
    """The pool of a cursor, and the place in its queue of the first task after it, beginning with 0. Raises
    InvalidRequestError for a cursor of another listing.
    """
    pool_name, position, task_id = after
    if not (
        isinstance(pool_name, str)
        and isinstance(position, float | int)
        and isinstance(task_id, str)
    ):
        raise foreign_cursor()
    task = queue.by_id.get(task_id)
    if task is not None and task.pool_name == pool_name:
        return pool_name, queue.position(task)
    # It waits no more, so the next one has its place.
    return pool_name, int(min(max(1.0, position), queue.size(pool_name) + 1.0)) - 1
