"""Keys of stored bytes in portions are the same set, and a snapshot removes the same bytes with it."""

from __future__ import annotations

import random

import pytest

from schedulemesh.store import blob_keys, sql
from schedulemesh.store.blob_keys import BlobKeys, portions
from schedulemesh.store.sql import SqlJournal

#: Characters before and after those of hexadecimal digits, and a line break.
CHARACTERS = "0af\n é~"


def some_keys(random_number, count):
    return {"".join(random_number.choices(CHARACTERS, k=8)) for _ in range(count)}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 40])
def test_keys_in_portions_are_the_same_set(monkeypatch, count):
    monkeypatch.setattr(blob_keys, "PORTION", 2)
    random_number = random.Random(count)
    keys = some_keys(random_number, count)
    in_portions = BlobKeys(portions(keys))
    assert list(in_portions) == sorted(keys)
    for key in [*sorted(keys), *some_keys(random_number, 40), "", 7]:
        assert (key in in_portions) == (key in keys)


@pytest.mark.parametrize("portion", [1, 2, 3, 1000])
@pytest.mark.parametrize("in_portions", [False, True])
def test_a_snapshot_removes_what_is_old_and_not_referred_to(
    monkeypatch, tmp_path, portion, in_portions
):
    monkeypatch.setattr(sql, "PORTION", portion)
    monkeypatch.setattr(blob_keys, "PORTION", portion)
    random_number = random.Random(portion)
    old, young = some_keys(random_number, 7), some_keys(random_number, 5)
    kept = set(random_number.sample(sorted(old), 3))
    journal = SqlJournal(tmp_path / "j.sqlite")
    journal.begin()
    journal.append(b"one", dict.fromkeys(old, b"bytes"))
    journal.compact([b"part"], 1, frozenset())
    journal.append(b"two", dict.fromkeys(young, b"more"))
    keep = BlobKeys(portions(kept)) if in_portions else kept
    journal.compact([b"part"], 2, keep)
    assert journal.blob_sizes().keys() == kept | young
    asked_for = {*sorted(kept)[:2], *sorted(old - kept)[:1]}
    assert journal.blob_sizes(asked_for) == dict.fromkeys(sorted(kept)[:2], len(b"bytes"))
    journal.close()
