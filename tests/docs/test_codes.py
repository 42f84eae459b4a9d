"""The tables of codes in the API reference are those of ``schedulemesh.domain.reasons``.

Run with REWRITE_DOCS=1 to write them anew.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from schedulemesh.api.history import EVENT_KINDS
from schedulemesh.domain.end_reasons import EndReason, ReturnReason, TaskEndReason
from schedulemesh.domain.reason_uses import EVALUATION_REASONS, QUEUE_REASONS, REFUSALS
from schedulemesh.domain.reasons import (
    Change,
    Code,
    PreemptionReason,
    Reason,
)
from tests.docs.documents import ROOT, section
from tests.sources import nodes, trees

API = ROOT / "docs" / "api" / "schedule_mesh.md"
COMMAND = "REWRITE_DOCS=1 .venv/bin/python -m pytest tests/docs/test_codes.py"
TABLES: dict[str, tuple[Code, ...]] = {
    "candidates": tuple(PreemptionReason),
    "refusals": REFUSALS,
    "evaluations": EVALUATION_REASONS,
    "waits": QUEUE_REASONS,
    "changes": tuple(Change),
    "ends": tuple(TaskEndReason),
    "returns": tuple(ReturnReason),
}
ENUMS = (Reason, PreemptionReason, EndReason, TaskEndReason, ReturnReason, Change)
SOURCE = ROOT / "schedulemesh" / "domain" / "reasons.py"
#: Where codes are written out: their declarations, and what the page says of each.
SOURCES = (
    SOURCE,
    SOURCE.with_name("end_reasons.py"),
    ROOT / "schedulemesh" / "domain" / "texts" / "codes.py",
)


def rendered(codes: tuple[Code, ...]) -> str:
    rows = [f"| `{code}` | {code.meaning} |" for code in codes]
    return "\n".join(["| code | meaning |", "|---|---|", *rows, ""])


def with_tables(page: str) -> str:
    """The page with each generated table as it should be."""
    for name, codes in TABLES.items():
        marked = re.compile(f"(<!-- generated: {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
        page, replaced = marked.subn(lambda m, c=codes: m[1] + rendered(c) + m[2], page)
        assert replaced == 1, f"the page has {replaced} tables {name!r}"
    return page


def test_the_tables_of_codes_are_current():
    page = API.read_text(encoding="utf-8")
    if os.environ.get("REWRITE_DOCS"):
        API.write_text(with_tables(page), encoding="utf-8")
    elif page != with_tables(page):
        pytest.fail(f"the tables of {API.relative_to(ROOT)} are stale; run {COMMAND}")


def test_every_public_code_is_on_the_page():
    told = set(re.findall(r"^\| `(\w+)` \|", API.read_text(encoding="utf-8"), re.MULTILINE))
    assert {*Reason, *PreemptionReason, *TaskEndReason, *ReturnReason, *Change} - told == set()
    assert "`preemption_failed`" in section(API, "Refusal codes")


def modules():
    return [path for path in trees() if path not in SOURCES]


def strings(path: Path) -> list[ast.Constant]:
    """Every constant but the tags of classes, of which one is named as a code."""
    tags = {
        keyword.value
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        for keyword in node.keywords
        if keyword.arg == "tag"
    }
    return [n for n in nodes(path) if isinstance(n, ast.Constant) and n not in tags]


def test_no_code_is_written_out_elsewhere():
    """Of the other enumerations some are everyday words, such as ``created``."""
    codes = {*map(str, Reason), *map(str, PreemptionReason)}
    found = [
        f"{path.relative_to(ROOT)}:{constant.lineno} {constant.value}"
        for path in modules()
        for constant in strings(path)
        if constant.value in codes
    ]
    assert found == []


def test_every_code_is_given_somewhere():
    named = {
        (node.value.id, node.attr)
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    members = {(enum.__name__, code.name) for enum in ENUMS for code in enum}
    assert sorted(members - named) == []


def reason_arguments():
    """The expression of each ``reason`` and ``change`` that a message of the package is made with."""
    messages = {
        "Refused": "Reason",
        "Evaluation": "Reason",
        "AgentStartFailed": "Reason",
        "NoReport": "Reason",
        "Evicted": "PreemptionReason",
        "EvictionStarted": "PreemptionReason",
        "TaskPreempted": "PreemptionReason",
        "AgentEnding": "EndReason",
        "AgentEnded": "EndReason",
        "Finding": "Reason",
        "Done": "Change",
    }
    for path in modules():
        for node in nodes(path):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", ""))
            for keyword in node.keywords if name in messages else ():
                if keyword.arg in ("reason", "change"):
                    yield messages[name], keyword.value


def test_every_code_that_is_given_is_a_member():
    """A type checker proves it of names; here it is seen that nothing is given as a string."""
    given = list(reason_arguments())
    assert len(given) > 50
    for enum, expression in given:
        assert not isinstance(expression, ast.Constant | ast.JoinedStr), ast.unparse(expression)
        if isinstance(expression, ast.Attribute) and ast.unparse(expression.value).endswith(
            "Reason"
        ):
            assert ast.unparse(expression.value) == enum


def test_the_page_of_the_history_has_every_kind_of_event():
    rows = (ROOT / "docs" / "history.md").read_text("utf-8").split("| kind | what happened |")[1]
    kinds = [
        row.split("|")[1] for row in rows.split("\n\n")[0].splitlines() if row.startswith("| `")
    ]
    assert {kind for cell in kinds for kind in re.findall(r"`(\w+)`", cell)} == set(EVENT_KINDS)
