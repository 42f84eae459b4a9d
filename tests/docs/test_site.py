"""The site has every page, and Chinese pages name the revision of the English page that they follow."""

from __future__ import annotations

import hashlib
import importlib.util
import re

import pytest
import yaml

from schedulemesh.metrics.alert_rules import RULES
from tests.docs.documents import ROOT, blocks, links, prose

DOCS = ROOT / "docs"
#: What `explain` prints, kept word for word.
STORIES = ROOT / "tests" / "cli" / "stories"
CHINESE = sorted((DOCS / "zh").glob("*.md"))
#: Whose commands test_shared_day.py carries out in Chinese.
CARRIED_OUT = ("shared_day.md", "tutorial.md")
WITH_ENGLISH_OUTPUT = [page for page in CHINESE if page.name not in CARRIED_OUT]
_FOLLOWS = re.compile(r"^<!-- follows: (\S+) ([0-9a-f]{12}) -->$", re.MULTILINE)
_GENERATED = re.compile(r"<!-- generated: \S+ -->\n.*?<!-- end -->\n", re.DOTALL)


class _Loader(yaml.SafeLoader):
    """Reads the settings of MkDocs without the functions that they name."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
SETTINGS = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)


def entries(nav):
    """The pages of a navigation."""
    for entry in nav:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from entries(target) if isinstance(target, list) else [target]


def written():
    """The pages below docs/ that a reader is led to one by one."""
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    return {page for page in pages if not re.fullmatch(r"decisions/(?!README).*|examples/.*", page)}


def test_every_page_is_in_the_navigation_once():
    listed = list(entries(SETTINGS["nav"]))
    assert len(listed) == len(set(listed))
    outside = {page for page in listed if page.startswith("repository/")}
    assert written() - set(listed) == set(), "add them to nav of mkdocs.yml"
    assert set(listed) - outside - written() == set()


def test_the_list_of_pages_has_those_of_the_navigation():
    english = {page for page in written() if not page.startswith("zh/") and page != "README.md"}
    assert english - set(links(DOCS / "README.md")) == set(), "add them to docs/README.md"
    chinese = {path.name for path in CHINESE} - {"README.md"}
    assert chinese - set(links(DOCS / "zh" / "README.md")) == set(), "add them to docs/zh/README.md"


def test_every_example_is_on_their_page():
    for page in (DOCS / "examples.md", DOCS / "zh" / "examples.md"):
        listed = {target.rpartition("/")[2] for target in links(page)}
        scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__"}
        assert {f"{name}.md" for name in scripts} - listed == set()


def test_the_parts_are_the_same_in_both():
    parts = [next(iter(entry)) for entry in SETTINGS["nav"]]
    assert parts == ["Home", "Tutorial", "How-to", "Reference", "Explanation", "中文"]
    headings = re.findall(r"^## (.+)$", (DOCS / "README.md").read_text("utf-8"), re.MULTILINE)
    assert headings == parts[1:-1]


def revision(page):
    """Changes when what a person has written on a page changes."""
    return hashlib.sha256(_GENERATED.sub("", prose(page)).encode()).hexdigest()[:12]


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_chinese_page_follows_the_english_one(page):
    names = _FOLLOWS.findall(page.read_text(encoding="utf-8"))
    assert len(names) == 1, f"{page.name} needs a line <!-- follows: PAGE.md REVISION -->"
    (original, follows) = names[0]
    assert original == page.name
    now = revision(DOCS / original)
    if follows != now:
        # It is to be translated, by a person; until then the page is right for an earlier revision.
        pytest.skip(
            f"docs/zh/{page.name} is behind: it follows {follows} of docs/{original}, now {now}"
        )


@pytest.mark.parametrize("page", WITH_ENGLISH_OUTPUT, ids=lambda page: page.name)
def test_commands_and_output_are_those_of_the_english_page(page):
    """A Chinese page has a part of the blocks of the English one, which the tests carry out, and outputs in
    Chinese, which they print.
    """
    original = {(each.language, without_comments(each)) for each in blocks(DOCS / page.name)}
    printed = {path.read_text(encoding="utf-8").strip() for path in STORIES.glob("*.zh.txt")}
    other = [
        each for each in blocks(page) if (each.language, without_comments(each)) not in original
    ]
    other = [each for each in other if each.code.partition("\n")[2].strip() not in printed]
    assert [str(each) for each in other if each.language != "bash"] == []


@pytest.mark.parametrize("name", CARRIED_OUT)
def test_a_page_that_is_carried_out_has_the_same_commands_and_files_in_both_languages(name):
    """What the commands print in Chinese is checked by test_shared_day.py."""
    english, chinese = DOCS / name, DOCS / "zh" / name
    typed = re.compile(r"^\w+\$ .*$|^<!-- (?:at|.* ends).*$", re.MULTILINE)
    assert typed.findall(chinese.read_text("utf-8")) == typed.findall(english.read_text("utf-8"))
    files = [
        [each.code for each in blocks(page) if each.language != "console"]
        for page in (chinese, english)
    ]
    assert files[0] == files[1]


#: What Chinese pages call something else than the glossary does.
OTHER_WORDS = {
    "驱逐": "抢占",
    "放置组": "占位组",
    "日志库": "事务日志",
    "排水": "排空",
    "回收配额": "收回",
    "预演": "推演",
    "重演": "推演",
    "成组任务": "任务组",
    "调度器进程": "调度进程",
}


@pytest.mark.parametrize("page", [*CHINESE, ROOT / "README.zh-CN.md"], ids=lambda page: page.name)
def test_chinese_terms_are_those_of_the_glossary(page):
    text = page.read_text(encoding="utf-8")
    assert [f"{word}: write {term}" for word, term in OTHER_WORDS.items() if word in text] == []


def test_the_glossary_is_the_same_in_both_languages():
    """Each term of the English page has a row in the Chinese one."""
    row = re.compile(r"^\| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
    english = row.findall((DOCS / "glossary.md").read_text(encoding="utf-8"))[2:]
    chinese = (DOCS / "zh" / "glossary.md").read_text(encoding="utf-8")
    words = {word for term, _ in english for word in term.split(", ")}
    assert {word for word in words if word not in chinese} == set()


def test_the_chinese_page_of_alerts_has_every_rule():
    text = (DOCS / "zh" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| (?:info|warning|critical)", text, re.MULTILINE) == list(
        RULES
    )


def without_comments(block):
    return re.sub(r" *#.*", "", block.code)


def test_figures_are_those_of_the_program_that_draws_them():
    path = ROOT / "packaging" / "site" / "figures.py"
    spec = importlib.util.spec_from_file_location("figures", path)
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    for name, content in figures.drawn().items():
        drawn = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert drawn == content, "run python packaging/site/figures.py"


def test_nothing_is_fetched_from_elsewhere():
    """The site itself is checked when it is built, by packaging/site/hooks.py."""
    assert SETTINGS["theme"]["font"] is False
    assert SETTINGS["strict"] is True
