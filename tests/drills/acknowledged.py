"""A log of everything that the scheduler acknowledged, kept outside of it: one line of JSON per reply.

Each line is written when the reply arrives, before the client acts on it. For a task only the balance of
starts and ends is checked, so lines of two clients may be in any order.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

#: Entries that start a task, and entries that end it.
BEGINS, ENDS = ("submitted", "rebuilt", "restarted"), ("evicted", "completed", "lost")


class Log:
    """An append-only log file; thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Victims of a failed submission that wait in the queue, and run again.
        self.may_return: set[str] = set()
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def write(self, what: str, **fields: Any) -> None:
        """Append one acknowledgement; it is kept even if this process dies."""
        with self._lock:
            self._file.write(json.dumps({"what": what, **fields}) + "\n")
            self._file.flush()

    def write_returned(self, running: set[str]) -> None:
        """Append which victims of failed submissions run again after they had waited in the queue."""
        for task_id in sorted(self.may_return & running):
            self.may_return.discard(task_id)
            self.write("restarted", task=task_id)

    def close(self) -> None:
        """Close the file; nothing is written any more."""
        self._file.close()

    def read(self) -> list[dict[str, Any]]:
        """All complete lines; one that was cut off when its writer died is ignored."""
        return read_log(self.path)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a log file, also of another process."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Expected:
    """The state that these acknowledgements imply once no call is pending."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.balance: Counter[str] = Counter()
        #: How often each thing was acknowledged of a task.
        self.counts: Counter[tuple[str, str]] = Counter()
        #: The highest count whose saving was acknowledged, by task.
        self.saved: dict[str, int] = defaultdict(int)
        self.pools: set[str] = set()
        self.policy: float | None = None
        self.completed: set[str] = set()
        self.evicted: set[str] = set()
        for line in lines:
            self._take(line)

    @property
    def tasks(self) -> set[str]:
        """The tasks that must be running."""
        return {task_id for task_id, balance in self.balance.items() if balance == 1}

    def inconsistencies(self) -> list[str]:
        """Tasks that ended more often than they started, or were started twice."""
        return [f"{t}: balance {n}" for t, n in self.balance.items() if n not in (0, 1)]

    def _take(self, line: dict[str, Any]) -> None:
        what = line["what"]
        if what in BEGINS + ENDS:
            self.counts[line["task"], what] += 1
        if what in BEGINS:
            self.balance[line["task"]] += 1
        elif what in ENDS:
            self.balance[line["task"]] -= 1
        if what == "saved":
            self.saved[line["task"]] = max(self.saved[line["task"]], line["count"])
        elif what == "pool":
            self.pools.add(line["pool"])
        elif what == "policy":
            self.policy = line["value"]
        elif what == "completed":
            self.completed.add(line["task"])
        elif what == "evicted":
            self.evicted.add(line["task"])
