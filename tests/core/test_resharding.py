"""A move between groups, with the agents in this process: what each takes is what cutting the whole gives."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.core.worker_groups.array_trees import ArrayMark, filled, outline
from schedulemesh.core.worker_groups.move_bundles import arranged
from schedulemesh.core.worker_groups.move_plan import has_replicas, in_rounds, planned
from schedulemesh.core.worker_groups.shard_holder import ShardHolder
from schedulemesh.core.worker_groups.shards import KeepOrder, TakeOrder, TargetTensors, form_of
from schedulemesh.dispatch import ParallelLayout, Shard, Sharding, shard
from schedulemesh.errors import InvalidRequestError
from tests.core.moves import Group, carry_out, crossed, held, move, moved, same
from tests.dispatch.strategies import ALL_MODES, SPLITTING, shapes, shardings

np = pytest.importorskip("numpy")

FOUR = ParallelLayout.of(dp=4)


def plan_of(parts, source, destination=None, shapes=None, *, start=1000, key="w"):
    """The plan to move these parts to other agents."""
    layout = FOUR if isinstance(source, dict) else source.layout
    destination = source if destination is None else destination
    src = Group(name="src", layout=layout)
    dst = Group(name="dst", layout=destination.layout, start=start)
    return planned(src, dst, source, destination, held(parts)[1], shapes, key)


@given(st.data())
def test_any_move_gives_what_cutting_the_whole_gives(data):
    shape = data.draw(shapes())
    source = data.draw(shardings(shape, SPLITTING))
    destination = data.draw(shardings(shape, ALL_MODES))
    start = data.draw(st.sampled_from([0, 1, 1000]))
    whole = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    nodes, share = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    found = move(whole, source, destination, shape, start=start, nodes=nodes, share=share)
    for mine, expected in zip(found, shard(whole, destination).parts, strict=True):
        same(mine, expected)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("round_bytes", [1, 500, 1 << 30])
def test_rounds_bring_a_tree_together(round_bytes, share):
    tree = {"a": np.arange(64).reshape(8, 8), "b": {"c": np.arange(8.0)}}
    rows = Sharding.of(FOUR, dp=0)
    columns = Sharding.of(ParallelLayout.of(dp=2), dp=-1)
    shapes = {"a": (8, 8), "b/c": (8,)}
    found = move(tree, rows, columns, shapes, start=2, round_bytes=round_bytes, share=share)
    for mine, expected in zip(found, shard(tree, columns).parts, strict=True):
        same(mine["a"], expected["a"])
        same(mine["b"]["c"], expected["b"]["c"])


@pytest.mark.parametrize("uneven", ["uneven", "chunk", "drop_last"])
@pytest.mark.parametrize("zigzag", [False, True])
def test_the_shape_of_the_whole_is_asked_for_and_proposed(uneven, zigzag):
    rows = Sharding.of(FOUR, dp=Shard(0, uneven, zigzag=zigzag))
    kept = 16 if uneven == "drop_last" else 19
    with pytest.raises(
        InvalidRequestError, match=rf"the parts make \({kept}, 3\). Give shapes={{'': …}}"
    ):
        plan_of(shard(np.zeros((19, 3)), rows).parts, rows)


def test_the_model_may_know_the_shape_of_the_whole():
    class Model(ShardHolder):
        def whole_shapes(self, key):
            return {"": [8, 3]}

    rows = Sharding.of(FOUR, dp=0)
    agents = [Model() for _ in range(4)]
    for agent in agents:
        agent.keep_shards(np.zeros((2, 3)), "w")
    described = {rank: agent.describe_shards("w", False) for rank, agent in enumerate(agents)}
    group = Group(name="src", layout=FOUR)
    (tensor,) = planned(group, group, rows, rows, described, None, "w").tensors
    assert tensor.plan.shape == (8, 3)
    agents[2].whole_shapes = lambda key: {"": (9, 3)}
    described[2] = agents[2].describe_shards("w", False)
    with pytest.raises(InvalidRequestError, match=r"shape \(8, 3\) as whole on one rank, \(9, 3\)"):
        planned(group, group, rows, rows, described, None, "w")


def test_a_spec_that_forgets_or_mislabels_an_axis_is_refused():
    """Ranks that the spec takes for replicas hold different elements."""
    layout = ParallelLayout.of(tp=2, dp=2)
    parts = shard(np.arange(64).reshape(8, 8), Sharding.of(layout, tp=0, dp=1)).parts
    for wrong, shape in ((Sharding.of(layout, tp=0), (8, 4)), (Sharding.of(layout, dp=0), (8, 4))):
        with pytest.raises(
            InvalidRequestError, match="hold the same elements, but their values differ"
        ):
            plan_of(parts, wrong, shapes=shape)
    halves = shard(np.arange(8.0), Sharding.of(layout, tp=0)).parts
    with pytest.raises(InvalidRequestError, match=r"ranks 0 and 1 \(agents src-0 and src-1\)"):
        plan_of(halves, Sharding.of(layout, dp=0), shapes=(8,))
    with pytest.raises(InvalidRequestError, match=r"holds shape \(4, 4\); of \(8, 8\) its part"):
        plan_of(parts, Sharding.of(layout, tp=0, dp=0), shapes=(8, 8))


def test_padding_of_replicas_may_differ():
    layout = ParallelLayout.of(tp=2, dp=2)
    padded = Sharding.of(layout, dp=Shard(0, "pad"))
    parts = [np.array([1, 2]), np.array([1, 2]), np.array([3, 7]), np.array([3, 8])]
    assert len(plan_of(parts, padded, shapes=(3,)).tensors) == 1


def test_samples_are_asked_for_where_ranks_hold_the_same():
    pairs = ParallelLayout.of(tp=2, dp=2)
    assert has_replicas(Sharding.of(pairs, dp=0))
    assert has_replicas({"a": Sharding.of(pairs, dp=0, tp=1), "b": Sharding(layout=pairs)})
    assert not has_replicas(Sharding.of(pairs, dp=0, tp=1))
    assert not has_replicas(Sharding.of(ParallelLayout.of(tp=1, dp=2), dp=0))


def test_ranks_must_hold_arrays_of_one_kind():
    parts = [np.zeros(2, np.int8), *[np.zeros(2, np.int16)] * 3]
    with pytest.raises(
        InvalidRequestError, match=r"rank 1 holds numpy <i2, another rank numpy \|i1"
    ):
        plan_of(parts, Sharding.of(FOUR, dp=0), shapes=(8,))


def test_a_round_takes_at_least_one_tensor():
    rows = Sharding.of(FOUR, dp=0)
    tree = {name: np.zeros(8) for name in "abc"}
    shapes = dict.fromkeys("abc", (8,))
    tensors = plan_of(shard(tree, rows).parts, rows, shapes=shapes).tensors
    assert [len(some) for some in in_rounds(tensors, 1)] == [1, 1, 1]
    assert [len(some) for some in in_rounds(tensors, 128)] == [2, 1]


def test_many_tensors_of_one_form_make_one_object_for_each_receiver():
    tree = {f"layer{n}": np.arange(64.0).reshape(8, 8) + n for n in range(20)}
    rows, columns = Sharding.of(FOUR, dp=0), Sharding.of(ParallelLayout.of(dp=2), dp=1)
    shapes = dict.fromkeys(tree, (8, 8))
    made = plan_of(shard(tree, rows).parts, rows, columns, shapes)
    far = arranged(made.tensors, ["a"] * 4, ["b", "c"])
    assert sorted((each.source, each.destinations) for each in far.objects) == [
        (source, (rank,)) for source in range(4) for rank in range(2)
    ]
    near = arranged(made.tensors, ["a"] * 4, ["a", "a"])
    assert sorted((each.source, each.destinations) for each in near.objects) == [
        (source, (0, 1)) for source in range(4)
    ]
    for mine, expected in zip(
        move(tree, rows, columns, shapes), shard(tree, columns).parts, strict=True
    ):
        for name in tree:
            same(mine[name], expected[name])


def test_nothing_is_stored_before_all_ranks_have_everything():
    rows, columns = Sharding.of(FOUR, dp=0), Sharding.of(FOUR, dp=1)
    whole = np.arange(16.0).reshape(4, 4)
    givers, described = held(shard(whole, rows).parts)
    src, dst = Group(name="src", layout=FOUR), Group(name="dst", layout=FOUR, start=1000)
    takers = [ShardHolder() for _ in dst.ranks]
    for taker in takers:
        taker.keep_shards("old", "w")
    made = planned(src, dst, rows, columns, described, (4, 4), "w")
    carry_out(arranged(made.tensors, [""] * 4, [""] * 4), givers, takers)
    assert [taker.shards("w") for taker in takers] == ["old"] * 4
    assert [taker.shard_version("w") for taker in takers] == [None] * 4
    takers[0].drop_shards("w", "one")
    order = KeepOrder(
        move_id="one", key="w", version=7, rounds=1, outline=made.outline, shapes={"": (4, 4)}
    )
    with pytest.raises(InvalidRequestError, match="was dropped"):
        takers[0].commit_shards(order)
    takers[1].commit_shards(order)
    assert takers[1].shards("w").tolist() == whole[:, 1:2].tolist()
    assert takers[1].shard_version("w") == 7
    assert takers[1].whole_shapes("w") == {"": (4, 4)}
    takers[1].keep_shards(np.zeros(2), "w")
    assert takers[1].whole_shapes("w") == {}


def round_of(agent, move_id, key, path):
    """A further round of a move, which brings an array at a path."""
    target = TargetTensors(paths=((path,),), form=form_of(np.zeros(2)), fill=1.0)
    order = TakeOrder(
        move_id=move_id, source_key="w", into=key, targets=(target,), local=(), bundles=()
    )
    agent.take_shards(order)


def completed(agent, move_id, key, rounds):
    """What an agent holds after a move that brought the paths "0", "1", ... in so many rounds."""
    tree = outline({str(number): np.zeros(2) for number in range(rounds)})
    agent.commit_shards(
        KeepOrder(move_id=move_id, key=key, version=1, rounds=rounds, outline=tree, shapes={})
    )
    return {path: array.tolist() for path, array in agent.shards(key).items()}


def test_a_new_move_to_a_key_forgets_one_that_was_abandoned():
    agent = ShardHolder()
    round_of(agent, "abandoned", "w", "0")
    round_of(agent, "next", "w", "0")
    with pytest.raises(InvalidRequestError, match=r"abandoned was dropped.*another move to 'w'"):
        completed(agent, "abandoned", "w", 1)
    assert completed(agent, "next", "w", 1) == {"0": [1.0, 1.0]}


def test_of_moves_at_a_time_to_one_key_none_is_stored_in_part():
    agent = ShardHolder()
    round_of(agent, "one", "w", "0")
    round_of(agent, "two", "w", "0")
    round_of(agent, "one", "w", "1")
    for move_id in ("two", "one"):
        with pytest.raises(InvalidRequestError, match=f"{move_id} was dropped"):
            completed(agent, move_id, "w", 2)
    with pytest.raises(InvalidRequestError, match="nothing is held"):
        agent.shards("w")


def test_moves_at_a_time_to_different_keys_are_both_stored():
    agent = ShardHolder()
    for path in ("0", "1"):
        round_of(agent, "one", "actor", path)
        round_of(agent, "two", "critic", path)
    assert completed(agent, "one", "actor", 2) == {"0": [1.0, 1.0], "1": [1.0, 1.0]}
    assert completed(agent, "two", "critic", 2) == {"0": [1.0, 1.0], "1": [1.0, 1.0]}


OPTIMIZER = {
    "state": {
        0: {"step": np.array(3.0), "exp_avg": np.arange(16.0).reshape(8, 2)},
        1: {"step": np.array(3.0), "exp_avg": -np.arange(8.0)},
    },
    "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "foreach": None}],
}


def test_the_state_of_an_optimizer_moves_with_its_values():
    def specs(layout, axis):
        return {
            "state": {
                "*": {"step": Sharding(layout=layout), "exp_avg": Sharding.of(layout, **axis)}
            },
            "param_groups": Sharding(layout=layout),
        }

    pair = ParallelLayout.of(dp=2)
    source, destination = specs(FOUR, {"dp": 0}), specs(pair, {"dp": 0})
    givers, described = held(shard(OPTIMIZER, source).parts)
    src, dst = Group(name="src", layout=FOUR), Group(name="dst", layout=pair, start=1000)
    takers = [ShardHolder(), ShardHolder()]
    shapes = {"state/0/exp_avg": (8, 2), "state/1/exp_avg": (8,)}
    made = planned(src, dst, source, destination, described, shapes, "w")
    carry_out(arranged(made.tensors, [""] * 4, [""] * 2), givers, takers)
    order = KeepOrder(move_id="one", key="w", version=1, rounds=1, outline=made.outline, shapes={})
    for rank, taker in enumerate(takers):
        taker.commit_shards(crossed(order))
        found = taker.shards("w")
        assert found["param_groups"] == OPTIMIZER["param_groups"]
        assert found["state"][1]["step"] == 3.0
        same(found["state"][0]["exp_avg"], OPTIMIZER["state"][0]["exp_avg"][4 * rank :][:4])


def test_values_beside_arrays_must_be_the_same_on_all_ranks():
    parts = [{"w": np.zeros(2), "step": rank // 3} for rank in range(4)]
    with pytest.raises(InvalidRequestError, match="at step rank 0 holds 0, rank 3 1; values"):
        plan_of(parts, Sharding.of(FOUR, dp=0), shapes={"w": (8,)})
    with pytest.raises(InvalidRequestError, match="at w rank 0 holds an array, rank 1 5"):
        plan_of([{"w": np.zeros(2)}, {"w": 5}] * 2, Sharding.of(FOUR, dp=0), shapes={"w": (8,)})


@pytest.mark.parametrize(
    "dtype", [[("a", "<i4"), ("b", "<f8", (2,))], "<M8[s]", "|S3", "<U2", ">i2", "?", "<c16"]
)
def test_any_dtype_arrives_as_it_was(dtype):
    whole = np.zeros((8, 3), dtype)
    if whole.dtype.names:
        whole["a"] = np.arange(24).reshape(8, 3)
    else:
        whole[...] = np.arange(24).reshape(8, 3).astype(whole.dtype)
    columns = Sharding.of(ParallelLayout.of(dp=3), dp=1)
    found = move(whole, Sharding.of(FOUR, dp=0), columns, (8, 3))
    for mine, expected in zip(found, shard(whole, columns).parts, strict=True):
        same(mine, expected)


def test_what_cannot_be_moved_is_refused_by_path():
    agent = ShardHolder()
    agent.keep_shards({"a": {"hook": [len]}}, "w")
    with pytest.raises(InvalidRequestError, match="at a/hook/0 lies a builtin_function_or_method"):
        agent.describe_shards("w", True)
    assert agent.describe_shards("other", True) is None
    with pytest.raises(
        InvalidRequestError, match=r"nothing is held under 'other'; there are \['w'\]"
    ):
        agent.shards("other")


RECORDS = np.zeros(2, [("a", "<i4"), ("b", "<f8")])


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([1, "x"], object), "of Python objects"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "a mask"),
        (RECORDS[["b", "a"]], "lie apart"),
    ],
)
def test_arrays_that_cannot_be_moved_are_refused_by_path(array, what):
    agent = ShardHolder()
    agent.keep_shards({"a": array}, "w")
    with pytest.raises(InvalidRequestError, match=f"at a lies .*{what}"):
        agent.describe_shards("w", True)


def test_tensors_that_cannot_be_moved_are_refused_by_path():
    torch = pytest.importorskip("torch")
    agent = ShardHolder()
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        agent.keep_shards({"a": tensor}, "w")
        with pytest.raises(InvalidRequestError, match=r"at a lies .* strided"):
            agent.describe_shards("w", True)


@pytest.mark.parametrize("share", [False, True])
def test_tensors_of_one_element_may_have_any_stride(share):
    torch = pytest.importorskip("torch")
    pair = ParallelLayout.of(dp=2, tp=2)
    parts = [torch.arange(4.0).reshape(2, 2)[at : at + 1, 0] for at in (0, 0, 1, 1)]
    assert parts[0].stride() == (2,)
    found = moved(parts, Sharding.of(pair, dp=0), Sharding(layout=pair), (2,), share=share)
    assert [part.tolist() for part in found] == [[0.0, 2.0]] * 4


def test_a_tensor_that_is_saved_takes_its_own_bytes_alone():
    torch = pytest.importorskip("torch")
    pair = ParallelLayout.of(dp=2)
    tree = {str(number): torch.zeros(64) for number in range(32)}
    found = move(tree, Sharding.of(pair, dp=0), Sharding.of(pair, dp=0), (64,), share=True)
    assert {part["3"].untyped_storage().nbytes() for part in found} == {32 * 4}


def test_an_agent_that_has_moved_can_be_copied():
    rows, columns = Sharding.of(FOUR, dp=0), Sharding.of(FOUR, dp=1)
    givers, described = held(shard(np.arange(16.0).reshape(4, 4), rows).parts)
    src, dst = Group(name="src", layout=FOUR), Group(name="dst", layout=FOUR, start=1000)
    takers = [ShardHolder() for _ in dst.ranks]
    made = planned(src, dst, rows, columns, described, (4, 4), "w")
    found = arranged(made.tensors, [""] * 4, [""] * 4, share_memory=True)
    for _ in range(2):
        carry_out(found, givers, takers, share=True)
        givers, takers = pickle.loads(pickle.dumps((givers, takers)))


def test_outlines_keep_everything_but_the_arrays():
    tree = {"a": [np.zeros(2), (1, None)], 3: "x"}
    found = outline(tree)
    assert found == {"a": [ArrayMark(), (1, None)], 3: "x"}
    assert filled(found, {("a", 0): 5}) == {"a": [5, (1, None)], 3: "x"}
    assert filled(ArrayMark(), {(): 1}) == 1


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("value", [None, -1, 300, "x"])
def test_padding_is_a_value_of_the_dtype(value, share):
    source = Sharding.of(FOUR, dp=0)
    padded = Sharding.of(ParallelLayout.of(dp=3), dp=Shard(0, "pad"), pad_value=value)
    with pytest.raises(InvalidRequestError, match="a: pad_value="):
        move({"a": np.zeros(4, np.uint8)}, source, padded, (4,), share=share)
