"""Folders and files that only their owner may read, whatever the umask says."""

from __future__ import annotations

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


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that is created, where it is missing, for its owner alone: an ``opener`` for ``open``."""
    return os.open(path, flags, 0o600)
