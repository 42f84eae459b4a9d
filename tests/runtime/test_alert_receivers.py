"""Alerts as people read them: in the group chats of four services, and by mail; in English and in Chinese."""

from __future__ import annotations

import email
import email.policy
import string
import time

import msgspec
import pytest

from schedulemesh.config import alert_receivers
from schedulemesh.config.alert_receivers import Mail, Webhook
from schedulemesh.config.alerts import AlertSettings, parse_alert_settings
from schedulemesh.errors import InvalidRequestError
from schedulemesh.metrics.alert_evaluation import AlertBoard, AlertState
from schedulemesh.metrics.alert_rules import RULES
from schedulemesh.runtime.alerts.mail import MailSender
from schedulemesh.runtime.alerts.outbox import Outbox
from schedulemesh.runtime.alerts.texts import text_of
from schedulemesh.runtime.alerts.webhook import WebhookError, WebhookSender
from tests.runtime.alert_receivers import WebhookServer
from tests.runtime.chat_services import (
    SECRET,
    ChatServer,
    MailServer,
    Status,
    dingtalk,
    feishu,
    slack,
    wecom,
)

SERVICES = {"feishu": feishu, "dingtalk": dingtalk, "wecom": wecom, "slack": slack}
SECRETS = {"feishu": SECRET, "dingtalk": SECRET, "wecom": "", "slack": ""}
#: What is to be done about the alert of most tests.
ACTION = (
    "Find it with `schedulemesh queue --pool 研究` and ask `schedulemesh explain` why it waits. "
    "Tasks on hold count, too: release or cancel those that were forgotten."
)
CHINESE_ACTION = (
    "用 `schedulemesh queue --pool 研究` 找到它，再用 `schedulemesh explain` 查看原因。"
    "被搁置（hold）的任务也计算在内：忘记处理的，请放行或取消。"
)
#: What each answers to what it does not take.
REFUSALS = [
    (
        "feishu",
        {"code": 19024, "msg": "Key Words Not Found"},
        "the code 19024: Key Words Not Found",
    ),
    ("feishu", {"code": 11232, "msg": "frequency limited"}, "the code 11232"),
    ("feishu", "<html>", "no JSON"),
    ("feishu", {}, "the code None"),
    ("dingtalk", {"errcode": 310000, "errmsg": "sign not match"}, "310000: sign not match"),
    ("dingtalk", {"errcode": 130101, "errmsg": "send too fast"}, "the code 130101"),
    ("dingtalk", {"errcode": False}, "the code False"),
    ("wecom", {"errcode": 45009, "errmsg": "api freq out of limit"}, "the code 45009"),
    ("wecom", "[]", "has no code"),
    ("slack", "invalid_payload", "it answered 'invalid_payload'"),
    ("slack", "", "it answered ''"),
    ("slack", Status(404, "no_service"), "it answered with status 404: no_service$"),
    ("slack", Status(403, ""), "it answered with status 403$"),
    ("feishu", Status(400, '{"code":11232,\n "msg":"frequency limited"}'), "status 400: .*limited"),
]


@pytest.fixture
def serve():
    servers = []

    def start(name, *refusals):
        servers.append(ChatServer(SERVICES[name], refusals))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def alert(rule="starvation", state=AlertState.FIRING, **labels):
    board = AlertBoard("space/mesh")
    pending = board._pending(RULES[rule], tuple(labels.items()) or (("pool", "研究"),), 0.0)
    return msgspec.structs.replace(pending, state=state, value=4000.0)


def bot(name, server, **fields):
    webhook = Webhook(url=server.url, format=name, secret=SECRETS[name], **fields)
    return WebhookSender(webhook, "mesh", "space")


@pytest.mark.parametrize("name", SERVICES)
def test_a_bot_is_sent_a_signed_text_for_people(serve, name):
    server = serve(name)
    bot(name, server)([alert(), alert(state=AlertState.RESOLVED)])
    assert server.accepted.get_nowait().splitlines() == [
        "ScheduleMesh mesh",
        "[WARNING] starvation",
        "A task of pool 研究 has been waiting in the queue for too long. (value 4000, threshold 3600)",
        ACTION,
        "[RESOLVED] starvation",
        "A task of pool 研究 has been waiting in the queue for too long.",
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_a_bot_is_sent_chinese(serve, name):
    server = serve(name)
    bot(name, server, language="zh")([alert(), alert(state=AlertState.RESOLVED)])
    assert server.accepted.get_nowait().splitlines() == [
        "ScheduleMesh mesh",
        "【告警】starvation",
        "资源池 研究 中有任务排队时间过长。（当前值 4000，阈值 3600）",
        CHINESE_ACTION,
        "【已恢复】starvation",
        "资源池 研究 中有任务排队时间过长。",
    ]


@pytest.mark.parametrize(("name", "answer", "error"), REFUSALS)
def test_what_the_body_of_the_answer_refuses_was_not_delivered(serve, name, answer, error):
    """Three of the services answer with the status 200 whatever they do."""
    with pytest.raises(WebhookError, match=error):
        bot(name, serve(name, answer))([alert()])


@pytest.mark.parametrize("name", ["feishu", "dingtalk"])
def test_a_wrong_secret_is_refused_by_the_service(serve, name):
    server = serve(name)
    webhook = Webhook(url=server.url, format=name, secret="another")
    with pytest.raises(WebhookError, match="sign"):
        WebhookSender(webhook, "mesh", "space")([alert()])
    assert server.accepted.empty()


def test_no_name_mentions_a_channel_or_a_person(serve):
    named = alert(pool="<!channel> & <at user_id='all'>")
    server = serve("slack")
    bot("slack", server)([named])
    text = server.accepted.get_nowait()
    assert "&lt;!channel&gt; &amp; &lt;at" in text
    assert "<" not in text
    # Feishu shows the texts of a post as they are, which the stub insists on.
    bot("feishu", serve("feishu"))([named])
    server = serve("wecom")
    bot("wecom", server)([alert(pool="<@all> 与 <@zhang>")])
    assert "(@all> 与 (@zhang>" in server.accepted.get_nowait()


def test_feishu_takes_a_message_of_names_that_json_makes_longer(serve):
    server = serve("feishu")
    bot("feishu", server)([alert(pool='"' * 253) for _ in range(20)])
    assert server.accepted.get_nowait().count('"') >= 5_000


def test_many_alerts_are_one_message_and_what_does_not_fit_is_counted(serve):
    server = serve("wecom")
    bot("wecom", server)([alert(pool=f"pool-{number}") for number in range(20)])
    text = server.accepted.get_nowait()
    shown = text.count("[WARNING]")
    assert 2 <= shown < 20
    assert text.splitlines()[-1] == f"… and {20 - shown} more"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_name_that_is_too_long_is_cut(language):
    text = text_of([alert(pool="池" * 3000), alert()], "mesh", language, 2048)
    assert 1500 < len(str(text).encode()) <= 2048
    assert ("… 另有 2 条" if language == "zh" else "… and 2 more") in text.lines


def _chinese_characters(text):
    return sum("\u4e00" <= character <= "\u9fff" for character in text)


def test_every_rule_has_chinese_sentences_with_the_same_labels():
    for rule in RULES.values():
        fields = {name for _, name, _, _ in string.Formatter().parse(rule.summary) if name}
        labels = {name: f"<{name}>" for name in fields}
        text = str(text_of([alert(rule.id, **labels)], "mesh", "zh", 10_000))
        assert _chinese_characters(text) > 10, rule.id
        assert all(value in text for value in labels.values()), rule.id
        assert "{" not in text, rule.id


def outbox(send, **options):
    made = Outbox("chat", send, **options)
    made.start()
    return made


def test_alerts_that_come_together_are_sent_together_and_not_before_the_interval_is_over():
    sent = []
    made = outbox(
        lambda alerts: sent.append((time.monotonic(), len(alerts))), at_once=3, interval_s=0.3
    )
    made.put([alert()])
    with made._changed:
        assert made._changed.wait_for(lambda: made._counts["delivered"] == 1, 20.0)
    made.put([alert() for _ in range(4)])
    with made._changed:
        assert made._changed.wait_for(lambda: made._counts["delivered"] == 5, 20.0)
    made.close()
    assert [count for _, count in sent] == [1, 3, 1]
    assert sent[1][0] - sent[0][0] >= 0.3
    assert sent[2][0] - sent[1][0] >= 0.3


def test_the_end_of_a_scheduler_does_not_wait_for_an_interval():
    sent = []
    made = outbox(lambda alerts: sent.append(len(alerts)), at_once=3, interval_s=600.0)
    made.put([alert()])
    with made._changed:
        assert made._changed.wait_for(lambda: made._counts["delivered"] == 1, 20.0)
    made.put([alert(), alert()])
    assert made.drained(time.monotonic() + 20.0)
    made.close()
    assert sent == [1, 2]


@pytest.mark.parametrize(
    ("service", "answer"),
    [
        ("slack", Status(429, "rate_limited", {"Retry-After": "37"})),
        (
            "feishu",
            Status(
                429,
                '{"code": 99991400, "msg": "request trigger frequency limit"}',
                {"x-ogw-ratelimit-reset": "37"},
            ),
        ),
    ],
)
def test_a_service_says_when_the_next_attempt_may_come(serve, monkeypatch, service, answer):
    server, waits = serve(service, answer), []
    made = Outbox(service, bot(service, server))

    def wait(until, needed):
        waits.append((round(until - time.monotonic()), needed))

    monkeypatch.setattr(made, "_wait", wait)
    made.start()
    made.put([alert()])
    assert made.drained(time.monotonic() + 20.0)
    made.close()
    assert waits[0] == (37, True)
    assert made.counts() == {"delivered": 1, "failed": 1, "given_up": 0}


def test_a_proxy_is_asked_for_the_whole_address(serve):
    server = serve("slack")
    webhook = Webhook(
        url="http://hooks.example/x?key=1", format="slack", proxy=f"http://{server.address}"
    )
    WebhookSender(webhook, "mesh", "space")([alert()])
    assert server.targets == ["http://hooks.example/x?key=1"]


@pytest.fixture
def mail_server():
    server = MailServer()
    yield server
    server.close()


def mail(server, **fields):
    settings = {"security": "none", "to": ["a@example.com", "b@example.com"], **fields}
    return Mail(host="127.0.0.1", port=server.port, sender="mesh@example.com", **settings)


def test_a_mail_has_the_text_in_both_languages(mail_server):
    for language, subject in (("en", "[WARNING] starvation"), ("zh", "【告警】starvation")):
        MailSender(mail(mail_server, language=language), "mesh")([alert()])
        addressees, data = mail_server.received.get_nowait()
        assert addressees == ["a@example.com", "b@example.com"]
        message = email.message_from_bytes(data, policy=email.policy.default)
        assert message["Subject"] == f"ScheduleMesh mesh: {subject}"
        assert message["From"] == "mesh@example.com"
        assert "研究" in message.get_content()


def test_one_addressee_who_is_unknown_does_not_have_the_others_get_the_mail_again(
    mail_server, caplog
):
    mail_server.unknown = ("b@example.com",)
    sender = MailSender(mail(mail_server), "mesh")
    made = outbox(sender)
    made.put([alert()])
    assert made.drained(time.monotonic() + 20.0)
    made.close()
    addressees, _ = mail_server.received.get_nowait()
    assert addressees == ["a@example.com"]
    assert mail_server.received.empty()
    assert "the server refused b@example.com (550 5.1.1 no such user)" in caplog.text
    # A test message says it, too.
    assert "550" in str(made.attempt([alert()]))


def test_a_mail_that_all_refuse_is_sent_again(mail_server):
    mail_server.unknown = ("a@example.com", "b@example.com")
    with pytest.raises(OSError, match="no such user"):
        MailSender(mail(mail_server), "mesh")([alert()])


def test_a_server_without_encryption_is_not_told_the_password(mail_server):
    settings = mail(mail_server, security="starttls", username="mesh", password="S3CRET")
    with pytest.raises(OSError, match="STARTTLS"):
        MailSender(settings, "mesh")([alert()])
    assert [command.split()[0].upper() for command in mail_server.commands] == ["EHLO"]


def test_a_mail_server_that_is_gone_is_an_error():
    server = MailServer()
    server.close()
    with pytest.raises(OSError, match="refused"):
        MailSender(mail(server), "mesh")([alert()])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://h", "format": "feishuu"}, "did you mean 'feishu'"),
        ({"url": "http://h", "format": "wecom", "secret": "x"}, "wecom are not signed"),
        ({"url": "http://h", "format": "slack", "secret_env": "X"}, "slack are not signed"),
        ({"url": "http://h", "language": "de"}, "allowed are en, zh"),
        ({"url": "http://h", "proxy": "https://p"}, "must begin with http://"),
        ({"url": "http://h", "proxy": "http://user:password@p"}, "must not contain a user"),
        *(
            ({"url": f"http://{host}/hook"}, "clouds serve the credentials")
            for host in (
                "169.254.169.254",
                "169.254.0.23:80",
                "100.100.100.200",
                "192.0.0.192",
                "[fe80::1]",
                "[fe80::1%25eth0]:8080",
                "[fd00:ec2::254]",
                "[::ffff:169.254.169.254]",
            )
        ),
        ({}, "url"),
    ],
)
def test_webhooks_that_cannot_be_used_are_refused(fields, message):
    with pytest.raises(InvalidRequestError, match=message) as refused:
        Webhook(**fields)
    assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"to": []}, "1 to 100 addresses"),
        ({"to": "a@b"}, "list"),
        ({"to": ["a@b\nBcc: c@d"]}, "no mail address"),
        ({"sender": "mesh"}, "no mail address such as"),
        ({"host": "smtp.example.com:25"}, "its port is given as port"),
        ({"password": "S3CRET"}, "no username"),
        ({"username": "u", "password": "S3CRET", "security": "none"}, "without encryption"),
        ({"security": "ssl"}, "allowed are starttls, tls, none"),
        ({"port": 70000}, "port"),
    ],
)
def test_mail_that_cannot_be_used_is_refused(fields, message):
    good = {"host": "smtp.example.com", "to": ["a@b.c"], "sender": "mesh@b.c"}
    with pytest.raises(InvalidRequestError, match=message) as refused:
        Mail(**{**good, **fields})
    assert "S3CRET" not in str(refused.value)


def test_the_usual_ports_of_mail():
    fields = {"host": "smtp.example.com", "to": ["a@b.c"], "sender": "mesh@b.c"}
    ports = [Mail(**fields, security=each).port for each in ("starttls", "tls", "none")]
    assert ports == [587, 465, 25]


def test_a_name_that_leads_to_where_clouds_serve_credentials_is_sent_nothing(monkeypatch):
    server = WebhookServer(200)
    sender = WebhookSender(
        Webhook(url=server.url.replace("127.0.0.1", "localhost")), "mesh", "space"
    )
    with monkeypatch.context() as patched:
        patched.setattr(alert_receivers, "_METADATA", ("127.0.0.1", "::1"))
        with pytest.raises(WebhookError, match=r"127\.0\.0\.1 is a link-local address, or another"):
            sender([alert()])
    assert server.attempts == 0
    server.close()


def test_secrets_come_from_the_environment_and_are_shown_nowhere():
    settings = parse_alert_settings(
        {
            "webhooks": [{"url_env": "BOT", "format": "dingtalk", "secret_env": "SIGN"}],
            "mail": [
                {
                    "host": "smtp.example.com",
                    "to": ["a@b.c"],
                    "sender": "mesh@b.c",
                    "username": "mesh",
                    "password_env": "MAIL",
                }
            ],
        },
        {"BOT": "https://oapi.example/robot/send?access_token=T0KEN", "SIGN": "S1", "MAIL": "S2"},
    )
    (webhook,), (addressee,) = settings.webhooks, settings.mail
    assert webhook.url.endswith("access_token=T0KEN")
    assert (webhook.secret, addressee.password) == ("S1", "S2")
    for shown in (repr(settings), repr(settings.public())):
        assert not any(secret in shown for secret in ("T0KEN", "S1", "S2"))
    assert settings.public().public() == settings.public()
    with pytest.raises(InvalidRequestError, match="its url from the environment variable BOT"):
        parse_alert_settings({"webhooks": [{"url_env": "BOT"}]}, {})


def test_receivers_of_one_name_are_refused():
    webhooks = [
        {"url": "https://h/1", "format": "slack"},
        {"url": "https://h/2", "format": "slack"},
    ]
    with pytest.raises(InvalidRequestError, match="two receivers of alerts are called 'h'"):
        AlertSettings(webhooks=webhooks)
