"""The page in a browser's words: every screen, in both languages, and who gets to see it."""

from __future__ import annotations

import ast
import asyncio
import re
import string
import time
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import pytest

from schedulemesh.api.calls import CHANGES
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.history import GROUPINGS, STATES, QueryHistory
from schedulemesh.api.logs import ReadTaskLog
from schedulemesh.api.metrics import GetAlerts
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import POOL_STATES, EnsurePool, ListPools
from schedulemesh.api.tasks import PHASES, SubmitTask, WaitTasks, WaitUntil
from schedulemesh.domain.end_reasons import EndReason, ReturnReason, TaskEndReason
from schedulemesh.domain.language import preferred_language
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import PreemptionReason, Reason
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.texts.codes import CODES
from schedulemesh.domain.tokens import Role
from schedulemesh.protocol.agents import RunReport, key_of, pack
from schedulemesh.protocol.answers import Listed, TaskLog, encode_answer
from schedulemesh.server import page
from schedulemesh.server.page import app, reads
from schedulemesh.server.page.actions import ACTIONS
from schedulemesh.server.page.bars import bars_of_pool
from schedulemesh.server.page.call_texts import CALL_TEXTS
from schedulemesh.server.page.nodes import GpuHolding, free_numbers, gpu_picture
from schedulemesh.server.page.texts import TEXTS
from schedulemesh.server.page.words import WORDS
from schedulemesh.store.history import fold
from tests.counted_calls import calls_of
from tests.runtime.fake_backend import FakeBackend
from tests.server.scenes import large, nodes, observe, submit, three_teams
from tests.server.work import CLASS, ask, filled, submission

CODE_KINDS = (Reason, PreemptionReason, EndReason, ReturnReason, TaskEndReason)

VOID = {"input", "link", "meta", "img", "br"}


class Document(HTMLParser):
    """The elements of a page, which have to be closed in their order; what CSP would not run is refused."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert tag not in ("style", "iframe", "object")
        if tag == "script":
            assert re.fullmatch(r"/live-[0-9a-f]{12}\.js", attributes["src"])
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert self.open[-1:] != ["script"]
        self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


class Browser:
    """A client with cookies that sends the Origin with forms, as browsers do."""

    def __init__(self, api, language="en"):
        self.api = api
        self.client = httpx.Client(
            base_url=api.url,
            headers={"accept-language": language},
            trust_env=False,
            timeout=30,
        )

    def sign_in(self, token=None, following="/"):
        form = {"token": token or self.api.token, "next": following}
        return self.send("/sign-in", form)

    def send(self, path, form=None):
        return self.client.post(path, data=form or {}, headers={"origin": self.api.url})

    def get(self, path, status=200):
        """The document at a path, which has this status."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert ("script-src 'self';" in policy) == ("<script" in answer.text)
        assert "unsafe" not in policy
        return Document(answer.text)


@pytest.fixture
def browser(api):
    made = Browser(api)
    yield made
    made.client.close()


def test_without_a_session_there_is_a_page_to_sign_in(browser):
    document = browser.get("/", 401)
    assert "Sign in" in document.words
    assert {"action": "/sign-in", "method": "post", "class": "sign-in"} in document.all("form")
    assert browser.api.gateway.asked == []


def test_the_overview_shows_pools_and_what_waits(browser):
    filled(browser.api.mesh)
    answer = browser.sign_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    document = browser.get("/")
    assert "Longest wait" in document.words
    assert "mesh" in document.words


SCREENS = (
    "/",
    "/queue",
    "/running",
    "/task",
    "/nodes",
    "/timeline",
    "/evictions",
    "/usage",
    "/policy",
    "/rehearsal",
)
#: A text in Chinese on each screen, and one of a code.
CHINESE = {
    "/": "空闲 GPU",
    "/queue": "没有任务在排队",
    "/running": "没有运行中的任务",
    "/task": "任务 ID",
    "/nodes": "名称或 ID",
    "/timeline": "这段时间没有任务运行",
    "/evictions": "抢占记录",
    "/usage": "统计维度",
    "/policy": "排队策略",
    "/rehearsal": "开始推演",
}


@pytest.mark.parametrize("path", SCREENS)
def test_every_screen_of_an_empty_scheduler(browser, path):
    browser.sign_in()
    document = browser.get(path)
    assert [link for link in document.all("a") if link.get("aria-current")] or path == "/task"
    assert document.all("html") == [{"lang": "en"}]
    chinese = browser.get(f"{path}?lang=zh")
    assert chinese.all("html") == [{"lang": "zh-CN"}]
    assert CHINESE[path] in chinese.words
    # The choice is kept.
    assert browser.get(path).all("html") == [{"lang": "zh-CN"}]


@pytest.mark.parametrize("path", [*SCREENS, "/task?id=pretrain-0", "/task?id=whole-node"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_screen_of_three_teams(browser, path, language):
    three_teams(browser.api.mesh)
    browser.sign_in()
    mark = "&" if "?" in path else "?"
    document = browser.get(f"{path}{mark}lang={language}")
    # Values of policies are JSON.
    assert "{" not in document.words.replace("{}", "")
    for link in document.all("a"):
        assert link["href"].startswith(("/", "#"))


def test_the_overview_answers_who_uses_what(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    document = browser.get("/")
    for words in (
        "lent to language: GPU 4",
        "borrowed from vision: GPU 4",
        "used 12",
        "borrowed 4",
    ):
        assert words in document.words
    labels = [picture["aria-label"] for picture in document.all("svg")]
    assert "GPU: used 12, borrowed 4" in labels


def test_the_queue_answers_where_and_why(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    assert "Held: it starts only after it is released" in browser.get("/queue").words
    assert "被挂起，释放后才会开始" in browser.get("/queue?lang=zh").words
    browser.get("/queue?lang=en")
    of_vision = browser.get("/queue?pool_name=vision&owner=mei&reason=").words
    assert "whole-node" in of_vision
    assert "ablation-0" not in of_vision
    assert "whole-node" not in browser.get("/queue?reason=held_by_user").words


def test_running_tasks_are_listed_by_owner_with_what_they_hold(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    words = browser.get("/running?owner=lin").words
    assert "pretrain-0 language lin 5 running GPU 4, CPU 4" in words
    assert "notebook" not in words
    assert "ablation-1" not in words
    assert "/running" in [link["href"] for link in browser.get("/").all("a")]
    assert "No running task matches" in browser.get("/running?owner=nobody").words
    boxes = [i for i in browser.get("/running?select=all").all("input") if "checked" in i]
    assert len(boxes) == 8


def test_the_task_is_explained(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    waits = browser.get("/task?id=whole-node")
    for words in ("Why it waits", "Who holds it", "What would help", "Next step", "Place 1 of 1"):
        assert words in waits.words
    assert "Ask for less" in waits.words or "it starts when" in waits.words
    in_chinese = browser.get("/task?id=whole-node&lang=zh").words
    assert "没有节点放得下" in in_chinese
    assert "it starts when" not in in_chinese
    browser.get("/task?id=whole-node&lang=en")
    evicted = browser.get("/evictions").words
    assert "detector" in evicted


def test_the_nodes_say_who_has_which_gpu(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    document = browser.get("/nodes")
    assert "gpu-004" in document.words
    assert "closed" in document.words
    assert "other Ray work 2" in document.words
    frames = [r for r in document.all("rect") if r["class"] == "gpu-frame"]
    assert len(frames) == 40
    assert "gpu-000" not in browser.get("/nodes?show=closed_only").words
    assert "gpu-001" in browser.get("/nodes?name=gpu-001").words


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_overview_says_of_closed_nodes_what_the_nodes_say(browser, language):
    observe(browser.api.mesh, nodes(6))
    ask(browser.api.mesh, CordonNode(node_id=f"{1:056x}", cordoned=True))
    for number in (2, 3):
        ask(browser.api.mesh, Drain(node_id=f"{number:056x}", client="ops:1"))
    browser.sign_in()
    text = WORDS[language].text
    overview = browser.get(f"/?lang={language}").words
    shown = browser.get("/nodes").words
    for key, count in (("draining", 2), ("cordoned", 1)):
        assert f"{text(key)}{text('colon')}{count}" in overview
        assert len(re.findall(rf"gpu-00\d {text(key)}", shown)) == count
    assert text("on_closed", gpus="24") in overview
    assert text("on_closed", gpus="24") in shown


@pytest.mark.parametrize(
    ("language", "title", "state"),
    [("en", "evicted, not queued again", "cancelled"), ("zh", "被抢占，未重新排队", "已取消")],
)
def test_whoever_was_evicted_and_is_not_queued_again_was_not_cancelled(
    browser, language, title, state
):
    filled(browser.api.mesh)
    browser.sign_in()
    for path in ("/task?id=low", "/evictions"):
        words = browser.get(f"{path}{'&' if '?' in path else '?'}lang={language}").words
        assert "low" in words
        assert state not in words
    assert title in browser.get("/task?id=low").words
    evicted = re.split("[,，]", title)[0]
    # Its form offers all states.
    assert f"low · p · {evicted} · " in browser.get("/timeline").words
    assert browser.api.get("/tasks/low")["state"] == "cancelled"


@pytest.mark.parametrize(
    ("path", "status", "english", "chinese"),
    [
        ("/timeline?span=x", 400, "span is 'x'; allowed are 1h", "span 为 'x'，只能取 1h"),
        ("/timeline?until=x", 400, "until is 'x'; allowed are", "until 为 'x'，只能是自 1970"),
        ("/evictions?page=0", 400, "page must be a whole", "page 必须是 1 到"),
        ("/change?do=x&id=low", 400, "do is 'x'; allowed are", "do 为 'x'，只能取"),
        ("/change?do=cordon&id=gone", 404, "there is no node 'gone'", "现在没有节点 'gone'"),
        # What the page does not word itself is introduced.
        ("/queue?cursor=x", 400, "cursor", "原文："),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_both_languages(
    browser, path, status, english, chinese
):
    browser.sign_in()
    assert english in browser.get(f"{path}&lang=en", status).words
    in_chinese = browser.get(f"{path}&lang=zh", status).words
    assert chinese in in_chinese
    assert "allowed are" not in in_chinese


@pytest.mark.parametrize("path", ["/audit", "/change?do=cancel&id=low", "/change?do=front&id=low"])
def test_a_refusal_by_role_is_said_in_both_languages(api, browser, path):
    filled(api.mesh)
    token = api.send("POST", "/tokens", {"name": "looker", "role": "viewer"})["token"]
    browser.sign_in(token)
    start = f"{path}{'&' if '?' in path else '?'}lang="
    assert (
        "token 'looker' has the role viewer; this needs the" in browser.get(f"{start}en", 403).words
    )
    in_chinese = browser.get(f"{start}zh", 403).words
    assert "令牌 'looker' 的角色是“只读”，此操作需要“" in in_chinese
    assert "role" not in in_chinese


def test_the_details_of_events_are_in_the_language_of_the_page(api, browser):
    filled(api.mesh)
    browser.sign_in()
    english = browser.get("/task?id=low&lang=en").words
    assert re.search(r"being evicted rule Priority, same pool ?, for second ?, in pool p", english)
    chinese = browser.get("/task?id=low&lang=zh").words
    events = chinese[chinese.index("事件") :]
    assert re.search("规则：同资源池优先级，让位给任务： ?second ?，其资源池：p，", events)
    assert not re.search(r"by_\w+|score|rule", events)


def test_every_detail_of_events_has_a_text():
    tree = ast.parse(Path(fold.__file__).read_text("utf-8"))
    noted = {
        keyword.arg
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "event"
        for keyword in call.keywords
    }
    details = {name for name in noted if name} - {"fact"}
    assert len(details) > 15
    assert [name for name in details if f"event_{name}" not in TEXTS] == []


def test_every_change_on_record_has_a_text_in_both_languages(api, browser):
    assert set(CALL_TEXTS) == {str(call.__struct_config__.tag) for call in CHANGES}
    assert all(english and chinese for english, chinese in CALL_TEXTS.values())
    browser.sign_in()
    ask(api.mesh, EnsurePool(name="p"))
    ask(api.mesh, ChangePolicy(changes={"min_runtime": 60.0}, client="ops:1"))
    for path in ("/audit", "/policy"):
        assert "修改抢占策略" in browser.get(f"{path}?lang=zh").words
        assert "Change the preemption policy" in browser.get(f"{path}?lang=en").words


@pytest.mark.parametrize(("count", "folded"), [(12, 0), (13, 13)])
def test_what_holds_many_nodes_is_folded_up(browser, count, folded):
    observe(browser.api.mesh, nodes(count))
    browser.sign_in()
    document = browser.get("/nodes")
    assert len(document.all("summary")) == folded
    assert document.words.count("8 free of 8") == count
    assert document.words.count("Close Drain") == count


@pytest.mark.parametrize(("count", "folded"), [(6, 0), (7, 7)])
def test_of_many_pools_all_but_the_first_resource_is_folded_up(browser, count, folded):
    for number in range(count):
        quota = parse_resources({"cpu": 8, "gpu": 1})
        ask(browser.api.mesh, EnsurePool(name=f"p{number}", resources=quota))
    browser.sign_in()
    document = browser.get("/")
    assert len(document.all("summary")) == folded
    assert len([one for one in document.all("svg") if one["class"] == "bar"]) == 2 * count


def test_the_nodes_say_when_they_are_maintained(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    node_ids = {row["node_id"] for row in browser.api.get("/nodes")["items"]}
    first = min(node_ids)
    later = {"name": "later", "start": "2090-01-01T00:00Z", "duration": "4h", "nodes": [first]}
    browser.api.send("POST", "/windows", later)
    words = browser.get(f"/nodes?name={first}").words
    assert "maintenance from" in words
    assert "later" in words


def test_the_nodes_that_are_maintained_now_say_so(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    now = {"name": "now", "start": "2020-01-01T00:00Z", "duration": "23h59m", "repeat": "daily"}
    browser.api.send("POST", "/windows", {**now, "all_nodes": True})
    page = browser.get("/nodes?show=closed_only")
    assert "maintenance" in page.words
    assert "End the drain" not in page.words


def test_the_nodes_say_when_they_are_reserved(browser):
    three_teams(browser.api.mesh)
    browser.sign_in()
    later = {"name": "later", "start": "2090-01-01T00:00Z", "duration": "4h", "owners": ["ada"]}
    browser.api.send("POST", "/windows", {**later, "all_nodes": True})
    assert "reserved from" in browser.get("/nodes").words


def test_members_of_a_gang_are_drawn_on_their_nodes(browser):
    mesh = browser.api.mesh
    observe(mesh, nodes(2))
    quota = parse_resources({"cpu": 64, "gpu": 16})
    ask(mesh, EnsurePool(name="p", resources=quota))
    gpus = parse_resources({"cpu": 1, "gpu": 8})
    made = submission("train", pool="p")
    agent = msgspec.structs.replace(
        made.agent, resources=gpus.times(2), bundles=(gpus, gpus), payload=GangPayload()
    )
    blobs = {key_of(CLASS): CLASS}
    request = SubmitTask(submission=msgspec.structs.replace(made, agent=agent), blobs=blobs)
    ask(mesh, request)
    browser.sign_in()
    document = browser.get("/nodes")
    assert document.words.count("train p · 8") == 2
    assert "16" in browser.get("/nodes").words


def test_other_ray_work_is_drawn_at_the_end():
    picture = gpu_picture(2.0, [], 0.5)
    assert [(part.x, part.width, part.style) for part in picture.parts] == [(37, 11, "other")]


def test_shares_of_gpus_fill_parts_of_squares():
    holdings = [
        GpuHolding("a", "a", "p", 0.5, "color-1"),
        GpuHolding("b", "b", "p", 1.0, "color-2"),
    ]
    picture = gpu_picture(2.0, holdings, 0.0)
    assert [(part.x, part.width, part.title) for part in picture.parts] == [
        (0, 11, "a"),
        (11, 11, "b"),
        (26, 11, "b"),
    ]


def test_gpus_that_agents_have_reported_are_drawn_where_they_are():
    holdings = [
        GpuHolding("a", "a", "p", 1.0, "color-1"),
        GpuHolding("b", "b", "p", 1.5, "color-2", ((0, 1.0), (3, 0.5))),
    ]
    picture = gpu_picture(4.0, holdings, 0.5)
    assert [(part.x, part.width, part.style) for part in picture.parts] == [
        (0, 22, "color-2"),
        (78, 11, "color-2"),
        (26, 22, "color-1"),
        (89, 11, "other"),
    ]
    # A number that the node does not have any more is drawn nowhere.
    assert gpu_picture(1.0, [GpuHolding("c", "c", "p", 1.0, "", ((7, 1.0),))], 0.0).parts == []


def test_the_numbers_of_free_gpus_are_said_where_they_are_known():
    def held(*numbers):
        devices = tuple((number, 1.0) for number in numbers)
        return GpuHolding("a", "a", "p", max(1.0, len(numbers)), "color-1", devices)

    assert free_numbers(4.0, 1.0, [held(0, 3), held(1)]) == [2]
    assert free_numbers(4.0, 0.0, [held(0, 3), held(1, 2)]) == []
    # Nobody has said which one the second has, or other Ray work has one.
    assert free_numbers(4.0, 1.0, [held(0, 3), held()]) == []
    assert free_numbers(4.0, 2.0, [held(0)]) == []
    # A half of one is not a free one.
    half = held(0)._replace(gpus=0.5, devices=((0, 0.5),))
    assert free_numbers(2.0, 1.5, [half]) == [1]
    assert free_numbers(2.0, 1.0, [half, half]) == [1]


EVIL = '<script>alert("x")</script>\'&{{7777*7777}}'


def test_what_users_write_is_text(api, browser):
    mesh = api.mesh
    three_teams(mesh)
    ask(
        mesh,
        EnsurePool(name=EVIL, resources=parse_resources({"cpu": 9, "memory": 64_000, "gpu": 1})),
    )
    view = mesh.backend.free[0]
    observe(mesh, [msgspec.structs.replace(view, host=EVIL), *mesh.backend.free[1:]])
    submit(mesh, EVIL, EVIL, owner=EVIL, labels={EVIL: EVIL}, gpu=1)
    submit(mesh, f"{EVIL}2", EVIL, owner=EVIL, labels={EVIL: EVIL}, gpu=1)
    browser.sign_in()
    name = quote(EVIL, safe="")
    for path in (
        *("/", "/queue", "/nodes", "/evictions", f"/task?id={name}", f"/task?id={name}2"),
        *(f"/queue?pool_name={name}", f"/queue?owner={name}", f"/evictions?owner={name}"),
        f"/nodes?name={name}",
    ):
        answer = browser.client.get(path)
        assert answer.status_code == 200, answer.text
        # Document refuses what would run; what is shown has every character.
        document = Document(answer.text)
        assert answer.text.count("<script") == 1
        assert str(7777 * 7777) not in document.words.replace(EVIL, "")
        if path != "/evictions":
            assert EVIL in document.words or EVIL in str(document.elements), path
    for path in (f"/queue?reason={name}", f"/queue?cursor={name}", f"/nodes?page={name}"):
        document = browser.get(path, 400)
    browser.get(f"/task?id={name}3", 404)
    assert "<script" not in browser.client.get(f"/{name}").text


def test_a_task_has_its_links(api, browser):
    filled(api.mesh)
    templates = {"W&B": "https://wandb.ai/{label.team}?t={task}", "none": "https://h/{label.no}"}
    ask(api.mesh, ChangePolicy(changes={"links": templates}, client="test"))
    browser.sign_in()
    document = browser.get("/task?id=first")
    (link,) = [one for one in document.all("a") if "wandb" in one["href"]]
    assert link["href"] == "https://wandb.ai/x?t=first"
    assert link["rel"] == "noreferrer noopener"
    assert "W&B" in document.words


def test_a_log_is_text(api, browser, monkeypatch):
    filled(api.mesh)
    browser.sign_in()
    ask_packed = api.gateway.ask_packed

    async def with_log(request, caller=None):
        if isinstance(request, ReadTaskLog):
            data = f"begun earlier\nlast <b>line</b> {EVIL}\n".encode() + b"\xff"
            return encode_answer(TaskLog(state="running", attempt=1, begin=5, data=data, end=9))
        return await ask_packed(request, caller)

    monkeypatch.setattr(api.gateway, "ask_packed", with_log)
    document = browser.get("/task?id=first")
    assert f"last <b>line</b> {EVIL}" in document.words
    assert "begun earlier" not in document.words
    assert document.all("b") == []


def test_a_viewer_sees_all_but_logs(api, browser):
    three_teams(api.mesh)
    secret = api.send("POST", "/tokens", {"name": "v", "role": "viewer"})["token"]
    browser.sign_in(secret)
    for path in SCREENS:
        browser.get(path)
    assert "cannot be read now" in browser.get("/task?id=pretrain-0").words


@pytest.mark.parametrize("path", ["/nothing", "/queue/x", "/.env", "/api"])
def test_what_is_no_page_is_said_on_one(browser, path):
    unknown = browser.get(path, 404)
    assert "There is no such page" in unknown.words
    assert unknown.all("nav") == []
    browser.sign_in()
    menu = [link["href"] for link in browser.get(path, 404).all("a")]
    assert set(SCREENS) - {"/task"} <= set(menu)


#: What no screen has, and what is meant, in both languages.
UNKNOWN = {
    "/queue?pool=vision": (
        "'pool' (did you mean pool_name?)",
        "没有参数 'pool'（是不是 pool_name？）",
    ),
    "/?pool_name=vision": ("It has: –", "可用的参数：–"),
    "/running?nodes=x": ("It has: pool_name, owner", "可用的参数：pool_name、owner"),
    "/usage.csv?spam=7d": ("did you mean span?", "是不是 span？"),
    "/queue?reason=held_by_users": ("did you mean held_by_user?", "是不是 held_by_user？"),
    "/nodes?show=closed": ("did you mean closed_only?", "是不是 closed_only？"),
    "/timeline?by=nodes": ("did you mean node?", "是不是 node？"),
    "/timeline?span=8d": ("allowed are 1h, 6h, 24h, 7d, 30d", "只能取 1h、6h、24h、7d、30d"),
    "/usage?by=pools": ("did you mean pool?", "是不是 pool？"),
    "/usage?span=1h": ("allowed are 24h, 7d, 30d", "只能取 24h、7d、30d"),
    "/audit?outcome=refuse": ("did you mean refused?", "是不是 refused？"),
    "/audit?call=cancel": ("did you mean cancel_task?", "是不是 cancel_task？"),
}


@pytest.mark.parametrize("path", UNKNOWN)
def test_parameters_and_values_that_no_screen_has_are_refused_with_the_nearest(browser, path):
    browser.sign_in()
    english, chinese = UNKNOWN[path]
    refused = browser.get(path, 400)
    assert english in refused.words
    assert "/queue" in [link["href"] for link in refused.all("a")]
    browser.client.headers["accept-language"] = "zh"
    assert chinese in browser.get(path, 400).words


#: Names that nothing has, and the addresses with the nearest one.
NAMES = {
    "/queue?pool_name=visio&owner=mei": (
        "There is no pool visio now",
        "/queue?pool_name=vision&owner=mei",
    ),
    "/queue?owner=mai": ("No task of an owner mai", "/queue?owner=mei"),
    "/running?pool_name=robots": ("There is no pool robots now", "/running?pool_name=robotics"),
    "/evictions?pool_name=languages": (
        "There is no pool languages",
        "/evictions?pool_name=language",
    ),
    "/timeline?owner=boo": ("No task of an owner boo", "/timeline?owner=bo"),
    "/nodes?name=gpu-03": ("No node has gpu-03", "/nodes?name=gpu-003&show=all_nodes"),
    "/audit?token=locale": ("There is no token locale", "/audit?token=local"),
}


@pytest.mark.parametrize("path", NAMES)
def test_names_that_nothing_has_are_said_with_the_nearest(browser, path):
    three_teams(browser.api.mesh)
    browser.sign_in()
    said, nearest = NAMES[path]
    document = browser.get(path)
    assert said in document.words
    assert nearest in [link["href"] for link in document.all("a")]
    assert "最接近的名称" in browser.get(f"{path}&lang=zh").words


@pytest.mark.parametrize(
    ("path", "english", "chinese"),
    [
        ("/queue?owner=lin", "2 of 3 that wait", "排队的 3 个中有 2 个"),
        ("/queue?owner=lin&reason=dependency", "0 of 3 that wait", "排队的 3 个中有 0 个"),
        ("/running?owner=ada", "2 of 8 that run", "运行的 8 个中有 2 个"),
        ("/running?owner=nobody", "0 of 8 that run", "运行的 8 个中有 0 个"),
        ("/nodes?name=gpu-00", "5 of 5 nodes", "5 个节点中有 5 个"),
        ("/nodes?show=closed_only", "1 of 5 nodes", "5 个节点中有 1 个"),
    ],
)
def test_with_a_filter_is_said_how_many_there_are_in_all(browser, path, english, chinese):
    three_teams(browser.api.mesh)
    browser.sign_in()
    assert english in browser.get(path).words
    assert chinese in browser.get(f"{path}&lang=zh").words


def test_tasks_that_failed_in_the_last_hour_are_counted_and_listed(browser, monkeypatch):
    async def raises(backend, handle, order):
        return pack(RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="no such file"))

    monkeypatch.setattr(FakeBackend, "run_task", raises)
    monkeypatch.setattr(reads, "YOUNG_S", 0.0)
    mesh = browser.api.mesh
    observe(mesh, nodes(1))
    quota = parse_resources({"cpu": 64, "memory": 64_000, "gpu": 8})
    ask(mesh, EnsurePool(name="vision", resources=quota))
    browser.sign_in()
    assert "Failed in the last hour 0" in browser.get("/").words
    submit(mesh, "broken", "vision", run="go")
    ask(mesh, WaitTasks(task_ids=("broken",), until=WaitUntil.ENDED, enough=1, wait_s=20.0))
    ask(mesh, QueryHistory(limit=1))
    document = browser.get("/?lang=zh")
    assert "近一小时失败 1" in document.words
    (listed,) = [a["href"] for a in document.all("a") if "state=failed" in a["href"]]
    failed = browser.get(f"{listed}&lang=en")
    assert "broken vision" in failed.words
    assert "no such file" in failed.words
    assert [one for one in failed.all("details") if "open" in one]
    assert "broken" not in browser.get("/timeline?span=1h&state=completed").words
    browser.get("/timeline?state=fail", 400)


def test_more_than_three_alerts_are_folded_up_the_most_severe_first(browser, monkeypatch):
    ask_packed, fired = browser.api.gateway.ask_packed, []

    async def with_alerts(request, caller=None):
        if isinstance(request, GetAlerts):
            return encode_answer(Listed(rows=fired))
        return await ask_packed(request, caller)

    monkeypatch.setattr(browser.api.gateway, "ask_packed", with_alerts)
    monkeypatch.setattr(reads, "YOUNG_S", 0.0)
    browser.sign_in()
    rules = ("starvation", "journal_errors", "quota_nearly_full", "agent_lost", "restart")
    severities = ("info", "critical", "warning", "critical", "info")
    for number, (rule, severity) in enumerate(zip(rules, severities, strict=True)):
        fired.append(
            {
                "rule": rule,
                "severity": severity,
                "labels": {},
                "state": "firing",
                "summary": f"{rule} it is",
                "action": "do",
                "active_at": 1_000.0 + number,
            }
        )
        html = browser.client.get(f"/?lang={('en', 'zh')[number % 2]}").text
        assert ("<details>" in html) == (number >= 3)
    shown, folded = html.split("<details>")
    assert [rule for rule in rules if f"<strong>{rule}" in shown] == list(rules[1:4])
    assert shown.index("agent_lost") < shown.index("journal_errors") < shown.index("quota_nearly")
    assert "2 more" in folded
    assert folded.index("<strong>restart") < folded.index("<strong>starvation")


def test_while_the_supervisor_is_away_the_page_says_so_and_tries_again(api, browser, monkeypatch):
    browser.sign_in()
    monkeypatch.setattr(api.gateway, "cut_off", True)
    monkeypatch.setattr(reads, "YOUNG_S", 0.0)
    answer = browser.client.get("/queue")
    assert (answer.status_code, answer.headers["refresh"]) == (503, "5")
    assert "does not answer" in Document(answer.text).words
    monkeypatch.setattr(api.gateway, "cut_off", False)
    browser.get("/queue")


def test_of_a_stopped_supervisor_a_page_is_not_waited_for(api, browser, monkeypatch):
    browser.sign_in()
    with monkeypatch.context() as patched, api.stopped_supervisor():
        patched.setattr(app, "_PATIENCE_S", 0.1)
        patched.setattr(app, "_STOPPED_S", 0.1)
        patched.setattr(reads, "YOUNG_S", 0.0)
        answer = browser.client.get("/queue")
        assert (answer.status_code, answer.headers["refresh"]) == (503, "5")
        assert "does not answer" in Document(answer.text).words
    browser.get("/queue")


def test_a_page_that_takes_long_is_waited_for_while_the_supervisor_answers(
    api, browser, monkeypatch
):
    browser.sign_in()
    monkeypatch.setattr(reads, "YOUNG_S", 0.0)
    answered, ask_packed = asyncio.Semaphore(0), api.gateway.ask_packed

    async def slow(request, caller=None):
        if isinstance(request, GetAbout):
            answered.release()
        elif isinstance(request, ListPools):
            for _ in range(5):
                await answered.acquire()
        return await ask_packed(request, caller)

    monkeypatch.setattr(api.gateway, "ask_packed", slow)
    assert "Nothing waits." in browser.get("/queue").words


def test_many_readers_cost_the_supervisor_one_read(api, browser):
    browser.sign_in()
    api.gateway.asked.clear()
    for _ in range(20):
        browser.get("/")
    assert len([call for call in api.gateway.asked if isinstance(call, ListPools)]) <= 2


def test_pages_reload_themselves_only_where_that_is_asked_for(browser):
    browser.sign_in()
    assert "refresh" not in browser.client.get("/").headers
    assert browser.client.get("/?refresh=on").headers["refresh"] == "15"
    assert browser.client.get("/").headers["refresh"] == "15"
    assert "refresh" not in browser.client.get("/?refresh=off").headers


def test_the_style_and_the_icon_need_no_session_and_are_kept(browser):
    document = browser.get("/", 401)
    for link in document.all("link"):
        answer = browser.client.get(link["href"])
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


def test_two_thousand_tasks_on_three_hundred_nodes(api, browser, capsys):
    large(api.mesh)
    browser.sign_in()
    for path in (*SCREENS, "/task?id=task-1999", "/nodes?page=2"):
        began = time.monotonic()
        answer = browser.client.get(path)
        took = time.monotonic() - began
        assert answer.status_code == 200, answer.text
        with capsys.disabled():
            print(f"\n{path}: {took:.3f} s, {len(answer.content):,} bytes", end="")
    assert "300" in Document(browser.client.get("/nodes").text).words


def test_pages_of_the_queue_follow_each_other(api, browser):
    three_teams(api.mesh)
    for number in range(60):
        submit(api.mesh, f"more-{number:02d}", "robotics", gpu=6, priority=0.5)
    browser.sign_in()
    document, names = browser.get("/queue"), []
    while True:
        names += [link["href"] for link in document.all("a") if "/task?id=more" in link["href"]]
        following = [link["href"] for link in document.all("a") if link.get("rel") == "next"]
        if not following:
            break
        document = browser.get(following[0])
    assert len(names) == len(set(names)) == 60


def test_every_code_has_a_text_in_both_languages():
    codes = [str(code.value) for kind in CODE_KINDS for code in kind]
    codes += [*STATES, *PHASES, *POOL_STATES, *(role.value for role in Role)]
    assert [code for code in codes if code not in CODES] == []
    for texts in (*TEXTS.values(), *CODES.values()):
        assert all(texts)


def test_both_languages_have_the_same_parameters():
    def parameters(text):
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    differing = [key for key, (en, zh) in TEXTS.items() if parameters(en) != parameters(zh)]
    assert differing == []


def test_every_text_is_used_and_there_is_one_for_every_use():
    folder = Path(page.__file__).parent
    sources = "".join(
        p.read_text("utf-8") for p in folder.rglob("*") if p.suffix in (".py", ".html")
    )
    sources = sources.replace((folder / "texts.py").read_text("utf-8"), "")
    unused = [key for key in TEXTS if not re.search(rf"""["']{key}["']""", sources)]
    kinds = ("do", "ask", "will", "did")
    of_actions = {f"{what}_{one.name}" for what in kinds for one in ACTIONS}
    assert of_actions - set(TEXTS) == set()
    assert [
        key
        for key in unused
        if not key.startswith(("after_", "event_", "part_", "span_", "policy_", "outcome_"))
        and key not in of_actions
        and key not in GROUPINGS
    ] == []
    used = set(re.findall(r"""\bt\(["'](\w+)["'][,)]""", sources))
    assert used - set(TEXTS) == set()


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("de,zh-Hans;q=0.5,en;q=0.4", "zh"),
        ("fr", "en"),
        ("zh;q=0", "en"),
        ("zh;q=x,;;,", "en"),
    ],
)
def test_the_language_is_what_the_browser_prefers(header, language):
    assert preferred_language(header) == language


def test_a_header_of_many_languages_keeps_nobody_waiting():
    """A head has 64 KiB; anybody may send one to the page."""
    for header in ("," * 65_000, "a," * 32_000, "zh;q=0.1," * 7_000):
        _, calls = calls_of(partial(preferred_language, header))
        assert calls < 5_000


@pytest.mark.parametrize(
    ("seconds", "english", "chinese"),
    [
        (None, "–", "–"),
        (-5, "0 s", "0 秒"),
        (59.4, "59 s", "59 秒"),
        (60, "1 min", "1 分"),
        (187, "3 min 7 s", "3 分 7 秒"),
        (3_600, "1 h", "1 小时"),
        (90_000, "1 d 1 h", "1 天 1 小时"),
    ],
)
def test_durations_are_said_in_both_languages(seconds, english, chinese):
    assert (WORDS["en"].span(seconds), WORDS["zh"].span(seconds)) == (english, chinese)


def test_what_is_lent_is_a_part_of_the_quota_and_what_is_borrowed_is_beyond_it():
    pool = {
        "resources": {"gpu": 8.0},
        "used": {"gpu": 5.0},
        "reserved": {"gpu": 1.0},
        "lent": {"gpu": 2.0},
        "free": {"gpu": 2.0},
        "borrowed": {"gpu": 8.0},
    }
    (bar,) = bars_of_pool(pool)
    assert [(part.part, part.amount, part.width) for part in bar.segments] == [
        ("used", 3.0, 18.75),
        ("reserved", 1.0, 6.25),
        ("lent", 2.0, 12.5),
        ("free", 2.0, 12.5),
        ("borrowed", 8.0, 50.0),
    ]
