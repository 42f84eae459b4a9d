"""Completes ids of tasks, pools, owners and nodes in a shell, over the HTTP API alone, because Ray takes too
long to load. Where no scheduler answers at once there are no suggestions, and no error.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol

import typer


class Asked(Protocol):
    """The scheduler that is asked."""

    def ask(self, request: Any, expected: Any, /) -> Any:
        """See Gateway."""


Completer = Callable[[typer.Context, str], list[str]]
#: Connects to the scheduler that the options before name, by name; None: it cannot be reached at once.
Connect = Callable[[Mapping[str, Any]], AbstractContextManager[Asked | None]]

#: Seconds that a suggestion may take, and how many there are at most.
_PATIENCE_S, _MOST = 1.0, 200
_LAST = "\U0010ffff"


def _nowhere(_options: Mapping[str, Any]) -> AbstractContextManager[None]:
    return nullcontext()


#: How completers connect; see ``entry``, which knows that a shell asks.
connect: Connect = _nowhere


def _completer(names: Callable[[Asked, str], Iterator[str]]) -> Completer:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            with _at_once(), connect(ctx.params) as gateway:
                possible = names(gateway, incomplete) if gateway is not None else iter(())
                return list(dict.fromkeys(n for n in possible if n.startswith(incomplete)))[:_MOST]
        except Exception:  # noqa: BLE001  # a shell shows nothing of it, and its line would be spoilt
            return []

    return complete


@contextmanager
def _at_once() -> Iterator[None]:
    """Within, whatever takes longer than a moment raises TimeoutError."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _tasks(gateway: Asked, incomplete: str) -> Iterator[str]:
    return (row["task_id"] for row in _page(gateway, incomplete))


def _owners(gateway: Asked, _incomplete: str) -> Iterator[str]:
    return (row["owner"] for row in _page(gateway, "") if row["owner"])


def _page(gateway: Asked, first: str) -> list[dict[str, Any]]:
    """The first tasks by their ids, from this text on."""
    from schedulemesh.api.pages import MAX_LIMIT, ListPage, PageQuery
    from schedulemesh.protocol.answers import Details

    after = (f"{first[:-1]}{chr(ord(first[-1]) - 1)}{_LAST}",) if first else None
    page = PageQuery(order=(("task_id", False),), after=after, limit=min(_MOST, MAX_LIMIT))
    rows: list[dict[str, Any]] = gateway.ask(ListPage(listing="tasks", page=page), Details).facts[
        "items"
    ]
    return rows


def _pools(gateway: Asked, _incomplete: str) -> Iterator[str]:
    from schedulemesh.api.pools import ListPools
    from schedulemesh.protocol.answers import Listed

    return (row["name"] for row in gateway.ask(ListPools(), Listed).rows)


def _nodes(gateway: Asked, _incomplete: str) -> Iterator[str]:
    """The host name of each node that alone has it, and the short ids."""
    from schedulemesh.api.nodes import ListNodeNames
    from schedulemesh.protocol.answers import Listed

    rows = gateway.ask(ListNodeNames(), Listed).rows
    hosts = Counter(row["host"] for row in rows)
    yield from (host for host, count in hosts.items() if host and count == 1)
    yield from (row["short_id"] for row in rows)


complete_nodes = _completer(_nodes)
#: What completes the parameters of these names, in whichever command.
COMPLETERS: dict[str, Completer] = {
    **dict.fromkeys(("task", "tasks", "lease"), _completer(_tasks)),
    **dict.fromkeys(("pool", "for_pool", "evict_pool"), _completer(_pools)),
    **dict.fromkeys(("nodes", "node"), complete_nodes),
    "owner": _completer(_owners),
}
