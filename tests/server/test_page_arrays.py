"""Arrays on the page: their members in pages, changes of some or all of them, and what starts after them."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.arrays import GetArray
from tests.runtime.fake_backend import FakeBackend
from tests.server.scenes import submit, sweep
from tests.server.test_page import Browser, Document
from tests.server.test_page_changes import buttons, confirm, waiting
from tests.server.work import ask


@pytest.fixture
def browser(api, monkeypatch):
    async def run_for_ever(self, handle, order):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(FakeBackend, "run_task", run_for_ever)
    sweep(api.mesh)
    made = Browser(api)
    made.sign_in()
    yield made
    made.client.close()


def array(api, **options):
    return ask(api.mesh, GetArray(task_id="sweep", **options)).facts


def test_an_array_says_how_its_members_stand(browser):
    document = browser.get("/array?id=sweep")
    for words in ("Members: 100", "running 2", "queued 98", "At most at once 2", "50 of 100"):
        assert words in document.words
    chinese = browser.get("/array?id=sweep&lang=zh").words
    assert "成员：100" in chinese
    assert "同时运行上限" in chinese


def test_members_are_shown_in_pages_and_by_state(browser):
    document = browser.get("/array?id=sweep")
    (following,) = [link["href"] for link in document.all("a") if link.get("rel") == "next"]
    assert "sweep[49]" in document.words
    assert "sweep[50]" not in document.words
    second = browser.get(following)
    assert "sweep[99]" in second.words
    assert not [link for link in second.all("a") if link.get("rel") == "next"]
    running = browser.get("/array?id=sweep&state=running").words
    assert "sweep[1]" in running
    assert "sweep[2]" not in running
    assert "No member is in this state" in browser.get("/array?id=sweep&state=failed").words
    browser.get("/array?id=sweep&state=gone", 400)
    browser.get("/array?id=sweep&after=x", 400)
    assert "did you mean 'sweep'" in browser.get("/array?id=swep", 404).words


def test_some_members_are_held_and_released_by_boxes_and_by_indices(api, browser):
    document = browser.get("/array?id=sweep")
    boxes = [one["value"] for one in document.all("input") if one.get("type") == "checkbox"]
    assert len(boxes) == 50
    path = "/change?do=hold&id=sweep[5]&array=sweep&members=7-8,%2010"
    asked = browser.get(path)
    assert "Tasks: 4" in asked.words
    assert "sweep[7-8,10]" in asked.words
    assert "of 4" not in asked.words
    answer = confirm(browser, path)
    assert "Held: sweep[5], sweep[7-8,10]" in Document(answer.text).words
    held = [task_id for task_id, row in waiting(api).items() if row["held"]]
    assert set(held) == {"sweep[5]", "sweep[7]", "sweep[8]", "sweep[10]"}
    assert "/array?id=sweep" in [link["href"] for link in Document(answer.text).all("a")]
    confirm(browser, "/change?do=release&array=sweep&members=5-8,10")
    assert not any(row["held"] for row in waiting(api).values())


def test_members_are_cancelled_also_those_that_run(api, browser):
    asked = browser.get("/change?do=cancel&array=sweep&members=0,3-4")
    assert "Tasks: 3, which hold 1 GPUs now" in asked.words
    assert confirm(browser, "/change?do=cancel&array=sweep&members=0,3-4").status_code == 200
    assert array(api)["not_completed"] == "0,3-4"
    gone = browser.get("/change?do=cancel&array=sweep&members=3-4").words
    assert "Neither waits nor runs any more: sweep[3-4]" in gone
    assert "3 of 100 members" in browser.get("/array?id=sweep&state=cancelled").words


def test_all_members_are_held_and_cancelled(api, browser):
    assert {"hold", "release", "cancel"} <= buttons(browser.get("/array?id=sweep"))
    asked = browser.get("/change?do=cancel&id=sweep")
    assert "Tasks: 100, which hold 2 GPUs now" in asked.words
    confirm(browser, "/change?do=hold&id=sweep")
    assert waiting(api)["sweep"]["held"]
    confirm(browser, "/change?do=cancel&id=sweep")
    assert array(api)["cancelled"] == 100
    document = browser.get("/array?id=sweep")
    assert "Not completed: 0-99" in document.words
    assert buttons(document) == set()


@pytest.mark.parametrize("indices", ["x", "9-3", "1,1", "<b>", "200"])
def test_indices_that_are_none_are_said(browser, indices):
    path = f"/change?do=hold&array=sweep&members={indices}"
    if indices == "200":
        answer = confirm(browser, path)
        assert answer.status_code == 409
        assert "has no member 200" in Document(answer.text).words
    else:
        browser.get(path, 400)


def test_a_viewer_and_others_find_no_buttons(api, browser):
    for token in ({"role": "viewer"}, {"role": "submitter", "owner": "lin"}):
        made = Browser(api)
        made.sign_in(api.send("POST", "/tokens", {"name": token["role"], **token})["token"])
        assert buttons(made.get("/array?id=sweep")) == set()
        made.client.close()


def test_tasks_lead_to_their_array_and_to_what_they_start_after(browser):
    array = "/array?id=sweep"
    for path in ("/queue", "/task?id=sweep", "/task?id=sweep%5B1%5D"):
        assert array in [link["href"] for link in browser.get(path).all("a")]
    document = browser.get("/task?id=report")
    assert "Starts after sweep has ended , sweep[1] has completed" in document.words
    assert "/task?id=sweep%5B1%5D" in [link["href"] for link in document.all("a")]
    assert "依赖 sweep 结束后" in browser.get("/task?id=report&lang=zh").words


def test_a_task_with_an_id_like_a_member_is_a_task(api, browser):
    submit(api.mesh, "other[2]", "vision", owner="mei", gpu=8)
    assert "Tasks: 1" in browser.get("/change?do=cancel&id=other%5B2%5D").words
    assert confirm(browser, "/change?do=cancel&id=other%5B2%5D").status_code == 200
    assert "other[2]" not in waiting(api)
