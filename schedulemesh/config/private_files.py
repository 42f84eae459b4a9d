"""Folders and files that only their owner may read, whatever the umask says."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Create a folder, and those above it that are missing, for their owner alone. One that exists stays as
    it is. Raises OSError.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        # Another process may create it at the same time.
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)


def check_owner(folder: Path) -> None:
    """Raise PermissionError where a folder that exists, or a link in its place, belongs to neither this user
    nor root.

    Whoever owns a folder may put something else in the place of what is in it, and may have created it first:
    in the folder of a session of Ray, every user of the machine may write. Whoever owns a link says where
    files are made.
    """
    for status_of in (folder.lstat, folder.stat):
        with contextlib.suppress(FileNotFoundError):
            owner = status_of().st_uid
            if owner not in (os.geteuid(), 0):
                raise PermissionError(
                    f"the folder {folder} belongs to user {owner}, and this is user {os.geteuid()}; give it "
                    "to this user (chown), or remove it"
                )


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that is created, where it is missing, for its owner alone: an ``opener`` for ``open``."""
    return os.open(path, flags, 0o600)
