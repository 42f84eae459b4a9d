"""Nodes and their GPUs: a square per GPU, by whom it is held; what is closed, or held by other Ray work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.nodes import ListNodes
from schedulemesh.api.pages import MAX_LIMIT, PageQuery
from schedulemesh.api.pools import GetGroupStats, ListPools
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import actions_of_node
from schedulemesh.server.page.links import link, page_number
from schedulemesh.server.page.overview import gpus_of_nodes
from schedulemesh.server.page.reads import ScreenReads, together

#: Nodes of a page, and how many pages there may be.
_NODES, _MOST_PAGES = 60, 10_000
#: Colours of pools in the style.
_COLORS = 8
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
    show = query.get("show", "") if query.get("show") in _CHOICES else _CHOICES[0]
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
        "total": len(chosen),
        "gpus": gpus_of_nodes(chosen),
        "name": name,
        "show": show,
        "choices": _CHOICES,
        "filtered": bool(name) or show != _CHOICES[0],
        "following": link("/nodes", *filters, ("page", number + 1)) if has_more else "",
        "begun": link("/nodes", *filters) if number > 1 else "",
    }


def _is_chosen(node: Row, name: str, show: str) -> bool:
    """Whether a node is shown: its name, host, address or id contains this, and it is of this kind."""
    called = (node["name"], node["host"], node["address"], node["node_id"])
    if name and not any(name in str(one) for one in called):
        return False
    if show == "with_free":
        return bool(node["free"].get("gpu", 0.0) > _LEAST)
    if show == "closed_only":
        return bool(node["cordoned"] or node["draining"])
    return show != "with_other" or bool(node["external_usage"])


async def _holdings(
    reader: ScreenReads, page: Sequence[Row], colors: Mapping[str, int]
) -> dict[str, list[GpuHolding]]:
    """Who holds GPUs of these nodes, by node: in placement groups, bundle by bundle, and outside of them."""
    stats = await reader.facts(GetGroupStats())
    node_ids = {node["node_id"] for node in page}
    groups = [
        {**group, "pool_name": pool_name}
        for pool_name, of_pool in stats["pools"].items()
        for group in of_pool["groups"]
        if not node_ids.isdisjoint(group["node_ids"])
    ]
    # What a node lists of groups is no name of an agent, and is not found.
    names = dict.fromkeys(name for node in page for name in node["agents"])
    names.update((group["agent"], None) for group in groups if group["agent"])
    agents = {str(row["name"]): row for row in await agents_named(reader, names)}
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


async def agents_named(reader: ScreenReads, names: Iterable[str]) -> list[Row]:
    """The agents of these names."""
    queries = []
    remaining = iter(names)
    while some := tuple(islice(remaining, MAX_NAMES)):
        fields = (("name", some),)
        queries.append(PageQuery(fields=fields, order=(("name", False),), limit=MAX_LIMIT))
    answers = await together(*(reader.page("agents", one) for one in queries))
    return [row for answer in answers for row in answer.items]


def colors_of(pool_names: Iterable[str]) -> dict[str, int]:
    """The number of the colour of each pool; more pools than colours share them."""
    return {name: number % _COLORS for number, name in enumerate(sorted(pool_names))}


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
        "gpu_total": total,
        "gpu_free": node["free"].get("gpu", 0.0),
        "gpu_other": other,
        "holdings": holdings,
        "picture": gpu_picture(total, holdings, other),
    }


def gpu_picture(total: float, holdings: Sequence[GpuHolding], other: float) -> GpuPicture:
    """A square per GPU of a node: filled from the first on by who holds them, at the end by other Ray work.
    Which GPU it is of which a task has a share is not known, so shares are drawn one after the other.
    """
    count = max(1, -int(-total // 1))
    frames = [(_STEP * (n % _IN_ROW), _STEP * (n // _IN_ROW)) for n in range(count)]
    parts: list[SquarePart] = []
    begin = 0.0
    for holding in holdings:
        title = holding.task_id or holding.agent_name
        end = min(begin + holding.gpus, total)
        parts += _parts(begin, end, holding.style, title)
        begin = end
    parts += _parts(max(begin, total - other), total, "other", "")
    rows = (count - 1) // _IN_ROW + 1
    return GpuPicture(_STEP * min(count, _IN_ROW), _STEP * rows, frames, parts)


def _parts(begin: float, end: float, style: str, title: str) -> Iterator[SquarePart]:
    """What is filled from one amount of GPUs to another, square by square."""
    while end - begin > _LEAST:
        number = int(begin + _LEAST)
        upto = min(end, number + 1.0)
        x = _STEP * (number % _IN_ROW) + _SIDE * max(0.0, begin - number)
        y = _STEP * (number // _IN_ROW)
        yield SquarePart(
            round(x, 2), y, round(_SIDE * (upto - max(begin, number)), 2), style, title
        )
        begin = upto
