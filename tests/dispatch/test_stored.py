"""Tensors of a model as regions of stored ones: every element once, errors that name the tensor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.dispatch import (
    Concat,
    ParallelLayout,
    Shard,
    Sharding,
    Slice,
    Stage,
    fused_qkv,
    made_of,
    reads,
    separate_qkv,
    shard,
    writes,
)
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import ALL_MODES, SPLITTING, count, shapes, shardings


def spans(box):
    return tuple(slice(*span) for span in box)


def whole(made, arrays):
    """The tensor that consists of regions, assembled with NumPy."""
    found = np.full(made.shape, -1)
    for region in made.regions:
        found[spans(region.at)] = arrays[region.key][spans(region.stored)]
    return found


@settings(max_examples=300)
@given(st.data())
def test_each_rank_reads_what_shard_gives_it(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, ALL_MODES))
    array = np.arange(count(shape)).reshape(shape)
    cut = data.draw(st.integers(0, shape[0]))
    stored = {"a": array[:cut], "b": array[cut:]}
    made = made_of({key: part.shape for key, part in stored.items()}, {"x": Concat(("a", "b"))})[
        "x"
    ]
    for rank, expected in enumerate(shard(array, sharding).parts):
        found = reads(made, sharding, rank)
        if expected is None:
            assert found == ()
            continue
        mine = np.full(expected.shape, -1)
        for region in found:
            mine[spans(region.at)] = stored[region.key][spans(region.stored)]
        assert np.array_equal(mine, expected)


@settings(max_examples=300)
@given(st.data())
def test_the_ranks_write_every_element_once(data):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, SPLITTING))
    array = np.arange(count(shape)).reshape(shape)
    made = made_of({"x": shape}, {"y": "x"})["y"]
    parts = shard(array, sharding).parts
    written, times = np.full(shape, -1), np.zeros(shape, int)
    for rank, part in enumerate(parts):
        for region in writes(made, {"x": sharding}, {"x": shape}, rank):
            written[spans(region.at)] = part[spans(region.stored)]
            times[spans(region.at)] += 1
    assert np.array_equal(written, array)
    assert (times == 1).all()


def test_what_no_rank_holds_cannot_be_written():
    dropped = Sharding.of(ParallelLayout.of(dp=2), dp=Shard(0, "drop_last"))
    made = made_of({"x": (3,)})["x"]
    with pytest.raises(InvalidRequestError, match="x: no rank holds all rows"):
        writes(made, {"x": dropped}, {"x": (3,)}, 0)


def test_replicas_share_the_work_of_writing():
    sharding = Sharding.of(ParallelLayout.of(dp=4))
    sizes = {f"layer.{n}": (2,) for n in range(40)}
    writers = [
        rank
        for made in made_of(sizes).values()
        for rank in range(4)
        if writes(made, dict.fromkeys(sizes, sharding), sizes, rank)
    ]
    assert len(writers) == 40
    assert set(writers) == {0, 1, 2, 3}


def qkv(heads, groups, dim, columns):
    """Separate weights, and Megatron's fused one, written as a loop over its groups."""
    query = np.arange(heads * dim * columns).reshape(-1, columns)
    key = 1000 + np.arange(groups * dim * columns).reshape(-1, columns)
    value = 2000 + np.arange(groups * dim * columns).reshape(-1, columns)
    rows = []
    for group in range(groups):
        for head in range(heads // groups):
            at = (group * (heads // groups) + head) * dim
            rows.append(query[at : at + dim])
        rows += [key[group * dim : (group + 1) * dim], value[group * dim : (group + 1) * dim]]
    return {"q": query, "k": key, "v": value}, np.concatenate(rows)


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 1)])
def test_query_key_and_value_are_fused_and_separated(heads, groups):
    separate, fused = qkv(heads, groups, dim=3, columns=2)
    sizes = {key: array.shape for key, array in separate.items()}
    rule = fused_qkv("q", "k", "v", heads=heads, groups=groups, dim=3)
    assert np.array_equal(whole(made_of(sizes, {"qkv": rule})["qkv"], separate), fused)
    back = dict(zip("qkv", separate_qkv("f", heads=heads, groups=groups, dim=3), strict=True))
    made = made_of({"f": fused.shape}, back)
    for key, array in separate.items():
        assert np.array_equal(whole(made[key], {"f": fused}), array)


HF = {
    f"model.layers.{layer}.{name}": (4, 2)
    for layer in range(12)
    for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight", "norm.weight")
} | {"model.embed.weight": (10, 2)}


def test_a_rule_with_a_star_holds_for_every_layer():
    made = made_of(
        HF,
        {
            "layers.*.fc1": Concat(
                ("model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight")
            ),
            "**": "model.**",
        },
    )
    assert len(made) == 12 + 12 + 1
    assert made["layers.11.fc1"].shape == (8, 2)
    assert made["layers.7.norm.weight"].regions[0].key == "model.layers.7.norm.weight"
    assert [region.key[-16:] for region in made["layers.3.fc1"].regions] == [
        "gate_proj.weight",
        "p.up_proj.weight",
    ]


REFUSED = [
    ({"x": "c"}, {}, "x takes 'c', which is not stored"),
    ({"x": "a"}, {}, "nothing takes the stored 'b'"),
    (
        {"x": Slice("a", 9), "y": "b"},
        {},
        "x takes the elements 0 to 9 of dim 0 of 'a', which has 4",
    ),
    ({"x": Slice("a", 3), "y": "b"}, {}, "6 of the 8 elements of 'a' are taken"),
    (
        {"x": Slice("a", 2), "z": Slice("a", 2), "y": "b"},
        {},
        "4 of the 8 elements of 'a' are taken",
    ),
    (
        {"x": Slice("a", 2), "z": Slice("a", 1, dim=1), "y": "b"},
        {},
        "6 of the 8 elements of 'a' are taken",
    ),
    ({"x": Slice("a", dim=2), "y": "b"}, {}, "x: there is no dim 2"),
    ({"x": Concat(("a", "b"))}, {}, "x joins the shapes"),
    ({"x": Concat(())}, {}, "x is a Concat of nothing"),
    ({"x.*": "a.*", "y": "b"}, {}, "no stored name is like that"),
    ({"x.*": "a", "y": "b"}, {}, "allowed are the same stars"),
    ({"x": "a", "y": "b"}, {"x": (4, 3), "y": (4, 3)}, "x made of 'a' has the shape"),
    ({"x": "a", "y": "b"}, {"x": (4, 2)}, "the model has no 'y'"),
    ({"x": "a", "y": "b"}, {"x": (4, 2), "y": (4, 3), "z": (1,)}, "nothing makes 'z'"),
]


@pytest.mark.parametrize(("mapping", "expected", "message"), REFUSED)
def test_a_mapping_that_does_not_fit_is_refused(mapping, expected, message):
    with pytest.raises(InvalidRequestError) as caught:
        made_of({"a": (4, 2), "b": (4, 3)}, mapping, shapes=expected or None)
    assert message in str(caught.value)


def test_a_name_is_made_once():
    with pytest.raises(InvalidRequestError, match=r"x\.1 is made by 'x\.1' and by 'x\.\*'"):
        made_of({"a.1": (1,), "b": (1,)}, {"x.1": "b", "x.*": "a.*"})


def test_what_is_ignored_may_remain_unused():
    sizes = {"a": (4,), "b.1.freq": (2,), "b.2.freq": (2,)}
    assert list(made_of(sizes, ignore=["**.freq"])) == ["a"]
    made = made_of(sizes, {"x": Slice("a", 3)}, ignore=["a", "b.*.freq"])
    assert made["x"].shape == (3,)


def test_what_is_taken_several_times_counts_once():
    rules = {"x": "a", "tied": "a", "head": Slice("a", 2), "tail": Slice("a", start=1)}
    assert made_of({"a": (4, 2)}, rules).keys() == rules.keys()


def test_the_near_name_is_suggested():
    with pytest.raises(InvalidRequestError, match=r"did you mean 'model\.embed\.weight'"):
        made_of(HF, {"x": "model.embde.weight"})


def test_a_rank_that_holds_nothing_reads_nothing():
    sharding = Sharding.of(ParallelLayout.of(pp=2), pp=Stage(0))
    made = made_of({"a": (4,)})["a"]
    assert [len(reads(made, sharding, rank)) for rank in range(2)] == [1, 0]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_layout_is_refused(rank):
    sharding = Sharding.of(ParallelLayout.of(dp=2), dp=0)
    made = made_of({"a": (4,)})["a"]
    with pytest.raises(InvalidRequestError, match=f"rank {rank} is not .* allowed are 0 to 1"):
        reads(made, sharding, rank)
    with pytest.raises(InvalidRequestError, match=f"rank {rank} is not .* allowed are 0 to 1"):
        writes(made, {"a": sharding}, {"a": (4,)}, rank)


def test_a_value_without_dims():
    made = made_of({"step": ()})["step"]
    assert reads(made, Sharding.of(ParallelLayout.of(dp=2)), 1)[0].at == ()
