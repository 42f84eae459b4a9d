"""What a release is made of: metadata, templates, workflows and the manifest of the source distribution."""

from __future__ import annotations

import importlib.util
import io
import re
import shutil
import tarfile

import pytest
import yaml

from schedulemesh.engine.messages.facts import FORMAT_VERSION
from tests.docs.documents import ROOT, links
from tests.docs.test_packaging import ALIAS, CLIENT, CORE

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def classifiers(text):
    return re.findall(r'^    "([\w ]+ :: [^"]+)",', text, re.MULTILINE)


@pytest.mark.parametrize("text", [CORE, ALIAS, CLIENT], ids=["core", "alias", "client"])
def test_classifiers_name_the_supported_versions_of_python(text):
    listed = classifiers(text)
    versions = [each.rpartition(" ")[2] for each in listed if re.search(r":: 3\.\d+$", each)]
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    assert f"| Python | {versions[0]} to {versions[-1]} |" in page
    assert 'authors = [{ name = "The ScheduleMesh contributors" }]' in text


def test_the_page_of_versions_names_the_supported_ray():
    first, last = re.search(r'"ray\[default\]>=([\d.]+),<2\.(\d+)"', CORE).groups()
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    assert f"| Ray | {first} to 2.{int(last) - 1} |" in page


@pytest.mark.parametrize("page", ["upgrade.md", "zh/upgrade.md"])
def test_the_page_of_upgrades_names_every_format_of_the_journal(page):
    """Those of which golden journals are kept are those that are opened."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)(?: (?:to|至) (\d+))? \|", text, re.MULTILINE)
    listed = [n for first, last in rows for n in range(int(first), int(last or first) + 1)]
    formats = (ROOT / "tests" / "store" / "formats").glob("*.tar.xz")
    assert listed == sorted(int(path.name.partition(".")[0]) for path in formats)
    assert listed[-1] == FORMAT_VERSION
    assert re.search(rf"(?:format|格式) {FORMAT_VERSION}\b", text)


def test_every_file_has_the_license_of_the_project():
    """REUSE.toml states it for all files, with the text where the REUSE specification wants it."""
    assert 'SPDX-License-Identifier = "Apache-2.0"' in (ROOT / "REUSE.toml").read_text("utf-8")
    text = (ROOT / "LICENSES" / "Apache-2.0.txt").read_bytes()
    assert text == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / ".gitlab-ci.yml"], ids=lambda path: path.name)
def test_workflows_run_targets_that_exist(path):
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    called = {
        word
        for line in re.findall(r"make ([a-z -]+)$", text, re.MULTILINE)
        for word in line.split()
    }
    assert called <= targets
    assert ".ci/run" in text or "make" in text


def test_templates_are_the_same_at_both_hosts():
    github, gitlab = ROOT / ".github", ROOT / ".gitlab"
    for name in ("bug.md", "idea.md"):
        text = (github / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8")
        body = text.split("---\n", 2)[2].lstrip()
        assert (gitlab / "issue_templates" / name).read_text(encoding="utf-8") == body
    assert (gitlab / "merge_request_templates" / "default.md").read_bytes() == (
        github / "PULL_REQUEST_TEMPLATE.md"
    ).read_bytes()


def test_the_manifest_has_every_folder_and_file_of_the_repository():
    """The package itself comes without being listed, as do the files that setuptools always takes."""
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    graft = set(re.findall(r"^graft (\S+)", manifest, re.MULTILINE))
    included = {
        name
        for line in re.findall(r"^include (.+)", manifest, re.MULTILINE)
        for name in line.split()
    }
    always = {"schedulemesh", "README.md", "LICENSE", "pyproject.toml", "MANIFEST.in"}
    for entry in tracked():
        assert entry in graft | included | always, f"{entry} is missing from MANIFEST.in"


def test_the_changelog_is_for_readers():
    """A point says one thing, in short sentences, in the section of those whom it concerns."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    points = re.findall(r"^- (.+)$", re.sub(r"\]\([^)]*\)", "]", text), re.MULTILINE)
    assert [point for point in points if len(point.split()) > 50] == []
    sentences = [each for point in points for each in re.split(r"(?<=[.:;])\s", point)]
    assert [each for each in sentences if len(each.split()) > 30] == []
    sections = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert sections[:5] == [
        "To run work",
        "To know why",
        "To share a cluster",
        "To operate it",
        "For programs",
    ]


def tracked():
    """What lies in the root of the checkout and is not ignored or built."""
    built = {".git", ".venv", ".venv-oldest", "build", "dist", "site", "shared"}
    entries = {path.name for path in ROOT.iterdir()} - built
    caches = {each for each in entries if each.endswith((".egg-info", "_cache", ".hypothesis"))}
    return sorted(
        (entries - caches - {".ci", "PKG-INFO", "setup.cfg", "__pycache__"}) | {".ci/run"}
    )


def packaging_module(name):
    """A program of packaging/, which is no package."""
    path = ROOT / "packaging" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_index_is_given_absolute_links_and_the_addresses_of_the_project(tmp_path, monkeypatch):
    """Relative links break where the repository is not around the README."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    metadata = packaging_module("release_metadata")
    monkeypatch.setattr(metadata, "ROOT", tmp_path)
    for name in ("README.md", *metadata.PROJECTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    metadata.main("https://elsewhere.example", "v0.0.9")
    metadata.main("https://git.example/team/mesh", "v0.1.0", "https://git.example/team/mesh/-")
    page = tmp_path / metadata.README
    assert all(target.startswith("https://") for target in links(page))
    text = page.read_text(encoding="utf-8")
    assert "(https://git.example/team/mesh/-/raw/v0.1.0/docs/pictures/page.png)" in text
    assert "(https://git.example/team/mesh/-/blob/v0.1.0/docs/tutorial.md)" in text
    assert (tmp_path / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()
    for name in metadata.PROJECTS:
        project = tomllib.loads((tmp_path / name).read_text(encoding="utf-8"))
        assert project["project"]["urls"]["Homepage"] == "https://git.example/team/mesh"
        before = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))
        assert project["project"].keys() == before["project"].keys() | {"urls"}
        assert project["tool"] == before["tool"]
    core = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    assert core["project"]["readme"] == metadata.README


def test_both_hosts_write_the_addresses_before_they_build():
    for name in (".github/workflows/release.yml", ".gitlab-ci.yml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert 0 < text.index("packaging/release_metadata.py") < text.index("make dist")


def archive(files, *, at, mode, user):
    """A packed tar of files in this order."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uname = len(content), at, mode, user
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_a_source_distribution_does_not_say_when_and_by_whom_it_was_checked_out():
    files = [("mesh/a.py", b"a = 1\n"), ("mesh/b.py", b"b = 2\n")]
    first = archive(files, at=1_700_000_000.25, mode=0o644, user="ann")
    second = archive(files[::-1], at=1_800_000_000.5, mode=0o600, user="ben")
    assert first != second
    same_bytes = packaging_module("same_archive").same_bytes
    assert same_bytes(first, 315_619_200) == same_bytes(second, 315_619_200)
    with tarfile.open(fileobj=io.BytesIO(same_bytes(second, 315_619_200))) as tar:
        assert [(one.name, tar.extractfile(one).read()) for one in tar] == files
        assert {one.mtime for one in tar} == {315_619_200}
