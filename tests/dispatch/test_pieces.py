"""Cuts of one dim, against what is said of them, element by element."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.dispatch import ParallelLayout, Shard, Sharding, holdings
from schedulemesh.errors import InvalidRequestError

LENGTHS = st.integers(0, 40)
PARTS = st.integers(1, 6)


def held(length, parts, how):
    """What each coordinate holds: element numbers, None for padding."""
    layout = ParallelLayout.of(dp=parts)
    found = holdings(Sharding.of(layout, dp=how), (length,))
    return [list(found.of_rank(rank)[0].indices()) for rank in range(parts)]


@given(LENGTHS, PARTS)
def test_uneven_is_numpys_array_split(length, parts):
    expected = [list(part) for part in np.array_split(np.arange(length), parts)]
    assert held(length, parts, Shard(0, "uneven")) == expected


@given(LENGTHS, PARTS)
def test_pad_fills_up_the_last_pieces(length, parts):
    share = -(-length // parts)
    filled = [*range(length), *[None] * (share * parts - length)]
    assert held(length, parts, Shard(0, "pad")) == [
        filled[part * share : (part + 1) * share] for part in range(parts)
    ]


@given(LENGTHS, PARTS)
def test_chunk_is_pad_without_the_padding(length, parts):
    padded = held(length, parts, Shard(0, "pad"))
    assert held(length, parts, Shard(0, "chunk")) == [
        [row for row in part if row is not None] for part in padded
    ]


@given(LENGTHS, PARTS)
def test_drop_last_leaves_out_less_than_one_each(length, parts):
    found = held(length, parts, Shard(0, "drop_last"))
    assert list(chain(*found)) == list(range(length - length % parts))
    assert len({len(part) for part in found}) == 1


@given(LENGTHS, PARTS)
def test_error_requires_divisibility(length, parts):
    if length % parts:
        with pytest.raises(
            InvalidRequestError, match=f"{length} elements over axis dp do not make {parts}"
        ):
            held(length, parts, Shard(0))
    else:
        assert list(chain(*held(length, parts, Shard(0)))) == list(range(length))


@given(st.integers(1, 8), PARTS)
def test_zigzag_gives_all_the_same_causal_work(each, parts):
    length = 2 * parts * each
    found = held(length, parts, Shard(0, zigzag=True))
    work = {sum(token + 1 for token in part) for part in found}
    assert len(work) == 1
    assert found[0] == [*range(each), *range(length - each, length)]


@given(
    st.lists(st.integers(0, 12), max_size=4),
    PARTS,
    st.sampled_from(["uneven", "pad", "chunk", "drop_last"]),
)
def test_each_document_is_split_separately(documents, parts, mode):
    found = held(sum(documents), parts, Shard(0, mode, zigzag=True, documents=tuple(documents)))
    expected = [[] for _ in range(parts)]
    first = 0
    for document in documents:
        for mine, part in zip(
            expected, held(document, parts, Shard(0, mode, zigzag=True)), strict=True
        ):
            mine += [None if token is None else first + token for token in part]
        first += document
    assert found == (expected if documents else held(0, parts, Shard(0, mode, zigzag=True)))


def test_packed_documents_keep_their_causal_balance():
    documents = (8, 16, 24)
    found = held(48, 2, Shard(0, zigzag=True, documents=documents))
    starts = [0] * 8 + [8] * 16 + [24] * 24
    work = {sum(token - starts[token] + 1 for token in part) for part in found}
    assert len(work) == 1


def test_documents_that_do_not_fill_the_dim_are_refused():
    with pytest.raises(InvalidRequestError, match="have 5 elements, dim 0 has 6"):
        held(6, 2, Shard(0, "uneven", documents=(2, 3)))
    with pytest.raises(InvalidRequestError, match="below 0"):
        Shard(0, documents=(3, -1))


def test_nested_shards_follow_the_order_of_the_placements():
    layout = ParallelLayout.of(tp=2, dp=2)
    outer_dp = holdings(Sharding.of(layout, tp=0, dp=0), (8,))
    assert [outer_dp.of_rank(r)[0].run for r in range(4)] == [
        slice(2 * r, 2 * r + 2) for r in range(4)
    ]
    tp_first = Sharding(layout=layout, placements=(("tp", Shard(0)), ("dp", Shard(0))))
    found = holdings(tp_first, (8,))
    assert [found.of_rank(r)[0].run.start for r in range(4)] == [0, 4, 2, 6]
