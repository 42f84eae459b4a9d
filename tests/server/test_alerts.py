"""Alerts over HTTP."""

from __future__ import annotations


def test_alerts_are_listed_filtered_and_have_labels(api, mesh):
    assert api.get("/alerts")["items"] == []
    mesh.running.reactor.times.failed()
    mesh.do(mesh.requests.alerts.evaluate())
    (alert,) = api.get("/alerts?state=firing&severity=critical")["items"]
    assert (alert["rule"], alert["labels"], alert["resolved_at"]) == ("journal_errors", {}, None)
    assert api.get("/alerts?rule=starvation")["items"] == []
    assert api.get("/alerts?label=pool")["items"] == []
