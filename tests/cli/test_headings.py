"""The headings of tables in both languages."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_type_hints

from schedulemesh import cli
from schedulemesh.api.pools import PoolInfo
from schedulemesh.api.queue import QueueListing
from schedulemesh.api.tasks import TaskListing, TaskStatus
from schedulemesh.cli.headings import CHINESE, KINDS, RECORDS, STRATEGIES, name_of_fact
from schedulemesh.cli.plugin_rows import plugin_rows
from schedulemesh.cli.table_names import declared_tables
from schedulemesh.cli.tables import columns_of
from tests.sources import nodes

#: Headings that are the same in both languages: units, and names of fields.
SAME = {"", "#", "CPU", "GPU", "→", "node_id", "on_preempted"}
MODULES = [path for path in Path(cli.__file__).parent.glob("*.py") if path.name != "headings.py"]
#: Functions that make a column, whose first argument is its heading.
COLUMNS = ("wide", "amounts_column")


def headings():
    """The headings that the modules of commands have."""
    for path in MODULES:
        for node in nodes(path):
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


def test_every_heading_of_a_declared_table_has_a_text_in_chinese():
    """It is given in the declaration where other tables do not have the heading."""
    headings_of = {
        (table.command, column.heading)
        for _, listing, table in declared_tables()
        for column in columns_of(listing.row, table)
        if not (column.chinese or column.heading in SAME or column.heading in CHINESE)
    }
    assert headings_of == set()


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


def test_every_kind_of_list_has_a_text_in_chinese():
    kinds = {
        keyword.value.value
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant)
        if getattr(node.func, "id", "") == "Listing"
    }
    assert len(kinds) > 30
    assert kinds - set(KINDS) == set()


def test_every_fact_of_a_task_and_of_a_pool_has_a_name_in_chinese():
    rows = (PoolInfo, TaskListing, QueueListing, TaskStatus)
    names = {name.replace("_", " ") for row in rows for name in get_type_hints(row)}
    assert {name for name in names if name_of_fact(name).isascii()} <= SAME | {
        "cpu",
        "agent name",
        "agents",
    }
    assert RECORDS["agent name"] == "Agent"


def test_records_and_empty_lists_are_in_chinese_where_chinese_is_asked_for(scheduler, run):
    assert run("tasks", "--lang", "zh").stderr == "没有任务\n"
    scheduler.pool(cpu=4)
    scheduler.submit("t")
    output = run("tasks", "get", "t", "--lang", "zh").output
    for name in ("任务", "资源池", "优先级", "开始时间", "状态"):
        assert f"{name} " in output
    assert "资源池\n" in run("status", "--lang", "zh").output
    assert run("queue", "--lang", "en").stderr == "no queued tasks\n"


def test_every_strategy_that_is_built_in_has_a_text_in_chinese():
    rows, _ = plugin_rows()
    assert {row["name"] for row in rows if row["from"] == "built in"} == set(STRATEGIES)


def test_flags_are_filtered_by_their_words_in_both_languages(scheduler, run):
    scheduler.pool(cpu=1)
    scheduler.submit("runs")
    scheduler.submit("waits", queue=True)
    assert scheduler.calls.hold_task("waits")["success"]
    for word in ("yes", "是", "true"):
        for language in ("en", "zh"):
            done = run("queue", "--lang", language, "-f", f"held={word}", "-o", "name")
            assert (done.exit_code, done.stdout) == (0, "waits\n"), (word, language, done.stderr)
