"""A page of tasks that the supervisor makes is the one that all rows would give."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.pages import ListPage, PageQuery, Selection
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.preemption import MAX_PREEMPTIONS, ListPreemptions, PreemptTask
from schedulemesh.api.queue import ChangeQueuedTask, ListQueue, QueueListing
from schedulemesh.api.rows import scalar_fields
from schedulemesh.api.states import ListSavedStates
from schedulemesh.api.tasks import ListTasks, SubmitMany, TaskListing
from schedulemesh.config.settings import HistorySettings
from schedulemesh.domain.payloads import RUN_DRIVER, JobPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol import portions as turns_module
from schedulemesh.protocol.answers import Malformed, WithHandles, read_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from schedulemesh.runtime.services.jobs import JobService
from schedulemesh.runtime.services.task_pages import TaskPages
from tests.runtime.composition import InThread
from tests.server.work import CLASS, ask, key_of, submission

ROWS = {"tasks": TaskListing, "queue": QueueListing}
#: They differ from one moment to the next.
_PASSING = ("waiting_time", "remaining_time")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """Three tasks run, and seventy wait in two pools."""
    # Nothing changes while pages are compared, however long that takes: neither is the cluster observed, nor
    # are the reasons looked at why tasks wait.
    quiet = {"monitor_interval_s": 3600.0, "history": HistorySettings(enabled=False)}
    mesh = InThread(tmp_path_factory.mktemp("pages") / "j.sqlite", **quiet)
    room = parse_resources({"cpu": 3})
    mesh.backend.free = [NodeView(node_id="node-1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    for name in ("p", "q"):
        ask(mesh, EnsurePool(name=name, resources=parse_resources({"cpu": 100}), labels={}))
    chance = random.Random(7)
    names = [f"t{number:02}" for number in range(73)]
    chance.shuffle(names)
    given = [
        submission(n, priority=float(chance.randrange(4)), pool=chance.choice("pq")) for n in names
    ]
    ask(mesh, SubmitMany(submissions=tuple(given), blobs={key_of(CLASS): CLASS}))
    waiting = [row.task.task_id for row in ask(mesh, ListQueue()).rows]
    for name in waiting[::9]:
        ask(mesh, ChangeQueuedTask(task_id=name, held=True, request_id=f"hold {name}"))
    yield mesh
    mesh.close()


def all_rows(mesh, listing):
    if listing == "tasks":
        return ask(mesh, ListTasks()).rows
    return [row.public() for row in ask(mesh, ListQueue()).rows]


def lasting(rows):
    return [{k: v for k, v in row.items() if k not in _PASSING} for row in rows]


@pytest.mark.parametrize("listing", ["tasks", "queue"])
def test_pages_are_those_of_all_rows(mesh, listing, monkeypatch):
    monkeypatch.setattr(turns_module, "PORTION", 10)
    rows = all_rows(mesh, listing)
    key = ("task_id",) if listing == "tasks" else ("pool_name", "position", "task_id")
    fields = [field for field in scalar_fields(ROWS[listing]) if field not in _PASSING]
    for number, field in enumerate(fields):
        order = tuple((f, f == field and number % 2 == 0) for f in (field, *key) if f != "")
        value = rows[number % len(rows)].get(field)
        for chosen in ({}, {"fields": ((field, (value,)),)}, {"labels": (("team", "x"),)}):
            query = PageQuery(order=tuple(dict(order).items()), limit=7, **chosen)
            expected = Selection(query, lambda row, name: row.get(name))
            expected.add(rows)
            page = ask(mesh, ListPage(listing=listing, page=query)).facts
            assert lasting(page["items"]) == lasting(expected.selected().items), query
            assert (page["total"], page["more"]) == expected.selected()[1:]


@pytest.mark.parametrize("listing", ["tasks", "queue"])
@pytest.mark.parametrize("descending", [False, True])
def test_all_pages_together_have_every_row_once(mesh, listing, descending):
    rows = all_rows(mesh, listing)
    order = (("pool_name", False), ("position", False), ("task_id", descending))
    found, after, more = [], None, True
    while more:
        query = PageQuery(order=order, limit=10, after=after)
        page = ask(mesh, ListPage(listing=listing, page=query)).facts
        found += page["items"]
        more = page["more"]
        after = tuple(page["items"][-1].get(field) for field, _ in order)
    assert sorted(row["task_id"] for row in found) == sorted(row["task_id"] for row in rows)
    if listing == "queue" and not descending:
        assert [row["task_id"] for row in found] == [row["task_id"] for row in rows]


def test_a_field_that_is_named_several_times_has_a_value_of_each():
    def selected(*fields):
        page = PageQuery(fields=fields, order=(("n", False),))
        selection = Selection[dict](page, lambda row, field: row.get(field))
        selection.add({"n": float(number), "labels": {"a": "b"}} for number in range(5))
        return [row["n"] for row in selection.selected().items]

    assert selected(("n", (1.0, 2.0)), ("n", (2.0, 3.0))) == [2.0]
    assert selected(("n", (1.0,)), ("n", (2.0,))) == []
    assert selected(("labels", ("a",))) == []
    assert selected(("none", (None,))) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_ends_while_a_page_is_made_is_not_listed(mesh, monkeypatch):
    monkeypatch.setattr(turns_module, "PORTION", 5)
    pages = TaskPages(mesh.running, JobService(mesh.running))
    query = PageQuery(order=(("task_id", False),), limit=100)

    async def page_while_all_leave():
        making = asyncio.ensure_future(pages.page(ListPage(listing="queue", page=query)))
        await asyncio.sleep(0)
        queue = mesh.running.reactor.state.queue
        left = dict(queue.by_id)
        queue.by_id.clear()
        try:
            return (await making).facts["items"]
        finally:
            queue.by_id.update(left)

    assert mesh.do(page_while_all_leave()) == []


def test_a_cursor_of_another_listing_is_refused(mesh):
    query = PageQuery(order=(("task_id", False),), after=(7.0,))
    page = ask(mesh, ListPage(listing="tasks", page=query))
    assert isinstance(page, Malformed)


@pytest.mark.parametrize(
    ("listing", "query"),
    [
        ("pools", {}),
        ("tasks", {"limit": 0}),
        ("tasks", {"limit": 1_001}),
        ("tasks", {"after": ()}),
        ("tasks", {"fields": tuple(("owner", ("ada",) * 20) for _ in range(51))}),
    ],
)
def test_what_is_no_page_is_refused(listing, query):
    with pytest.raises(InvalidRequestError):
        ListPage(listing=listing, page=PageQuery(order=(("task_id", False),), **query))


#: Every listing whose rows are many, by the request that asks for all of it.
MANY = {
    "agents": (ListAgents(), "name"),
    "preemptions": (ListPreemptions(limit=MAX_PREEMPTIONS), "task_id"),
    "saved_states": (ListSavedStates(), "task_id"),
    "jobs": (ListJobs(), "task_id"),
    "queue": (ListQueue(), "task_id"),
}


KEYS = {one.paged: one.key for request, _ in MANY.values() for one in type(request).listings}


def as_job(task):
    return replace(
        task,
        agent=replace(task.agent, payload=JobPayload()),
        task=replace(task.task, run=RUN_DRIVER),
    )


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """Forty agents run, of which ten were evicted, and thirty jobs are held in the queue."""
    mesh = InThread(tmp_path_factory.mktemp("busy") / "j.sqlite")
    room = parse_resources({"cpu": 100})
    mesh.backend.free = [NodeView(node_id="node-1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, EnsurePool(name="p", resources=parse_resources({"cpu": 40}), labels={}))
    tasks = [submission(f"t{number:02}", pool="p") for number in range(70)]
    tasks[40:] = map(as_job, tasks[40:])
    ask(mesh, SubmitMany(submissions=tuple(tasks), blobs={key_of(CLASS): CLASS}))
    for task in tasks[40:]:
        task_id = task.task.task_id
        ask(mesh, ChangeQueuedTask(task_id=task_id, held=True, request_id=f"hold {task_id}"))
    for number in range(10):
        ask(mesh, PreemptTask(task_id=f"t{number:02}", request_id=f"evict {number}"))
    yield mesh
    mesh.close()


@pytest.mark.parametrize("listing", MANY)
def test_others_are_served_while_the_rows_of_a_listing_are_made(busy, listing, monkeypatch):
    request, key = MANY[listing]
    expected = rows_of(ask(busy, request))
    assert len(expected) >= 10
    monkeypatch.setattr(turns_module, "PORTION", 3)

    async def both():
        turns, ended = 0, asyncio.ensure_future(busy.service.ask(encode_request(request)))
        while not ended.done():
            await asyncio.sleep(0)
            turns += 1
        answer = ended.result()
        return turns, answer[0] if isinstance(answer, tuple) else answer

    turns, answer = busy.do(both())
    assert [row[key] for row in rows_of(read_answer(answer))] == [row[key] for row in expected]
    assert turns >= len(expected) // 3


@pytest.mark.parametrize("listing", [name for name in MANY if name != "queue"])
def test_the_pages_of_a_listing_have_every_row_once(busy, listing):
    request, key = MANY[listing]
    expected = sorted(row[key] for row in rows_of(ask(busy, request)))
    found, after, more = [], None, True
    while more:
        query = PageQuery(order=((key, False),), limit=7, after=after)
        page = ask(busy, ListPage(listing=listing, page=query)).facts
        assert page["total"] == len(expected)
        found += [row[key] for row in page["items"]]
        after, more = (found[-1],), page["more"]
    assert found == expected


def rows_of(answer):
    """The rows of an answer, as they are shown."""
    answer = answer.answer if isinstance(answer, WithHandles) else answer
    return [row if isinstance(row, dict) else row.public() for row in answer.rows]


@pytest.fixture
def looked_at(monkeypatch):
    """The items of the portions in which rows are chosen and made."""
    items = []
    each = turns_module.PortionTurns.each

    async def counted(turns, portion_items, work, **size):
        items.extend(portion_items)
        await each(turns, portion_items, work, **size)

    monkeypatch.setattr(turns_module.PortionTurns, "each", counted)
    return items


#: The requests that name what they list.
BY_ID = {
    "agents": lambda names: ListAgents(names=names),
    "saved_states": lambda ids: ListSavedStates(task_ids=ids),
    "jobs": lambda ids: ListJobs(task_ids=ids),
    "tasks": lambda ids: ListTasks(task_ids=ids),
}


@pytest.mark.parametrize("listing", [*MANY, "tasks"])
def test_what_is_asked_for_by_its_id_is_looked_up(busy, listing, looked_at):
    request, key = MANY.get(listing, (ListTasks(), "task_id"))
    rows = rows_of(ask(busy, request))
    looked_at.clear()
    for row in rows[::9]:
        query = PageQuery(fields=((key, (row[key], "none")),), order=((key, False),), limit=1)
        page = ask(busy, ListPage(listing=listing, page=query)).facts
        assert [item[key] for item in page["items"]] == [row[key]]
        assert (page["total"], page["more"]) == (1, False)
    # Of tasks, first their fields and then the row.
    assert len(looked_at) <= 2 * len(rows[::9])


@pytest.mark.parametrize("listing", BY_ID)
def test_requests_with_ids_make_these_rows_only(busy, listing, looked_at):
    request, key = MANY.get(listing, (ListTasks(), "task_id"))
    rows = rows_of(ask(busy, request))
    looked_at.clear()
    ids = tuple(row[key] for row in rows[3:5])
    asked = ask(busy, BY_ID[listing]((*ids, "none")))
    assert lasting(rows_of(asked)) == lasting(rows[3:5])
    assert len(looked_at) == 2


@pytest.mark.parametrize("listing", MANY)
def test_each_page_makes_its_own_rows_only(busy, listing, looked_at):
    order = tuple((field, False) for field in KEYS[listing])
    after, more, count = None, True, 0
    while more:
        looked_at.clear()
        query = PageQuery(order=order, limit=4, after=after)
        page = ask(busy, ListPage(listing=listing, page=query)).facts
        assert len(looked_at) == len(page["items"])
        more, count = page["more"], count + len(page["items"])
        after = tuple(page["items"][-1][field] for field, _ in order)
    assert count == page["total"] >= 10


def queue_page(mesh, after, limit=4, **chosen):
    order = (("pool_name", False), ("position", False), ("task_id", False))
    query = PageQuery(order=order, limit=limit, after=after, **chosen)
    answer = ask(mesh, ListPage(listing="queue", page=query))
    return answer if isinstance(answer, Malformed) else answer.facts


def test_a_page_of_the_queue_continues_after_the_task_before_it(mesh):
    rows = all_rows(mesh, "queue")
    of_q = [row["task_id"] for row in rows if row["pool_name"] == "q"]
    # It came sixth when the page before was made, and has moved to the second place since.
    page = queue_page(mesh, ("q", 6.0, of_q[1]))
    assert [row["task_id"] for row in page["items"]] == of_q[2:6]
    # It waits no more: the next one has its place.
    page = queue_page(mesh, ("q", 6.0, "gone"), fields=(("pool_name", ("q",)),))
    assert [row["task_id"] for row in page["items"]] == of_q[5:9]
    assert page["total"] == len(of_q)
    for position in (float("nan"), float("-inf"), -3.0):
        page = queue_page(mesh, ("q", position, "gone"))
        assert [row["task_id"] for row in page["items"]] == of_q[:4]
    for after in (("q", 1e300, "gone"), ("r", 1.0, "gone")):
        assert queue_page(mesh, after)["items"] == []
    for after in ((1.0, 1.0, "t"), ("q", "1", "t"), ("q", 1.0, None)):
        assert isinstance(queue_page(mesh, after), Malformed)
