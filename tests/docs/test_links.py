"""Every relative link and every anchor leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.documents import ROOT, anchors, links, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page):
    assert [target for target in links(page) if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    if target.startswith(("https://", "http://")):
        return True
    path, _, anchor = unquote(target).partition("#")
    to = (page.parent / path).resolve() if path else page
    if not to.exists() or not to.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(to)


def test_the_architecture_diagram_has_its_documented_anchor():
    page = ROOT / "docs" / "scheduleMesh_design.md"
    assert leads_somewhere(ROOT / "README.md", "docs/scheduleMesh_design.md#60-架构总览图")
    assert "\n## 6.0 架构总览图\n" in page.read_text(encoding="utf-8")


def test_a_broken_link_is_found():
    assert not leads_somewhere(ROOT / "README.md", "docs/no_such_page.md")
    assert not leads_somewhere(ROOT / "README.md", "docs/preemption_guide.md#no-such-heading")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_a_page_names_exist(page):
    """Paths in the package, as pages write them: `engine/state/queue.py`, `runtime/jobs/`."""
    packages = "|".join(path.parent.name for path in (ROOT / "schedulemesh").glob("*/__init__.py"))
    names = re.findall(rf"`((?:{packages})/[\w/]*(?:\.py|/))`", page.read_text(encoding="utf-8"))
    missing = [name for name in names if not (ROOT / "schedulemesh" / name).exists()]
    assert page.name == "CHANGELOG.md" or missing == []


MAP = (
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "scheduleMesh_design.md",
    *sorted((ROOT / "schedulemesh").rglob("README.md")),
)


@pytest.mark.parametrize("page", MAP, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_are_in_the_files_where_the_map_places_them(page):
    """As it writes them: `ORDERS` in `config/queueing.py`."""
    places = names_in_files(page.read_text(encoding="utf-8"))
    assert [each for each in places if not is_in_file(*each, page.parent)] == []


def names_in_files(text: str) -> list[tuple[str, str]]:
    return re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.py)`", text)


def is_in_file(name: str, path: str, beside: Path) -> bool:
    """Whether a file has a name; its path begins beside the page, in the package or in the repository."""
    files = [folder / path for folder in (beside, ROOT / "schedulemesh", ROOT)]
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    return any(re.search(rf"\b{name}\b", text) for text in texts)


def test_a_name_that_is_not_where_the_map_places_it_is_found():
    assert len(names_in_files(MAP[0].read_text(encoding="utf-8"))) > 15
    assert is_in_file("ORDERS", "config/queueing.py", ROOT)
    assert not is_in_file("NO_SUCH_ORDERS", "config/queueing.py", ROOT)
    assert not is_in_file("ORDERS", "config/no_such_file.py", ROOT)


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    written = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert set(links(folder / "README.md")) == written
