"""Answers and scheduler objects as HTML, which notebooks show in place of ``repr``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from schedulemesh.errors import shown

#: Rows of a list that are shown.
_ROWS = 50


class CallAnswer(dict[str, Any]):
    """The answer of a call: a dict, which notebooks show as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return table_of(self)


def table_of(fields: Mapping[str, object]) -> str:
    """Names and values as an HTML table."""
    rows = (
        f"<tr><th style='text-align:left'>{escape(str(name))}</th>"
        f"<td style='text-align:left'>{_cell(value)}</td></tr>"
        for name, value in fields.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _cell(value: object) -> str:
    """A value: a dict or a list of dicts as a table, anything else as text."""
    if isinstance(value, Mapping):
        return table_of(value) if value else ""
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(one, Mapping) for one in value):
            return _rows_of(value)
        return ", ".join(map(_cell, value[:_ROWS])) + _more(value)
    return "" if value is None else escape(value if isinstance(value, str) else shown(value))


def _rows_of(rows: Sequence[Mapping[str, object]]) -> str:
    """A table with a row for each dict and a column for each of their keys."""
    keys = list(dict.fromkeys(key for row in rows[:_ROWS] for key in row))
    heading = "".join(f"<th>{escape(str(key))}</th>" for key in keys)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row.get(key))}</td>' for key in keys)}</tr>"
        for row in rows[:_ROWS]
    )
    return f"<table><tr>{heading}</tr>{body}</table>{_more(rows)}"


def _more(values: Sequence[object]) -> str:
    return f" and {len(values) - _ROWS} more" if len(values) > _ROWS else ""
