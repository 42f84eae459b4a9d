"""The file llms.txt lists the documentation as docs/README.md does.

Run with REWRITE_DOCS=1 to write it anew.
"""

from __future__ import annotations

import os
import re
from posixpath import normpath

from tests.docs.documents import ROOT

FILE = ROOT / "llms.txt"
HEADING = "## Documentation\n\n"
_LISTED = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)(.*)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def without_links(text):
    return _LINK.sub(r"\1", text)


def test_it_lists_what_the_documentation_lists():
    pages = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    begin, heading, listed = FILE.read_text(encoding="utf-8").partition(HEADING)
    current = "".join(
        f"- [{name}]({normpath(f'docs/{target}')}){without_links(what)}\n"
        for name, target, what in _LISTED.findall(pages)
    )
    if os.environ.get("REWRITE_DOCS"):
        FILE.write_text(begin + heading + current, encoding="utf-8")
    assert listed == current, "run it with REWRITE_DOCS=1"
