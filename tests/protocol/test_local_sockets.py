"""A supervisor's socket is reached by processes of its user only, wherever its folder lies."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from schedulemesh.protocol import local_sockets
from schedulemesh.protocol.local_sockets import (
    ListeningSocket,
    SocketAddress,
    connect,
    is_of_same_user,
    socket_name,
)

NOBODY = 65534
NAME = socket_name("space", "mesh")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of another user")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "sockets"


@pytest.fixture
def listening(folder):
    socket = ListeningSocket(folder, NAME)
    yield socket
    socket.close()


def reach(folder):
    return connect(SocketAddress(folder=str(folder), name=NAME, scheduler=""), 1.0)


def test_a_process_of_the_same_user_connects(listening, folder):
    with reach(folder) as client:
        accepted, _ = listening.socket.accept()
        with accepted:
            accepted.sendall(b"hello")
            assert client.recv(10) == b"hello"
            assert is_of_same_user(accepted)


def test_folder_and_socket_are_the_users_alone_whatever_the_umask_says(tmp_path):
    folder = tmp_path / "above" / "sockets"
    before = os.umask(0)
    try:
        listening = ListeningSocket(folder, NAME)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder.parent, folder)] == [0o700] * 2
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    listening.close()


def test_the_path_may_be_longer_than_the_address_of_a_socket(tmp_path):
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    listening = ListeningSocket(folder, NAME)
    reach(folder).close()
    listening.close()


def test_the_socket_of_a_process_that_was_killed_is_replaced(folder):
    killed = ListeningSocket(folder, NAME)
    killed.socket.close()
    with pytest.raises(ConnectionRefusedError):
        reach(folder)
    listening = ListeningSocket(folder, NAME)
    reach(folder).close()
    listening.close()
    assert list(folder.iterdir()) == []


def test_what_a_process_left_that_was_killed_while_it_began_is_no_obstacle(folder):
    folder.mkdir(mode=0o700)
    (folder / f".{NAME}.{os.getpid()}").touch()
    ListeningSocket(folder, NAME).close()
    assert list(folder.iterdir()) == []


def test_a_former_process_leaves_the_socket_of_its_successor(folder):
    former, successor = ListeningSocket(folder, NAME), ListeningSocket(folder, NAME)
    former.close()
    reach(folder).close()
    successor.close()
    with pytest.raises(FileNotFoundError):
        reach(folder)


def test_closing_is_no_failure_where_the_file_is_gone(listening, folder):
    (folder / NAME).unlink()
    listening.close()


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o711, 0o777])
def test_a_folder_that_others_may_enter_is_used_by_neither_side(listening, folder, mode):
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="not this user's alone"):
        reach(folder)
    with pytest.raises(PermissionError, match=f"mode 0{mode:o}"):
        ListeningSocket(folder, NAME)


def test_a_link_in_place_of_the_folder_is_not_followed(listening, folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(OSError):  # noqa: PT011  # ELOOP or ENOTDIR, by the kernel
        reach(link)


@as_root
def test_the_folder_of_another_user_is_used_by_neither_side(folder):
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, -1)
    for attempt in (reach, lambda path: ListeningSocket(path, NAME)):
        with pytest.raises(PermissionError, match=f"user {NOBODY}"):
            attempt(folder)


@as_root
def test_a_process_of_another_user_cannot_connect():
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        folder = Path(above) / "s"
        listening = ListeningSocket(folder, NAME)
        assert "PermissionError" in _connected_as_nobody(folder)
        # Were it not for the folder and the mode, it would reach the socket, whose process looks who it is.
        folder.chmod(0o755)
        (folder / NAME).chmod(0o666)
        assert _connected_as_nobody(folder) == ""
        accepted, _ = listening.socket.accept()
        with accepted:
            assert not is_of_same_user(accepted)
        listening.socket.close()


def _connected_as_nobody(folder):
    """What a process of another user that connects prints as its error."""
    code = (
        f"import os, socket; os.setuid({NOBODY}); socket.socket(1).connect({str(folder / NAME)!r})"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_who_listens_for_another_user_is_not_spoken_to(listening, folder, monkeypatch):
    monkeypatch.setattr(local_sockets, "is_of_same_user", lambda _: False)
    with pytest.raises(PermissionError, match="another user listens"):
        reach(folder)


def test_a_system_that_does_not_say_who_connects_has_no_socket(folder, monkeypatch):
    monkeypatch.delattr(local_sockets.socket, "SO_PEERCRED")
    with pytest.raises(OSError, match="does not say which user"):
        ListeningSocket(folder, NAME)


def test_schedulers_of_every_name_have_sockets_of_their_own():
    names = {socket_name(*each) for each in (("a", "b"), ("a/b", ""), ("", "a/b"), ("b", "a"))}
    assert len(names) == 4
    assert {len(name) for name in names} == {37}
