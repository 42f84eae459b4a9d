"""The layout of a group from what each of its workers reports: its coordinates and the sizes of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from numbers import Integral
from typing import Any

from schedulemesh.dispatch.layout import DEFAULT_ORDER, ParallelLayout
from schedulemesh.errors import InvalidRequestError

#: By axis a worker's coordinate and the number of coordinates.
Position = Mapping[str, tuple[int, int]]


def reported_layout(reports: Sequence[Any], agents: Sequence[str], group: str) -> ParallelLayout:
    """The layout in which the ranks, in this order, have the coordinates that they report.

    ``reports`` are by rank, as {"dp": (0, 2), "tp": (1, 4)}: by axis the coordinate and the size. Raises
    ``InvalidRequestError`` naming the agents and what they reported if the workers do not agree, do not make
    a complete mesh, or are not in the order of ranks of one.
    """
    at = f"the workers of group {group}"
    positions = [
        _position(report, agent, group) for report, agent in zip(reports, agents, strict=True)
    ]
    sizes = _sizes(positions[0])
    for agent, position in zip(agents, positions, strict=True):
        if _sizes(position) != sizes:
            raise InvalidRequestError(
                f"{at} report different axes: agent {agents[0]} {_shown(sizes)}, agent {agent} "
                f"{_shown(_sizes(position))}; allowed is one mesh"
            )
    if (ranks := prod(sizes.values())) != len(positions):
        raise InvalidRequestError(
            f"{at} report a mesh of {ranks} ranks, {_shown(sizes)}; the group has {len(positions)} workers"
        )
    _check_different(positions, agents, at)
    layout = _layout(positions, sizes)
    check_reports(layout, positions, agents, at)
    return layout


def check_reports(
    layout: ParallelLayout, reports: Sequence[Any], agents: Sequence[str], group: str
) -> None:
    """Raise ``InvalidRequestError`` if a worker reports other coordinates than its rank has in the layout."""
    for rank, (report, agent) in enumerate(zip(reports, agents, strict=True)):
        reported = _shown(_split_axes(_position(report, agent, group)))
        expected = _shown(
            _split_axes({n: (c, layout.size_of(n)) for n, c in layout.coordinates(rank).items()})
        )
        if reported != expected:
            raise InvalidRequestError(
                f"{group}: rank {rank} (agent {agent}) reports {reported}; in the layout {layout} it has "
                f"{expected}. Give the agents in the order of their ranks, or the layout that they have"
            )


def _position(report: Any, agent: str, group: str) -> Position:
    """A report, checked."""
    if isinstance(report, Mapping) and report and all(map(_is_place, report.values())):
        return {str(axis): (int(place[0]), int(place[1])) for axis, place in report.items()}
    raise InvalidRequestError(
        f"{group}: agent {agent} reports {report!r} as its place in the mesh; allowed is a dict of axes, "
        f"each with the worker's coordinate and the size, such as {{'dp': (0, 2), 'tp': (1, 4)}}"
    )


def _is_place(value: Any) -> bool:
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return pair and all(isinstance(n, Integral) for n in value) and 0 <= value[0] < value[1]


def _check_different(positions: Sequence[Position], agents: Sequence[str], at: str) -> None:
    seen: dict[tuple[tuple[str, int], ...], str] = {}
    for agent, position in zip(agents, positions, strict=True):
        place = tuple(sorted((axis, coordinate) for axis, (coordinate, _) in position.items()))
        if place in seen:
            raise InvalidRequestError(
                f"{at} do not make a complete mesh: agents {seen[place]} and {agent} both report "
                f"{_shown(dict(place))}"
            )
        seen[place] = agent


def _layout(positions: Sequence[Position], sizes: Mapping[str, int]) -> ParallelLayout:
    """The layout in whose order the coordinates are, if there is one: axes that change first are fastest."""

    def first_change(axis: str) -> int:
        return next(rank for rank, each in enumerate(positions) if each[axis] != positions[0][axis])

    split = sorted((axis for axis, size in sizes.items() if size > 1), key=first_change)
    default = DEFAULT_ORDER.split("-")
    if set(sizes) <= set(default) and split == [axis for axis in default if axis in split]:
        return ParallelLayout.of(**sizes)
    unsplit = [axis for axis, size in sizes.items() if size == 1]
    return ParallelLayout(axes=tuple((axis, sizes[axis]) for axis in (*split, *unsplit)))


def _sizes(position: Position) -> dict[str, int]:
    return {axis: size for axis, (_, size) in position.items()}


def _split_axes(position: Position) -> dict[str, str]:
    """The coordinates on axes with several ranks."""
    return {axis: f"{at}/{size}" for axis, (at, size) in sorted(position.items()) if size > 1}


def _shown(values: Mapping[str, Any]) -> str:
    return ",".join(f"{axis}={value}" for axis, value in values.items()) or "one rank"
