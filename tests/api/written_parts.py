"""The parts of modules that follow from the declarations of the fields of a task, and of tables of calls.

A part stands between ``# begin written FORM TAKERS…`` and ``# end written``; see
``schedulemesh.domain.task_fields``. It is written, and not made at run time, so that type checkers and
editors know it, and a command needs no more than its own modules.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from schedulemesh.api.calls import CALLS
from schedulemesh.domain.task import FIELDS, TaskSpec
from schedulemesh.domain.task_fields import Option, OptionForm, Takers, TaskField

PACKAGE = Path(__file__).parents[2] / "schedulemesh"
_PART = re.compile(
    r"^(?P<indent> *)# begin written (?P<form>\w+)(?P<takers>( \w+)*)\n"
    r"(?P<lines>.*?)^(?P=indent)# end written\n",
    re.MULTILINE | re.DOTALL,
)
#: Columns of a comment, and of a text.
_COMMENT, _TEXT = 103, 84
#: Fields as the struct has them, with what is declared of them.
_OF_STRUCT = {field.name: field for field in msgspec.structs.fields(TaskSpec)}


def modules() -> list[Path]:
    """The modules that have a part."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [path for path in paths if _PART.search(path.read_text(encoding="utf-8"))]


def parts_in(path: Path) -> list[tuple[str, ...]]:
    """The form and the takers of each part of a module."""
    text = path.read_text(encoding="utf-8")
    return [(part["form"], *part["takers"].split()) for part in _PART.finditer(text)]


def rewritten(path: Path) -> str:
    """The text of a module with each part as the declaration says, formatted."""
    text = _PART.sub(_written, path.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def _written(part: re.Match[str]) -> str:
    takers = {Takers(word) for word in part["takers"].split()}
    lines = "\n".join(_FORMS[part["form"]](takers))
    body = textwrap.indent(f"{lines}\n" if lines else "", part["indent"])
    head = f"# begin written {part['form']}{part['takers']}"
    return f"{part['indent']}{head}\n{body}{part['indent']}# end written\n"


def _taken(takers: set[Takers]) -> Iterator[tuple[str, TaskField]]:
    """The fields that the calls of these takers take, in the order of the struct."""
    return ((name, field) for name, field in FIELDS.items() if field.takers in takers)


def _comment(*says: str) -> Iterator[str]:
    """A comment that says what a field is."""
    text = (". " if ";" in says[0] else "; ").join(filter(None, says))
    for line in textwrap.wrap(f"{text}.", _COMMENT, break_long_words=False, break_on_hyphens=False):
        yield f"#: {line}"


def _type(name: str) -> Any:
    """The type of a field without what is declared of it."""
    hint = _OF_STRUCT[name].type
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _source(hint: Any) -> str:
    """A type as it stands in a module."""
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _rows(_: set[Takers]) -> Iterator[str]:
    for name, field in FIELDS.items():
        if field.shown and field.means:
            yield from _comment(field.means, field.absent)
            plain = "list[str]" if get_origin(_type(name)) is tuple else _source(_type(name))
            yield f"{name}: {field.row_type or plain}"


def _state(_: set[Takers]) -> Iterator[str]:
    for name, field in FIELDS.items():
        if field.shown and field.means:
            yield from _comment(field.means, field.absent)
            if get_origin(_type(name)) is tuple:
                yield f"{name}: list[str] = dataclasses.field(default_factory=list)"
            else:
                yield f"{name}: {_source(_type(name))} = {json_of(_OF_STRUCT[name].default)}"


def json_of(value: object) -> str:
    """A value as it stands in a module."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _default(name: str) -> Any:
    """The default of an argument."""
    return _OF_STRUCT[name].default if _type(name) is int else None


def _argument_type(name: str, field: TaskField) -> str:
    source = _source(_type(name))
    optional = source if _default(name) is not None or "None" in source else f"{source} | None"
    return field.argument_type or optional


def _arguments(takers: set[Takers]) -> Iterator[str]:
    for name, field in _taken(takers):
        yield from _comment(field.means, field.unasked)
        yield f"{name}: {_argument_type(name, field)}"


def _spec(takers: set[Takers]) -> Iterator[str]:
    for name, field in _taken(takers):
        yield from _comment(field.means, field.unasked)
        yield f"{name}: {_argument_type(name, field)} = {_default(name)!r}"


def _body(takers: set[Takers]) -> Iterator[str]:
    for name, field in _taken(takers):
        over_http = field.unasked_over_http or field.unasked.replace("None:", "null:")
        yield from _comment(field.means, over_http)
        kind = field.body_type or _argument_type(name, field).replace("float |", "float | str |")
        yield f"{name}: {kind} = {_default(name)!r}"


def _options(takers: set[Takers]) -> Iterator[str]:
    for name, field in _taken(takers):
        if field.option is not None:
            kind = _OPTION_TYPES.get(field.option.form, "str")
            optional = kind if field.option.default is not None else f"{kind} | None"
            yield f"{field.option.name or name}: Annotated["
            yield f"    {optional},"
            yield f"    typer.Option({', '.join(_of_option(field.option))}),"
            yield f"] = {json_of(field.option.default)}"


_OPTION_TYPES = {OptionForm.COUNT: "int", OptionForm.LIST: "list[str]"}
_METAVARS = {OptionForm.DURATION: "DURATION", OptionForm.SPAN: "DURATION", OptionForm.SIZE: "SIZE"}


def _of_option(option: Option) -> Iterator[str]:
    if metavar := option.metavar or _METAVARS.get(option.form, ""):
        yield f"metavar={json_of(metavar)}"
    if option.form is OptionForm.COUNT:
        yield "min=0"
    pieces = textwrap.wrap(option.english, _TEXT, drop_whitespace=False, break_on_hyphens=False)
    yield "help=" + "\n".join(map(json_of, pieces))


def _columns(_: set[Takers]) -> Iterator[str]:
    for name, field in FIELDS.items():
        if field.heading:
            yield f"wide({json_of(field.heading)}, {json_of(name)}),"


def _commands(_: set[Takers]) -> Iterator[str]:
    for call in CALLS:
        for listing in call.listings:
            if listing.table is not None:
                module = call.__module__.rpartition(".")[2]
                group = listing.table.group
                yield f"{json_of(listing.table.command)}: ({json_of(group)}, {json_of(module)}),"


#: A word of the command line for an option of each form, and a value of a field of each type.
WORDS: dict[OptionForm, Any] = {
    OptionForm.TEXT: "some text",
    OptionForm.DURATION: "2h",
    OptionForm.SPAN: "2h",
    OptionForm.SIZE: "64GB",
    OptionForm.COUNT: 3,
    OptionForm.LIST: ["another"],
}
_VALUES: dict[Any, Any] = {
    float: 7.5,
    dict[str, str]: {"team": "search"},
    str: "some text",
    float | None: 60.0,
    int | None: 3,
    int: 3,
    tuple[str, ...]: ["another"],
}


def value_of(name: str) -> Any:
    """A value of a field that a caller may ask for, unless its parser takes no such value."""
    return _VALUES[_type(name)]


#: By their names, what makes the lines of a part.
_FORMS = {
    "rows": _rows,
    "state": _state,
    "arguments": _arguments,
    "spec": _spec,
    "body": _body,
    "options": _options,
    "columns": _columns,
    "commands": _commands,
}
