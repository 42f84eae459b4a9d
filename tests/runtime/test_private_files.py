"""Whatever the umask, only their owner may read the files under ``state_path`` and those of commands."""

from __future__ import annotations

import os
import stat

import pytest

from schedulemesh.api.pools import EnsurePool
from schedulemesh.config.discovery import Discovered, write
from schedulemesh.config.private_files import check_owner, make_private_folder
from schedulemesh.core.agent.job_folders import LogWriter
from schedulemesh.runtime.plugins.call_mark import CallMark
from tests.runtime.composition import InThread
from tests.server.work import CPU, ask


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def wider(folder):
    """The files and folders in a folder that others may use, with their modes."""
    found = [folder, *folder.rglob("*")]
    assert len(found) > 2
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    return {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_a_journal_and_its_history(tmp_path, umask):
    mesh = InThread(tmp_path / "made" / "space" / "j.sqlite")
    try:
        ask(mesh, EnsurePool(name="p", resources=CPU, labels={}))
        assert wider(tmp_path / "made") == {}
    finally:
        mesh.close()


def test_folders_of_jobs_and_commands(tmp_path, umask):
    folder = tmp_path / "made" / "jobs" / "t"
    make_private_folder(folder)
    log = LogWriter(folder, 1)
    log.write(b"line\n")
    log.close()
    told = Discovered(name="a", namespace="n", url="", token="t", pid=1)
    write(tmp_path / "made" / "home", told)
    CallMark(tmp_path / "made" / "mark" / "asked")
    assert wider(tmp_path / "made") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_that_another_user_made_first_is_not_used(tmp_path):
    check_owner(tmp_path)
    check_owner(tmp_path / "new")
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345, and this is user 0"):
        check_owner(tmp_path)
    CallMark(tmp_path / "mark" / "asked")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize("target", ["own", "none"])
def test_a_link_that_another_user_put_in_the_place_of_a_folder_is_not_followed(tmp_path, target):
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    check_owner(link)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        check_owner(link)


def test_a_folder_that_exists_stays_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    make_private_folder(tmp_path / "new")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
