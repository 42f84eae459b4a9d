"""Compare the source distribution with the checkout: ``python -m tests.docs.sdist FOLDER``."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def missing_from(archive: Path) -> set[str]:
    """The files of the repository that are not in an archive."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    return set(listed.stdout.split("\0")) - packed - {""}


def main(folder: Path) -> int:
    """Print what is missing; the exit code is 1 where something is."""
    (archive,) = folder.glob("schedulemesh_core-*.tar.gz")
    missing = missing_from(archive)
    print(f"{archive.name} lacks {len(missing)} files", *sorted(missing), sep="\n  ")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
