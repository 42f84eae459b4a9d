"""Alerts of a whole supervisor: evaluated, delivered, and neither lost nor repeated by a restart."""

from __future__ import annotations

import asyncio

import pytest

from schedulemesh.api.metrics import GetAlerts, GetMetrics
from schedulemesh.api.pools import CreatePool
from schedulemesh.config.alert_receivers import ReceiverRef, Webhook
from schedulemesh.config.alerts import AlertSettings
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.metrics.alert_evaluation import Alert, AlertState
from schedulemesh.protocol.answers import Listed, decode_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.alerts import monitor as alert_monitor
from schedulemesh.runtime.alerts import outbox as alert_outbox
from schedulemesh.runtime.alerts.webhook import WebhookError, WebhookSender
from schedulemesh.runtime.services import alerts as alert_service
from tests.metrics.metered import parsed
from tests.runtime.alert_receivers import SECRET, DrippingServer, Recording, WebhookServer
from tests.runtime.composition import InThread

#: A rule that holds while there is any quota.
RULES = {"quota_nearly_full": {"threshold": 0.0, "for_s": 0.0}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Attempts are repeated soon."""
    monkeypatch.setattr(alert_outbox, "RETRY_S", 0.01)
    Recording.failures = 0
    while not Recording.received.empty():
        Recording.received.get()


@pytest.fixture
def webhook():
    server = WebhookServer()
    yield server
    server.close()


@pytest.fixture
def started(tmp_path):
    """Starts supervisors over one journal, one after the other, as restarts do."""
    found = []

    def start(**settings):
        alerts = AlertSettings(**{"interval_s": 3600.0, "rules": RULES, **settings})
        found.append(InThread(tmp_path / "j.sqlite", alerts=alerts))
        return found[-1]

    yield start
    for mesh in found:
        end(mesh)


def end(mesh):
    if not mesh.loop.is_closed():
        mesh.running.alerts.close()
        mesh.close()


def ask(mesh, request):
    return mesh.do(mesh.service.ask(encode_request(request)))


def pool(mesh, cpu=4):
    spec = PoolSpec(name="研究", resources=parse_resources({"cpu": cpu}))
    ask(mesh, CreatePool(spec=spec))


def evaluate(mesh):
    """Evaluate the rules; the alerts by rule and state."""
    mesh.do(mesh.requests.alerts.evaluate())
    return {(row["rule"], row["state"]): row for row in rows(mesh)}


def rows(mesh):
    return decode_answer(ask(mesh, GetAlerts()), Listed).rows


def metrics(mesh):
    from schedulemesh.protocol.answers import Details

    return parsed(decode_answer(ask(mesh, GetMetrics()), Details).facts["text"])


FIRING = ("quota_nearly_full", "firing")


def test_an_alert_fires_and_is_resolved_and_metrics_count_it(started):
    mesh = started()
    assert evaluate(mesh) == {}
    pool(mesh)
    fires = evaluate(mesh)[FIRING]
    assert fires["labels"] == {"pool": "研究", "resource": "cpu"}
    assert (fires["value"], fires["threshold"], fires["severity"]) == (0.0, 0.0, "info")
    counted = metrics(mesh)
    assert counted["schedulemesh_alerts", "quota_nearly_full", "info", "firing"] == 1
    assert counted["schedulemesh_alerts", "starvation", "warning", "firing"] == 0
    mesh.running.alerts.rules = ()
    assert list(evaluate(mesh)) == [("quota_nearly_full", "resolved")]


def test_it_is_evaluated_at_intervals_and_not_at_all_where_it_is_off(started, webhook):
    off = started(enabled=False)
    pool(off)
    assert evaluate(off) == {}
    end(off)
    hooks = (Webhook(url=webhook.url, secret=SECRET),)
    started(interval_s=0.02, webhooks=hooks)
    told = {webhook.next()["rule"], webhook.next()["rule"]}
    assert told == {"quota_nearly_full", "supervisor_restarted"}


def test_a_webhook_that_fails_is_tried_again_and_gets_each_alert_once(started, webhook):
    webhook.statuses = [503, 404, 302]
    mesh = started(webhooks=(Webhook(url=webhook.url, secret=SECRET, name="hook"),))
    pool(mesh)
    row = evaluate(mesh)[FIRING]
    alert = webhook.next()
    assert alert == {**row, "scheduler": {"name": "mesh", "namespace": "space"}}
    mesh.running.alerts.rules = ()
    evaluate(mesh)
    assert (webhook.next()["state"], webhook.attempts) == ("resolved", 5)
    counted = delivered(mesh, 2)
    assert counted["schedulemesh_alert_deliveries_total", "hook", "failed"] == 3
    assert counted["schedulemesh_alert_deliveries_waiting", "hook"] == 0


def delivered(mesh, count, receiver=0):
    """The metrics once so many deliveries were counted, which happens after they were accepted."""
    outbox = mesh.running.alerts._outboxes[receiver]
    with outbox._changed:
        assert outbox._changed.wait_for(lambda: outbox._counts["delivered"] == count, 20.0)
    return metrics(mesh)


def test_a_dead_webhook_delays_nothing_and_is_visible(started, webhook):
    webhook.close()
    dead = Webhook(url=webhook.url, secret=SECRET, name="dead")
    own = ReceiverRef(name="own", path="tests.runtime.alert_receivers:Recording")
    mesh = started(webhooks=(dead,), receivers=(own,))
    pool(mesh)
    assert FIRING in evaluate(mesh)
    assert Recording.received.get(timeout=20)["state"] == "firing"
    outbox = mesh.running.alerts._outboxes[0]
    while not outbox.counts()["failed"]:
        evaluate(mesh)
    counted = delivered(mesh, 1, receiver=1)
    assert counted["schedulemesh_alert_deliveries_waiting", "dead"] == 1
    assert counted["schedulemesh_alert_deliveries_total", "dead", "failed"] >= 1
    assert counted["schedulemesh_alert_deliveries_total", "own", "delivered"] == 1


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_receiver_that_raises_gets_the_alert_again(started, monkeypatch, error):
    monkeypatch.setattr(Recording, "error", error)
    Recording.failures = 3
    own = ReceiverRef(name="own", path="tests.runtime.alert_receivers:Recording")
    mesh = started(receivers=(own,))
    pool(mesh)
    row = evaluate(mesh)[FIRING]
    assert Recording.received.get(timeout=20) == row


def test_an_attempt_ends_in_time_though_bytes_keep_coming():
    server = DrippingServer()
    sender = WebhookSender(Webhook(url=server.url, timeout_s=0.2), "mesh", "space")
    with pytest.raises(WebhookError, match="did not answer within"):
        sender([an_alert()])
    server.close()


def an_alert():
    return Alert(
        id="x",
        rule="starvation",
        labels=(("pool", "p"),),
        state=AlertState.FIRING,
        severity="info",
        summary="s",
        action="a",
        value=1.0,
        threshold=0.0,
        active_at=0.0,
    )


def test_a_restart_repeats_nothing_that_was_accepted(started, webhook):
    hooks = (Webhook(url=webhook.url, secret=SECRET),)
    first = started(webhooks=hooks)
    pool(first)
    before = evaluate(first)[FIRING]
    assert webhook.next()["id"] == before["id"]
    delivered(first, 1)
    evaluate(first)  # notes that it was accepted
    end(first)
    second = started(webhooks=hooks)
    after = evaluate(second)
    assert after[FIRING]["id"] == before["id"]
    assert webhook.next()["rule"] == "supervisor_restarted"
    delivered(second, 1)
    evaluate(second)
    end(second)
    third = started(webhooks=hooks)
    assert evaluate(third).keys() == after.keys()
    third.running.alerts.rules = ()
    evaluate(third)
    resolved = [webhook.next(), webhook.next()]
    assert {alert["state"] for alert in resolved} == {"resolved"}
    assert before["id"] in {alert["id"] for alert in resolved}
    assert webhook.attempts == 4


def test_what_was_not_accepted_before_a_restart_is_delivered_after_it(started, webhook):
    webhook.statuses = [500] * 10_000
    hooks = (Webhook(url=webhook.url, secret=SECRET),)
    first = started(webhooks=hooks)
    pool(first)
    before = evaluate(first)[FIRING]
    end(first)
    webhook.statuses = []
    started(webhooks=hooks)
    alert = webhook.next()
    assert (alert["id"], alert["state"]) == (before["id"], "firing")


def test_the_end_of_a_scheduler_resolves_its_alerts(started, webhook, monkeypatch):
    monkeypatch.setattr(alert_monitor, "_DRAIN_S", 30.0)
    mesh = started(webhooks=(Webhook(url=webhook.url, secret=SECRET),))
    pool(mesh)
    evaluate(mesh)
    mesh.do(mesh.service.shutdown())
    fired, resolved = webhook.next(), webhook.next()
    assert (fired["state"], resolved["state"]) == ("firing", "resolved")
    assert fired["id"] == resolved["id"]


def test_while_the_journal_cannot_be_written_alerts_are_raised_all_the_same(started, monkeypatch):
    mesh = started()
    pool(mesh)
    journal = mesh.running.alerts.journal

    def fails(name, data):
        raise JournalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "put_note", fails)
        fired = evaluate(mesh)[FIRING]
    assert journal.note("alerts") is None
    evaluate(mesh)
    assert journal.note("alerts") is not None
    end(mesh)
    assert evaluate(started())[FIRING]["id"] == fired["id"]


def test_a_journal_that_fails_raises_an_alert(started):
    mesh = started()
    mesh.running.reactor.times.failed()
    assert evaluate(mesh)["journal_errors", "firing"]["severity"] == "critical"


def test_an_evaluation_with_older_values_does_not_undo_a_newer_one(started, monkeypatch):
    mesh = started()
    evaluate(mesh)
    collect, has_older, goes_on = alert_service.collect_samples, asyncio.Event(), asyncio.Event()

    async def slowly(families, wanted):
        found = await collect(families, wanted)
        if not has_older.is_set():
            mesh.running.reactor.times.failed()
            has_older.set()
            await goes_on.wait()
        return found

    monkeypatch.setattr(alert_service, "collect_samples", slowly)

    async def two():
        first = asyncio.ensure_future(mesh.requests.alerts.evaluate())
        await has_older.wait()
        second = asyncio.ensure_future(mesh.requests.alerts.evaluate())
        await asyncio.wait({second}, timeout=0.2)
        goes_on.set()
        await asyncio.gather(first, second)

    mesh.do(two())
    assert ("journal_errors", "firing") in {(row["rule"], row["state"]) for row in rows(mesh)}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "begin with http:// or https://"),
        ("host/hook", "begin with http:// or https://"),
        ("http://", "name a host"),
        ("http://host:99999/", "[Pp]ort"),
        ("http://user:password@host/", "must not contain a user"),
        ("http://host/#part", "fragment"),
        ("http://host/a b", "without spaces"),
        ("http://主机/", "ASCII"),
        ("http://host:password/", "port"),
        ("http//host/password", "begin with http:// or https://"),
        (5, "text"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(url, message):
    with pytest.raises(InvalidRequestError, match=message) as refused:
        Webhook(url=url)
    assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    ("webhooks", "message"),
    [
        (["https://host/password"], "a webhook must have fields"),
        ("https://host/password", "must be a list of webhooks, not a str"),
        ({"url": "https://host/password"}, "must be a list of webhooks, not a dict"),
        ([{"secret": "password"}], "a webhook must have the field url"),
    ],
)
def test_errors_of_webhooks_do_not_show_their_addresses(webhooks, message):
    with pytest.raises(InvalidRequestError, match=message) as refused:
        AlertSettings(webhooks=webhooks)
    assert "password" not in str(refused.value)


def test_secrets_are_not_shown():
    webhook = Webhook(url="https://host/services/T0KEN?key=T0KEN", secret="S3CRET")
    settings = AlertSettings(webhooks=[webhook])
    for shown in (repr(webhook), str(settings), repr(settings.public())):
        assert "S3CRET" not in shown
        assert "T0KEN" not in shown
    assert settings.public().public() == settings.public()


def test_the_secret_comes_from_the_environment():
    from schedulemesh.config.alerts import parse_alert_settings

    given = {"webhooks": [{"url": "http://host", "secret_env": "HOOK"}]}
    found = parse_alert_settings(given, {"HOOK": "S3CRET"})
    assert found.webhooks[0].secret == "S3CRET"
    with pytest.raises(InvalidRequestError, match="HOOK, which is not set"):
        parse_alert_settings(given, {})
    with pytest.raises(InvalidRequestError, match="did you mean 'webhooks'"):
        parse_alert_settings({"webhook": []}, {})
    twice = {"webhooks": [{"url": "http://host/a"}, {"url": "http://host/b"}]}
    with pytest.raises(InvalidRequestError, match="two receivers of alerts are called 'host'"):
        parse_alert_settings(twice, {})
