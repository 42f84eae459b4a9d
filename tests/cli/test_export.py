"""The commands export alerts and export dashboard."""

from __future__ import annotations

import json

import yaml

from schedulemesh.metrics.alert_rules import RULES


def test_rules_and_the_dashboard_are_exported_without_a_scheduler(run):
    rules = run("export", "alerts")
    assert (rules.exit_code, rules.stderr) == (0, "")
    (group,) = yaml.safe_load(rules.stdout)["groups"]
    assert [rule["alert"] for rule in group["rules"]] == list(RULES)
    shown = run("export", "dashboard")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert json.loads(shown.stdout)["title"] == "ScheduleMesh"


def test_an_error_in_the_settings_says_where_and_shows_no_secret(run, tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text('webhooks:\n- {url: "https://host/T0KEN", secret: "S3CRET\n', encoding="utf-8")
    refused = run("export", "alerts", "--settings", path)
    assert refused.exit_code == 2
    assert "is no YAML" in refused.stderr
    assert "line" in refused.stderr
    assert "S3CRET" not in refused.stderr
    assert "T0KEN" not in refused.stderr
