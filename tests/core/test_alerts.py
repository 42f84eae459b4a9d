"""The argument ``alerts`` of a new scheduler."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.core.client.contradictions import refuse_contradictions
from schedulemesh.core.client.new_settings import chosen_alerts, parse_settings
from schedulemesh.errors import InvalidRequestError, SchedulerExistsError

OWN = "tests.runtime.alert_receivers:Recording"


def settings(alerts):
    return parse_settings("mesh", None, None, detached=True, alerts=alerts)


def test_receivers_are_found_before_anything_is_started():
    (ref,) = chosen_alerts({"receivers": [OWN]}).refs
    assert (ref.name, ref.path) == (OWN, OWN)
    with pytest.raises(InvalidRequestError, match="cannot be loaded"):
        chosen_alerts({"receivers": ["no.such_module:Receiver"]})
    with pytest.raises(InvalidRequestError, match="'module:Class' or the name"):
        chosen_alerts({"receivers": [print]})


def test_an_unknown_rule_is_refused_before_anything_is_started():
    with pytest.raises(InvalidRequestError, match="did you mean 'lost_state'"):
        chosen_alerts({"rules": {"lost_states": {}}})


def test_settings_reach_the_supervisor_and_clients_without_secrets():
    alerts = {
        "rules": {"starvation": {"threshold": 5, "severity": "critical"}, "idle_gpus": False},
        "webhooks": [{"url": "https://host/T0KEN", "secret": "S3CRET"}],
        "receivers": [OWN],
    }
    given = settings(alerts)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=SchedulerSettings)
    assert sent == given
    assert sent.alerts.webhooks[0].secret == "S3CRET"
    shown = msgspec.msgpack.encode(given.public())
    assert b"S3CRET" not in shown
    assert b"T0KEN" not in shown
    assert "S3CRET" not in repr(given)
    found = msgspec.msgpack.decode(shown, type=SchedulerSettings)
    refuse_contradictions(given, found)
    refuse_contradictions(settings(None), found)
    with pytest.raises(SchedulerExistsError, match="is alive with alerts") as refused:
        refuse_contradictions(settings({"interval_s": 1}), found)
    assert "T0KEN" not in str(refused.value)
