"""Nodes of a simulated cluster that join, die or are drained at given times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

import msgspec

from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.numbers import MAX_DURATION_S, parse_number
from schedulemesh.domain.resources import UNIT
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.sim.tables import Cells, as_float, csv_table

Event = Literal["lost", "joined", "drain", "undrain"]
#: The columns of a table of changes.
COLUMNS = ("at_s", "node", "event")
_EVENTS: tuple[Event, ...] = get_args(Event)
#: Nodes that an error names.
_NAMED = 8


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to one node, in seconds from the start of the trace.

    A node whose first change is "joined" is not there before. "lost": it dies with everything on it. "drain":
    nothing new starts on it, and what runs there is evicted; "undrain" ends that.
    """

    at_s: float
    #: As the cluster names it, such as "3-node": the number among all nodes, and the name of its kind.
    node: str
    event: Event

    def __post_init__(self) -> None:
        """Check the time and the event."""
        parse_number(self.at_s, "at_s", 0.0, MAX_DURATION_S)
        if self.event not in _EVENTS:
            raise InvalidRequestError(
                f"event is {shown(self.event)}; allowed are {', '.join(_EVENTS)}"
            )


def read_node_changes(path: str | Path) -> list[NodeChange]:
    """The changes of a CSV file with the columns ``COLUMNS``. Raises InvalidRequestError."""
    columns, rows = csv_table(Path(path))
    if tuple(columns) != COLUMNS:
        raise InvalidRequestError(
            f"{path} has the columns {', '.join(columns) or '(none)'}; they must be {', '.join(COLUMNS)}"
        )
    return [_change(place, cells) for place, cells in rows]


def _change(place: str, cells: Cells) -> NodeChange:
    try:
        at_s, node, event = (cells.get(name, "") for name in COLUMNS)
        # The change itself refuses an event that is none.
        return NodeChange(at_s=as_float(at_s, "at_s"), node=node, event=event)  # type: ignore[arg-type]
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{place}: {error}") from None


def checked(
    changes: Iterable[NodeChange], cluster: Iterable[NodeReport]
) -> tuple[tuple[NodeChange, ...], frozenset[str]]:
    """The changes in the order of their times, and the nodes that are not there at the start.

    Raises InvalidRequestError for a node that the cluster does not have, or a change that cannot happen to it
    then.
    """
    ordered = tuple(sorted(changes, key=lambda change: change.at_s))
    names = {node.node_id for node in cluster}
    absent: set[str] = set()
    there: dict[str, bool] = {}
    for change in ordered:
        if change.node not in names:
            raise InvalidRequestError(_unknown(change.node, names))
        if change.node not in there and change.event == "joined":
            absent.add(change.node)
        present = there.get(change.node, change.node not in absent)
        if present == (change.event == "joined"):
            state = "there" if present else "not there"
            raise InvalidRequestError(
                f"node {change.node!r} is {state} at {change.at_s:g} s: {change.event!r} cannot happen"
            )
        there[change.node] = change.event != "lost"
    _check_never_empty(ordered, names - absent)
    return ordered, frozenset(absent)


def _check_never_empty(changes: Sequence[NodeChange], there: Collection[str]) -> None:
    """Check that there always is a node: without any, only quota decides, and jobs would run nowhere."""
    counts = {0.0: len(there)}
    remaining = len(there)
    for at_s, some in groupby(changes, key=lambda change: change.at_s):
        events = [change.event for change in some]
        remaining += events.count("joined") - events.count("lost")
        counts[at_s] = remaining
    empty = [at_s for at_s, count in counts.items() if not count]
    if empty:
        raise InvalidRequestError(
            f"there is no node at {empty[0]:g} s, and a simulation needs one at any time: let another join "
            f"by then, or drain the last one instead of losing it"
        )


def _unknown(node: str, names: Collection[str]) -> str:
    ordered = sorted(names)
    some = ", ".join(ordered[:_NAMED])
    if len(ordered) > _NAMED:
        some += f" ... {ordered[-1]} ({len(ordered)} in all)"
    return f"there is no node {node!r}; nodes are {some or 'none'}"


def capacities(
    cluster: Iterable[NodeReport], changes: Sequence[NodeChange], absent: Collection[str]
) -> tuple[tuple[float, float], ...]:
    """(time in seconds of the trace, GPUs from then on) of the nodes that are there, whether they are drained
    or not; CPUs where no node has GPUs.
    """
    nodes = {node.node_id: node.total for node in cluster}
    has_gpus = any(total.gpu for total in nodes.values())
    sizes = {name: (total.gpu if has_gpus else total.cpu) for name, total in nodes.items()}
    there = sum(size for name, size in sizes.items() if name not in absent)
    steps = [(0.0, there / UNIT)]
    for change in changes:
        if change.event in ("lost", "joined"):
            there += sizes[change.node] if change.event == "joined" else -sizes[change.node]
            steps.append((change.at_s, there / UNIT))
    return tuple(steps)


def losses(changes: Iterable[NodeChange]) -> int:
    """How many nodes die: no job dies more often."""
    return sum(change.event == "lost" for change in changes)
