"""Writes into a release where its repository is: ``python packaging/release_metadata.py URL TAG [FILES]``.

A package index shows the README without the repository, so there its links and pictures have to be absolute.
The checkout has relative ones, which work at every host, on a disk and in a fork.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What the index shows; the README of the repository stays as it is.
README = "packaging/README.index.md"
PROJECTS = (
    "pyproject.toml",
    "packaging/schedulemesh/pyproject.toml",
    "packaging/client/pyproject.toml",
)
_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")


def with_absolute_links(text: str, files: str, tag: str) -> str:
    """A page of the root whose links lead to the files of a tag; ``files``: the address before ``/blob/``."""

    def absolute(found: re.Match[str]) -> str:
        view = "raw" if found[1] else "blob"
        return f"{found[1]}{found[2]}({files}/{view}/{tag}/{found[3]})"

    return _LINK.sub(absolute, text)


def with_urls(project: str, url: str, files: str, tag: str) -> str:
    """The text of a pyproject.toml with the addresses of the project, in place of others."""
    urls = {
        "Homepage": url,
        "Documentation": f"{files}/blob/{tag}/docs/README.md",
        "Changelog": f"{files}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{files}/issues",
        "Source": url,
    }
    section = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    before = project.partition("\n[project.urls]\n")[0]
    return f"{before.rstrip()}\n\n[project.urls]\n{section}"


def main(url: str, tag: str, files: str | None = None) -> None:
    """Change the files of this checkout."""
    files = files or url
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (ROOT / README).write_text(with_absolute_links(readme, files, tag), encoding="utf-8")
    for name in PROJECTS:
        path = ROOT / name
        project = with_urls(path.read_text(encoding="utf-8"), url, files, tag)
        if name == PROJECTS[0]:
            project = project.replace('\nreadme = "README.md"\n', f'\nreadme = "{README}"\n')
        path.write_text(project, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
