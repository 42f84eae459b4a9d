"""The names that pools had before, so that what is recorded under them is found by either name."""

from __future__ import annotations

from collections.abc import Iterable

#: Former names that are kept.
KEPT = 1000


class PoolNames:
    """Which name each former name of a pool was replaced by. A name that a pool is created with means that
    pool alone from then on.
    """

    def __init__(self, renamed: Iterable[tuple[str, str]] = ()) -> None:
        #: The next name, by former name, the first replaced first.
        self.next_of: dict[str, str] = dict(renamed)

    def note_renamed(self, name: str, new_name: str) -> None:
        """A pool has another name."""
        self.next_of.pop(new_name, None)
        self.next_of[name] = new_name
        if len(self.next_of) > KEPT:
            del self.next_of[next(iter(self.next_of))]

    def note_created(self, name: str) -> None:
        """A pool is created with this name."""
        self.next_of.pop(name, None)

    def current(self, name: str) -> str:
        """The name that the pool has now that had this one; the name itself if it was never replaced."""
        while name in self.next_of:
            name = self.next_of[name]
        return name

    def all_of(self, name: str) -> tuple[str, ...]:
        """All names of the pool that has or had this one, sorted."""
        current = self.current(name)
        former = (other for other in self.next_of if self.current(other) == current)
        return tuple(sorted({name, current, *former}))
