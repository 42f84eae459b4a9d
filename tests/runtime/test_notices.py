"""Notices about tasks: who is told what, in which words, and what a restart repeats."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.api.history import QueryEvents
from schedulemesh.config.alert_receivers import Webhook
from schedulemesh.config.alerts import AlertSettings
from schedulemesh.config.notices import NoticeRoute
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.client.new_settings import chosen_alerts
from schedulemesh.errors import InvalidRequestError
from schedulemesh.metrics.alert_evaluation import AlertState
from schedulemesh.runtime.alerts import outbox as alert_outbox
from schedulemesh.runtime.alerts.notices import check_notify, cursor_of, is_for, notice_of
from schedulemesh.runtime.alerts.texts import text_of
from schedulemesh.runtime.services import notices
from tests.core.test_request_service import client
from tests.runtime.chat_services import ChatServer, wecom
from tests.runtime.composition import InThread
from tests.runtime.test_history import ask, make_pool, run_task

#: An attempt of a task as the history answers it.
ATTEMPT = {
    "task_id": "train-1",
    "pool_name": "research",
    "owner": "ann",
    "labels": {},
    "waited_s": 7505.0,
    "ran_s": 3723.0,
    "lost_s": 61.0,
    "by_task": "urgent-1",
    "by_agent": "urgent-1",
    "by_client": "",
    "rule": "priority",
    "error": "ValueError: no such file\nTraceback",
    "reason": "task_failed",
    "state": "failed",
}


@pytest.fixture
def chat(monkeypatch):
    monkeypatch.setattr(alert_outbox, "RETRY_S", 0.01)
    server = ChatServer(wecom)
    yield server
    server.close()


@pytest.fixture
def begin(tmp_path):
    made = []

    def supervisor(chat, *routes, others=(), **fields):
        bots = [Webhook(url=chat.url, format="wecom", name="team", **fields)]
        bots += [Webhook(url=other.url, format="wecom", name="down") for other in others]
        alerts = AlertSettings(interval_s=3600.0, rules=SILENT, webhooks=bots, notices=routes)
        made.append(InThread(tmp_path / "mesh.sqlite", alerts=alerts))
        # Without the interval that the service asks for, which other tests are about.
        for outbox in made[-1].running.alerts._outboxes:
            outbox._interval_s = 0.0
        return made[-1]

    yield supervisor
    for mesh in made:
        if mesh.loop.is_running():
            end(mesh)


#: No alert fires.
SILENT = {"supervisor_restarted": False}


def end(mesh):
    mesh.running.alerts.close()
    mesh.close()


def route(*events, **fields):
    return NoticeRoute(to=("team",), events=events, **fields)


def test_a_receiver_is_told_what_happens_to_the_tasks_of_a_pool_or_an_owner(begin, chat):
    mesh = begin(chat, route("completed", pools=["p"], owners=["ann"]))
    for name in ("p", "q"):
        make_pool(mesh, name)
    run_task(mesh, "of-another-pool", pool="q")
    run_task(mesh, "of-another-owner", owner="bob")
    run_task(mesh, "own")
    assert chat.accepted.get(timeout=20).splitlines() == [
        "ScheduleMesh mesh",
        "[COMPLETED] own",
        "It is completed in pool p, after it had run for 0s.",
    ]
    assert chat.attempts == 1


def test_the_label_of_a_task_names_who_is_told_everything_of_it(begin, chat):
    mesh = begin(chat, language="zh")
    make_pool(mesh)
    run_task(mesh, "silent")
    run_task(mesh, "told", labels={"notify": "team"})
    text = chat.accepted.get(timeout=20)
    while "完成" not in text:
        text += "\n" + chat.accepted.get(timeout=20)
    heads = [line for line in text.splitlines() if line.startswith("【")]
    assert heads == ["【任务启动】told", "【任务完成】told"]


def test_a_receiver_that_does_not_exist_is_refused_when_the_task_is_submitted(begin, chat):
    mesh = begin(chat)
    make_pool(mesh)
    calls = client(mesh)
    with pytest.raises(InvalidRequestError, match=r"did you mean 'team'\?\); there are team"):
        calls.submit_job("j", ["true"], "p", labels={"notify": "taem"}, queue=True)
    spec = {"task_id": "m", "pool_name": "p", "actor_class": AgentActor}
    with pytest.raises(InvalidRequestError, match="names the receiver 'taem'"):
        calls.submit_many([{**spec, "labels": {"notify": "taem"}}])
    assert calls.list_tasks()["tasks"] == []
    with pytest.raises(InvalidRequestError, match="this scheduler has none"):
        check_notify({"notify": "team"}, [])


def test_an_owner_is_told_the_place_in_the_queue_after_an_eviction(begin, chat):
    mesh = begin(chat, route("preempted"))
    make_pool(mesh)
    calls = client(mesh)
    calls.update_preemption_policy(cancel_timeout=0.05)

    def submit(task_id, **fields):
        answer = calls.submit_task_with_preemption(
            task_id, "p", AgentActor, {"cpu": 4}, on_preempted="requeue", **fields
        )
        assert answer["success"], answer

    submit("first")
    for number in range(2):
        submit(f"waits-{number}", queue=True)
    submit("urgent", priority=9.0)
    text = chat.accepted.get(timeout=20)
    assert "were lost. It waits again, 1 of 3 in the queue." in text


def test_what_was_not_delivered_is_sent_after_a_restart_and_what_was_is_not(begin, chat):
    first = begin(chat, route("completed"))
    make_pool(first)
    run_task(first, "delivered")
    assert "delivered" in chat.accepted.get(timeout=20)
    chat.refusals += [{"errcode": 93000, "errmsg": "gone"}] * 100_000
    run_task(first, "refused")
    while not first.running.alerts._outboxes[0].counts()["failed"]:
        first.do(first.running.reactor.flushed())
    end(first)
    chat.refusals.clear()
    begin(chat, route("completed"))
    texts = [chat.accepted.get(timeout=20)]
    while "refused" not in texts[-1]:
        texts.append(chat.accepted.get(timeout=20))
    # It is noted up to where it is read once all was delivered: what came just before may come again.
    assert "refused" in texts[-1]
    assert texts[-1].count("[COMPLETED] refused") == 1


def test_a_new_scheduler_tells_nothing_of_what_was_before_it_had_receivers(begin, chat, tmp_path):
    before = InThread(tmp_path / "mesh.sqlite")
    make_pool(before)
    run_task(before, "before")
    before.close()
    mesh = begin(chat, route("completed"))
    # Its first round is what sets where it begins.
    run_task(mesh, "first")
    while not chat.accepted.qsize():
        run_task(mesh, "later")
    assert "before" not in chat.accepted.get_nowait()


def test_a_receiver_that_is_down_repeats_nothing_to_the_others_and_loses_no_alert(
    begin, chat, monkeypatch
):
    monkeypatch.setattr(notices, "_WAITING", 3)
    monkeypatch.setattr(notices, "_EVENTS", 2)
    down = ChatServer(wecom, [{"errcode": 93000, "errmsg": "gone"}] * 100_000)
    both = NoticeRoute(to=("team", "down"), events=("completed",))
    first = begin(chat, both, others=[down])
    make_pool(first)
    for number in range(6):
        run_task(first, f"task-{number}")
    texts = [chat.accepted.get(timeout=20)]
    while "task-5" not in texts[-1]:
        texts.append(chat.accepted.get(timeout=20))
    assert "\n".join(texts).count("[COMPLETED]") == 6
    alerts = first.running.alerts
    while alerts.notices_waiting("down") < 3:
        first.do(first.running.reactor.flushed())
    assert alerts.notices_waiting("down") <= 4
    last = ask(first, QueryEvents(kinds=("completed",)))["events"][-1]["cursor"]
    while noted(first)["team"] < last:
        first.do(first.running.reactor.flushed())
    assert noted(first)["down"] < last
    end(first)
    down.refusals.clear()
    begin(chat, both, others=[down])
    texts = [down.accepted.get(timeout=20)]
    while "task-5" not in texts[-1]:
        texts.append(down.accepted.get(timeout=20))
    assert "\n".join(texts).count("[COMPLETED]") == 6
    # What is sent next to the others is what happens next.
    assert chat.accepted.empty()
    down.close()


def noted(mesh):
    data = mesh.running.alerts.journal.note("notices")
    return msgspec.msgpack.decode(data, type=dict[str, int])


def test_alerts_wait_longer_than_notices(monkeypatch):
    monkeypatch.setattr(alert_outbox, "MOST_WAITING", 3)
    waiting = alert_outbox.Outbox("team", lambda alerts: None)
    alert = msgspec.structs.replace(notice_of(0, 5.0, "lost", ATTEMPT), state=AlertState.FIRING)
    waiting.put([alert])
    waiting.put([notice_of(number, 5.0, "failed", ATTEMPT) for number in range(1, 5)])
    assert [cursor_of(each) for each in waiting.waiting()] == [0, 3, 4]
    assert waiting.counts()["given_up"] == 2


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "started",
            [
                "[STARTED] train-1",
                "It has started in pool research, after it had waited for 2h05m.",
            ],
        ),
        (
            "preempted",
            [
                "[PREEMPTED] train-1",
                "It was preempted in pool research by urgent-1; 1m01s of its work were lost.",
                "`schedulemesh explain train-1` says whether and when it returns.",
            ],
        ),
        (
            "failed",
            [
                "[FAILED] train-1",
                "It has failed in pool research, after it had run for 1h02m: ValueError: no such file",
                "`schedulemesh logs train-1` has its output.",
            ],
        ),
    ],
)
def test_a_notice_says_what_happened_and_what_to_do(kind, lines):
    notice = notice_of(7, 5.0, kind, ATTEMPT)
    assert notice.state is AlertState.NOTICE
    assert (notice.id, notice.active_at) == (f"notice_{kind}-7", 5.0)
    assert list(text_of([notice], "mesh", "en", 2048).lines) == lines


def test_of_an_error_of_the_schedulers_own_the_text_is_enough():
    error = "schedulemesh.errors.JobFailedError: the driver ended with exit code 3"
    notice = notice_of(7, 5.0, "failed", ATTEMPT | {"error": error})
    assert notice.summary.endswith(" for 1h02m: the driver ended with exit code 3")


def test_a_notice_in_chinese():
    text = text_of([notice_of(7, 5.0, "preempted", ATTEMPT)], "mesh", "zh", 2048)
    assert list(text.lines) == [
        "【任务被抢占】train-1",
        "在资源池 research 中被 urgent-1 抢占，损失了 1m01s 的工作。",
        "用 `schedulemesh explain train-1` 查看它是否恢复、何时恢复。",
    ]


def test_a_notice_says_the_place_in_the_queue():
    notice = notice_of(7, 5.0, "preempted", ATTEMPT, (2, 5))
    assert (notice.rule, dict(notice.labels)["position"]) == ("notice_preempted", "2")
    _, summary, action = text_of([notice], "mesh", "en", 2048).lines
    assert summary.endswith("were lost. It waits again, 2 of 5 in the queue.")
    assert action == "`schedulemesh explain train-1` says when it returns."
    assert "重新排队，在 5 个任务中排第 2 位。" in str(text_of([notice], "mesh", "zh", 2048))


def test_a_start_is_told_of_who_waited_long():
    routes = [
        NoticeRoute(to=["a"], events=["started"], min_wait_s="3h"),
        NoticeRoute(to=["b"], events=["started"]),
    ]
    longer = ATTEMPT | {"waited_s": 10_801.0}
    assert [is_for(name, routes, "started", ATTEMPT) for name in "ab"] == [False, True]
    assert [is_for(name, routes, "started", longer) for name in "ab"] == [True, True]


@pytest.mark.parametrize(
    ("notices", "message"),
    [
        ([{"to": ["teem"]}], "unknown receiver 'teem' .did you mean 'team'"),
        ([{"to": []}], "names no receiver"),
        ([{"to": "team"}], "a list of names"),
        ([{"to": ["team"], "events": ["fialed"]}], "did you mean 'failed'"),
        ([{"to": ["team"], "events": []}], "has no events"),
        ([{"to": ["team"], "min_wait_s": "soon"}], "min_wait_s"),
        ([{"too": ["team"]}], "unknown field 'too'"),
        ({"to": ["team"]}, "a list of routes"),
    ],
)
def test_routes_that_cannot_be_used_are_refused(notices, message):
    settings = {"webhooks": [{"url": "http://h", "name": "team"}], "notices": notices}
    with pytest.raises(InvalidRequestError, match=message):
        chosen_alerts(settings)
