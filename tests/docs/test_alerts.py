"""The page of alerts has the rules. Run with REWRITE_DOCS=1 to write its table anew."""

from __future__ import annotations

from schedulemesh.metrics.alert_rules import RULES
from tests.docs.documents import ROOT, check_generated

PAGE = ROOT / "docs" / "alert_rules.md"
COMMAND = "REWRITE_DOCS=1 .venv/bin/python -m pytest tests/docs/test_alerts.py"


def spelled(seconds):
    """A duration for people."""
    if not seconds:
        return "at once"
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def rendered():
    rows = [
        f"| `{rule.id}` | {rule.severity.value} | `{rule.condition.promql()}` | "
        f"{spelled(rule.for_s)} | {rule.summary} {rule.action} |"
        for rule in RULES.values()
    ]
    head = [
        "| id | severity | condition | fires after | meaning, and what to do |",
        "|---" * 5 + "|",
    ]
    return "\n".join([*head, *rows, ""])


def test_the_table_is_current():
    check_generated(PAGE, "rules", rendered(), COMMAND)
