"""The rehearsal form: who may have one made, one at a time, and how its answer and its failure are shown."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from schedulemesh.domain.sentences import say
from schedulemesh.errors import InvalidRequestError
from schedulemesh.server.page import app
from schedulemesh.server.page.rehearsal import question_in
from schedulemesh.server.page.rehearsals import RehearsalQuestion, run_command
from tests.server.local import Api
from tests.server.test_page import Browser, Document
from tests.server.work import filled

FORM = {"period": "7d", "nodes": "+4", "pool": "p", "gpus": "64"}
FIGURES = {"preemptions": 3, "lost_gpu_hours": 1.5, "gpu_hours": 20.0}
ROW = {
    "pool": "(all)",
    "recorded": {**FIGURES, "waited_s": {"mean": 90.0, "p95": 600.0}},
    "rehearsed": {**FIGURES, "waited_s": {"mean": 30.0, "p95": 60.0}},
}

REMARK = say("rehearsal_waits", since="11-02 09:00:00", until="11-09 09:00:00", less=12, more=3)


class Command:
    """A command that ends when it may, with this answer."""

    def __init__(self):
        remarks = b"a warning of a library\n" + msgspec.json.encode(REMARK)
        self.answer = (0, msgspec.json.encode([ROW]), remarks)
        self.arguments, self.may_end = [], threading.Event()

    async def __call__(self, arguments):
        self.arguments.append(list(arguments))
        await asyncio.to_thread(self.may_end.wait, 30)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def command(monkeypatch):
    made = Command()
    monkeypatch.setattr(app, "run_command", made)
    yield made
    made.may_end.set()


@pytest.fixture
def browser(command, mesh, tmp_path):
    filled(mesh)
    api = Api(mesh, tmp_path / "home")
    made = Browser(api)
    made.sign_in()
    yield made
    command.may_end.set()
    made.client.close()
    api.close()


def until_over(browser):
    """The screen once the rehearsal has ended; each look waits for an answer of the server."""
    while "refresh" in (answer := browser.client.get("/rehearsal?lang=en")).headers:
        continue
    return Document(answer.text)


def test_a_rehearsal_is_asked_for_made_and_shown(browser, command):
    assert "Rehearse" in browser.get("/rehearsal").words
    answer = browser.send("/rehearsal", FORM)
    assert (answer.status_code, answer.headers["location"]) == (303, "/rehearsal")
    running = browser.client.get("/rehearsal")
    assert running.headers["refresh"] == "2"
    assert "It runs for" in Document(running.text).words
    command.may_end.set()
    document = until_over(browser)
    for words in ("was 1 min 30 s", "would be 30 s", "10 min → 1 min", "12 tasks would have"):
        assert words in document.words
    (arguments,) = command.arguments
    assert arguments[:2] == ["--lang=en", "rehearse"]
    assert "--codes" in arguments
    assert arguments[2:5] == ["--since=7d", "--nodes=+4", "--pool=p=64"]
    assert arguments[-2] == "--"


def test_what_more_nodes_need_is_said_without_advice(browser, command):
    command.may_end.set()
    browser.send("/rehearsal", {**FORM, "pool": "", "gpus": ""})
    words = until_over(browser).words
    assert "Quotas stay as they were, and more nodes help as far as these reach." in words
    assert "another, too" not in words


def test_remarks_are_in_the_language_in_which_they_are_read(browser, command):
    command.may_end.set()
    browser.send("/rehearsal", FORM)
    assert "12 tasks would have waited less, 3 more" in until_over(browser).words
    chinese = browser.get("/rehearsal?lang=zh").words
    assert "12 个任务的等待会缩短，3 个会延长" in chinese
    assert "a warning of a library" in chinese
    assert "would have" not in chinese


def test_one_that_takes_too_long_says_so_in_both_languages(browser, command):
    command.answer = TimeoutError()
    command.may_end.set()
    browser.send("/rehearsal", FORM)
    assert "it did not end within 5m, so it was stopped" in until_over(browser).words
    assert "超过 5 分钟 未完成" in browser.get("/rehearsal?lang=zh").words


def test_one_runs_at_a_time(browser, command):
    browser.send("/rehearsal", FORM)
    answer = browser.send("/rehearsal", FORM)
    assert answer.headers["location"] == "/rehearsal?busy=1"
    assert "Another rehearsal runs now" in browser.get("/rehearsal?busy=1").words
    command.may_end.set()
    until_over(browser)
    assert browser.send("/rehearsal", FORM).headers["location"] == "/rehearsal"


@pytest.mark.parametrize("answer", [(2, b"", b"no <b>journal</b>"), (0, b"no JSON", b"")])
def test_one_that_fails_says_why(browser, command, answer):
    command.answer = answer
    command.may_end.set()
    browser.send("/rehearsal", FORM)
    document = until_over(browser)
    assert "It could not be made" in document.words
    assert answer[2].decode() in document.words
    assert document.all("b") == []


def test_a_viewer_looks_only(browser, command):
    secret = browser.api.send("POST", "/tokens", {"name": "v", "role": "viewer"})["token"]
    browser.sign_in(secret)
    assert not [f for f in browser.get("/rehearsal").all("form") if f["action"] == "/rehearsal"]
    assert browser.send("/rehearsal", FORM).status_code == 403
    assert command.arguments == []


def test_what_one_token_asked_for_is_not_shown_to_others(browser, command):
    browser.send("/rehearsal", FORM)
    secret = browser.api.send("POST", "/tokens", {"name": "o", "role": "operator"})["token"]
    browser.sign_in(secret)
    assert "It runs for" not in browser.get("/rehearsal").words


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null"])
def test_forms_of_other_sites_have_nothing_made(browser, command, origin):
    headers = {} if origin is None else {"origin": origin}
    answer = browser.client.post("/rehearsal", data=FORM, headers=headers)
    assert answer.status_code == 403
    assert command.arguments == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"period": "1y"},
        {"period": "7d", "nodes": "many"},
        {"period": "7d", "nodes": "+99999"},
        {"period": "7d", "nodes": "--help"},
        {"period": "7d", "nodes": "+-4"},
        {"period": "7d", "pool": "p", "gpus": ""},
        {"period": "7d", "pool": "p", "gpus": "nan"},
        {"period": "7d", "pool": "p\0", "gpus": "1"},
    ],
)
def test_what_cannot_be_asked_is_refused(fields):
    with pytest.raises(InvalidRequestError):
        question_in(fields)


def test_names_are_no_options_of_the_command():
    question = question_in({"period": "24h", "nodes": "", "pool": "--tasks", "gpus": "1"})
    assert question == RehearsalQuestion(period="24h", pool="--tasks", gpus=1.0)
    assert question.arguments() == ["--since=24h", "--nodes=+0", "--pool=--tasks=1"]


def test_the_command_is_the_one_of_the_command_line(tmp_path):
    arguments = ["rehearse", *RehearsalQuestion().arguments(), "--output=json", "--", str(tmp_path)]
    status, output, remarks = asyncio.run(run_command(arguments))
    assert status != 0
    assert output == b""
    assert str(tmp_path).encode() in remarks
