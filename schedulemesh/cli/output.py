"""Prints what a command found, in every format. Data goes to stdout, remarks to stderr."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from schedulemesh.cli.command import Format, Output, Select, Target, View, note
from schedulemesh.cli.language import language
from schedulemesh.cli.rows import Column, Listing, Record, Row, value_at
from schedulemesh.cli.selection import chosen
from schedulemesh.cli.texts import field_name, names, text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from schedulemesh.cli.gateway import Gateway

#: What a command may print.
Found = Union[Listing, Record]

#: From so many rows on, a table's lines are as long as they need be: Rich takes a millisecond for each row.
_MANY = 1_000

#: Columns of a table in the format wide where stdout is no terminal, which has no width.
_UNLIMITED = 10_000


def show(
    target: Target,
    view: View,
    look: Callable[[Gateway], Found],
    select: Select | None = None,
    *,
    on_events: bool = False,
) -> None:
    """Print what ``look`` finds at the scheduler, once or until interrupted.

    ``on_events``: with ``--watch`` it looks again when something has happened.
    """
    from schedulemesh.cli.gateway import gateway_to

    with gateway_to(target) as gateway:
        pause = _until_event(gateway) if on_events and view.watch else time.sleep
        repeat(view, lambda: _chosen(gateway, look(gateway), select), pause)


def _until_event(gateway: Gateway) -> Callable[[float], None]:
    """A pause of the given seconds, and then until the next event, at most until the next heartbeat."""
    from schedulemesh.api.history import QueryEvents
    from schedulemesh.protocol.answers import Details

    newest = gateway.ask(QueryEvents(after=None, limit=1), Details).facts["cursor"]
    parts = gateway.follow(QueryEvents(after=newest))

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        next(parts)

    return pause


def repeat(
    view: View, look: Callable[[], Found], pause: Callable[[float], None] = time.sleep
) -> None:
    """Print what ``look`` finds, once or, with ``--watch``, until interrupted, with pauses in between."""
    view.check()
    if view.watch and sys.stdout.isatty() and view.output in (Format.TABLE, Format.WIDE):
        _watch_on_screen(view, look, pause)
        return
    for _ in view.looks(pause):
        emit(look(), view)
        sys.stdout.flush()


def emit(shown: Found, output: Output) -> None:
    """Print it in the chosen format."""
    if output.output is Format.TABLE and isinstance(shown, Listing):
        shown = _fitted(shown)
    match output.output:
        case Format.TABLE | Format.WIDE:
            _print_tables(shown, output)
        case Format.JSON:
            indent = None if output.repeated else 2
            write(_as_json(data_of(shown), indent))
        case Format.YAML:
            write(("---\n" if output.repeated else "") + as_yaml(data_of(shown)))
        case Format.CSV:
            write("\n".join(_csv_lines(shown)))
        case Format.NAME:
            _print_names(shown)
    for sentence in shown.notes:
        note(sentence)


def emit_stream(listings: Iterable[Listing], output: Output) -> None:
    """Print rows as they come: a line each as JSON, CSV or name, a document each as YAML, tables as text.

    Every listing has the same columns; the headings are printed once.
    """
    first = True
    for listing in listings:
        _emit_part(listing, output, first=first)
        first = False
        sys.stdout.flush()


def _emit_part(listing: Listing, output: Output, *, first: bool) -> None:
    match output.output:
        case Format.JSON:
            for row in listing.rows:
                write(_as_json(row))
        case Format.CSV:
            write("\n".join(_csv_lines(listing)[0 if first else 1 :]))
        case Format.TABLE | Format.WIDE:
            wide = output.output is Format.WIDE
            if listing.rows:
                listing = listing if wide else _fitted(listing)
                _print([_table(listing, wide=wide, heading=first)], wide=wide)
        case _:
            emit(listing, View(output=output.output, watch=True))
    for sentence in listing.notes:
        note(sentence)


def data_of(shown: Found) -> object:
    """The data of JSON and YAML: the rows, or the facts with the rows of each listing by its kind."""
    if isinstance(shown, Listing):
        return list(shown.rows)
    return {**shown.facts, **{listing.kind: list(listing.rows) for listing in shown.listings}}


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become null, what else JSON lacks becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def _as_json(data: object, indent: int | None = None) -> str:
    """Data as JSON; in ASCII where stdout is not UTF-8, because ``write`` would escape as JSON does not."""
    wide = _encoding().lower().replace("-", "").startswith("utf")
    return json.dumps(plain(data), indent=indent, ensure_ascii=not wide)


def as_yaml(data: object) -> str:
    """Data as a YAML document."""
    import yaml

    return str(yaml.safe_dump(plain(data), allow_unicode=True, sort_keys=False))


def _chosen(gateway: Gateway, shown: Found, select: Select | None) -> Found:
    if select is None or isinstance(shown, Record):
        return shown
    return chosen(gateway, shown, select)


def _print_names(shown: Found) -> None:
    rows = shown.rows if isinstance(shown, Listing) else [shown.facts]
    if rows:
        write("\n".join(text(value_at(row, shown.name)) for row in rows))


def _csv_lines(shown: Found) -> list[str]:
    """One line per row under the keys of the columns; of a record, its facts in one line."""
    if isinstance(shown, Listing):
        keys, rows = [column.key for column in shown.columns if column.key], shown.rows
    else:
        keys, rows = list(shown.facts), [shown.facts]
    return [_csv_line(keys), *(_csv_line([value_at(row, key) for key in keys]) for row in rows)]


def _csv_line(cells: Sequence[object]) -> str:
    """The cells without the end of the line; those that contain any end of a line are quoted."""
    from schedulemesh.store.history.export import write_csv_rows

    out = io.StringIO()
    write_csv_rows(out, [map(_csv_cell, cells)])
    return out.getvalue()[:-2]


def _csv_cell(value: object) -> object:
    """A cell of CSV; what has parts is written as JSON."""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(plain(value), ensure_ascii=False)
    return plain(value)


def _print_tables(shown: Found, output: Output) -> None:
    wide = output.output is Format.WIDE
    if isinstance(shown, Listing) and len(shown.rows) >= _MANY and not shown.ruled:
        write("\n".join(_lines(shown, wide=wide)))
        return
    parts = [part for part in _parts(shown, wide=wide) if part is not None]
    if isinstance(shown, Listing) and not shown.rows:
        note(_none_of(shown))
    _print(parts, wide=wide)


def _fitted(listing: Listing) -> Listing:
    """A table as it fits into the terminal; longer tables have no width, and cells of several lines are laid
    out by Rich.
    """
    if len(listing.rows) >= _MANY or listing.ruled:
        return listing
    from schedulemesh.cli.fitting import fitted

    return fitted(listing, _console(wide=False).width)


def _lines(listing: Listing, *, wide: bool) -> Iterator[str]:
    """A table as Rich prints it where there is room enough."""
    columns = [column for column in listing.columns if wide or not column.wide]
    cells = ([column.title, *column.cells(listing.rows)] for column in columns)
    padded = [_padded(c, right=column.right) for c, column in zip(cells, columns, strict=True)]
    return ("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _padded(cells: Sequence[str], *, right: bool) -> list[str]:
    """The cells of a column, all of the same width."""
    shown = [cell.replace("\n", " ") for cell in cells]
    if not all(map(str.isascii, shown)):
        from rich.cells import cell_len

        most = max(map(cell_len, shown))
        gaps = [" " * (most - cell_len(cell)) for cell in shown]
        return [gap + c if right else c + gap for c, gap in zip(shown, gaps, strict=True)]
    most = max(map(len, shown))
    return [cell.rjust(most) if right else cell.ljust(most) for cell in shown]


def _print(parts: Sequence[RenderableType], *, wide: bool) -> None:
    """Print tables with empty lines between them, in a pipe without spaces at the ends of lines."""
    console = _console(wide=wide)
    with console.capture() as captured:
        for number, part in enumerate(parts):
            if number:
                console.print()
            console.print(part)
    printed = captured.get()
    lines = printed if console.is_terminal else "\n".join(map(str.rstrip, printed.splitlines()))
    write(lines)


def _parts(shown: Found, *, wide: bool) -> list[RenderableType | None]:
    if isinstance(shown, Listing):
        return [_table(shown, wide=wide) if shown.rows else None]
    listings = [listing if wide else _fitted(listing) for listing in shown.listings if listing.rows]
    tables = [_table(listing, wide=wide, titled=True) for listing in listings]
    return [_facts(shown), *tables]


def _table(
    listing: Listing, *, wide: bool, titled: bool = False, heading: bool = True
) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(_kind(listing)) if titled else None,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.HORIZONTALS if listing.ruled else None,
        show_lines=listing.ruled,
        show_header=heading,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    columns = [column for column in listing.columns if wide or not column.wide]
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            overflow="fold",
            width=column.width,
        )
    for row in listing.rows:
        table.add_row(*(Text(_cell(column, row)) for column in columns))
    return table


def _cell(column: Column, row: Row) -> str:
    """The text of a cell, in lines of the column's width where it has one."""
    if column.width is None:
        return column.cell(row)
    from schedulemesh.cli.fitting import folded

    return folded(column.cell(row), column.width, amounts=column.amounts)


def _facts(record: Record) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if record.text is not None:
        return Text(record.text)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    lines = record.lines
    if lines is None:
        lines = [(key.replace("_", " "), names(value)) for key, value in record.facts.items()]
    for heading, what in lines:
        table.add_row(Text(field_name(heading)), Text(what))
    return table


def _kind(listing: Listing) -> str:
    """What a list contains, in the language of this command."""
    if language() == "en":
        return listing.kind
    from schedulemesh.cli.headings import KINDS

    return listing.chinese or KINDS.get(listing.kind, listing.kind)


def _none_of(listing: Listing) -> str:
    """That a list is empty."""
    return f"no {listing.kind}" if language() == "en" else f"没有{_kind(listing)}"


def _console(*, wide: bool) -> Console:
    """A console on stdout. Rich leaves out colours where stdout is no terminal, and takes 80 columns."""
    from rich.console import Console

    unlimited = wide and not sys.stdout.isatty()
    return Console(width=_UNLIMITED if unlimited else None, highlight=False, markup=False)


def _watch_on_screen(view: View, look: Callable[[], Found], pause: Callable[[float], None]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    wide = view.output is Format.WIDE
    with Live(console=_console(wide=wide), screen=True, auto_refresh=False) as live:
        for _ in view.looks(pause):
            content = look()
            shown = [part for part in _parts(content, wide=wide) if part is not None]
            clock = Text(time.strftime("%H:%M:%S"), style="dim")
            live.update(Group(clock, *shown, *map(Text, content.notes)), refresh=True)


def write(data: str) -> None:
    """Print data; what the encoding of stdout lacks is escaped."""
    encoding = _encoding()
    if data := data.rstrip("\n"):
        print(data.encode(encoding, "backslashreplace").decode(encoding))


def write_utf8(data: str) -> None:
    """Print data of a format that is UTF-8, whatever the encoding of stdout is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data.encode())
    sys.stdout.buffer.flush()


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"
