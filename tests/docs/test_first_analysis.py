"""The page of a first analysis prints what it says, and the notebook is made of the page.

Run with REWRITE_DOCS=1 to write outputs, picture and notebook anew.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import itertools
import json
import os
import re
import shutil

import pytest

from schedulemesh.store.history.export import COLUMNS
from tests.docs.documents import PRINTS, ROOT, blocks

PAGE = ROOT / "docs" / "first_analysis.md"
PICTURE = ROOT / "docs" / "pictures" / "first_analysis.png"
SAMPLE = ROOT / "examples" / "a_week.csv"
NOTEBOOK = ROOT / "examples" / "first_analysis.ipynb"
REWRITE = bool(os.environ.get("REWRITE_DOCS"))
#: What a cell of code, and what it prints, are in the page.
_CODE = re.compile(
    rf"^```python\n(.*?)^```\n(?:\n{PRINTS}\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
_SAVES = re.compile(r'^figure\.savefig\("(.+?)".*\n', re.MULTILINE)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each block of code prints, in a folder that has the sample, and then the picture."""
    pytest.importorskip("pandas", reason="pandas, which the analysis needs, is not installed")
    matplotlib = pytest.importorskip(
        "matplotlib", reason="matplotlib, which the analysis draws with, is not installed"
    )
    matplotlib.use("Agg")
    folder = tmp_path_factory.mktemp("analysis")
    shutil.copy(SAMPLE, folder)
    names, outputs = {"__name__": "__main__"}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks(PAGE):
            if block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile("\n" * (block.line - 1) + block.code, str(PAGE), "exec"), names)
                outputs.append(out.getvalue())
    if REWRITE:
        shutil.copy(folder / PICTURE.name, PICTURE)
    assert (folder / PICTURE.name).stat().st_size > 10_000
    return outputs


def words(text):
    """Without the spaces with which versions of pandas align columns."""
    return [line.split() for line in text.splitlines()]


def test_the_page_shows_what_its_code_prints(printed):
    text = PAGE.read_text(encoding="utf-8")
    if REWRITE:
        outputs = iter([each for each in printed if each])
        shown = re.compile(rf"({PRINTS}\n```text\n).*?(^```)", re.MULTILINE | re.DOTALL)
        text = shown.sub(lambda block: f"{block[1]}{next(outputs)}{block[2]}", text)
        PAGE.write_text(text, encoding="utf-8")
    assert [words(out or "") for _, out in _CODE.findall(text)] == [words(out) for out in printed]


def test_the_sample_has_the_columns_of_an_export():
    """Where it has not, run python -m tests.sim.sample_week."""
    heading = SAMPLE.read_text(encoding="utf-8").partition("\n")[0]
    assert next(csv.reader([heading])) == list(COLUMNS)


def test_the_notebook_is_made_of_the_page():
    expected = notebook(PAGE.read_text(encoding="utf-8"))
    if REWRITE:
        NOTEBOOK.write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert json.loads(NOTEBOOK.read_text(encoding="utf-8")) == expected, (
        "run it with REWRITE_DOCS=1"
    )


def notebook(page):
    """The page as a notebook of format 4.5; its links lead to where they did."""
    page = re.sub(r"\]\((?!http|#)([^)]+)\)", lambda link: f"]({_from_examples(link[1])})", page)
    page = re.sub(r"!\[[^\]]*\]\([^)]*\)\n\n", "", page)
    cells, end = [], 0
    for code in _CODE.finditer(page):
        cells += [_cell("markdown", page[end : code.start()]), _code(code[1], code[2] or "")]
        end = code.end()
    cells.append(_cell("markdown", page[end:]))
    for cell, number in zip(cells, itertools.count(1)):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _from_examples(link):
    return link.removeprefix("../examples/") if link.startswith("../") else f"../docs/{link}"


def _cell(kind, text):
    return {"cell_type": kind, "id": "", "metadata": {}, "source": _lines(text.strip("\n"))}


def _code(code, output):
    outputs = []
    if output:
        outputs = [{"name": "stdout", "output_type": "stream", "text": _lines(output)}]
    if _SAVES.search(code):
        picture = base64.b64encode(PICTURE.read_bytes()).decode()
        data = {"image/png": picture}
        outputs = [{"data": data, "metadata": {}, "output_type": "display_data"}]
    cell = _cell("code", _SAVES.sub("", code))
    return {**cell, "execution_count": None, "outputs": outputs}


def _lines(text):
    return text.splitlines(keepends=True)
