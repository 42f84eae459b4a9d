"""The command alerts, and the file of rules and receivers of a scheduler."""

from __future__ import annotations

import json

import pytest

from schedulemesh.cli.alerts import alert_settings
from schedulemesh.config.alert_receivers import Webhook
from schedulemesh.config.alerts import parse_alert_settings
from schedulemesh.errors import InvalidRequestError
from schedulemesh.metrics.alert_rules import RULES
from schedulemesh.runtime.alerts.outbox import Outbox
from schedulemesh.runtime.alerts.webhook import WebhookSender
from tests.runtime.chat_services import SECRET, ChatServer, dingtalk

FORMATS = ("table", "wide", "json", "yaml", "csv", "name")


@pytest.fixture
def alarmed(scheduler):
    """A scheduler with an alert that fires and one that is pending."""
    scheduler.pool(cpu=2)
    scheduler.submit("甲", cpu=2)
    service = scheduler.connection.service
    service.running.reactor.times.failed()
    service.do(service.requests.alerts.evaluate())
    return scheduler


def test_alerts_are_listed_those_that_fire_first(alarmed, run):
    rows = json.loads(run("alerts", "-o", "json").stdout)
    assert [(row["rule"], row["state"]) for row in rows] == [
        ("journal_errors", "firing"),
        ("quota_nearly_full", "pending"),
    ]
    assert rows == alarmed.calls.alerts()["alerts"]
    assert rows[1]["labels"] == {"pool": "研究", "resource": "cpu"}
    chosen = run("alerts", "-f", "state=firing", "-o", "name").stdout.split()
    assert chosen == [rows[0]["id"]]
    assert json.loads(run("alerts", "-l", "pool=研究", "-o", "json").stdout) == rows[1:]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(alarmed, run, form):
    done = run("alerts", "-o", form)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "journal_errors" in done.stdout.replace("\n", "")
    if form == "table":
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_none_is_an_empty_list(scheduler, run):
    assert json.loads(run("alerts", "-o", "json").stdout) == []


@pytest.fixture
def chat():
    server = ChatServer(dingtalk)
    yield server
    server.close()


def test_a_test_message_reaches_every_receiver_or_one(scheduler, run, chat):
    service = scheduler.connection.service
    signed = Webhook(url=chat.url, format="dingtalk", secret=SECRET, name="值班群", language="zh")
    unsigned = Webhook(url=chat.url, format="dingtalk", name="other")
    service.running.alerts._outboxes = [
        Outbox(each.name, WebhookSender(each, "mesh", "space")) for each in (signed, unsigned)
    ]
    done = run("alerts", "test")
    assert done.exit_code == 1
    assert [line.split(maxsplit=2) for line in done.stdout.splitlines()] == [
        ["receiver", "test", "message  error"],
        ["值班群", "accepted"],
        ["other", "failed", "it answered with the code 310000: sign not match"],
    ]
    assert chat.accepted.get_nowait().splitlines() == [
        "ScheduleMesh mesh",
        "【提示】test",
        "这是一条测试消息。",
        "收到它，说明告警可以送达这里。无需处理。",
    ]
    assert run("alerts", "test", "值班群").exit_code == 0
    wrong = run("alerts", "test", "othr")
    assert wrong.exit_code != 0
    assert "there is no receiver of alerts 'othr' (did you mean 'other'?)" in wrong.stderr
    assert run("alerts", "-o", "json").stdout.strip() == "[]"


def test_a_scheduler_without_receivers_says_where_they_are_set(scheduler, run):
    done = run("alerts", "test")
    assert done.exit_code != 0
    assert "schedulemesh start --alerts FILE" in done.stderr.replace("\n", " ")


def test_a_file_of_rules_and_receivers(tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(
        "rules: {starvation: {threshold: 60}, idle_gpus: false}\n"
        "webhooks: [{url: 'https://host/hook', secret_env: HOOK}]\n",
        encoding="utf-8",
    )
    found = parse_alert_settings(alert_settings(str(path)), {"HOOK": "secret"})
    assert found.rules["starvation"].threshold == 60.0
    assert (found.rules.keys() <= RULES.keys(), found.rules["idle_gpus"].enabled) == (True, False)
    assert found.webhooks[0].secret == "secret"
    assert parse_alert_settings(alert_settings("off"), {}).enabled is False
    assert parse_alert_settings(alert_settings(None), {}).enabled is True
    path.write_text("rules: [", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="is no YAML"):
        alert_settings(str(path))
    path.write_text("mail: []\nrules: {}\nmail: []", encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="mail is given twice in line 3"):
        alert_settings(str(path))
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        alert_settings(str(tmp_path / "missing.yaml"))


@pytest.mark.parametrize("text", ["no", "[]", "0", "rules"])
def test_a_file_of_settings_has_fields(tmp_path, text):
    path = tmp_path / "alerts.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="must have fields"):
        alert_settings(str(path))
