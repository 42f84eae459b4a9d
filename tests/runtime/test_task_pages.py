"""A page of tasks that the supervisor makes is the one that all rows would give."""

from __future__ import annotations

import asyncio
import random

import pytest

from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol import requests as r
from schedulemesh.protocol.answers import Malformed
from schedulemesh.protocol.pages import ListPage, PageQuery, Selection
from schedulemesh.protocol.queue_requests import ChangeQueuedTask, ListQueue, SubmitMany
from schedulemesh.protocol.task_rows import QueueListing, TaskListing
from schedulemesh.runtime import task_pages
from schedulemesh.runtime.backend import NodeView
from schedulemesh.server.listings import scalar_fields
from tests.runtime.composition import InThread
from tests.server.work import CLASS, ask, key_of, submission

ROWS = {"tasks": TaskListing, "queue": QueueListing}
#: They differ from one moment to the next.
_PASSING = ("waiting_time", "remaining_time")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """Three tasks run, and seventy wait in two pools."""
    mesh = InThread(tmp_path_factory.mktemp("pages") / "j.sqlite")
    room = parse_resources({"cpu": 3})
    mesh.backend.free = [NodeView(node_id="node-1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    for name in ("p", "q"):
        ask(mesh, r.EnsurePool(name=name, resources=parse_resources({"cpu": 100}), labels={}))
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
        return ask(mesh, r.ListTasks()).rows
    return [row.public() for row in ask(mesh, ListQueue()).rows]


def lasting(rows):
    return [{k: v for k, v in row.items() if k not in _PASSING} for row in rows]


@pytest.mark.parametrize("listing", ["tasks", "queue"])
def test_pages_are_those_of_all_rows(mesh, listing, monkeypatch):
    monkeypatch.setattr(task_pages, "_PORTION", 10)
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


def test_what_ends_while_a_page_is_made_is_not_listed(mesh, monkeypatch):
    monkeypatch.setattr(task_pages, "_PORTION", 5)
    pages = mesh.requests._pages
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
        ("agents", {}),
        ("tasks", {"limit": 0}),
        ("tasks", {"limit": 1_001}),
        ("tasks", {"after": ()}),
    ],
)
def test_what_is_no_page_is_refused(listing, query):
    with pytest.raises(InvalidRequestError):
        ListPage(listing=listing, page=PageQuery(order=(("task_id", False),), **query))
