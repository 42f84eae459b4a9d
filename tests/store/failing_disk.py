"""Run as a program: a process writes a journal until its disk fails, several times. Each time it prints a
line of JSON: what the process was told, and what the journal has once the disk is mounted again.

The disk is an ext4 file system in a file, in a mount namespace of its own; where this is not allowed, the
line says why.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from schedulemesh.errors import JournalError
from schedulemesh.store.journal import InDoubtError
from schedulemesh.store.sql import SqlJournal
from tests.drills.disk import Disk, own_disk
from tests.store.builders import epochs, fact, write


def main(folder: Path, times: int) -> None:
    with own_disk(folder) as (disk, why_not):
        if disk is None:
            print(json.dumps({"why_not": why_not}))
            return
        for number in range(times):
            print(json.dumps(once(disk, folder / "state" / f"{number}.sqlite")), flush=True)


def once(disk: Disk, path: Path) -> dict[str, object]:
    """Have the disk fail while another process writes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_until_it_fails(path, writer)
    os.close(writer)
    told = []
    with os.fdopen(reader, encoding="utf-8") as lines:
        for line in lines:
            told.append(line.strip())
            if line.strip() == "5":
                time.sleep(0.05)  # the disk fails at a random moment of some later commit
                disk.give_up()
    os.waitpid(child, 0)
    disk.mend()
    journal = SqlJournal(path, must_exist=True)
    found = epochs(journal)
    journal.close()
    return {"acknowledged": int(told[-2]), "failed": told[-1], "found": found}


def write_until_it_fails(path: Path, pipe: int) -> None:
    """Write facts with the numbers 1, 2, ... and say each that is durable, then how the first has failed."""
    journal = SqlJournal(path)
    journal.begin()
    number = 0
    while True:
        try:
            write(journal, fact(number + 1), k=os.urandom(5000))
        except JournalError as error:
            outcome = "in doubt" if isinstance(error, InDoubtError) else "not written"
            os.write(pipe, f"{outcome}\n".encode())
            os._exit(0)  # as one that is killed
        number += 1
        os.write(pipe, f"{number}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
