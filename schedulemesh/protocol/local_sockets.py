"""The Unix socket of a supervisor: where it lies, and who may be at its other end.

It lies in a folder that only its user may enter, and each side also asks the kernel which user the other
side's process belongs to. The folder is opened once and checked as opened, and the socket is reached through
what was opened: a path that leads elsewhere a moment later matters to nobody, and its length, of which a
socket's address has 108 bytes, neither.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from schedulemesh.config.private_files import make_private_folder

#: Connections that wait to be accepted.
_BACKLOG = 128
#: What the kernel says of a process: its id, its user, its group.
_PEER = struct.Struct("3i")


class SocketAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the supervisor of a scheduler takes requests of processes on its machine."""

    folder: str
    name: str
    #: Which scheduler answers there: the same for all processes of its supervisor, and known to nobody but
    #: its clients.
    scheduler: str


def socket_name(namespace: str, name: str) -> str:
    """The name of a scheduler's socket in its folder."""
    return f"{sha256(msgspec.json.encode((namespace, name))).hexdigest()[:32]}.sock"


class ListeningSocket:
    """A socket that processes of the same user can connect to. Raises OSError where there can be none."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        make_private_folder(folder)
        with _opened(folder) as opened:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._listen(opened)
            except OSError:
                self.socket.close()
                raise

    def _listen(self, opened: int) -> None:
        """Listen, then take the name from the socket of an earlier process, so that who connects meanwhile
        reaches one of both.
        """
        new = f".{self._name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=opened)
        # The file is created with this mode, whatever the umask says.
        os.fchmod(self.socket.fileno(), 0o600)
        self.socket.bind(_within(opened, new))
        self.socket.listen(_BACKLOG)
        self.socket.setblocking(False)
        self._inode = os.stat(new, dir_fd=opened).st_ino
        os.rename(new, self._name, src_dir_fd=opened, dst_dir_fd=opened)

    def close(self) -> None:
        """Accept nobody any more, and remove the file, unless a later process has put its own there."""
        self.socket.close()
        with contextlib.suppress(OSError), _opened(self._folder) as opened:
            if os.stat(self._name, dir_fd=opened).st_ino == self._inode:
                os.unlink(self._name, dir_fd=opened)


def connect(address: SocketAddress, timeout_s: float) -> socket.socket:
    """A connection to what listens at an address, which is a process of the same user. Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        with _opened(Path(address.folder)) as opened:
            connected.connect(_within(opened, address.name))
        if not is_of_same_user(connected):
            raise PermissionError(f"another user listens at {address.folder}/{address.name}")
    except OSError:
        connected.close()
        raise
    return connected


def is_of_same_user(connected: socket.socket) -> bool:
    """Whether the process at the other end belongs to the user of this one."""
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1]) == os.geteuid()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Within, a folder that this user alone may enter. Raises OSError for any other, and for a link."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("this system does not say which user a process at a socket belongs to")
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(
                f"{folder} is not this user's alone (mode {stat.S_IMODE(status.st_mode):04o}, user "
                f"{status.st_uid})"
            )
        yield opened
    finally:
        os.close(opened)


def _within(opened: int, name: str) -> str:
    """The path of a file in an opened folder, however long the path of that is."""
    return f"/proc/self/fd/{opened}/{name}"


def user_of(uid: int) -> str:
    """A user of this machine as user@host; one without a name by its number."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid-{uid}"
    return f"{name}@{socket.gethostname()}"
