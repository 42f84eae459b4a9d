"""The maintenance windows, and to which nodes each applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schedulemesh.domain.node_labels import selects
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.windows import MaintenanceWindow, Occurrence
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.window_facts import (
    WindowCreated,
    WindowEnded,
    WindowNodesChosen,
)
from schedulemesh.engine.state.nodes import Node


class Windows:
    """The maintenance windows by name."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.by_name: dict[str, MaintenanceWindow] = {}
        #: Of each window of an amount: its nodes, and for which opening they were chosen.
        self.chosen: dict[str, WindowNodesChosen] = {}
        self._nodes = nodes
        #: The nodes of each window, worked out since a node was added, changed or lost.
        self._node_ids: dict[str, frozenset[str]] = {}

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """What each of these facts changes."""
        return {
            WindowCreated: lambda fact: self.add(fact.window),
            WindowEnded: lambda fact: self._remove(fact.name),
            WindowNodesChosen: self.choose,
        }

    def add(self, window: MaintenanceWindow) -> None:
        """Add a window."""
        self.by_name[window.name] = window

    def choose(self, fact: WindowNodesChosen) -> None:
        """These are the nodes of a window of an amount."""
        self.chosen[fact.name] = fact
        self._node_ids.pop(fact.name, None)

    def _remove(self, name: str) -> None:
        del self.by_name[name]
        self.chosen.pop(name, None)
        self._node_ids.pop(name, None)

    def note_nodes(self) -> None:
        """A node was added, changed or lost."""
        self._node_ids.clear()

    def node_ids(self, window: MaintenanceWindow) -> frozenset[str]:
        """The nodes to which a window applies."""
        node_ids = self._node_ids.get(window.name)
        if node_ids is None:
            node_ids = self._node_ids[window.name] = frozenset(
                node_id
                for node_id, node in self._nodes.items()
                if (node_id in self._chosen(window) if window.is_amount else _applies(window, node))
            )
        return node_ids

    def _chosen(self, window: MaintenanceWindow) -> tuple[str, ...]:
        fact = self.chosen.get(window.name)
        return () if fact is None else fact.node_ids

    def short_of(self, window: MaintenanceWindow) -> Resources:
        """What of its amount the nodes of a window lack."""
        totals = (self._nodes[node_id].total for node_id in self.node_ids(window))
        return window.lacking(totals)

    def of_node(self, node_id: str, now: float) -> list[tuple[Occurrence, MaintenanceWindow]]:
        """The occurrences in progress and the next ones of the windows of a node, the first first."""
        occurrences = (
            (occurrence, window)
            for window in self.by_name.values()
            if node_id in self.node_ids(window)
            and (occurrence := window.occurrence(now)) is not None
        )
        return sorted(occurrences, key=lambda each: (each[0], each[1].name))

    def closed_to(self, now: float, run_s: float) -> list[MaintenanceWindow]:
        """The windows on whose nodes a task may not start now that runs for so long."""
        return [
            window
            for window in self.by_name.values()
            if (occurrence := window.occurrence(now)) is not None
            and window.is_closed_to(occurrence, now, run_s)
        ]


def _applies(window: MaintenanceWindow, node: Node) -> bool:
    if window.node_ids:
        return node.node_id in window.node_ids
    return selects(window.node_labels, node.labels)
