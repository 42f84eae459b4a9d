"""What surely has no room on any node, so that a pass over the queue asks for it once, and not for each class
of tasks. It is noted as a search for a node finds none, and forgotten as room is freed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schedulemesh.domain.node_labels import NodeLabels, selects
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.state.queue_classes import Places

#: Up to so many nodes on which room was freed are compared with the labels of what fits on no node.
_FREED_NODES = 8


class _Open(NamedTuple):
    """Places, and the numbers of those that may have had room when so much was noted."""

    places: Places
    numbers: tuple[int, ...]
    noted: int


class NoRoom:
    """Needs that fit on no node. What needs no less fits on none either."""

    def __init__(self) -> None:
        #: By the labels that nodes must have; of each no need that another one makes superfluous.
        self._needs: dict[NodeLabels, list[Resources]] = {}
        #: By identity, as most classes ask for the same: places of which all are among these; and of which
        #: not all were, when that was asked last.
        self._all_full: dict[int, Places] = {}
        self._open: dict[int, _Open] = {}
        #: How often a need was noted.
        self._noted = 0

    def add(self, node_labels: NodeLabels, need: Resources) -> None:
        """Note a need that fits on no node with these labels."""
        others = self._needs.get(node_labels, ())
        self._needs[node_labels] = [other for other in others if not need.fits(other)] + [need]
        self._noted += 1

    def of(self, node_labels: NodeLabels) -> Sequence[Resources]:
        """What fits on no node with these labels."""
        return self._needs.get(node_labels, ())

    def includes(self, node_labels: NodeLabels, need: Resources) -> bool:
        """Whether a need surely fits on no node with these labels."""
        for other in self._needs.get(node_labels, ()):  # noqa: SIM110  # faster, and asked often
            if other.fits(need):
                return True
        return False

    def includes_all(self, places: Places) -> bool:
        """Whether each of these needs surely fits on no node with its labels. It is asked most often."""
        key = id(places)
        if key in self._all_full:
            return True
        if len(places) > 1:
            answered = self._open.get(key)
            return (answered is None or answered.noted != self._noted) and not self.open_in(places)
        for node_labels, need in places:  # nearly all have one, and then it costs no call
            for other in self._needs.get(node_labels, ()):
                if other.fits(need):
                    self._all_full[key] = places
                    return True
        return False

    def open_in(self, places: Places) -> tuple[int, ...]:
        """The numbers of those of these needs that may have room on a node with their labels."""
        key = id(places)
        if key in self._all_full:
            return ()
        answered, numbers = self._open.get(key), list[int]()
        if answered is not None and answered.noted == self._noted:
            return answered.numbers
        for number in range(len(places)) if answered is None else answered.numbers:
            node_labels, need = places[number]
            for other in self._needs.get(node_labels, ()):
                if other.fits(need):
                    break
            else:
                numbers.append(number)
        self._open[key] = _Open(places, tuple(numbers), self._noted)
        if not numbers:
            self._all_full[key] = places
        return tuple(numbers)

    def __bool__(self) -> bool:
        return bool(self._needs)

    def forget(self, freed: Sequence[Mapping[str, str] | None]) -> None:
        """Forget what may fit now that room was freed on nodes with these labels. None: a node was lost, and
        without any, only quota decides.
        """
        if None in freed or len(freed) > _FREED_NODES:
            self.clear()
            return
        self._all_full.clear()
        self._open.clear()
        for selector in list(self._needs):
            if any(labels is not None and selects(selector, labels) for labels in freed):
                del self._needs[selector]

    def clear(self) -> None:
        """Forget all."""
        self._needs.clear()
        self._all_full.clear()
        self._open.clear()
