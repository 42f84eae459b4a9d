"""Prometheus' own tool, by which rules are checked, run_tests and compared."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import yaml

from schedulemesh.metrics.alert_files import COMPONENT, rules_file

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="there is no promtool here (Debian: apt-get install prometheus)",
)


def checked(folder, text):
    """What promtool says of a rules file."""
    path = folder / "rules.yml"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def run_tests(folder, rules, tests, interval_s):
    """Run unit tests of rules; the output of promtool where one fails, else empty."""
    (folder / "rules.yml").write_text(rules_file(rules, interval_s), encoding="utf-8")
    found = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": f"{interval_s}s",
        "tests": [{"interval": f"{interval_s}s", **test} for test in tests],
    }
    path = folder / "tests.yml"
    path.write_text(yaml.safe_dump(found, allow_unicode=True), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", path],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def series(metric, labels, values):
    """A series of the input of a test; None: a scrape did not have it."""
    pairs = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels)
    spelled = " ".join("stale" if value is None else repr(float(value)) for value in values)
    return {"series": f"{metric}{{{pairs}}}", "values": spelled}


def expected(alert):
    """A firing alert as promtool compares it."""
    return {
        "exp_labels": {
            **dict(alert.labels),
            "severity": alert.severity,
            COMPONENT[0]: COMPONENT[1],
        },
        "exp_annotations": {
            "summary": alert.summary,
            "action": alert.action,
            "value": f"{alert.value:.6g}".replace("inf", "+Inf"),
        },
    }
