"""Run as a program: opens the journal at argv[1], begins, and appends a fact for each line that it reads.

``run`` starts one from a test.
"""

import subprocess
import sys
from pathlib import Path

from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.messages.facts import EpochBegun
from schedulemesh.errors import JournalError
from schedulemesh.store.address import address_of
from schedulemesh.store.sql import SqlJournal


class run:  # noqa: N801
    """Another process that writes; ``ask`` has it append, and gives its answer."""

    def __init__(self, state_path, namespace):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.writing_process", str(state_path), namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self.process.stdout.readline().strip()

    def ask(self, number):
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def main():
    journal = SqlJournal(address_of(sys.argv[1], Path(), sys.argv[2], "shared"))
    try:
        print("epoch", journal.begin(), flush=True)
    except JournalError as error:
        print("refused:", error, flush=True)
        return
    for line in sys.stdin:
        try:
            journal.append(encode_facts([EpochBegun(epoch=int(line), at=0.0)]), {})
            print("done", flush=True)
        except JournalError as error:
            print(type(error).__name__, error, flush=True)


if __name__ == "__main__":
    main()
