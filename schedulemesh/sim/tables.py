"""Reads text files line by line and CSV files row by row, each with its place for error messages."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from schedulemesh.errors import InvalidRequestError, shown

#: The cells of a row by the names of their columns; cells that a short row does not have are left out.
Cells = dict[str, str]


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of each line that is not blank, of a file in UTF-8 that may be packed with gzip.

    Raises InvalidRequestError.
    """
    for number, line in enumerate(_opened(path), 1):
        if line.strip():
            yield f"{path}, line {number}", line


def csv_table(path: Path) -> tuple[list[str], Iterator[tuple[str, Cells]]]:
    """The columns of such a file in CSV, and (place, cells) of each row that is not blank. Raises
    InvalidRequestError.
    """
    rows = _rows(path)
    _, columns = next(rows, ("", []))
    return columns, ((place, _by_column(place, columns, cells)) for place, cells in rows)


def as_float(text: str, column: str) -> float:
    """The number in a cell of a column. Raises InvalidRequestError."""
    try:
        return float(text)
    except ValueError:
        raise InvalidRequestError(f"{column} is {shown(text)}; it must be a number") from None


def as_int(text: str, column: str) -> int:
    """The whole number in a cell of a column. Raises InvalidRequestError."""
    try:
        return int(text)
    except ValueError:
        raise InvalidRequestError(f"{column} is {shown(text)}; it must be a whole number") from None


def as_pairs(text: str, column: str) -> dict[str, str]:
    """The labels in a cell of a column. Raises InvalidRequestError."""
    pairs = [pair.partition("=") for pair in text.split(";") if pair]
    if not all(sign for _, sign, _ in pairs):
        raise InvalidRequestError(
            f"{column} is {shown(text)}; write labels as KEY=VALUE, several as zone=a;disk=ssd"
        )
    return {key: value for key, _, value in pairs}


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(_opened(path))
    try:
        for cells in reader:
            if cells:
                yield f"{path}, line {reader.line_num}", cells
    except csv.Error as error:
        raise InvalidRequestError(f"{path}, line {reader.line_num}: {error}") from None


def _by_column(place: str, columns: Sequence[str], cells: Sequence[str]) -> Cells:
    if any(cells[len(columns) :]):
        raise InvalidRequestError(
            f"{place} has {len(cells)} cells, and the first line names {len(columns)} columns; write a cell "
            "that contains a comma in quotes"
        )
    return dict(zip(columns, cells, strict=False))


def _opened(path: Path) -> io.StringIO:
    """Its text, without a byte order mark; lines may end as on any system."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None
    return io.StringIO(text, newline=None)
