"""The snippets of docs/dispatch.md run as they stand, one after another, as a reader would paste them."""

import re
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "dispatch.md"
SNIPPETS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def test_every_snippet_runs():
    assert len(SNIPPETS) >= 8
    names = {}
    for number, snippet in enumerate(SNIPPETS):
        if "import torch" not in snippet or find_spec("torch"):
            exec(compile(snippet, f"snippet {number} of {PAGE.name}", "exec"), names)


def test_every_public_name_is_in_the_reference():
    from schedulemesh import dispatch

    text = (DOCS / "dispatch_reference.md").read_text(encoding="utf-8")
    assert [name for name in dispatch.__all__ if f"`{name}" not in text] == []
