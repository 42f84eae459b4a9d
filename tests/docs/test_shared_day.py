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
#: The nodes of pages by name, with their labels.
TWO_NODES, ONE_NODE = {"gpu-1": {}, "gpu-2": {}}, {"laptop": {}}
MIXED_NODES = {
    host: {"ray.io/accelerator-type": model, "rack": rack}
    for host, model, rack in (("h-1", "H100", "r1"), ("h-2", "H100", "r1"), ("a-1", "A100", "r2"))
}
LAPTOP = parse_resources({"cpu": 8, "gpu": 8, "memory": 16 * 1024})


#: A script that a job of a page runs.
_SCRIPT = re.compile(r"\bpython (\w+\.py)\b")


@pytest.mark.parametrize(
    ("name", "hosts", "node", "language"),
    [
        ("shared_day.md", TWO_NODES, NODE, "en"),
        ("zh/shared_day.md", TWO_NODES, NODE, "zh"),
        ("mixed_day.md", MIXED_NODES, NODE, "en"),
        ("tutorial.md", ONE_NODE, LAPTOP, "en"),
        ("zh/tutorial.md", ONE_NODE, LAPTOP, "zh"),
    ],
)
def test_the_commands_print_what_the_page_says(tmp_path, monkeypatch, name, hosts, node, language):
    """In its language; what there is no Chinese text for stays as it is."""
    monkeypatch.setenv("SCHEDULEMESH_LANG", language)
    page = DOCS / name
    written = page.read_text(encoding="utf-8")
    printed = carried_out(page, tmp_path, monkeypatch, hosts, node)
    if os.environ.get("REWRITE_DOCS"):
        page.write_text(printed, encoding="utf-8")
    assert printed.split("\n") == written.split("\n")


def carried_out(page, folder, monkeypatch, hosts, node):
    """The page with what its commands print now."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    for script in set(_SCRIPT.findall(page.read_text(encoding="utf-8"))):
        (folder / script).touch()
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
