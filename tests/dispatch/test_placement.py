"""Shardings: what may be asked, and who holds anything."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.dispatch import (
    Assign,
    Jagged,
    ParallelLayout,
    Primary,
    Replicate,
    Shard,
    Sharding,
    Stage,
    holdings,
    plan,
)
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import shapes, shardings

LAYOUT = ParallelLayout.of(tp=2, dp=2, pp=2)


def holders(sharding, shape=(4,)):
    found = holdings(sharding, shape)
    return [rank for rank in range(sharding.layout.size) if found.of_rank(rank) is not None]


def test_stages_and_primaries_are_the_only_holders():
    assert holders(Sharding.of(LAYOUT)) == list(range(8))
    assert holders(Sharding.of(LAYOUT, pp=Stage(0))) == [0, 1, 2, 3]
    assert holders(Sharding.of(LAYOUT, pp=Stage(-1))) == [4, 5, 6, 7]
    assert holders(Sharding.of(LAYOUT, pp=Stage(-1), tp=Primary())) == [4, 6]
    assert holders(Sharding.of(LAYOUT, tp=Primary(), dp=Primary(), pp=Primary())) == [0]


def test_a_whole_number_is_the_dim_to_shard():
    assert Sharding.of(LAYOUT, dp=1, tp=Replicate()) == Sharding.of(
        LAYOUT, dp=Shard(1), tp=Replicate()
    )
    assert holdings(Sharding.of(LAYOUT, dp=-1), (3, 4)).local_shape(0) == (3, 2)
    assert holdings(Sharding.of(LAYOUT, pp=Stage(0)), (3,)).local_shape(7) is None


@given(st.data())
def test_a_sharding_survives_encoding(data):
    sharding = data.draw(shardings(data.draw(shapes())))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sharding), type=Sharding) == sharding
    assert hash(sharding) == hash(msgspec.structs.replace(sharding))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Sharding.of(LAYOUT, xp=0), "'xp' is not in the layout"),
        (
            lambda: Sharding.of(LAYOUT, pp=Stage(2)),
            "stage 2 is not on axis pp; allowed are -2 to 1",
        ),
        (
            lambda: Sharding.of(LAYOUT, dp=Assign(0, ((0, 1),))),
            "1 groups are assigned over dp; allowed are 2",
        ),
        (lambda: Assign(0, ((0, 1), (1, 2))), "exactly once"),
        (
            lambda: Sharding(layout=LAYOUT, placements=(("tp", Shard(0)), ("tp", Shard(1)))),
            "each axis once",
        ),
        (
            lambda: holdings(Sharding.of(LAYOUT, dp=2), (4, 4)),
            "splits dim 2 of a value with 2 dims",
        ),
        (lambda: holdings(Sharding.of(LAYOUT, dp=0), ()), "can only be replicated"),
        (
            lambda: holdings(Sharding.of(LAYOUT, dp=Assign(0, ((0,), (1,)))), (4,)),
            "2 rows are assigned",
        ),
    ],
)
def test_invalid_input_is_reported(act, words):
    with pytest.raises(InvalidRequestError, match=words):
        act()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sharding.of(LAYOUT, dp="rows"), "axis dp has the placement 'rows'; allowed are"),
        (lambda: Sharding.of(LAYOUT, dp=0.5), "axis dp has the placement 0.5"),
        (lambda: Sharding.of(LAYOUT, dp=True), "a dim is True"),
        (lambda: Sharding.of(LAYOUT, dp=0, tuples="leaf"), "tuples='leaf'; allowed are tree, rows"),
        (lambda: Shard(0, "bogus"), "uneven='bogus'; allowed are error, pad"),
        (lambda: Shard("rows"), "a dim is 'rows'; allowed is a whole number"),
        (lambda: Shard(None), "a dim is None"),
        (lambda: Assign(1.0, ((0,), (1,))), "a dim is 1.0"),
        (lambda: Stage(True), "a stage is True; allowed is a whole number"),
        (lambda: Stage("last"), "a stage is 'last'"),
    ],
)
def test_placements_that_are_none_are_refused(make, words):
    with pytest.raises(InvalidRequestError, match=words):
        make()


@pytest.mark.parametrize(
    ("numpy", "own"),
    [
        (Sharding.of(LAYOUT, dp=np.int64(1)), Sharding.of(LAYOUT, dp=1)),
        (Sharding.of(LAYOUT, pp=Stage(np.int64(1))), Sharding.of(LAYOUT, pp=Stage(1))),
        (
            Sharding.of(LAYOUT, dp=Assign(np.int32(0), ((0,), (1,)))),
            Sharding.of(LAYOUT, dp=Assign(0, ((0,), (1,)))),
        ),
    ],
)
def test_numbers_of_numpy_are_those_of_python(numpy, own):
    assert msgspec.msgpack.encode(numpy) == msgspec.msgpack.encode(own)


def whole_numbers():
    given = [[1, 3], np.array([1, 3]), (np.int64(1), np.int64(3)), iter((1, 3))]
    try:
        import torch
    except ImportError:
        return given
    return [*given, torch.tensor([1, 3])]


@pytest.mark.parametrize("given", whole_numbers(), ids=lambda given: type(given).__name__)
def test_any_sequence_of_whole_numbers_becomes_a_tuple(given):
    given = list(given) if not hasattr(given, "tolist") else given
    assert Shard(0, documents=given) == Shard(0, documents=(1, 3))
    assert Assign(0, [(0, 2), given]) == Assign(0, ((0, 2), (1, 3)))
    assert Jagged(np.zeros(4), given).lengths == (1, 3)
    made = (
        Shard(0, documents=given),
        Assign(0, [[0, 2], given]),
        Jagged(np.zeros(4), given).lengths,
    )
    assert hash(made) == hash((Shard(0, documents=(1, 3)), Assign(0, ((0, 2), (1, 3))), (1, 3)))
    assert msgspec.msgpack.encode(made)
    half = Sharding.of(ParallelLayout.of(dp=2), dp=Assign(0, [[0, 2], given]))
    assert plan(half, half, (4,)).key


@pytest.mark.parametrize("given", [3, [0.5], ["1"], None])
def test_what_is_no_sequence_of_whole_numbers_is_refused(given):
    for make in (
        lambda: Shard(0, documents=given),
        lambda: Assign(0, [given]),
        lambda: Jagged(np.zeros(1), given),
    ):
        with pytest.raises(InvalidRequestError, match="allowed is a sequence of whole numbers"):
            make()
