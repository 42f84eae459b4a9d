"""Tells many stories of a supervisor, each by its seed, and says how often what happened in them.

    python -m tests.runtime.stories --stories 1000 --seed 7

Each ``ON_DISK``-th story has its journal in a file, with its history; that of all others is in memory, which
takes a third of the time. It ends at the first violation, with what repeats that story and logs it:

    python -m tests.runtime.stories --stories 1 --seed 1003 --log
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from schedulemesh.errors import JournalError
from schedulemesh.store.journal import MemoryJournal
from schedulemesh.store.sql import SqlJournal
from tests.runtime import virtual_time
from tests.runtime.story import QUIET_S, Story, told

#: Of so many stories one has its journal in a file, and one is watched for longer at its end.
ON_DISK, PATIENT = 20, 8
#: Virtual seconds for which nothing goes on at the end of a story that is watched for longer.
PATIENT_S = 40.0
#: The events of a story.
EVENTS = 80
#: Stories that a process tells before it says how they ended.
AT_ONCE = 100


class Disk:
    """A journal in memory that outlives the supervisors that write it, one after the other."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.exists = False

    def opened(self, _file: None, *, must_exist: bool = False) -> OpenedJournal:
        if must_exist and not self.exists:
            raise JournalError("there is no journal")
        self.exists = True
        return OpenedJournal(self.journal)


class OpenedJournal:
    """The journal as one supervisor has it, which cannot write any more once another has begun."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self._epoch = 0

    def begin(self, *, take_over: bool = False, above: int = 0) -> int:
        self._epoch = self._journal.begin(take_over=take_over, above=above)
        return self._epoch

    def __getattr__(self, name: str) -> Callable[..., object]:
        self._journal._mine = self._epoch
        return getattr(self._journal, name)


def tell(seed: int, count: int, *, on_disk: bool, quiet_s: float = QUIET_S) -> Counter[str]:
    """Tell the story of a seed with so many events: how often what happened. Raises what went wrong."""
    if not on_disk:
        return _tell(Story(None, Disk().opened, quiet_s), seed, count)
    with tempfile.TemporaryDirectory() as folder:
        return _tell(Story(Path(folder) / "mesh.sqlite", SqlJournal, quiet_s), seed, count)


def _tell(story: Story, seed: int, count: int) -> Counter[str]:
    virtual_time.run(told(story, seed, count))
    return story.seen


def tell_by_seed(seed: int) -> Counter[str]:
    """Tell the story of a seed, which decides the rest as well."""
    count = random.Random(seed).randint(1, EVENTS)
    quiet_s = QUIET_S if seed % PATIENT else PATIENT_S
    return tell(seed, count, on_disk=not seed % ON_DISK, quiet_s=quiet_s)


class Told:
    """What happened in some stories."""

    def __init__(self) -> None:
        self.stories = 0
        #: How often what happened, and in how many stories.
        self.times: Counter[str] = Counter()
        self.in_stories: Counter[str] = Counter()
        #: By seed, what was violated.
        self.violated: dict[int, str] = {}

    def add(self, seen: Counter[str]) -> None:
        self.stories += 1
        self.times += seen
        self.in_stories.update(what for what, times in seen.items() if times)

    def merge(self, other: Told) -> None:
        self.stories += other.stories
        self.times += other.times
        self.in_stories += other.in_stories
        self.violated |= other.violated

    def summary(self) -> str:
        lines = [f"{self.stories} stories, {len(self.violated)} with a violation"]
        lines += [
            f"{times:>10,} {self.in_stories[what] / self.stories:>7.1%}  {what}"
            for what, times in self.times.most_common()
        ]
        return "\n".join(lines)


def told_of(seeds: Iterable[int]) -> Told:
    """Tell the stories of these seeds, up to the first with a violation."""
    so_far = Told()
    for seed in seeds:
        try:
            so_far.add(tell_by_seed(seed))
        except Exception:  # noqa: BLE001  # any exception is a violation, which is reported
            so_far.violated[seed] = traceback.format_exc()
            break
    return so_far


def tell_all(first: int, count: int, processes: int) -> Told:
    """Tell the stories of seeds one after the other, up to the first with a violation."""
    chunks = [
        range(begin, min(begin + AT_ONCE, first + count))
        for begin in range(first, first + count, AT_ONCE)
    ]
    began, total = time.perf_counter(), Told()
    # Who interrupts it gets the summary of what was told.
    with ProcessPoolExecutor(processes) as pool, contextlib.suppress(KeyboardInterrupt):
        results = pool.map(told_of, chunks) if processes > 1 else map(told_of, chunks)
        for chunk, result in zip(chunks, results, strict=True):
            total.merge(result)
            each_s = (time.perf_counter() - began) / max(1, total.stories)
            print(f"up to seed {chunk.stop - 1}: {total.stories} stories, {each_s:.3f} s each")
            if total.violated:
                pool.shutdown(cancel_futures=True)
                break
    return total


def main() -> None:
    """Tell stories, and say what happened in them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="that of the first story")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--log", action="store_true", help="log what the supervisors log")
    options = parser.parse_args()
    if not options.log:
        logging.disable(logging.CRITICAL)
    # Ray is not needed, and must not be asked.
    sys.modules["ray"] = None  # type: ignore[assignment]
    sys.stdout.reconfigure(line_buffering=True)
    total = tell_all(options.seed, options.stories, options.processes)
    print(total.summary())
    for seed, violation in total.violated.items():
        print(f"the story of seed {seed}:\n{violation}")
        print(f"again: python -m tests.runtime.stories --stories 1 --seed {seed} --log")
    sys.exit(bool(total.violated))


if __name__ == "__main__":
    main()
