"""A disk for the drill that can be made to fail: an ext4 file system in a file.

It is mounted in the drill's own mount namespace, so nothing of it is left however the drill ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.drills.processes import DrillFailed, until

_CLONE_NEWNS = 0x00020000
_BYTES = 256 * 2**20


class Disk:
    """An ext4 image mounted over a folder."""

    def __init__(self, image: Path, folder: Path) -> None:
        self._image, self._folder = image, folder
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(_BYTES)
        _must("mkfs.ext4", "-q", "-F", image)
        self._mount()

    def give_up(self) -> None:
        """Make the file system refuse writes; open files stay open and can be read."""
        _must("mount", "-o", "remount,abort", self._folder)

    def mend(self) -> None:
        """Make it writable again, with its content. No process may have a file of it open."""
        until(lambda: _done("umount", self._folder) == "", "the disk is in use", 90.0)
        self._mount()

    def close(self) -> None:
        """Unmount it."""
        _done("umount", "-l", self._folder)

    def _mount(self) -> None:
        _must("mount", "-o", "loop", self._image, self._folder)


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[tuple[Disk | None, str]]:
    """A disk mounted over ``folder / "state"``; or None and the reason why that is impossible here."""
    try:
        _enter_mount_namespace()
        disk = Disk(folder / "disk.img", folder / "state")
    except (OSError, DrillFailed) as error:
        yield None, str(error)
        return
    try:
        yield disk, ""
    finally:
        disk.close()


def _enter_mount_namespace() -> None:
    """Make further mounts of this process visible to it and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot create a mount namespace: {os.strerror(number)}")
    _must("mount", "--make-rprivate", "/")


def _must(*command: str | Path) -> None:
    error = _done(*command)
    if error:
        raise DrillFailed(f"{command[0]}: {error}")


def _done(*command: str | Path) -> str:
    """Run the command; its error output if it fails, else empty."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"
