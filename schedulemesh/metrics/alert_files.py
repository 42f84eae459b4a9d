"""The rules as a file for a Prometheus server."""

from __future__ import annotations

from collections.abc import Iterable

import yaml

from schedulemesh.metrics.alert_rules import Rule

#: The label that all alerts have, by which they are routed.
COMPONENT = ("component", "schedulemesh")


def rules_file(rules: Iterable[Rule], interval_s: float) -> str:
    """The text of the file, evaluated at this interval."""
    group = {
        "name": "schedulemesh",
        "interval": duration(interval_s),
        "rules": [_entry(rule) for rule in rules],
    }
    return str(yaml.safe_dump({"groups": [group]}, sort_keys=False, allow_unicode=True, width=1000))


def duration(seconds: float) -> str:
    """A duration as Prometheus spells it."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def _entry(rule: Rule) -> dict[str, object]:
    return {
        "alert": rule.id,
        "expr": rule.condition.promql(),
        "for": duration(rule.for_s),
        "labels": {"severity": rule.severity.value, COMPONENT[0]: COMPONENT[1]},
        "annotations": {
            "summary": _template(rule.summary),
            "action": _template(rule.action),
            "value": '{{ $value | printf "%.6g" }}',
        },
    }


def _template(text: str) -> str:
    """A text in which ``{name}`` stands for the value of a label, as a template of Prometheus."""
    return text.replace("{", "{{ $labels.").replace("}", " }}")
