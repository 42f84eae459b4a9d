"""The headings of tables in both languages."""

from __future__ import annotations

import ast
from pathlib import Path

from schedulemesh import cli
from schedulemesh.cli.headings import CHINESE

#: Headings that are the same in both languages: units, and names of fields.
SAME = {"", "CPU", "GPU", "→", "node_id", "on_preempted"}
MODULES = [path for path in Path(cli.__file__).parent.glob("*.py") if path.name != "headings.py"]
#: Functions that make a column, whose first argument is its heading.
COLUMNS = ("wide", "amounts_column")


def headings():
    """The headings that the modules of commands have."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            named = [keyword.value for keyword in node.keywords if keyword.arg == "heading"]
            first = node.args[:1] if getattr(node.func, "id", "") in COLUMNS else []
            for value in (*named, *first):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_every_heading_has_a_text_in_chinese():
    written = set(headings())
    assert len(written) > 100
    assert written - SAME - set(CHINESE) == set()
    sources = "".join(path.read_text(encoding="utf-8") for path in MODULES)
    assert [heading for heading in CHINESE if f'"{heading}"' not in sources] == []


def test_tables_have_chinese_headings_where_chinese_is_asked_for(scheduler, run):
    scheduler.pool(cpu=4)
    english, chinese = run("pools"), run("pools", "--lang", "zh")
    assert english.stdout.split()[:2] == ["pool", "cohort"]
    assert chinese.stdout.split()[:2] == ["资源池", "共享组"]
    assert run("pools", "--lang", "zh", "-o", "csv").stdout == run("pools", "-o", "csv").stdout


def test_filters_and_sorting_take_headings_in_both_languages(scheduler, run):
    scheduler.pool(cpu=4)
    for heading in ("pool", "资源池", "name"):
        done = run(
            "pools", "--lang", "zh", "-f", f"{heading}=研究", "--sort", heading, "-o", "name"
        )
        assert (done.exit_code, done.stdout.split()) == (0, ["研究"]), done.stderr
