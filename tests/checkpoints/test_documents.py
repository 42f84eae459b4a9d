"""The snippets of docs/checkpoints.md run as they stand, and importing the package loads no library."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from schedulemesh import checkpoints

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
TEXT = PAGE.read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_every_snippet_runs():
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    assert len(SNIPPETS) >= 3
    names = {}
    for number, snippet in enumerate(SNIPPETS):
        exec(compile(snippet, f"snippet {number} of {PAGE.name}", "exec"), names)


def test_every_public_name_is_in_the_reference():
    assert [name for name in checkpoints.__all__ if f"`{name}" not in TEXT] == []


def test_checkpoints_alone_load_no_library():
    code = (
        "import sys, schedulemesh.checkpoints\n"
        "assert not {'ray', 'numpy', 'torch', 'safetensors'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
