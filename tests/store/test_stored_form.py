"""What is stored is pinned in ``stored_form.txt``: every tag, every enumerated value, and every field.

A field is named with its type, whether it may be missing, and its default where what equals that is left out:
there another default changes what old journals say. A class can be renamed without changing what is stored,
unless it is stored pickled: then its name is pinned, too. Nothing else changes without a new number of the
format. Run with REWRITE_FORMAT=1 to write the file anew, which is refused once a format has golden journals;
with REWRITE_FORMAT=add where a field with a default is added to a format that is not released yet.
"""

from __future__ import annotations

import os
import re
from difflib import unified_diff
from pathlib import Path

import msgspec
import msgspec.inspect as mi
import pytest

from schedulemesh.core.agent.function_agent import FunctionAgent
from schedulemesh.core.agent.job_runner import JobRunner
from schedulemesh.core.transport.user_code import _Slot
from schedulemesh.domain.saved_state import SavedState
from schedulemesh.engine.messages.facts import FORMAT_VERSION, AnyFact
from schedulemesh.engine.state.snapshot import Snapshot
from schedulemesh.protocol.agents import KeptResult, ShippedClass, ShippedFunction
from schedulemesh.protocol.job_command import JobCommand
from schedulemesh.store.sql import SqlJournal
from tests.store.golden import archive, stored_journals

GOLDEN = Path(__file__).with_name("stored_form.txt")
#: Everything that a journal holds beside its own tables: records, snapshots and blobs.
STORED = (list[AnyFact], Snapshot, SavedState, ShippedClass, ShippedFunction, KeptResult)
#: Those of ours that are pickled in the classes and arguments of agents, and so found by their names.
PICKLED = (JobCommand, _Slot, JobRunner, FunctionAgent)
SNAKE_CASE = re.compile(r"[a-z]+(_[a-z]+)*")


def parts_of(kind):
    """The types that a type is made of."""
    if isinstance(kind, mi.StructType):
        return [field.type for field in kind.fields]
    if isinstance(kind, mi.UnionType):
        return kind.types
    if isinstance(kind, mi.DictType):
        return [kind.key_type, kind.value_type]
    if isinstance(kind, mi.TupleType):
        return kind.item_types
    item = getattr(kind, "item_type", None)
    return [] if item is None else [item]


def stored_types():
    """Every type within what is stored, each struct once."""
    seen, left = set(), list(mi.multi_type_info(STORED))
    while left:
        kind = left.pop()
        if isinstance(kind, mi.StructType):
            if kind.cls in seen:
                continue
            seen.add(kind.cls)
        yield kind
        left += parts_of(kind)


def unions():
    """The members of each union that may be one of several structs."""
    for kind in stored_types():
        if isinstance(kind, mi.UnionType):
            members = [member for member in kind.types if isinstance(member, mi.StructType)]
            if len(members) > 1:
                yield members


def test_every_member_of_a_stored_union_has_a_tag_of_its_own():
    found = list(unions())
    assert found
    for members in found:
        tags = [member.tag for member in members]
        assert len(set(tags)) == len(tags)
        assert {member.tag_field for member in members} == {"type"}
        for member in members:
            assert SNAKE_CASE.fullmatch(member.tag), f"{member.cls.__name__} needs tag='snake_case'"


def form():
    """One line per union, enumeration and struct, without the name of any class."""
    tags = {"tags: " + " ".join(sorted(member.tag for member in union)) for union in unions()}
    enums = {kind.cls for kind in stored_types() if isinstance(kind, mi.EnumType)}
    values = {"values: " + " ".join(sorted(member.value for member in enum)) for enum in enums}
    structs = {kind.cls: kind for kind in stored_types() if isinstance(kind, mi.StructType)}
    fields = {"fields: " + " ".join(fields_of(kind)) for kind in structs.values()}
    pickled = {f"pickled: {name_of(cls)} " + " ".join(attributes_of(cls)) for cls in PICKLED}
    lines = sorted(tags | values | fields | pickled)
    return "".join(line.rstrip().replace(" ", "\n  ") + "\n" for line in lines)


def name_of(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def attributes_of(cls):
    """Each field of a class that is pickled with all its fields."""
    return map(field_line, getattr(mi.type_info(cls), "fields", ()))


def fields_of(struct):
    """Its tag, and each field."""
    yield f"<{struct.tag or 'untagged'}>"
    for field in struct.fields:
        omitted = not field.required and struct.cls.__struct_config__.omit_defaults
        yield field_line(field) + (f"={default_of(field)}" if omitted else "")


def field_line(field):
    """A field as ``name:type``, with a question mark if it may be missing."""
    optional = "" if field.required else "?"
    return f"{field.encode_name}{optional}:{word_of(field.type)}"


def default_of(field):
    """What a missing field is, as JSON."""
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    return msgspec.json.encode(value, order="sorted").decode().replace(" ", "_")


def word_of(kind):
    """A type in one word, for example ``list[str]``; a struct or enumeration has lines of its own."""
    if isinstance(kind, mi.StructType):
        return f"<{kind.tag or 'struct'}>"
    if isinstance(kind, mi.UnionType):
        return "|".join(sorted({word_of(each) for each in kind.types}))
    inner = ",".join(word_of(each) for each in parts_of(kind))
    name = type(kind).__name__.removesuffix("Type").lower()
    return f"{name}[{inner}]" if inner else name


def test_what_is_stored_has_the_form_that_its_format_number_says():
    """A change needs a new format and a step to it: see store/migrations.py."""
    rewrite = os.environ.get("REWRITE_FORMAT")
    if rewrite == "add" or (rewrite and not archive(FORMAT_VERSION).exists()):
        GOLDEN.write_text(form(), encoding="utf-8")
    elif GOLDEN.read_text(encoding="utf-8") != form():
        difference = unified_diff(
            GOLDEN.read_text(encoding="utf-8").splitlines(), form().splitlines(), lineterm="", n=2
        )
        pytest.fail(
            f"what is stored is not what format {FORMAT_VERSION} is. Raise FORMAT_VERSION in "
            "schedulemesh/engine/messages/facts.py, add the step to it to schedulemesh/store/migrations.py, "
            "run REWRITE_FORMAT=1 .venv/bin/python -m pytest tests/store/test_stored_form.py, and write the "
            "golden journals of the new format with .venv/bin/python -m tests.store.golden\n"
            + "\n".join(difference)
        )


def test_every_format_has_golden_journals():
    missing = [n for n in range(1, FORMAT_VERSION + 1) if not archive(n).exists()]
    assert not missing, "write them with .venv/bin/python -m tests.store.golden"


def test_golden_journals_have_every_kind_of_fact(tmp_path):
    (facts,) = (kind for kind in mi.multi_type_info([list[AnyFact]]))
    kinds = {member.tag for member in facts.item_type.types}
    stored = {
        fact["type"]
        for journal in stored_journals(FORMAT_VERSION)
        for record in records_of(journal, tmp_path)
        for fact in msgspec.json.decode(record)
    }
    assert kinds - stored == set()


def records_of(journal, folder):
    path = folder / journal.name
    path.touch(mode=0o600)
    path.write_bytes(journal.file)
    opened = SqlJournal(path)
    records = opened.load().records
    opened.close()
    return records
