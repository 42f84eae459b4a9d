"""Where a journal lies, from what the user gave as state_path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from schedulemesh.errors import JournalError
from schedulemesh.store.address import address_of


def test_a_folder_holds_one_file_per_namespace_and_name(tmp_path):
    address = address_of(str(tmp_path), Path("/else"), "space", "mesh")
    assert address.path == tmp_path / "space" / "mesh.sqlite"
    assert str(address) == str(tmp_path / "space" / "mesh.sqlite")


def test_names_never_share_a_file_or_leave_the_folder(tmp_path):
    names = ["a", "a/b", "b", "..", ".", "../..", "a%2Fb", "/", "a\0b", "a b"]
    paths = {address_of(str(tmp_path), tmp_path, ns, name).path for ns in names for name in names}
    assert len(paths) == len(names) ** 2
    assert {path.parent.parent for path in paths} == {tmp_path}
    assert address_of(str(tmp_path), tmp_path, "ns", "a b").path == tmp_path / "ns" / "a b.sqlite"


def test_without_a_path_it_is_the_default_folder():
    assert address_of(None, Path("/session"), "space", "mesh").path == Path(
        "/session/space/mesh.sqlite"
    )


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql"])
def test_a_database_is_named_without_its_password(scheme):
    pytest.importorskip("psycopg")
    address = address_of(f"{scheme}://me:secret@db:5432/mesh", Path(), "space", "mesh")
    assert address.url.drivername == "postgresql+psycopg"
    assert address.url.password == "secret"
    assert str(address) == "space/mesh in postgresql+psycopg://me:***@db:5432/mesh"


@pytest.mark.parametrize(
    "given", ["mysql://db/x", "sqlite:///x", "s3://bucket/x", "postgresql+asyncpg://db/x"]
)
def test_other_databases_are_refused(given):
    with pytest.raises(JournalError, match="a folder, or a URL that begins with postgresql"):
        address_of(given, Path(), "space", "mesh")


def test_a_malformed_url_is_refused():
    with pytest.raises(JournalError, match="looks like a URL but is none"):
        address_of("postgresql://db:port/x", Path(), "space", "mesh")


def test_a_missing_database_driver_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JournalError, match=r"pip install 'schedulemesh-core\[postgres\]'"):
        address_of("postgresql+psycopg://db/x", Path(), "space", "mesh")
