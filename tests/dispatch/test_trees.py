"""Dealing batches out and collecting them: gather(shard(x)) == x."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from schedulemesh.dispatch import (
    Assign,
    Jagged,
    ParallelLayout,
    Primary,
    Shard,
    Sharding,
    Stage,
    balance,
    gather,
    holdings,
    microbatches,
    shard,
)
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import ALL_MODES, SPLITTING, count, layouts, shapes, shardings

LAYOUT = ParallelLayout.of(tp=2, dp=4, pp=2)


def elements(shape):
    return np.arange(count(shape)).reshape(shape)


@given(st.data())
def test_gathering_inverts_scattering(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, SPLITTING))
    whole = elements(shape)
    again = shard(whole, sharding).gather()
    assert again.dtype == whole.dtype
    assert np.array_equal(again, whole)


@given(st.data())
def test_parts_hold_the_rows_of_their_indices_and_padding(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, ALL_MODES))
    whole = elements(shape)
    held = holdings(sharding, shape)
    for rank, part in enumerate(shard(whole, sharding).parts):
        pieces = held.of_rank(rank)
        if pieces is None:
            assert part is None
            continue
        at = [[-1 if n is None else n for n in piece.indices()] for piece in pieces]
        expected = whole[np.ix_(*at)] if whole.size else np.full(part.shape, -1)
        padding = np.zeros(part.shape, bool)
        for dim, places in enumerate(at):
            mask = np.array(places, int) < 0
            padding |= mask.reshape([-1 if d == dim else 1 for d in range(len(at))])
        assert np.array_equal(part, np.where(padding, -1, expected))


@given(st.data())
def test_drop_last_gathers_the_kept_rows_in_order(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, ("drop_last",)))
    held = holdings(sharding, shape)
    kept = [held.indices(dim) for dim in range(len(shape))]
    again = shard(elements(shape), sharding).gather()
    assert np.array_equal(again, elements(shape)[np.ix_(*[np.array(dim, int) for dim in kept])])


@given(st.data())
def test_rows_of_lists_and_tuples(data):
    rows = data.draw(st.lists(st.text(max_size=2), max_size=9))
    rows = tuple(rows) if data.draw(st.booleans()) else rows
    sharding = data.draw(shardings((len(rows),), SPLITTING))
    sharding = structs.replace(sharding, tuples="rows")
    scattered = shard(rows, sharding)
    assert scattered.gather() == rows
    assert all(part is None or type(part) is type(rows) for part in scattered.parts)


@given(st.data())
def test_jagged_batches_round_trip(data):
    lengths = data.draw(st.lists(st.integers(0, 6), max_size=6))
    layout = data.draw(layouts())
    names = list(layout.names)
    modes = st.sampled_from(SPLITTING)
    placements = [
        (name, Shard(data.draw(st.integers(0, 1)), data.draw(modes), data.draw(st.booleans())))
        for name in names
    ]
    sharding = Sharding(layout=layout, placements=tuple(placements), pad_value=-1)
    whole = Jagged(np.arange(sum(lengths)), tuple(lengths))
    again = shard(whole, sharding).gather()
    assert again.lengths == whole.lengths
    assert np.array_equal(again.values, whole.values)


def test_jagged_rows_are_views_and_nested_rows_are_split_one_by_one():
    layout = ParallelLayout.of(cp=2, dp=2)
    batch = Jagged.of([np.arange(4), np.arange(10, 18), np.arange(20, 24), np.arange(30, 34)])
    rows = shard(batch, Sharding.of(layout, dp=0)).parts
    assert rows[0].lengths == (4, 8)
    assert np.shares_memory(rows[0].values, batch.values)
    assert [list(row) for row in rows[2]] == [[20, 21, 22, 23], [30, 31, 32, 33]]
    assert rows[2].offsets == (0, 4, 8)
    halves = shard(batch, Sharding.of(layout, dp=0, cp=Shard(1, zigzag=True))).parts
    assert [list(row) for row in halves[0]] == [[0, 3], [10, 11, 16, 17]]
    assert [list(row) for row in halves[1]] == [[1, 2], [12, 13, 14, 15]]


def test_jagged_drop_last_drops_rows_and_row_ends():
    layout = ParallelLayout.of(cp=2, dp=2)
    batch = Jagged.of([np.arange(3), np.arange(10, 14), np.arange(20, 25)])
    how = Sharding.of(layout, dp=Shard(0, "drop_last"), cp=Shard(1, "drop_last"))
    again = shard(batch, how).gather()
    assert [list(row) for row in again] == [[0, 1], [10, 11, 12, 13]]


def test_results_of_another_length_are_gathered_as_jagged_rows():
    """Prompts go out, responses of any length come back, in the order of the prompts."""
    prompts = [f"prompt {n}" for n in range(6)]
    groups = balance([9, 1, 1, 1, 5, 5], 4)
    scattered = shard(prompts, Sharding.of(LAYOUT, dp=Assign(0, groups), tp=Primary()))

    def answer(rows):
        return Jagged.of([np.full(int(row[-1]) + 1, int(row[-1])) for row in rows])

    outputs = [None if part is None else answer(part) for part in scattered.parts]
    again = scattered.collect(outputs)
    assert [list(row) for row in again] == [[n] * (n + 1) for n in range(6)]


def test_each_key_has_its_own_dim_and_nested_trees_keep_their_structure():
    batch = {
        "ids": np.arange(24).reshape(4, 6),
        "positions": np.arange(36).reshape(3, 4, 3),
        "text": ["a", "b", "c", "d"],
        "meta": {"temperature": 0.7, "pair": (np.arange(8), [1, 2, 3])},
    }
    whole = Sharding.of(LAYOUT)
    rows = Sharding.of(LAYOUT, dp=0)
    spec = {
        "positions": Sharding.of(LAYOUT, dp=1),
        "meta": {"temperature": whole, "pair": (rows, whole)},
        "*": rows,
    }
    scattered = shard(batch, spec)
    mine = scattered.parts[LAYOUT.rank(dp=2, tp=1)]
    assert mine["ids"].tolist() == [[12, 13, 14, 15, 16, 17]]
    assert mine["positions"].shape == (3, 1, 3)
    assert mine["text"] == ["c"]
    assert mine["meta"]["temperature"] == 0.7
    assert mine["meta"]["pair"][0].tolist() == [4, 5]
    assert mine["meta"]["pair"][1] is batch["meta"]["pair"][1]
    again = scattered.gather()
    assert again["ids"].tolist() == batch["ids"].tolist()
    assert again["positions"].tolist() == batch["positions"].tolist()
    assert again["text"] == batch["text"]
    assert type(again["meta"]["pair"]) is tuple
    assert again["meta"]["pair"][0].tolist() == list(range(8))
    assert again["meta"]["pair"][1] == [1, 2, 3]


def test_inputs_go_to_the_first_stage_and_labels_to_the_last():
    batch = {"ids": np.arange(8), "labels": np.arange(8) + 100}
    scattered = shard(
        batch,
        {
            "ids": Sharding.of(LAYOUT, dp=0, pp=Stage(0)),
            "labels": Sharding.of(LAYOUT, dp=0, pp=Stage(-1)),
        },
    )
    first, last = scattered.parts[0], scattered.parts[LAYOUT.rank(pp=1)]
    assert first["ids"].tolist() == [0, 1]
    assert first["labels"] is None
    assert last["ids"] is None
    assert last["labels"].tolist() == [100, 101]
    losses = [
        None if part["labels"] is None else {"loss": part["labels"] * 2.0}
        for part in scattered.parts
    ]
    assert scattered.collect(losses, like="labels")["loss"].tolist() == [
        2.0 * n for n in range(100, 108)
    ]
    assert {key: value.tolist() for key, value in scattered.gather().items()} == {
        key: value.tolist() for key, value in batch.items()
    }


@pytest.mark.parametrize("mode", SPLITTING)
def test_collect_restores_the_permutation_of_balanced_rows_and_drops_padding(mode):
    tokens = [50, 3, 3, 3, 40, 2, 2, 30, 9]
    batch = np.arange(9)
    for how in (Assign(0, balance(tokens, 4)), Shard(0, mode)):
        scattered = shard(batch, Sharding.of(LAYOUT, dp=how))
        outputs = [
            {"score": part * 10, "logits": np.stack([part] * 3, 1)} for part in scattered.parts
        ]
        again = scattered.collect(outputs)
        assert again["score"].tolist() == [10 * n for n in range(9)]
        assert again["logits"].tolist() == [[n] * 3 for n in range(9)]


def test_slices_are_views_shared_by_replicas():
    whole = elements((8, 6))
    parts = shard(whole, Sharding.of(LAYOUT, dp=0, tp=1)).parts
    assert all(np.shares_memory(part, whole) for part in parts)
    assert parts[0] is parts[LAYOUT.rank(pp=1)]
    trees = shard(
        {"a": {"b": whole}, "c": [1]}, {"a": Sharding.of(LAYOUT, dp=0), "c": Sharding.of(LAYOUT)}
    ).parts
    assert len({id(tree) for tree in trees}) == 4
    assert trees[0] is trees[LAYOUT.rank(tp=1, pp=1)]
    assert shard(whole, Sharding.of(LAYOUT)).gather() is whole


@given(st.integers(0, 12), st.integers(1, 5), st.sampled_from(SPLITTING))
def test_microbatches_are_undone_by_gather(rows, parts, mode):
    batch = {"ids": elements((rows, 2)), "mask": list(range(rows)), "step": 7}
    made = microbatches(batch, parts, uneven=mode, whole=["step"])
    assert len(made.parts) == parts
    assert all(each["step"] == 7 for each in made.parts)
    again = made.gather()
    assert np.array_equal(again["ids"], batch["ids"])
    assert again["mask"] == batch["mask"]


def test_microbatches_are_views_of_the_rank_s_part():
    part = shard(elements((16, 2)), Sharding.of(LAYOUT, dp=0)).parts[0]
    made = microbatches(part, 2)
    assert [each.tolist() for each in made.parts] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert all(np.shares_memory(each, part) for each in made.parts)


def test_every_key_may_have_its_own_padding():
    layout = ParallelLayout.of(dp=2)
    batch = {"ids": np.arange(3), "labels": np.arange(3), "text": ["a", "b", "c"]}
    spec = {
        "ids": Sharding.of(layout, dp=Shard(0, "pad"), pad_value=0),
        "labels": Sharding.of(layout, dp=Shard(0, "pad"), pad_value=-100),
        "text": Sharding.of(layout, dp=Shard(0, "pad"), pad_value=""),
    }
    last = shard(batch, spec).parts[1]
    assert last["ids"].tolist() == [2, 0]
    assert last["labels"].tolist() == [2, -100]
    assert last["text"] == ["c", ""]


@settings(max_examples=50)
@given(st.data())
def test_the_order_of_rows_in_a_group_is_the_order_on_the_worker(data):
    order = data.draw(st.permutations(range(6)))
    groups = (tuple(order[:2]), tuple(order[2:]))
    parts = shard(list(range(6)), Sharding.of(ParallelLayout.of(dp=2), dp=Assign(0, groups))).parts
    assert parts == (list(groups[0]), list(groups[1]))


ROWS = Sharding.of(LAYOUT, dp=0)
PAIR = Sharding.of(ParallelLayout.of(dp=2), dp=0)
DEALT = shard({"a": {"b": np.arange(8)}}, ROWS)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda: shard({"a": {"b": np.arange(6)}}, ROWS),
            "a/b: 6 elements over axis dp do not make 4",
        ),
        (lambda: shard({"a": 0.5}, ROWS), "a: axis dp splits dim 0 of a value without dims"),
        (lambda: shard({"a": [1] * 4, "b": [2]}, {"a": ROWS}), "has no entry for 'b'"),
        (lambda: shard([1, 2], [ROWS]), "must be alike"),
        (lambda: shard(1, {"a": ROWS}), "must be alike"),
        (lambda: shard(np.arange(4), "dp"), "is no Sharding"),
        (lambda: shard([1], {}), "have \\[\\] ranks"),
        (
            lambda: shard([[1], [2]], [ROWS, Sharding.of(ParallelLayout.of(dp=2))]),
            "have \\[2, 16\\] ranks",
        ),
        (lambda: gather([1], ROWS, (8,)), "1 parts were given; the layout has 16 ranks"),
        (lambda: gather([np.arange(2)] * 16, ROWS, ()), "gives no size for dim 0"),
        (
            lambda: gather([np.arange(3)] * 16, ROWS, (8,)),
            "rank 0 gave shape \\(3,\\); expected is \\(2,\\)",
        ),
        (lambda: gather([{"a": 1}] * 16, {"a": Sharding.of(LAYOUT)}, {}), "no shape of 'a'"),
        (lambda: gather([1] * 16, {"a": ROWS}, (8,)), "must agree"),
        (
            lambda: gather(
                [np.arange(2)] * 8 + [None] * 8, Sharding.of(LAYOUT, dp=0, pp=Stage(1)), (8,)
            ),
            "nothing",
        ),
        (lambda: DEALT.collect([np.arange(2)] * 16, like="a"), "like='a' is no leaf"),
        (lambda: DEALT.collect([np.arange(2)] * 16, like="a/c"), "like='a/c' is no leaf"),
        (lambda: Jagged(np.arange(3), (1, 1)), "do not make the 3 values"),
        (lambda: Jagged.of([]), "one row or more"),
        (lambda: Jagged.of([np.zeros((1, 2)), np.zeros((1, 3))]), "differ in dim 0 only"),
        (
            lambda: gather([{"a": [1]}, {"a": [2], "b": [3]}], PAIR, (2,)),
            "b: the lowest rank .* gave nothing",
        ),
        (lambda: gather([([1], [2]), ([3],)], PAIR, (2,)), "1: rank 1 gave nothing"),
    ],
)
def test_invalid_input_is_reported_with_its_path(act, words):
    with pytest.raises(InvalidRequestError, match=words):
        act()


def test_jagged_results_of_the_wrong_size_are_refused():
    layout = ParallelLayout.of(cp=2)
    batch = Jagged.of([np.arange(4), np.arange(2)])
    scattered = shard(batch, Sharding.of(layout, cp=1))
    with pytest.raises(InvalidRequestError, match="gave rows of"):
        scattered.collect([batch, batch])
    with pytest.raises(InvalidRequestError, match="rank 1 gave a NoneType"):
        scattered.collect([scattered.parts[0], None])
    with pytest.raises(InvalidRequestError, match="no length for each row"):
        gather(scattered.parts, scattered.spec, (2,))
    with pytest.raises(InvalidRequestError, match="no number of rows"):
        gather(scattered.parts, scattered.spec, ())


def test_ranks_may_leave_out_what_they_do_not_hold():
    layout = ParallelLayout.of(pp=2)
    spec = {"ids": Sharding.of(layout, pp=Stage(0)), "*": Sharding.of(layout, pp=Stage(1))}
    shapes = {"ids": (1,), "labels": (1,), "step": ()}
    found = gather([{"ids": [1]}, {"labels": [2], "step": 3}], spec, shapes)
    assert found == {"ids": [1], "labels": [2], "step": 3}
    whole = {"a": PAIR, "step": Sharding.of(PAIR.layout)}
    again = gather([{"a": [1]}, {"a": [2], "step": 3}], whole, {"a": (2,), "step": ()})
    assert again == {"a": [1, 2], "step": 3}


@pytest.mark.parametrize("whole", [["step"], ["labels", "ids"], "ids", [0]])
def test_microbatches_name_keys_of_the_batch(whole):
    with pytest.raises(InvalidRequestError, match=r"whole.*allowed"):
        microbatches({"ids": np.arange(4), "steps": [1, 2, 3, 4]}, 2, whole=whole)
    with pytest.raises(
        InvalidRequestError, match="allowed are keys of the data, which has ndarray"
    ):
        microbatches(np.arange(4), 2, whole=["ids"])


def padded(rows, value):
    how = Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, "pad"), pad_value=value)
    return shard({"x": rows}, how).parts[1]["x"]


FITS = [
    ("bool", [True, 0], [-1, 2, None, "a"]),
    ("uint8", [0, 255, 2.0, True], [-1, 256, 1.5, float("nan"), None, "a"]),
    ("int32", [-1, 2**31 - 1], [2**31, 0.5, float("inf"), None]),
    ("float16", [-1, 0.1, float("inf"), 65504], [1e5, 10**400, None, "1"]),
    ("complex64", [-1, 0.5], [1e300, None, "a"]),
]


@pytest.mark.parametrize(("dtype", "fit", "misfit"), FITS)
def test_arrays_are_padded_with_what_their_dtype_holds(dtype, fit, misfit):
    arrays = [np.zeros(3, dtype)]
    with contextlib.suppress(ImportError):
        import torch

        arrays.append(torch.zeros(3, dtype=getattr(torch, dtype)))
    for array in arrays:
        for value in fit:
            assert padded(array, value)[1].item() == np.array(value, dtype).item()
        for value in misfit:
            with pytest.raises(
                InvalidRequestError, match=r"x: pad_value=.* for an array of .*allowed"
            ):
                padded(array, value)


@pytest.mark.parametrize(
    ("dtype", "fit", "misfit"),
    [
        ("U3", "abc", "abcd"),
        ("S3", "abc", None),
        ("M8[D]", "2020-01-01", "soon"),
        ([("a", "i4"), ("b", "u1")], 7, -1),
        ([("a", "i4"), ("b", "U1")], 7, 1.5),
    ],
)
def test_other_dtypes_are_padded_with_what_numpy_takes(dtype, fit, misfit):
    rows = np.zeros(3, dtype)
    assert padded(rows, fit)[1] == np.full((), fit, dtype)[()]
    with pytest.raises(InvalidRequestError, match="x: pad_value="):
        padded(rows, misfit)


def test_none_pads_lists_and_objects_only():
    assert padded([1, 2, 3], None) == [3, None]
    assert padded(np.array([1, "a", 3], object), None).tolist() == [3, None]
    whole = Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, "pad"), pad_value=None)
    assert shard(np.arange(4), whole).parts[1].tolist() == [2, 3]


def test_masked_arrays_are_refused_unless_replicated():
    masked = np.ma.array([1, 2], mask=[True, False])
    for act in (
        lambda: shard({"x": masked}, PAIR),
        lambda: shard({"x": [1, 2]}, PAIR).collect([{"x": masked[:1]}] * 2),
        lambda: Jagged.of([masked, masked]),
        lambda: Jagged(masked, (2,)),
        lambda: shard([1, 2], PAIR).collect([masked, masked], reduce="sum"),
    ):
        with pytest.raises(
            InvalidRequestError, match=r"masked array.*data and its mask as two arrays"
        ):
            act()
    assert shard({"x": masked}, Sharding.of(LAYOUT)).gather()["x"] is masked
