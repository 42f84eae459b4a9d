"""Each example has a page with its output; the tests that run the examples compare that."""

from __future__ import annotations

import pytest

from tests.docs import gallery
from tests.docs.documents import ROOT


def test_every_example_has_a_page_in_the_order_of_the_index():
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__"}
    assert set(gallery.names()) == scripts
    assert {path.stem for path in gallery.FOLDER.glob("*.md")} == scripts


@pytest.mark.parametrize("name", gallery.names())
def test_a_page_says_what_the_example_says_of_itself(name):
    text = (gallery.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(gallery.about(name))
    assert gallery.output_on_page(name).strip()


def test_figures_and_ids_are_not_compared():
    first = "a 12.5 s\nagent-3f9c1a2 done in /tmp/abc\n"
    assert gallery.without_what_varies(first) == gallery.without_what_varies(
        "agent-77ab012 done in /tmp/x\n\na 7 s"
    )
    assert gallery.without_what_varies("evicted") != gallery.without_what_varies("kept")
