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
