"""Plans: what moves is what must move, and it arrives."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.dispatch import (
    Assign,
    ParallelLayout,
    Plan,
    Primary,
    Shard,
    Sharding,
    Stage,
    Transfer,
    apply_plan,
    assemble,
    give,
    plan,
    shard,
)
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import ALL_MODES, SPLITTING, count, layouts, shapes, shardings

ITEMSIZE = 4


@st.composite
def moves(draw):
    """Two shardings of one tensor, and the workers of both sides, some of them the same."""
    shape = draw(shapes())
    source = draw(shardings(shape, SPLITTING))
    destination = draw(shardings(shape, ALL_MODES))
    workers = st.integers(0, source.layout.size + destination.layout.size)
    return {
        "source": source,
        "destination": destination,
        "shape": shape,
        "itemsize": ITEMSIZE,
        "source_workers": draw(workers_of(source, workers)),
        "destination_workers": draw(workers_of(destination, workers)),
        "rotation": draw(st.integers(0, 3)),
    }


def workers_of(sharding, workers):
    size = sharding.layout.size
    return st.lists(workers, min_size=size, max_size=size, unique=True).map(tuple)


def elements(shape):
    return np.arange(count(shape)).reshape(shape)


def ids(part):
    """Which elements a rank holds, padding left out."""
    return set() if part is None else set(part.ravel().tolist()) - {-1}


@settings(max_examples=300)
@given(moves())
def test_each_destination_receives_its_shard_of_the_full_tensor(move):
    whole = elements(move["shape"])
    found = apply_plan(plan(**move), shard(whole, move["source"]).parts)
    for mine, expected in zip(found, shard(whole, move["destination"]).parts, strict=True):
        assert (mine is None) == (expected is None)
        assert mine is None or np.array_equal(mine, expected)


@settings(max_examples=300)
@given(moves())
def test_bytes_moved_are_the_fewest_possible(move):
    """Counted by element: what a worker needs and does not hold must come once, and nothing else may."""
    made = plan(**move)
    whole = elements(move["shape"])
    has = dict(zip(made.source_workers, map(ids, shard(whole, made.source).parts), strict=True))
    needs = dict(
        zip(made.destination_workers, map(ids, shard(whole, made.destination).parts), strict=True)
    )
    fewest = {
        worker: len(need - has.get(worker, set())) * ITEMSIZE for worker, need in needs.items()
    }
    assert {worker: made.traffic()[worker].received for worker in needs} == fewest
    assert made.bytes_moved == sum(fewest.values()) == sum(made.sent)
    for rank, worker in enumerate(made.destination_workers):
        fetched = made.fetches(rank)
        assert sum(each.elements for each in fetched) == len(needs[worker])
        assert (
            sum(each.elements for each in fetched if not each.local) * ITEMSIZE
            == made.received[rank]
        )
        assert sum(each.elements for each in fetched if each.local) * ITEMSIZE == made.local[rank]


@given(moves())
def test_sends_and_fetches_are_the_same_transfers(move):
    made = plan(**move)
    fetched = list(made.transfers())
    sent = [each for rank in range(made.source.layout.size) for each in made.sends(rank)]
    assert sorted(fetched, key=repr) == sorted(sent, key=repr)
    for rank, expected in enumerate(made.sent):
        away = [each for each in made.sends(rank) if not each.local]
        assert all(each.source == rank for each in away)
        assert sum(each.elements for each in away) * ITEMSIZE == expected
    for each in fetched:
        workers = made.source_workers[each.source], made.destination_workers[each.destination]
        assert each.local == (workers[0] == workers[1])


@given(moves())
def test_the_load_of_replicas_is_balanced(move):
    """No owner of a cell sends more than its even share and one request."""
    made = plan(**move)
    for owners in made.routes.source.grid.owners.values():
        loads = [made.sent[rank] for rank in owners]
        requests = {}
        for rank in owners:
            for each in made.sends(rank):
                if not each.local:
                    key = (rank, each.destination)
                    requests[key] = requests.get(key, 0) + each.elements * ITEMSIZE
        assert max(loads) <= sum(loads) / len(owners) + max(requests.values(), default=0)


@given(moves())
def test_a_plan_survives_encoding_and_keeps_its_key(move):
    made = plan(**move)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Plan)
    assert again == made
    assert again.key == made.key
    assert list(again.transfers()) == list(made.transfers())
    for each in made.fetches(0):
        assert msgspec.json.decode(msgspec.json.encode(each), type=Transfer) == each


def test_equal_requests_share_a_cached_plan_and_others_have_their_own_key():
    layout = ParallelLayout.of(dp=4)
    asked = (Sharding.of(layout, dp=0), Sharding.of(layout))
    assert plan(*asked, (8,)) is plan(*asked, [8])
    assert plan(*asked, (8,)).key != plan(*asked, (16,)).key
    assert plan(*asked, (8,)).key != plan(*asked, (8,), destination_workers=range(4)).key


ROWS_OF_TWO = Sharding.of(ParallelLayout.of(dp=2), dp=0)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"shape": np.array([602, 4])}, {"shape": (602, 4)}),
        ({"shape": (604, 4), "itemsize": np.int32(2)}, {"shape": (604, 4), "itemsize": 2}),
        ({"shape": (606, 4), "rotation": np.int64(1)}, {"shape": (606, 4), "rotation": 1}),
        (
            {"shape": (608, 4), "destination_workers": np.arange(2)},
            {"shape": (608, 4), "destination_workers": range(2)},
        ),
        (
            {"shape": (610, 4), "source_workers": np.array(["a", "b"])},
            {"shape": (610, 4), "source_workers": ["a", "b"]},
        ),
        (
            {"shape": (True, 4), "source_workers": (True, False)},
            {"shape": (1, 4), "source_workers": (1, 0)},
        ),
    ],
)
def test_numbers_of_numpy_make_the_plan_of_plain_ones(given, plain):
    """The cache finds a plan by equal arguments, of whichever type the first were."""
    two = Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, "chunk"))
    first = plan(two, two, **given)
    second = plan(two, two, **plain)
    assert first.key == second.key
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=Plan) == second
    assert msgspec.json.encode(first.fetches(0)) == msgspec.json.encode(second.fetches(0))


def test_pad_values_that_are_equal_but_not_the_same_have_plans_of_their_own():
    layout = ParallelLayout.of(dp=2)
    values = (True, 1, 1.0, 0, -0.0, 0.0, False)
    paddings = [Sharding.of(layout, dp=Shard(0, "pad"), pad_value=value) for value in values]
    plans = [plan(ROWS_OF_TWO, each, (6, 4)) for each in paddings]
    assert [repr(made.destination.pad_value) for made in plans] == list(map(repr, values))
    assert len({made.key for made in plans}) == len(values)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_layout_is_refused(rank):
    made = plan(ROWS_OF_TWO, ROWS_OF_TWO, (8,))
    for asked in (made.fetches, made.sends):
        with pytest.raises(InvalidRequestError, match=f"rank {rank} is not .* allowed are 0 to 1"):
            asked(rank)


def test_rollout_to_train():
    """A weight of 8 x 8 from dp=8,tp=2 to dp=2,tp=2,pp=2,cp=2 on other workers."""
    rollout = Sharding.of(ParallelLayout.of(tp=2, dp=8), tp=0)
    train = Sharding.of(ParallelLayout.of(tp=2, cp=2, dp=2, pp=2), tp=1, pp=Stage(1))
    made = plan(rollout, train, (8, 8), itemsize=2)
    assert made.bytes_moved == 8 * 64
    assert made.received == (0,) * 8 + (64,) * 8
    assert made.sent == (32,) * 16
    assert {each.source for each in made.fetches(8)} == {0, 1}


def test_data_that_a_worker_already_holds_is_not_moved():
    layout = ParallelLayout.of(dp=4)
    narrow, whole = Sharding.of(layout, dp=0), Sharding.of(layout)
    same = plan(whole, narrow, (8,), destination_workers=range(4))
    assert same.bytes_moved == 0
    assert same.local == (2,) * 4
    assert plan(narrow, whole, (8,), destination_workers=range(4)).received == (6,) * 4
    assert plan(narrow, whole, (8,)).received == (8,) * 4


def test_rotation_spreads_the_load_of_tensors_for_one_worker():
    many = Sharding.of(ParallelLayout.of(dp=4))
    one = Sharding.of(ParallelLayout.of(dp=1))
    senders = {plan(many, one, (8,), rotation=turn).sent.index(8) for turn in range(4)}
    assert senders == {0, 1, 2, 3}


def test_replicas_that_need_the_same_box_share_a_sender():
    two = Sharding.of(ParallelLayout.of(dp=2))
    cut = Sharding.of(ParallelLayout.of(tp=4, dp=2), tp=0)
    made = plan(two, cut, (8,))
    assert made.sent == (8, 8)
    for box in range(4):
        assert made.fetches(box)[0].source == made.fetches(box + 4)[0].source


def test_expert_weights_move_between_expert_layouts():
    dense = ParallelLayout.of(tp=2, dp=4)
    wide = Sharding.of(dense.experts(ep=8), ep=0)
    mixed = Sharding.of(dense.experts(ep=4, tp=2), ep=0, tp=2)
    weights = elements((8, 4, 6))
    found = apply_plan(
        plan(wide, mixed, weights.shape, destination_workers=range(8)), shard(weights, wide).parts
    )
    assert found[3].shape == (2, 4, 3)
    assert np.array_equal(found[3], weights[2:4, :, 3:])


def test_a_shard_that_arrives_in_one_piece_is_not_copied():
    whole = elements((8, 2))
    rows = Sharding.of(ParallelLayout.of(dp=4), dp=0)
    parts = shard(whole, rows).parts
    found = apply_plan(plan(rows, rows, whole.shape), parts)
    assert all(np.shares_memory(mine, part) for mine, part in zip(found, parts, strict=True))


def test_a_destination_without_data_is_all_padding():
    one = Sharding.of(ParallelLayout.of(dp=1))
    padded = Sharding.of(ParallelLayout.of(dp=4), dp=Shard(0, "pad"), pad_value=-7)
    made = plan(one, padded, (2,))
    assert made.fetches(3) == ()
    assert assemble(made, 3, [], np.arange(2)).tolist() == [-7]
    chunked = Sharding.of(ParallelLayout.of(dp=4), dp=Shard(0, "chunk"))
    assert apply_plan(plan(one, chunked, (2,)), [np.arange(2)])[3].shape == (0,)


def test_a_scalar_moves_too():
    one, many = (
        Sharding.of(ParallelLayout.of(dp=1)),
        Sharding.of(ParallelLayout.of(dp=3), dp=Primary()),
    )
    found = apply_plan(plan(one, many, ()), [np.array(5.0)])
    assert found[0] == 5.0
    assert found[1:] == (None, None)


def test_no_destination_assembles_more_than_its_own():
    layout = ParallelLayout.of(dp=16)
    made = plan(Sharding.of(layout, dp=0), Sharding.of(layout, dp=1), (64, 64))
    assert made.received == (256,) * 16
    assert give(np.zeros((4, 64)), made.fetches(3)[0]).shape == (4, 4)


@given(layouts(), layouts())
def test_replicated_to_replicated_is_even(source, destination):
    made = plan(Sharding.of(source), Sharding.of(destination), (4,))
    assert max(made.sent) - min(made.sent) <= 4
    assert sum(made.sent) == 4 * destination.size


ROWS = Sharding.of(ParallelLayout.of(dp=4), dp=Shard(0, "drop_last"))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: plan(ROWS, Sharding.of(ParallelLayout.of(dp=6), dp=0), (6,)), "no source holds"),
        (lambda: plan(ROWS, Sharding.of(ParallelLayout.of(dp=2)), (6,)), "no source holds"),
        (
            lambda: plan(ROWS, ROWS, (8,), source_workers=["a"]),
            "1 workers were given, 1 of them different",
        ),
        (
            lambda: plan(ROWS, ROWS, (8,), destination_workers="aabc"),
            "4 workers were given, 3 of them",
        ),
        (
            lambda: apply_plan(plan(ROWS, ROWS, (8,)), [np.arange(3)] * 4),
            "source rank 0 has shape \\(3,\\)",
        ),
        (
            lambda: apply_plan(plan(ROWS, ROWS, (8,)), [np.arange(2)]),
            "1 parts were given; allowed are 4, one per rank of the source",
        ),
        (
            lambda: apply_plan(plan(ROWS, ROWS, (8,)), [7] * 4),
            "source rank 0 has shape \\(\\); expected is \\(2,\\)",
        ),
        (lambda: plan(ROWS, ROWS, (8.0,)), "shape: \\(8.0,\\) was given; allowed is"),
        (lambda: plan(ROWS, ROWS, (8,), itemsize="4"), "itemsize='4'; allowed is a whole number"),
        (lambda: plan(ROWS, ROWS, (8,), itemsize=-4), "itemsize=-4; allowed are 0 bytes"),
        (lambda: plan(ROWS, ROWS, (8,), rotation=0.5), "rotation=0.5; allowed is a whole"),
        (
            lambda: plan(ROWS, ROWS, (8,), source_workers=(0, 1, 2, 3.5)),
            "worker=3.5; allowed is a name or a whole number",
        ),
        (
            lambda: plan(ROWS, Sharding.of(ROWS.layout, dp=1), (8,)),
            "splits dim 1 of a value with 1 dims",
        ),
    ],
)
def test_invalid_input_is_reported(act, words):
    with pytest.raises(InvalidRequestError, match=words):
        act()


def test_rows_balanced_by_tokens_can_be_resharded():
    scattered = Sharding.of(ParallelLayout.of(dp=2), dp=Assign(0, ((3, 0), (1, 2, 4))))
    rows = Sharding.of(ParallelLayout.of(dp=5), dp=0)
    whole = elements((5, 2))
    found = apply_plan(plan(scattered, rows, whole.shape), shard(whole, scattered).parts)
    assert [part.tolist() for part in found] == whole.reshape(5, 1, 2).tolist()


def test_a_destination_that_needs_nothing_needs_no_source():
    """The source drops elements of one dim; the destination's arrays are empty in another."""
    drops = Sharding.of(ParallelLayout.of(dp=4), dp=Shard(0, "drop_last"))
    empty = Sharding.of(ParallelLayout.of(dp=2), dp=Shard(1, "drop_last"))
    made = plan(drops, empty, (6, 1))
    assert made.bytes_moved == 0
    assert list(made.transfers()) == []
    with pytest.raises(
        InvalidRequestError, match="destination rank 0 needs elements that no source"
    ):
        plan(drops, empty, (6, 2))


def test_rotation_exchanges_the_shares_of_a_plan_and_nothing_else():
    many = Sharding.of(ParallelLayout.of(dp=3, tp=2), tp=0)
    one = Sharding.of(ParallelLayout.of(tp=4), tp=1)
    plain, turned = (plan(many, one, (8, 8), rotation=turn) for turn in (0, 1))
    assert sorted(plain.sent) == sorted(turned.sent)
    assert plain.sent != turned.sent
    assert plain.received == turned.received
    assert plan(many, one, (8, 8), rotation=3).shares == plain.shares


@given(moves())
def test_exchanges_are_the_transfers(move):
    made = plan(**move)
    found = [
        Transfer(source=each.source, destination=rank, give=give, take=take, local=each.local)
        for each in made.exchanges()
        for rank in each.destinations
        for give, take in zip(each.give, each.take, strict=True)
    ]
    assert sorted(found, key=repr) == sorted(made.transfers(), key=repr)
