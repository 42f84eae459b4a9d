"""The gallery: a page for each example, with what it tells about itself and what it prints.

With REWRITE_DOCS=1 the tests that run the examples write the outputs anew.
"""

from __future__ import annotations

import ast
import os
import re

from tests.docs.documents import ROOT, links

FOLDER = ROOT / "docs" / "examples"
INDEX = ROOT / "docs" / "examples.md"
#: What differs from run to run: the kind of tensors, with torch and without; numbers, ids, addresses and
#: folders, and how long a line of them is.
_VARIES = re.compile(
    r"torch\.Tensor of torch\.bfloat16|numpy\.ndarray of float32|/tmp/\S+"
    r"|\b[0-9a-f]{6,}\b|\d+(?:\.\d+)?|[█▇▆▅▄▃▂▁#=-]{2,}| +"
)

#: What Ray prints in between: lines of its processes.
_OF_RAY = re.compile(r"^(?:\x1b\[\d+m)?\(\w[^)]*\).*\n", re.MULTILINE)
#: Answers that an example prints whole.
_ANSWER = re.compile(r"^\{\n.*?^\}$", re.MULTILINE | re.DOTALL)


def names():
    """The examples that are scripts, in the order of the index."""
    ordered = [target.partition("/")[2].removesuffix(".md") for target in links(INDEX)]
    return [name for name in dict.fromkeys(ordered) if (ROOT / f"examples/{name}.py").exists()]


def about(name):
    """The page of an example up to its output."""
    source = (ROOT / f"examples/{name}.py").read_text(encoding="utf-8")
    first, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    rest = re.sub(r"``(docs/(\w+\.md))``|(?<!`)docs/(\w+)\.md", _linked, rest.replace("``", "`"))
    order = names()
    place = order.index(name)
    others = [
        f"{word} [{other}]({other}.md)"
        for word, number in (("before:", place - 1), ("next:", place + 1))
        if 0 <= number < len(order)
        for other in (order[number],)
    ]
    way = " · ".join((f"[the script](../../examples/{name}.py)", *others))
    return f"# {name}\n\n{first}\n\n{rest}\n\n{way}\n\nIt prints:\n\n"


def _linked(match):
    page = (match[2] or f"{match[3]}.md").removesuffix(".md")
    return f"[{page}](../{page}.md)"


def page_of(name, output):
    """The whole page of an example."""
    return f"{about(name)}```text\n{output.rstrip()}\n```\n"


def output_on_page(name):
    """What the page says that the example prints."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    return text.rpartition("```text\n")[2].removesuffix("```\n")


def told(output):
    """What an example tells: without lines of Ray, and with long answers cut."""
    return _ANSWER.sub("{...}", _OF_RAY.sub("", output))


def without_what_varies(output):
    """The words of each line, without figures and ids, sorted: what runs at the same time has no order."""
    lines = (_VARIES.sub(" ", line).replace(",", " ").split() for line in output.splitlines())
    return sorted(sorted(words) for words in lines if words)


def check_output(name, output):
    """Fail where the page of an example shows another output; with REWRITE_DOCS, write it there."""
    output = told(output)
    if os.environ.get("REWRITE_DOCS"):
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.md").write_text(page_of(name, output), encoding="utf-8")
    shown = without_what_varies(output_on_page(name))
    assert without_what_varies(output) == shown, "run it with REWRITE_DOCS=1"
