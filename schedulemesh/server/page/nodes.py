"""Nodes and their GPUs: a square per GPU, by whom it is held; what is closed, or held by other Ray work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.nodes import ListNodes
from schedulemesh.api.pages import MAX_LIMIT, PageQuery
from schedulemesh.api.pools import GetGroupStats, ListPools
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import actions_of_node
from schedulemesh.server.page.asked_for import UnknownName, unknown_name, word_in
from schedulemesh.server.page.colors import colors_of
from schedulemesh.server.page.links import link, page_number
from schedulemesh.server.page.overview import closed_as, gpus_of_nodes
from schedulemesh.server.page.reads import ScreenReads, together

#: Nodes of a page, and how many pages there may be.
_NODES, _MOST_PAGES = 60, 10_000
#: Nodes of a page above which what holds each is folded up, so that their squares are seen together.
_UNFOLDED = 12
#: The side of a square and the distance between two, in the units of the picture; and how many are in a row.
_SIDE, _STEP, _IN_ROW = 22, 26, 8
#: An amount below which nothing is drawn.
_LEAST = 1e-6
#: Which nodes are shown, by the word in the address; the first is the default.
_CHOICES = ("all_nodes", "with_free", "closed_only", "with_other")


class GpuHolding(NamedTuple):
    """What an agent, or a placement group that no agent uses, has of a node."""

    #: Its first task; empty: it has none.
    task_id: str
    #: Or the id of the group.
    agent_name: str
    pool_name: str
    gpus: float
    #: The class of its colour, which is that of its pool.
    style: str
    #: The numbers of its GPUs on the node, and how much it has of each; empty: not known.
    devices: tuple[tuple[int, float], ...] = ()

    @property
    def title(self) -> str:
        """What it is called."""
        return self.task_id or self.agent_name


class SquarePart(NamedTuple):
    """A part of a square: from the left, in the units of the picture."""

    x: float
    y: float
    width: float
    #: "color-0" …, or "other" for other Ray work.
    style: str
    title: str


class GpuPicture(NamedTuple):
    """The squares of a node."""

    width: int
    height: int
    #: Where each square is.
    frames: Sequence[tuple[int, int]]
    parts: Sequence[SquarePart]


async def nodes(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``nodes.html`` shows. Raises InvalidRequestError for a page that cannot be."""
    name, number = query.get("name", "").strip(), page_number(query, _MOST_PAGES)
    show = word_in(reader, query, "show", _CHOICES) or _CHOICES[0]
    rows, pools = await together(reader.rows(ListNodes()), reader.rows(ListPools()))
    every = sorted(rows, key=lambda node: (node["name"], node["node_id"]))
    colors = colors_of(str(pool["name"]) for pool in pools)
    chosen = [node for node in every if _is_chosen(node, name, show)]
    page = chosen[(number - 1) * _NODES : number * _NODES]
    holdings = await _holdings(reader, page, colors)
    filters = (("name", name), ("show", show if show != _CHOICES[0] else ""))
    has_more = len(chosen) > number * _NODES
    return {
        "rows": [
            {
                **_row(node, holdings.get(str(node["node_id"]), ())),
                "actions": actions_of_node(reader.caller, node),
            }
            for node in page
        ],
        "is_folded": len(page) > _UNFOLDED,
        "total": len(chosen),
        "every": len(every),
        "unknown": _unknown(every, name, show),
        "gpus": gpus_of_nodes(chosen),
        "name": name,
        "show": show,
        "choices": _CHOICES,
        "filtered": bool(name) or show != _CHOICES[0],
        "following": link("/nodes", *filters, ("page", number + 1)) if has_more else "",
        "begun": link("/nodes", *filters) if number > 1 else "",
    }


def _unknown(every: Sequence[Row], name: str, show: str) -> list[UnknownName]:
    """What is entered as the name of a node, where no node has it in what it is called."""
    if not name or any(_is_chosen(node, name, _CHOICES[0]) for node in every):
        return []
    names = {str(node[key]) for node in every for key in ("name", "host", "address")}
    return [unknown_name("no_such_node", "/nodes", {"name": name, "show": show}, "name", names)]


def _is_chosen(node: Row, name: str, show: str) -> bool:
    """Whether a node is shown: its name, host, address or id contains this, and it is of this kind."""
    called = (node["name"], node["host"], node["address"], node["node_id"])
    if name and not any(name in str(one) for one in called):
        return False
    if show == "with_free":
        return bool(node["free"].get("gpu", 0.0) > _LEAST)
    if show == "closed_only":
        return bool(closed_as(node))
    return show != "with_other" or bool(node["external_usage"])


async def _holdings(
    reader: ScreenReads, page: Sequence[Row], colors: Mapping[str, int]
) -> dict[str, list[GpuHolding]]:
    """Who holds GPUs of these nodes, by node: in placement groups, bundle by bundle, and outside of them."""
    groups = await _groups_on(reader, {node["node_id"] for node in page})
    # What a node lists of groups is no name of an agent, and is not found.
    names = dict.fromkeys(name for node in page for name in node["agents"])
    names.update((group["agent"], None) for group in groups if group["agent"])
    agents = {str(row["name"]): row for row in await agents_named(reader, names)}
    devices = _devices_held(page)
    holdings: dict[str, list[GpuHolding]] = {}

    def add(node_id: str, amounts: Mapping[str, float], name: str, pool_name: str) -> None:
        if amounts.get("gpu", 0.0) > _LEAST:
            agent = agents.get(name)
            holding = GpuHolding(
                task_id=next(iter(agent["tasks"]), "") if agent else "",
                agent_name=name,
                pool_name=pool_name,
                gpus=amounts["gpu"],
                style=f"color-{colors.get(pool_name, 0)}",
                devices=tuple(devices.get((node_id, name), ())),
            )
            holdings.setdefault(node_id, []).append(holding)

    for group in groups:
        for node_id, bundle in zip(group["node_ids"], group["bundles"], strict=False):
            add(node_id, bundle, group["agent"] or group["id"], group["pool_name"])
    in_groups = {group["agent"] for group in groups}
    for name, agent in agents.items():
        if name not in in_groups and agent["node_id"] is not None:
            add(agent["node_id"], agent["resources"], name, agent["pool"])
    return {node_id: _told_apart(of_node) for node_id, of_node in holdings.items()}


async def _groups_on(reader: ScreenReads, node_ids: set[str]) -> list[Row]:
    """The placement groups with a bundle on one of these nodes, each with its pool."""
    stats = await reader.facts(GetGroupStats())
    return [
        {**group, "pool_name": pool_name}
        for pool_name, of_pool in stats["pools"].items()
        for group in of_pool["groups"]
        if not node_ids.isdisjoint(group["node_ids"])
    ]


def _devices_held(page: Sequence[Row]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """The numbers of the GPUs that agents hold, and how much of each, by node and agent."""
    devices: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for node in page:
        for holder in node["gpu_holders"]:
            key = (str(node["node_id"]), str(holder["agent_name"]))
            devices.setdefault(key, []).append((holder["index"], holder["amount"]))
    return devices


async def agents_named(reader: ScreenReads, names: Iterable[str]) -> list[Row]:
    """The agents of these names."""
    queries = []
    remaining = iter(names)
    while some := tuple(islice(remaining, MAX_NAMES)):
        fields = (("name", some),)
        queries.append(PageQuery(fields=fields, order=(("name", False),), limit=MAX_LIMIT))
    answers = await together(*(reader.page("agents", one) for one in queries))
    return [row for answer in answers for row in answer.items]


def _told_apart(holdings: Sequence[GpuHolding]) -> list[GpuHolding]:
    """Sorted by pools, and every second one of neighbours of the same colour in a lighter shade."""
    shaded: list[GpuHolding] = []
    for holding in sorted(holdings, key=lambda one: (one.pool_name, one.agent_name)):
        same = bool(shaded) and shaded[-1].style == holding.style
        shaded.append(holding._replace(style=f"{holding.style} lighter") if same else holding)
    return shaded


def _row(node: Row, holdings: Sequence[GpuHolding]) -> Mapping[str, Any]:
    """A node with the picture of its GPUs and who holds them."""
    total = node["total"].get("gpu", 0.0)
    other = node["external_usage"].get("gpu", 0.0)
    return {
        **node,
        "closed_as": closed_as(node),
        "gpu_total": total,
        "gpu_free": node["free"].get("gpu", 0.0),
        "free_numbers": free_numbers(total, node["free"].get("gpu", 0.0), holdings),
        "gpu_other": other,
        "holdings": holdings,
        "picture": gpu_picture(total, holdings, other),
    }


def free_numbers(total: float, free: float, holdings: Sequence[GpuHolding]) -> list[int]:
    """The numbers of the GPUs of a node of which nobody holds anything; none where it is not known of each
    that is in use who has it, as of those of other Ray work.
    """
    taken: defaultdict[int, float] = defaultdict(float)
    for holding in holdings:
        for index, amount in holding.devices:
            taken[index] += amount
    is_known = abs(sum(taken.values()) - (total - free)) <= _LEAST
    return [number for number in range(int(total)) if number not in taken] if is_known else []


def gpu_picture(total: float, holdings: Sequence[GpuHolding], other: float) -> GpuPicture:
    """A square per GPU of a node, filled by who holds it. Where it is not known which GPU a task has, what
    others leave is filled from the first square on; by other Ray work, from the last one back.
    """
    count = max(1, -int(-total // 1))
    frames = [(_STEP * (n % _IN_ROW), _STEP * (n // _IN_ROW)) for n in range(count)]
    squares = _Squares(total, count)
    for holding in holdings:
        for index, amount in holding.devices:
            squares.fill(index, amount, holding.style, holding.title)
    for holding in holdings:
        rest = holding.gpus if not holding.devices else 0.0
        for index in range(count):
            rest -= squares.fill(index, rest, holding.style, holding.title)
    for index in reversed(range(count)):
        other -= squares.fill(index, other, "other", "", at_end=True)
    rows = (count - 1) // _IN_ROW + 1
    return GpuPicture(_STEP * min(count, _IN_ROW), _STEP * rows, frames, squares.parts)


class _Squares:
    """The squares of a node while they are filled."""

    def __init__(self, total: float, count: int) -> None:
        #: How much of each is not filled yet.
        self._room = [min(1.0, total - number) for number in range(count)]
        self._begin = [0.0] * count
        self.parts: list[SquarePart] = []

    def fill(
        self, index: int, amount: float, style: str, title: str, *, at_end: bool = False
    ) -> float:
        """Fill a square as far as there is room, from the left, or from the right; returns how much."""
        if not 0 <= index < len(self._room):
            return 0.0
        amount = min(amount, self._room[index])
        if amount <= _LEAST:
            return 0.0
        begin = self._begin[index]
        if at_end:
            begin += self._room[index] - amount
        else:
            self._begin[index] += amount
        self._room[index] -= amount
        x = _STEP * (index % _IN_ROW) + _SIDE * begin
        y = _STEP * (index // _IN_ROW)
        self.parts.append(SquarePart(round(x, 2), y, round(_SIDE * amount, 2), style, title))
        return amount
