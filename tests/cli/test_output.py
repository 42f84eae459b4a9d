"""Every format of the output: parses, fits, and keeps data and remarks apart."""

from __future__ import annotations

import csv
import io
import json

import pytest
import yaml
from rich.cells import cell_len

from schedulemesh.cli import output
from schedulemesh.cli.command import Format, Output, Select, View
from schedulemesh.cli.fitting import folded
from schedulemesh.cli.output import emit, emit_stream, plain
from schedulemesh.cli.rows import Column, Listing, Record, value_at
from schedulemesh.cli.selection import selected
from schedulemesh.cli.texts import amounts
from schedulemesh.errors import InvalidRequestError

COLUMNS = (
    Column(heading="pool", key="name"),
    Column(heading="total", key="resources", show=amounts),
    Column(heading="note", key="", show=lambda row: f"note of {row['name']}"),
    Column(heading="cpu", key="resources.cpu", wide=True),
)
ROWS = [
    {
        "name": "研究-一个名字很长的资源池-用于大模型训练",
        "resources": {"cpu": 4.0, "memory": 1024.0, "gpu": 8.0, "custom": {"加速器": 2.0}},
        "labels": {"团队": "语言"},
        "held": False,
        "agents": ["甲", "b"],
    },
    {"name": "prod", "resources": {"cpu": float("nan")}, "labels": {}, "held": True, "agents": []},
]


def listing(rows=ROWS, **more):
    return Listing(kind="pools", rows=rows, columns=COLUMNS, **more)


def printed(capsys, found, form, **more):
    emit(found, View(output=Format(form), **more))
    return capsys.readouterr()


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_fits_the_width_in_cells_and_keeps_every_character(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = printed(capsys, listing(), "table").out
    assert max(map(cell_len, out.splitlines())) <= width
    assert set(ROWS[0]["name"]) <= set(out)
    assert "note of prod" in out
    assert "\x1b" not in out


def test_words_are_broken_after_signs_and_only_where_they_must_be(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    columns = (Column(heading="name", key="name"), Column(heading="labels", key="labels"))
    row = {"name": "train-on-all-nodes", "labels": "pool=pretrain,resource=gpu,team=language"}
    emit(Listing(kind="rows", rows=[row], columns=columns), Output())
    words = capsys.readouterr().out.split()
    assert "train-on-all-nodes" in words
    assert "resource=" in "".join(words)
    assert not [word for word in words if word.startswith("ource")]
    assert folded("a1b2c3d4", 3) == "a1b\n2c3\nd4"
    assert folded("cluster_out, gpu 4", 8) == "cluster_\nout, gpu\n4"
    assert folded("研究研究", 4) == "研究\n研究"


def test_a_wide_table_in_a_pipe_has_one_line_per_row(capsys):
    lines = printed(capsys, listing(), "wide").out.splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert ROWS[0]["name"] in lines[1]
    assert lines[0].split() == ["pool", "total", "note", "cpu"]


@pytest.mark.parametrize("rows", [[], ROWS])
def test_json_and_yaml_parse_also_when_empty(capsys, rows):
    for form, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        out = printed(capsys, listing(rows), form).out
        assert [row["name"] for row in load(out)] == [row["name"] for row in rows]


def test_json_has_no_number_that_json_lacks(capsys):
    out = printed(capsys, listing(), "json").out
    assert json.loads(out, parse_constant=pytest.fail)[1]["resources"] == {"cpu": None}
    assert plain({1: {"a"}, "b": (b"x",)}) == {"1": ["a"], "b": ["b'x'"]}


@pytest.mark.parametrize("rows", [[], ROWS])
def test_csv_has_a_heading_also_when_empty(capsys, rows):
    read = list(csv.DictReader(io.StringIO(out := printed(capsys, listing(rows), "csv").out)))
    assert out.splitlines()[0] == '"name","resources","resources.cpu"'
    assert [row["name"] for row in read] == [row["name"] for row in rows]
    if rows:
        assert json.loads(read[0]["resources"])["custom"] == {"加速器": 2.0}


def _print_row(form, *, streamed):
    one = listing([{**ROWS[1], "name": CELL}])
    if streamed:
        emit_stream([one], Output(output=form))
    else:
        emit(one, Output(output=form))


#: A cell with characters that encodings lack, and with every kind of end of a line.
CELL = "é研\N{GRINNING FACE}\u2028a\rb\nc"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_json_parses_whatever_the_encoding_of_stdout_is(monkeypatch, encoding, streamed):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stdout)
    _print_row(Format.JSON, streamed=streamed)
    stdout.flush()
    found = json.loads(stdout.buffer.getvalue().decode(encoding))
    assert (found if streamed else found[0])["name"] == CELL


@pytest.mark.parametrize("streamed", [False, True])
def test_csv_keeps_ends_of_lines_in_cells(capsys, streamed):
    _print_row(Format.CSV, streamed=streamed)
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert [row[0] for row in rows] == ["name", CELL]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd()", '"\'=cmd()"'),
        ("a;=cmd()", '"a;=cmd()"'),
        ("@x", '"\'@x"'),
        ("a", '"a"'),
        (None, '""'),
    ],
)
def test_no_cell_of_csv_is_a_formula_where_columns_end_at_semicolons(capsys, name, cell):
    out = printed(capsys, listing([{**ROWS[1], "name": name}]), "csv").out
    assert out.splitlines()[1].startswith(cell + ",")


def test_names_are_one_per_line(capsys):
    assert printed(capsys, listing(), "name").out.splitlines() == [row["name"] for row in ROWS]
    assert printed(capsys, listing([]), "name").out == ""


def test_remarks_go_to_stderr(capsys):
    seen = printed(capsys, listing([], notes=("2 of 3 are shown",)), "table")
    assert (seen.out, seen.err) == ("", "no pools\n2 of 3 are shown\n")
    assert printed(capsys, listing([], notes=("n",)), "json").err == "n\n"


def test_a_record_has_its_listings_in_every_format(capsys):
    record = Record(facts={"name": "head", "epoch": 3, "up": True}, listings=(listing(),))
    out = printed(capsys, record, "json").out
    assert json.loads(out) == {"name": "head", "epoch": 3, "up": True, "pools": plain(ROWS)}
    assert yaml.safe_load(printed(capsys, record, "yaml").out)["epoch"] == 3
    assert printed(capsys, record, "csv").out == '"name","epoch","up"\n"head",3,True\n'
    assert printed(capsys, record, "name").out == "head\n"
    text = printed(capsys, record, "table").out
    assert "epoch  3" in text
    assert "\n\npools\n" in text


def test_what_is_repeated_is_one_document_each(capsys):
    assert len(printed(capsys, listing(), "json", watch=True).out.splitlines()) == 1
    emit_stream([listing(ROWS[:1]), listing(ROWS[1:])], Output(output=Format.JSON))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == [row["name"] for row in ROWS]
    emit_stream([listing(ROWS[:1]), listing(ROWS[1:])], Output(output=Format.CSV))
    assert [row[0] for row in csv.reader(capsys.readouterr().out.splitlines())] == [
        "name",
        *(row["name"] for row in ROWS),
    ]
    emit_stream([listing(ROWS[:1]), listing(ROWS[1:])], Output(output=Format.YAML))
    assert len(list(yaml.safe_load_all(capsys.readouterr().out))) == 2
    emit_stream([listing(ROWS[:1]), listing([]), listing(ROWS[1:])], Output())
    assert capsys.readouterr().out.count("total") == 1


@pytest.mark.parametrize(
    ("filters", "labels", "names"),
    [
        (["name=prod"], None, ["prod"]),
        (["pool!=prod"], None, [ROWS[0]["name"]]),
        (["held=yes"], None, ["prod"]),
        (["held=false"], None, [ROWS[0]["name"]]),
        (["agents=甲"], None, [ROWS[0]["name"]]),
        (["resources.cpu=4"], None, [ROWS[0]["name"]]),
        (["resources.custom.加速器=2"], None, [ROWS[0]["name"]]),
        (None, ["团队=语言"], [ROWS[0]["name"]]),
        (None, ["团队!=语言"], ["prod"]),
        (["name=prod"], ["团队=语言"], []),
    ],
)
def test_rows_are_chosen_by_fields_and_labels(filters, labels, names):
    found = selected(listing(), Select(filters=filters, labels=labels))
    assert [row["name"] for row in found.rows] == names


@pytest.mark.parametrize("filters", [["nam=prod"], ["prod"], ["=x"], ["!=x"]])
def test_a_filter_that_no_row_can_answer_is_refused(filters):
    with pytest.raises(InvalidRequestError, match=r"pool|KEY=VALUE"):
        selected(listing(), Select(filters=filters))


def test_a_name_with_dots_is_found():
    assert value_at({"labels": {"a.b/c": "d"}}, "labels.a.b/c") == "d"
    assert value_at({"a": 1}, "a.b") is None


def test_a_long_table_is_printed_as_a_short_one_in_a_pipe(monkeypatch, capsys):
    by_rich = printed(capsys, listing(), "wide").out
    monkeypatch.setattr(output, "_MANY", 1)
    assert printed(capsys, listing(), "wide").out == by_rich
