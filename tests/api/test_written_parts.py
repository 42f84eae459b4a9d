"""A field of a task is declared once, with ``TaskSpec``, and the table of a call with the call; the parts of
modules that repeat them, for type checkers and for short starts, are as the declarations say.

Run with REWRITE_CODE=1 to write them anew.
"""

from __future__ import annotations

import os
from difflib import unified_diff

import pytest

from tests.api.written_parts import PACKAGE, modules, rewritten

COMMAND = "REWRITE_CODE=1 .venv/bin/python -m pytest tests/api/test_written_parts.py"


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_each_part_is_as_it_is_declared(path):
    text, declared = path.read_text(encoding="utf-8"), rewritten(path)
    if os.environ.get("REWRITE_CODE"):
        path.write_text(declared, encoding="utf-8")
    elif text != declared:
        name = path.relative_to(PACKAGE.parent)
        difference = unified_diff(text.splitlines(), declared.splitlines(), lineterm="", n=0)
        pytest.fail("\n".join([f"{name} is not as declared; run {COMMAND}", *difference]))
