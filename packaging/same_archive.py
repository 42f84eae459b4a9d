"""Makes source distributions the same bytes for the same files: ``python packaging/same_archive.py dist/*.tar.gz``.

setuptools puts into them when and by whom each file was checked out. The time becomes SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path


def same_bytes(archive: bytes, at: int) -> bytes:
    """The archive with its members in the order of their names, all of this time (seconds since 1970)."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            is_run = member.isdir() or member.mode & 0o100
            member.mode, member.mtime = 0o755 if is_run else 0o644, at
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return gzip.compress(packed.getvalue(), compresslevel=9, mtime=at)


def main(paths: list[str]) -> None:
    """Rewrite these archives."""
    at = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in map(Path, paths):
        path.write_bytes(same_bytes(path.read_bytes(), at))


if __name__ == "__main__":
    main(sys.argv[1:])
