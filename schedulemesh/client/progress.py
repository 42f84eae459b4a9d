"""The progress of tasks that a caller waits for, on a terminal, in a notebook, or as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typing_extensions import Self


class Display(Protocol):
    """Shows how many tasks have got far enough."""

    def show(self, states: Sequence[str], done: int) -> None:
        """Show the tasks' states and how many of them have got far enough."""


class NoDisplay:
    """Shows nothing."""

    def show(self, states: Sequence[str], done: int) -> None:
        """See Display."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class _Bar:
    """A bar that is drawn again in its place."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._row = progress.add_task("", total=total)

    def show(self, states: Sequence[str], done: int) -> None:
        """See Display."""
        self._progress.update(self._row, completed=done, description=counted(states))


class _Lines:
    """One line whenever something has changed, for logs and pipes."""

    def __init__(self, console: Console, total: int, until: str) -> None:
        self._console, self._total, self._until = console, total, until
        self._last = ""

    def show(self, states: Sequence[str], done: int) -> None:
        """See Display."""
        line = f"{done} of {self._total} tasks {self._until}: {counted(states)}"
        if line != self._last:
            self._console.print(line, highlight=False, soft_wrap=True)
            self._last = line


@contextmanager
def display(total: int, until: str, console: Console | None = None) -> Iterator[Display]:
    """The display of so many tasks that are waited for. ``console``: where it is shown; None: standard error,
    or the notebook's cell.
    """
    console = console or Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield _Lines(console, total, until)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(until),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress, total)


def counted(states: Sequence[str]) -> str:
    """How many tasks are in each state, as text."""
    counts = Counter(states)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
