"""Sentences and nodes as commands show them. The names of the nodes are asked for once, by a command that
shows any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from string import hexdigits

from schedulemesh.protocol import wording

#: Digits of the id of a node of Ray's, and those of them that are shown of a node without a name.
_RAY_ID, _SHORT = 56, 8
_NODE_ID = re.compile(r"\b[0-9a-f]{56}\b")


class _Names:
    """The names by id, as far as they were asked for."""

    def __init__(self) -> None:
        self._ask: Callable[[], dict[str, str]] | None = None
        self._by_id: dict[str, str] = {}

    def of(self, node_id: str) -> str:
        """The name of a node; of one that is gone or cannot be asked for, the beginning of its id."""
        if node_id not in self._by_id and self._ask is not None:
            ask, self._ask = self._ask, None
            self._by_id = ask()
        return self._by_id.get(node_id, node_id[:_SHORT])

    @contextmanager
    def asked_by(self, ask: Callable[[], dict[str, str]]) -> Iterator[None]:
        """Within, names are asked for by a function, the first time that one is shown."""
        self._ask, self._by_id = ask, {}
        try:
            yield
        finally:
            self._ask = None


_NAMES = _Names()
names_asked_by = _NAMES.asked_by


def node(node_id: object) -> str:
    """A node as it is shown; of what is no id of Ray's the whole."""
    shown = "" if node_id is None else str(node_id)
    is_id = len(shown) == _RAY_ID and not set(shown) - set(hexdigits)
    return _NAMES.of(shown) if is_id else shown


def in_commands(sentence: str) -> str:
    """A sentence of the scheduler in the words of the command line, with the names of nodes for their ids."""
    return wording.in_commands(_NODE_ID.sub(lambda node_id: _NAMES.of(node_id[0]), sentence))
