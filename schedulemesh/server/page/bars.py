"""Bars of quota by use: how wide each part is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schedulemesh.server.listings import Row
from schedulemesh.server.page.words import by_kind

#: The parts of a bar in their order; ``borrowed`` is drawn beyond the quota.
PARTS = ("used", "reserved", "lent", "free", "borrowed")


class BarPart(NamedTuple):
    """A part of a bar, in per cent of its width."""

    part: str
    amount: float
    x: float
    width: float


class Bar(NamedTuple):
    """The quota of one kind of resource by use."""

    kind: str
    total: float
    segments: Sequence[BarPart]


def bars_of_pool(pool: Row) -> list[Bar]:
    """A bar for each kind of resource that a pool has quota of, or has borrowed."""
    return _bars(by_kind(pool["resources"]), _parts_of(pool))


def bars_of_pools(pools: Sequence[Row]) -> list[Bar]:
    """The bars of all pools of a cohort together. What they lent each other is drawn once, as lent; as
    borrowed only what they have from pools outside.
    """
    each = [_parts_of(pool) for pool in pools]
    parts = {part: _sum([one[part] for one in each]) for part in PARTS}
    for kind, amount in parts["lent"].items():
        parts["borrowed"][kind] = max(0.0, parts["borrowed"].get(kind, 0.0) - amount)
    return _bars(_sum([by_kind(pool["resources"]) for pool in pools]), parts)


def _parts_of(pool: Row) -> dict[str, dict[str, float]]:
    """The amounts of each part. What is lent is used or reserved, too, so it is taken off these."""
    used, reserved, lent = (by_kind(pool[part]) for part in ("used", "reserved", "lent"))
    own_used = {kind: max(0.0, amount - lent.get(kind, 0.0)) for kind, amount in used.items()}
    own_reserved = {
        kind: max(0.0, amount - max(0.0, lent.get(kind, 0.0) - used.get(kind, 0.0)))
        for kind, amount in reserved.items()
    }
    return {
        "used": own_used,
        "reserved": own_reserved,
        "lent": lent,
        "free": by_kind(pool["free"]),
        "borrowed": by_kind(pool["borrowed"]),
    }


def _sum(amounts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in amounts:
        for kind, amount in one.items():
            total[kind] = total.get(kind, 0.0) + amount
    return total


def _bars(total: Mapping[str, float], parts: Mapping[str, Mapping[str, float]]) -> list[Bar]:
    kinds = dict.fromkeys((*total, *(kind for amounts in parts.values() for kind in amounts)))
    bars = (_bar(kind, total.get(kind, 0.0), parts) for kind in kinds)
    return [bar for bar in bars if bar.segments]


def _bar(kind: str, total: float, parts: Mapping[str, Mapping[str, float]]) -> Bar:
    """The bar of a kind: as long as the quota, or as what is in use where that is more."""
    amounts = {part: parts[part].get(kind, 0.0) for part in PARTS}
    length = max(total + amounts["borrowed"], sum(amounts.values()))
    segments, x = [], 0.0
    for part, amount in amounts.items():
        if amount > 0.0:
            width = 100.0 * amount / length
            segments.append(BarPart(part, amount, round(x, 3), round(width, 3)))
            x += width
    return Bar(kind, total, segments)
