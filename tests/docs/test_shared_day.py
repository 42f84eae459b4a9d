"""What the commands of a day on a shared cluster print. Run with REWRITE_DOCS=1 to write it anew; then read
what changed before it is committed.
"""

from __future__ import annotations

import os

import pytest

from tests.cli.shared_day import SharedDay, replayed
from tests.docs.documents import ROOT, blocks
from tests.runtime import virtual_time

PAGE = ROOT / "docs" / "shared_day.md"


def test_the_commands_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    (declaration,) = [block.code for block in blocks(PAGE) if block.language == "yaml"]
    (tmp_path / "cluster.yaml").write_text(declaration)
    written = PAGE.read_text(encoding="utf-8")

    with virtual_time.running() as loop, pytest.MonkeyPatch.context() as patch:
        day = SharedDay(tmp_path, loop, patch, hosts=("gpu-1", "gpu-2"))
        printed = replayed(written, day)
        day.close()

    if os.environ.get("REWRITE_DOCS"):
        PAGE.write_text(printed, encoding="utf-8")
    assert printed.split("\n") == written.split("\n")
