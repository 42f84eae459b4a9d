"""The rows of the table: what was measured, the mark (the target), and whether it was met."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypedDict


class Row(TypedDict):
    """One line of the table."""

    what: str
    #: Empty: for information only.
    mark: str
    measured: str
    #: None: for information only.
    met: bool | None


def at_most(what: str, value: float, mark: float, unit: str, detail: str = "") -> Row:
    """A row whose mark is met by a value up to it."""
    return _row(what, f"≤ {mark:,g}{unit}", value, unit, value <= mark, detail)


def at_least(what: str, value: float, mark: float, unit: str, detail: str = "") -> Row:
    """A row whose mark is met by a value from it upward."""
    return _row(what, f"≥ {mark:,g}{unit}", value, unit, value >= mark, detail)


def note(what: str, measured: str) -> Row:
    """A row without a mark."""
    return {"what": what, "mark": "", "measured": measured, "met": None}


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
    """The rows as an aligned table."""
    shown = [(r["what"], r["mark"], r["measured"], _word(r["met"])) for r in rows]
    widths = [max((len(line[i]) for line in shown), default=0) for i in range(4)]
    for line in shown:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _row(what: str, mark: str, value: float, unit: str, met: bool, detail: str) -> Row:
    digits = ",.0f" if value >= 1000 else ",.3g"
    measured = f"{value:{digits}}{unit}" + (f" ({detail})" if detail else "")
    return {"what": what, "mark": mark, "measured": measured, "met": met}


def _word(met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: ""}[met]
