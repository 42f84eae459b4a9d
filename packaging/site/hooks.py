"""Hooks of MkDocs: the site has the same Markdown as the repository, in which links also leave docs/.

A file outside docs/ that a page links to becomes a part of the site, below repository/: a Markdown file as a
page, any other as a file.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The folder of the site with what lies outside docs/.
OUTSIDE = "repository"

#: What a browser fetches without being asked.
_FETCHED = re.compile(
    r'<(?:script|img|iframe|link rel="?(?:stylesheet|preload|icon))[^>]*?(?:src|href)="?(?:https?:)?//[^>]*>'
)
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1 *$", re.MULTILINE | re.DOTALL)


def place_of(path: str) -> str:
    """Where a file of the repository lies in the site, both relative to their roots."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


def origin_of(place: str) -> str:
    """The file of the repository that a page of the site is made from."""
    return place.removeprefix(f"{OUTSIDE}/") if place.startswith(OUTSIDE) else f"docs/{place}"


def targets(origin: str, text: str) -> list[str]:
    """The files of the repository that a text links to."""
    links = (match[2] for match in _LINK.finditer(_FENCE.sub("", text)))
    paths = (resolved(origin, link) for link in links if "://" not in link)
    return [path for path in paths if (ROOT / path).is_file()]


def resolved(origin: str, link: str) -> str:
    """The path in the repository to which a link in a file leads."""
    return normpath(f"{PurePosixPath(origin).parent}/{link}")


def outside_files() -> list[str]:
    """Files outside docs/ that belong to the site: what its pages link to, directly or through each other."""
    listed = [f"docs/{path.relative_to(DOCS).as_posix()}" for path in DOCS.rglob("*.md")]
    listed.append("CHANGELOG.md")
    for origin in listed:  # it grows while it is read
        if origin.endswith(".md"):
            linked = targets(origin, (ROOT / origin).read_text(encoding="utf-8"))
            listed += [path for path in dict.fromkeys(linked) if path not in listed]
    return [path for path in listed if not path.startswith("docs/")]


def rewritten(origin: str, text: str) -> str:
    """A page whose links lead to the same files in the site; one to a folder becomes its text."""

    def link(match: re.Match[str]) -> str:
        label, target, fragment = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = resolved(origin, target)
        if (ROOT / path).is_dir():
            return label[1:-1]
        folder = str(PurePosixPath(place_of(origin)).parent)
        return f"{label}({relpath(place_of(path), folder)}{fragment})"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages link to."""
    for path in outside_files():
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, place_of(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have the links of a page lead to the same files in the site."""
    return rewritten(origin_of(page.file.src_uri), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Tell browsers the language of Chinese pages. Raises PluginError where one fetches from elsewhere."""
    if fetched := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches from another site: {fetched[0]}")
    if page.file.src_uri.startswith("zh/"):
        return output.replace('<html lang="en"', '<html lang="zh-CN"', 1)
    return output
