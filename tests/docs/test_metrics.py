"""The page of metrics is the catalogue. Run with REWRITE_DOCS=1 to write its table anew."""

from __future__ import annotations

import re

from schedulemesh.metrics.catalogue import CATALOGUE
from tests.docs.documents import ROOT, check_generated

PAGE = ROOT / "docs" / "metrics.md"
COMMAND = "REWRITE_DOCS=1 .venv/bin/python -m pytest tests/docs/test_metrics.py"


def rendered():
    rows = [
        f"| `{m.name}` | {m.kind.value} | {m.unit} | {', '.join(f'`{n}`' for n in m.labels)} | {m.help} |"
        for m in CATALOGUE.values()
    ]
    return "\n".join(
        ["| name | kind | unit | labels | meaning |", "|---|---|---|---|---|", *rows, ""]
    )


def test_the_table_is_current():
    check_generated(PAGE, "metrics", rendered(), COMMAND)


def test_no_metric_has_a_label_per_task():
    assert all("task" not in metric.labels for metric in CATALOGUE.values())


def test_every_metric_that_documents_name_exists():
    told = set()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        told |= set(re.findall(r"`(schedulemesh_[a-z_]+)`", page.read_text(encoding="utf-8")))
    parts = {f"{m.name}_{end}" for m in CATALOGUE.values() for end in ("bucket", "sum", "count")}
    assert told - set(CATALOGUE) - parts == set()
