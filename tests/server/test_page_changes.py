"""What is changed from the page: by whom, after which question, and what of it is refused or recorded."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from schedulemesh.api.audit import QueryAudit
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.queue import ChangeQueuedTask, ListQueue
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.answers import Listed
from schedulemesh.server.answers import rows_of
from schedulemesh.server.page import app
from schedulemesh.server.page.actions import ACTIONS, MAX_TARGETS
from tests.server.scenes import submit, three_teams
from tests.server.test_page import Browser, Document
from tests.server.work import ask

NODE = f"{0:056x}"


@pytest.fixture
def browser(api):
    three_teams(api.mesh)
    # Held, so that it waits whatever else happens.
    submit(api.mesh, "parked", "vision", gpu=8, priority=0.1, owner="mei")
    ask(api.mesh, ChangeQueuedTask(task_id="parked", held=True, request_id="park"))
    made = Browser(api)
    made.sign_in()
    yield made
    made.client.close()


@pytest.fixture
def signed_in(api, browser):
    """Makes browsers with sessions of new tokens, else of a submitter."""
    browsers = []

    def made(**token):
        body = {"name": "lin-1", "role": "submitter", "owner": "lin", **token}
        browsers.append(Browser(api))
        browsers[-1].sign_in(api.send("POST", "/tokens", body)["token"])
        return browsers[-1]

    yield made
    for one in browsers:
        one.client.close()


def asked(document):
    """The fields of the form with which a page asks for confirmation."""
    hidden = [i for i in document.all("input") if i.get("type") == "hidden"]
    end = [one["name"] for one in hidden].index("form") + 1
    begin = max(number for number, one in enumerate(hidden[:end]) if one["name"] == "do")
    return [(one["name"], one["value"]) for one in hidden[begin:end]]


def confirm(browser, path):
    """Look at what a change would do, and have it done; the page that says what came of it."""
    return send(browser, asked(browser.get(path)))


def send(browser, fields, **headers):
    content = "&".join(f"{name}={quote(value)}" for name, value in fields)
    sent = {"origin": browser.api.url, "content-type": "application/x-www-form-urlencoded"}
    headers = {name: value for name, value in {**sent, **headers}.items() if value is not None}
    return browser.client.post("/change", content=content, headers=headers)


def waiting(api):
    return {row["task_id"]: row for row in rows_of(ask(api.mesh, ListQueue()))}


def changes(api, **filters):
    answer = ask(api.mesh, QueryAudit(**filters))
    assert isinstance(answer, Listed)
    return answer.rows


def buttons(document):
    return {b["value"] for b in document.all("button") if b.get("name") == "do"}


def test_a_task_is_cancelled_after_the_page_has_said_what_that_costs(api, browser):
    assert {"cancel", "priority"} <= buttons(browser.get("/task?id=segment"))
    document = browser.get("/change?do=cancel&id=segment")
    assert "Tasks: 1, which hold 4 GPUs now" in document.words
    assert "segment" in browser.get("/nodes").words
    answer = send(browser, asked(document))
    assert answer.status_code == 200
    assert "Cancelled: segment" in Document(answer.text).words
    assert "segment" not in browser.get("/nodes").words
    (change,) = changes(api, call="cancel_tasks")
    assert (change["token"], change["outcome"]) == ("local", "done")


def test_several_tasks_of_the_queue_are_held_and_released(api, browser):
    document = browser.get("/queue?select=all")
    boxes = [i for i in document.all("input") if i.get("type") == "checkbox"]
    assert len(boxes) == len(waiting(api))
    assert all("checked" in box for box in boxes)
    ids = "&".join(f"id={box['value']}" for box in boxes)
    said = Document(confirm(browser, f"/change?do=hold&{ids}").text).words
    first = ", ".join(box["value"] for box in boxes[:3])
    assert f"Held: {first} and {len(boxes) - 3} more" in said
    assert all(row["held"] for row in waiting(api).values())
    confirm(browser, f"/change?do=release&{ids}")
    assert not any(row["held"] for row in waiting(api).values())


def test_those_that_move_to_the_front_keep_their_order(api, browser):
    for number in range(4):
        submit(api.mesh, f"more-{number}", "robotics", gpu=6, priority=0.5)
    confirm(browser, "/change?do=front&id=more-2&id=more-3")
    of_pool = [one for one, row in waiting(api).items() if row["pool_name"] == "robotics"]
    assert of_pool == ["more-2", "more-3", "more-0", "more-1"]


def test_a_priority_is_asked_for_and_its_victims_are_named(api, browser):
    document = browser.get("/change?do=priority&id=parked")
    assert not [form for form in document.all("form") if form.get("class") == "confirm"]
    document = browser.get("/change?do=priority&id=parked&priority=1000")
    assert "With it, parked would evict" in document.words
    assert "of work lost" in document.words
    assert send(browser, asked(document)).status_code == 200
    changed = changes(api, call="change_queued_task")[0]
    assert changed["request"]["priority"] == 1000.0


def test_a_priority_may_be_an_own_class_of_the_policy(api, browser):
    ask(api.mesh, ChangePolicy(changes={"priority_classes": {"urgent": 8}}, client="ops:1"))
    document = browser.get("/change?do=priority&id=parked&priority=urgent")
    assert send(browser, asked(document)).status_code == 200
    assert changes(api, call="change_queued_task")[0]["request"]["priority"] == 8.0


@pytest.mark.parametrize("text", ["much", "", "1e99", "nan", "<b>"])
def test_a_priority_that_is_none_is_said(browser, text):
    document = browser.get(f"/change?do=priority&id=parked&priority={quote(text)}")
    assert not [form for form in document.all("form") if form.get("class") == "confirm"]


def test_a_node_is_closed_opened_drained_and_opened(api, browser):
    assert {"cordon", "drain", "uncordon"} == buttons(browser.get("/nodes"))
    for action, badge in (("cordon", "closed"), ("uncordon", ""), ("drain", "draining")):
        assert confirm(browser, f"/change?do={action}&id={NODE}").status_code == 200
        badges = browser.get("/nodes?name=gpu-000").words
        assert [word for word in ("closed", "draining") if f"gpu-000 {word}" in badges] == [
            word for word in (badge,) if word
        ]
    assert "undrain" in buttons(browser.get("/nodes"))
    confirm(browser, f"/change?do=undrain&id={NODE}")
    assert "draining" not in browser.get("/nodes?name=gpu-000").words.replace("or draining", "")


def test_a_pool_is_held_and_released(api, browser):
    document = browser.get("/change?do=drain_pool&id=robotics")
    assert "simulate" in document.words
    assert send(browser, asked(document)).status_code == 200
    assert "undrain_pool" in buttons(browser.get("/"))
    confirm(browser, "/change?do=undrain_pool&id=robotics")
    assert "undrain_pool" not in buttons(browser.get("/"))


def test_a_quota_is_changed_kind_by_kind(api, browser):
    document = browser.get("/change?do=quota&id=robotics")
    inputs = {i["name"]: i["value"] for i in document.all("input") if "quota." in i["name"]}
    assert inputs == {"quota.gpu": "6", "quota.cpu": "64", "quota.memory": "500"}
    path = "/change?do=quota&id=robotics&quota.gpu=10&quota.cpu=64&quota.memory=500"
    answer = confirm(browser, path)
    assert answer.status_code == 200
    said = "The quota of pool robotics is now GPU 10, CPU 64, memory 500 GB"
    assert said in Document(answer.text).words
    (change,) = changes(api, call="resize_pool")
    assert change["before"]["resources"]["gpu"] == 6
    assert change["after"]["resources"]["gpu"] == 10
    assert change["after"]["resources"]["memory"] == 512_000


@pytest.mark.parametrize(
    ("entered", "shown", "megabytes"),
    [
        ("600", "600 GB", 614_400),
        ("600 GB", "600 GB", 614_400),
        ("800MB", "800 MB", 800),
        ("0.5", "512 MB", 512),
        ("2 TB", "2048 GB", 2_097_152),
    ],
)
def test_a_quota_of_memory_is_entered_and_shown_in_one_unit(
    api, browser, entered, shown, megabytes
):
    path = f"/change?do=quota&id=robotics&quota.gpu=6&quota.cpu=64&quota.memory={quote(entered)}"
    document = browser.get(path)
    assert "memory (GB)" in document.words
    assert "GB, or a size with its unit" in document.words
    assert f"500 GB {shown}" in document.words
    assert "内存以 GB 为单位" in browser.get(f"{path}&lang=zh").words
    browser.get(f"{path}&lang=en")
    confirm(browser, path)
    (change,) = changes(api, call="resize_pool")
    assert change["after"]["resources"]["memory"] == megabytes


def test_a_memory_that_nobody_changes_stays_to_the_megabyte(api, browser):
    amounts = {"cpu": 1, "gpu": 1, "memory": 100_001.5}
    ask(api.mesh, EnsurePool(name="odd", resources=parse_resources(amounts)))
    document = browser.get("/change?do=quota&id=odd")
    (memory,) = [i["value"] for i in document.all("input") if i["name"] == "quota.memory"]
    confirm(browser, f"/change?do=quota&id=odd&quota.gpu=1&quota.cpu=2&quota.memory={memory}")
    (change,) = changes(api, call="resize_pool")
    assert change["after"]["resources"] == {"cpu": 2, "gpu": 1, "memory": 100_001.5}


@pytest.mark.parametrize("entered", ["much", "600 XB", "nan", "1e400"])
def test_what_is_no_amount_of_memory_is_said(browser, entered):
    document = browser.get(
        f"/change?do=quota&id=robotics&quota.gpu=6&quota.memory={quote(entered)}"
    )
    assert not [form for form in document.all("form") if form.get("class") == "confirm"]
    assert [one for one in document.all("p") if one.get("role") == "alert"]


def test_what_is_no_amount_of_memory_is_said_in_both_languages(browser):
    path = "/change?do=quota&id=robotics&quota.memory=much"
    assert "memory is 'much'; allowed are GB as a number" in browser.get(path).words
    assert "可以填 GB 数" in browser.get(f"{path}&lang=zh").words


def test_a_refusal_says_why_and_what_helps(api, browser):
    fields = asked(browser.get("/change?do=hold&id=parked"))
    api.send("POST", "/tasks/parked/cancel", {})
    answer = send(browser, fields)
    assert answer.status_code == 409
    document = Document(answer.text)
    assert "Refused: 1" in document.words
    assert "There is no such task" in document.words or "queue" in document.words


def test_sending_a_form_twice_changes_nothing_more(api, browser):
    fields = asked(browser.get("/change?do=priority&id=ablation-2&priority=3"))
    send(browser, fields)
    confirm(browser, "/change?do=priority&id=ablation-2&priority=1")
    assert send(browser, fields).status_code == 200
    assert waiting(api)["ablation-2"]["priority"] == 1


def test_while_the_supervisor_is_away_that_is_said(api, browser, monkeypatch):
    fields = asked(browser.get("/change?do=release&id=parked"))
    monkeypatch.setattr(api.gateway, "cut_off", True)
    answer = send(browser, fields)
    assert answer.status_code == 503
    assert "does not answer" in Document(answer.text).words
    monkeypatch.setattr(api.gateway, "cut_off", False)
    assert waiting(api)["parked"]["held"]


def test_of_a_stopped_supervisor_is_said_that_what_came_of_a_change_is_not_known(
    api, browser, monkeypatch
):
    fields = asked(browser.get("/change?do=release&id=parked"))
    with monkeypatch.context() as patched, api.stopped_supervisor():
        patched.setattr(app, "_PATIENCE_S", 0.1)
        patched.setattr(app, "_STOPPED_S", 0.1)
        answer = send(browser, fields)
        assert answer.status_code == 503
        assert "Whether this was done is not known" in Document(answer.text).words
        # The browser would ask whether the form is to be sent again.
        assert "refresh" not in answer.headers
    assert send(browser, fields).status_code == 200
    assert not waiting(api)["parked"]["held"]
    rows = changes(api, call="change_queued_task")
    assert sum(row["before"]["held"] and not row["after"]["held"] for row in rows) == 1


# -- who may --------------------------------------------------------------------------------------------


def test_a_viewer_sees_no_button_and_can_change_nothing(api, signed_in):
    viewer = signed_in(name="v", role="viewer", owner="")
    for path in ("/", "/queue", "/nodes", "/task?id=parked", "/task?id=detector"):
        assert buttons(viewer.get(path)) == set()
    assert viewer.get("/queue").all("input") == [
        one for one in viewer.get("/queue").all("input") if one.get("type") != "checkbox"
    ]
    for action in ACTIONS:
        viewer.get(f"/change?do={action.name}&id=parked", 403)
    fields = [("do", "cancel"), ("id", "parked"), ("form", "f1")]
    assert send(viewer, fields).status_code == 409
    assert "parked" in waiting(api)
    (change,) = changes(api, call="cancel_tasks")
    assert (change["token"], change["outcome"], change["reason"]) == ("v", "refused", "not_allowed")


def test_a_submitter_changes_its_own_tasks_only(api, signed_in):
    submitter = signed_in()
    assert buttons(submitter.get("/task?id=ablation-2")) == {"release", "priority", "cancel"}
    assert buttons(submitter.get("/task?id=parked")) == set()
    assert buttons(submitter.get("/")) == buttons(submitter.get("/nodes")) == set()
    boxes = [i["value"] for i in submitter.get("/queue").all("input") if "value" in i]
    assert {one for one in boxes if one} == {
        task_id for task_id, row in waiting(api).items() if row["owner"] == "lin"
    }
    assert confirm(submitter, "/change?do=release&id=ablation-2").status_code == 200
    assert changes(api, call="change_queued_task")[0]["token"] == "lin-1"
    refused = confirm(submitter, "/change?do=cancel&id=parked")
    assert refused.status_code == 409
    assert "not one of &#39;lin&#39;" in refused.text
    assert "parked" in waiting(api)
    submitter.get("/change?do=front&id=ablation-2", 403)
    fields = [("do", "front"), ("id", "ablation-2"), ("form", "f1")]
    assert send(submitter, fields).status_code == 409


# -- forms of others ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": None},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1.evil.example"},
    ],
)
def test_forms_of_other_sites_change_nothing(api, browser, headers):
    fields = asked(browser.get("/change?do=cancel&id=parked"))
    assert send(browser, fields, **headers).status_code == 403
    assert "parked" in waiting(api)
    assert changes(api, call="cancel_tasks") == []


@pytest.mark.parametrize("cookie", ["", "schedulemesh_session_1=x", "x"])
def test_without_the_session_nothing_is_changed(api, browser, cookie):
    fields = asked(browser.get("/change?do=cancel&id=parked"))
    browser.client.cookies.clear()
    assert send(browser, fields, cookie=cookie).status_code == 401
    assert "parked" in waiting(api)


def test_the_session_of_another_server_is_none_here(api, browser):
    fields = asked(browser.get("/change?do=cancel&id=parked"))
    [(name, value)] = browser.client.cookies.items()
    browser.client.cookies.clear()
    foreign = f"{name.rpartition('_')[0]}_1={value}"
    assert send(browser, fields, cookie=foreign).status_code == 401
    assert "parked" in waiting(api)


def test_a_token_in_a_header_is_no_session(api, browser):
    fields = asked(browser.get("/change?do=cancel&id=parked"))
    browser.client.cookies.clear()
    assert send(browser, fields, authorization=f"Bearer {api.token}").status_code == 401


def test_a_revoked_token_changes_nothing(api, signed_in):
    submitter = signed_in()
    fields = asked(submitter.get("/change?do=cancel&id=ablation-2"))
    api.send("DELETE", "/tokens/lin-1")
    assert send(submitter, fields).status_code == 401
    assert "ablation-2" in waiting(api)


def test_looking_at_a_question_changes_nothing(api, browser):
    before = len(changes(api))
    for action in ACTIONS:
        browser.client.get(f"/change?do={action.name}&id=parked&priority=7&form=f1")
    assert len(changes(api)) == before


@pytest.mark.parametrize(
    "query",
    [
        "",
        "do=cancel",
        "do=nothing&id=a",
        "do=cancel&id=%00",
        "do=cancel&id=" + "x" * 300,
        "do=cordon&id=a&id=b",
        "do=cancel&" + "&".join(f"id={n}" for n in range(MAX_TARGETS + 1)),
        "do=<script>&id=a",
    ],
)
def test_what_is_no_change_is_said(browser, query):
    document = browser.get(f"/change?{query}", 400)
    assert "cannot be shown" in document.words


@pytest.mark.parametrize(
    "content",
    [
        "",
        "do=cancel&id=parked",
        "do=cancel&id=parked&form=",
        "do=drain&id=" + NODE + "&form=f&deadline=soon",
        "do=quota&id=robotics&form=f&quota.gpu=-1",
        "%ff",
        "a" * 1000,
        "&".join("id=a" for _ in range(500)),
    ],
)
def test_forms_that_ask_for_nothing_possible_change_nothing(api, browser, content):
    headers = {"origin": api.url, "content-type": "application/x-www-form-urlencoded"}
    answer = browser.client.post("/change", content=content, headers=headers)
    assert answer.status_code == 400
    assert changes(api, call="cancel_tasks") == changes(api, call="drain") == []


def test_what_users_write_is_text_where_changes_are_asked(api, browser):
    name = quote('<b id="x">', safe="")
    document = browser.get(f"/change?do=cancel&id={name}")
    assert document.all("b") == []
    assert document.all("i") == []
    document = browser.get(f"/change?do=priority&id=parked&priority={name}")
    assert document.all("b") == []


# -- policies, pools and tokens --------------------------------------------------------------------------


def test_a_policy_is_changed_after_its_differences_were_shown(api, browser):
    document = browser.get("/change?do=policy&id=preemption")
    inputs = [i for i in document.all("input") if i["name"].startswith("policy.")]
    assert {i["name"]: i["value"] for i in inputs}["policy.min_runtime"] == "0.0"
    # As the form is sent: all fields, of which one differs.
    query = "&".join(f"{i['name']}={quote(i['value'])}" for i in inputs)
    query = query.replace("policy.min_runtime=0.0", "policy.min_runtime=60")
    document = browser.get(f"/change?do=policy&id=preemption&{query}")
    assert "min_runtime 0.0 60" in document.words
    fields = asked(document)
    assert [name for name, _ in fields if name.startswith("policy.")] == ["policy.min_runtime"]
    assert send(browser, fields).status_code == 200
    assert "min_runtime 60.0 changed" in browser.get("/policy").words
    (change,) = changes(api, call="change_policy")
    assert (change["token"], change["after"]) == ("local", {"min_runtime": 60.0})
    assert "change_policy" in browser.get("/policy").words


def test_the_policy_of_the_queue_is_changed(api, browser):
    path = "/change?do=policy&id=queue&policy.order=fifo&policy.ageing_per_hour=0.5"
    assert confirm(browser, path).status_code == 200
    assert "ageing_per_hour 0.5 changed" in browser.get("/policy").words


@pytest.mark.parametrize(
    ("query", "english", "chinese"),
    [
        ("do=cancel&id=parked", "Cancelled: parked", "已取消：parked"),
        (
            "do=priority&id=parked&priority=7",
            "The priority is now 7: parked",
            "优先级已改为 7：parked",
        ),
        (f"do=cordon&id={NODE}", "Node gpu-000 is closed", "节点 gpu-000 已封锁"),
        (
            f"do=drain&id={NODE}&deadline=30m",
            "Node gpu-000 is being drained What ends within 30m may finish.",
            "节点 gpu-000 开始排空 30m 内能结束的任务可以运行完。",
        ),
        (
            "do=pool&id=robotics&pool.queueing=strict",
            "Settings of pool robotics are changed queueing strict",
            "资源池 robotics 的设置已修改 queueing strict",
        ),
        (
            "do=policy&id=preemption&policy.min_runtime=60",
            "Changed: Preemption policy min_runtime 60",
            "已修改：抢占策略 min_runtime 60",
        ),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_was_done_to_what_is_said(browser, query, english, chinese, language):
    browser.get(f"/?lang={language}")
    said = Document(confirm(browser, f"/change?{query}").text).words
    assert (chinese if language == "zh" else english) in said


def test_settings_of_a_pool_are_changed(api, browser):
    path = "/change?do=pool&id=robotics&pool.max_run_s=12h&pool.queueing=strict&pool.cohort=none"
    assert confirm(browser, path).status_code == 200
    pool = api.get("/pools/robotics")
    assert (pool["max_run_s"], pool["queueing"], pool["cohort"]) == (43_200, "strict", None)


@pytest.mark.parametrize(
    "query",
    [
        "do=policy&id=preemption&policy.min_runtime=soon",
        "do=policy&id=preemption&policy.victim_order=best",
        "do=policy&id=queue&policy.order=[1]",
        "do=pool&id=robotics&pool.weight=-1",
        "do=pool&id=robotics&pool.queueing=" + quote("<b>"),
        "do=pool&id=robotics&pool.owner_limits=" + "[" * 3_000,
        "do=policy&id=preemption&policy.preemption_aggressiveness=env:HOME",
    ],
)
def test_values_that_cannot_be_are_said_and_not_confirmed(browser, query):
    document = browser.get(f"/change?{query}")
    assert not [form for form in document.all("form") if form.get("class") == "confirm"]


def test_a_token_is_revoked_and_its_sessions_end(api, browser, signed_in):
    other = signed_in()
    assert "lin-1" in browser.get("/audit").words
    answer = confirm(browser, "/change?do=revoke&id=lin-1")
    assert answer.status_code == 200
    other.get("/", 401)
    assert "revoke_token name lin-1 done" in browser.get("/audit").words
    # Nodes have the names that people know.
    assert "cordon_node node_id gpu-004" in browser.get("/audit").words
    assert "name lin-1 done" not in browser.get("/audit?call=drain").words


def test_tokens_and_the_record_are_for_operators(api, signed_in):
    for role in ("viewer", "submitter"):
        other = signed_in(name=role, role=role, owner="lin" if role == "submitter" else "")
        assert "/audit" not in [a["href"] for a in other.get("/policy").all("a")]
        other.get("/audit", 403)
        assert buttons(other.get("/policy")) == set()
        for action in ("policy", "pool", "revoke"):
            other.get(f"/change?do={action}&id=queue", 403)


def test_pages_of_the_record_follow_each_other(api, browser):
    for number in range(60):
        api.send("PATCH", "/queue_policy", {"ageing_per_hour": number / 10 + 0.1})
    first = browser.get("/audit")
    (following,) = [a["href"] for a in first.all("a") if a.get("rel") == "next"]
    assert "First page" in browser.get(following).words
    browser.get("/audit?before=x", 400)
    browser.get("/audit?outcome=x", 400)
