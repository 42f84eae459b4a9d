"""The rows of the table: what was measured, the target, and whether it was met."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from typing_extensions import NotRequired, TypedDict


class Row(TypedDict):
    """One line of the table."""

    what: str
    #: Empty: for information only.
    target: str
    measured: str
    #: None: for information only.
    met: bool | None
    #: Of a row of the page of ratios: the least that it could cost, what others take, and what it takes here.
    floor: NotRequired[str]
    peer: NotRequired[str]
    ours: NotRequired[str]


def at_most(what: str, value: float, target: float, unit: str, detail: str = "") -> Row:
    """A row whose target is an upper bound."""
    return _row(what, f"≤ {target:,g}{unit}", value, unit, value <= target, detail)


def at_least(what: str, value: float, target: float, unit: str, detail: str = "") -> Row:
    """A row whose target is a lower bound."""
    return _row(what, f"≥ {target:,g}{unit}", value, unit, value >= target, detail)


def note(what: str, measured: str) -> Row:
    """A row without a target."""
    return {"what": what, "target": "", "measured": measured, "met": None}


def timed_ms(call: Callable[[], object]) -> float:
    """The duration of a call in milliseconds."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def spread(values: Sequence[float], unit: str = " ms") -> str:
    """The median with minimum and maximum."""
    middle = statistics.median(values)
    return f"{middle:,.3g}{unit} ({min(values):,.3g}-{max(values):,.3g})"


def print_table(rows: Sequence[Row]) -> None:
    """The rows as an aligned table; those of the page of ratios in Markdown."""
    if any("ours" in row for row in rows):
        print("\n".join(ratio_table(rows)))
        return
    shown = [(r["what"], r["target"], r["measured"], _verdict(r["met"])) for r in rows]
    widths = [max((len(line[i]) for line in shown), default=0) for i in range(4)]
    for line in shown:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def ratio_table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows of the page of ratios in Markdown, line by line."""
    yield "| what | floor | peer | ours | ratio | mark | |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        cells = row["what"], row["floor"], row["peer"], row["ours"], row["measured"], row["target"]
        verdict = "**missed**" if row["met"] is False else _verdict(row["met"])
        yield f"| {' | '.join((*cells, verdict))} |"


def _row(what: str, target: str, value: float, unit: str, met: bool, detail: str) -> Row:
    digits = ",.0f" if value >= 1000 else ",.3g"
    measured = f"{value:{digits}}{unit}" + (f" ({detail})" if detail else "")
    return {"what": what, "target": target, "measured": measured, "met": met}


def _verdict(met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: ""}[met]
