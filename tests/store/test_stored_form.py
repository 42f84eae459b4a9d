"""What tells stored values apart, tags and enumerated values, is explicit and pinned in ``stored_form.txt``.

So a class can be renamed without changing what is stored. Run with REWRITE_FORMAT=1 to write the file anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec.inspect as mi
import pytest

from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.engine.state.snapshot import Snapshot
from schedulemesh.protocol.agents import SavedState, ShippedClass, ShippedFunction

GOLDEN = Path(__file__).with_name("stored_form.txt")
#: Everything that a journal holds beside its own tables: records, snapshots and blobs.
STORED = (list[AnyFact], Snapshot, SavedState, ShippedClass, ShippedFunction)
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
    """One line per union and per enumeration, without the name of any class."""
    tags = {"tags: " + " ".join(sorted(member.tag for member in union)) for union in unions()}
    enums = {kind.cls for kind in stored_types() if isinstance(kind, mi.EnumType)}
    values = {"values: " + " ".join(sorted(member.value for member in enum)) for enum in enums}
    return "".join(line.replace(" ", "\n  ") + "\n" for line in sorted(tags | values))


def test_tags_and_values_are_those_that_were_stored_before():
    """What is removed or renamed here needs a new format and a step to it: see store/migrations.py."""
    if os.environ.get("REWRITE_FORMAT"):
        GOLDEN.write_text(form(), encoding="utf-8")
    elif GOLDEN.read_text(encoding="utf-8") != form():
        pytest.fail(
            "what is stored has other tags or values than stored_form.txt; look at the difference after "
            "REWRITE_FORMAT=1 .venv/bin/python -m pytest tests/store/test_stored_form.py"
        )
