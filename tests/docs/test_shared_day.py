"""What the commands print on the pages that are carried out on simulated nodes.

Run with REWRITE_DOCS=1 to write it anew; then read what changed before it is committed.
"""

from __future__ import annotations

import os
import re

import pytest

from schedulemesh.domain.resources import parse_resources
from tests.cli.shared_day import NODE, SharedDay, replayed
from tests.docs.documents import ROOT, blocks
from tests.runtime import virtual_time

DOCS = ROOT / "docs"
#: What the commands of the day print where the locale is Chinese; REWRITE_STORIES=1 writes it anew.
CHINESE = ROOT / "tests" / "cli" / "stories" / "shared_day.zh.output"
LAPTOP = parse_resources({"cpu": 8, "gpu": 8, "memory": 16 * 1024})


@pytest.mark.parametrize(
    ("name", "hosts", "node"),
    [("shared_day.md", ("gpu-1", "gpu-2"), NODE), ("tutorial.md", ("laptop",), LAPTOP)],
)
def test_the_commands_print_what_the_page_says(tmp_path, monkeypatch, name, hosts, node):
    page = DOCS / name
    written = page.read_text(encoding="utf-8")
    printed = carried_out(page, tmp_path, monkeypatch, hosts, node)
    if os.environ.get("REWRITE_DOCS"):
        page.write_text(printed, encoding="utf-8")
    assert printed.split("\n") == written.split("\n")


def test_the_commands_of_the_day_print_sentences_in_chinese(tmp_path, monkeypatch):
    """The same commands, where the locale is Chinese; what there is no text for stays as it is."""
    monkeypatch.setenv("SCHEDULEMESH_LANG", "zh")
    printed = carried_out(DOCS / "shared_day.md", tmp_path, monkeypatch, ("gpu-1", "gpu-2"), NODE)
    shown = "\n".join(re.findall(r"```console\n(.*?)```", printed, re.DOTALL))
    if os.environ.get("REWRITE_STORIES"):
        CHINESE.write_text(shown, encoding="utf-8")
    assert shown.split("\n") == CHINESE.read_text(encoding="utf-8").split("\n")


def carried_out(page, folder, monkeypatch, hosts, node):
    """The page with what its commands print now."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    for block in blocks(page):
        if block.language == "yaml":
            (folder / "cluster.yaml").write_text(block.code)
        if block.language == "python":
            (folder / "train.py").write_text(block.code)
    with virtual_time.running() as loop, pytest.MonkeyPatch.context() as patch:
        day = SharedDay(folder, loop, patch, hosts=hosts, node=node)
        printed = replayed(page.read_text(encoding="utf-8"), day)
        day.close()
    return printed


def test_the_tutorial_has_the_commands_of_its_headings():
    """It shows what it promises: a wait explained, an eviction, a return, the usage."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\w+\$ schedulemesh (\w+)", text, re.MULTILINE)
    assert {"apply", "submit", "explain", "preemptions", "history", "usage"} <= set(commands)
