"""A move between groups, with the agents in this process: what each takes is what cutting the whole gives."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.core.worker_groups.move_plan import planned
from schedulemesh.core.worker_groups.resharding import _bundled, _rounds, _wanted
from schedulemesh.core.worker_groups.shard_holder import ShardHolder
from schedulemesh.core.worker_groups.shards import TakeOrder, tree_of
from schedulemesh.dispatch import ParallelLayout, Shard, Sharding, shard
from schedulemesh.dispatch.strategies import Workers
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import ALL_MODES, SPLITTING, shapes, shardings

np = pytest.importorskip("numpy")

FOUR = ParallelLayout.of(dp=4)


class Group(Workers, frozen=True, kw_only=True):
    """A group whose first worker has this number."""

    start: int = 0

    @property
    def workers(self):
        return tuple(range(self.start, self.start + self.layout.size))

    @property
    def agents(self):
        return tuple(f"{self.name}-{rank}" for rank in self.ranks)


def held(parts):
    """Agents that hold these parts, and what they say of them."""
    agents, forms = [], {}
    for rank, part in enumerate(parts):
        agents.append(ShardHolder())
        agents[-1].keep_shards(part, "w")
        for path, form in agents[-1].describe_shards("w").items():
            forms.setdefault(path, {})[rank] = form
    return agents, forms


def move(tree, source, destination, shapes, *, start=1000, round_bytes=1 << 30):
    """What each destination rank holds after a move."""
    givers, forms = held(shard(tree, source).parts)
    src = Group(name="src", layout=FOUR if isinstance(source, dict) else source.layout)
    dst = Group(name="dst", layout=destination.layout, start=start)
    takers = [
        givers[dst.workers[rank]] if dst.workers[rank] < len(givers) else ShardHolder()
        for rank in dst.ranks
    ]
    tensors = list(planned(src, dst, source, destination, forms, shapes, "w"))
    rounds = list(_rounds(tensors, round_bytes))
    came = sum(carry_out(some, givers, takers, some is rounds[-1]) for some in rounds)
    assert came == sum(each.plan.bytes_moved for each in tensors)
    return [taker.shards("w") for taker in takers]


def carry_out(tensors, givers, takers, last):
    """Gives first, then takes, as Ray orders them; what is given is copied."""
    bundles, local = _bundled(tensors, len(takers))
    given = [
        crossed(givers[bundle.source].give_shards("w", [bundle.gives])[1]) for bundle in bundles
    ]
    came = 0
    for rank, taker in enumerate(takers):
        mine = [at for at, bundle in enumerate(bundles) if rank in bundle.takes]
        order = TakeOrder(
            move_id="one",
            source_key="w",
            key="w",
            wanted=tuple(_wanted(each, rank) for each in tensors),
            local=tuple(local[rank]),
            bundles=tuple(tuple(bundles[at].takes[rank]) for at in mine),
            last=last,
        )
        came += taker.take_shards(order, *(given[at] for at in mine))
    return came


def crossed(value):
    return pickle.loads(pickle.dumps(value, protocol=5))


def same(found, expected):
    if expected is None:
        assert found is None
    else:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)


@settings(deadline=None)  # the time that an example takes depends on what else runs on the machine
@given(st.data())
def test_any_move_gives_what_cutting_the_whole_gives(data):
    shape = data.draw(shapes())
    source = data.draw(shardings(shape, SPLITTING))
    destination = data.draw(shardings(shape, ALL_MODES))
    start = data.draw(st.sampled_from([0, 1, 1000]))
    whole = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    found = move(whole, source, destination, shape, start=start)
    for mine, expected in zip(found, shard(whole, destination).parts, strict=True):
        same(mine, expected)


@pytest.mark.parametrize("round_bytes", [1, 500, 1 << 30])
def test_rounds_bring_a_tree_together(round_bytes):
    tree = {"a": np.arange(64).reshape(8, 8), "b": {"c": np.arange(8.0)}}
    rows = Sharding.of(FOUR, dp=0)
    columns = Sharding.of(ParallelLayout.of(dp=2), dp=-1)
    found = move(tree, rows, columns, None, start=2, round_bytes=round_bytes)
    for mine, expected in zip(found, shard(tree, columns).parts, strict=True):
        same(mine["a"], expected["a"])
        same(mine["b"]["c"], expected["b"]["c"])


@pytest.mark.parametrize("uneven", ["uneven", "chunk", "drop_last"])
@pytest.mark.parametrize("zigzag", [False, True])
def test_the_shape_of_the_whole_is_worked_out(uneven, zigzag):
    rows = Sharding.of(FOUR, dp=Shard(0, uneven, zigzag=zigzag))
    _, forms = held(shard(np.zeros((19, 3)), rows).parts)
    group = Group(name="src", layout=FOUR)
    (tensor,) = planned(
        group, Group(name="dst", layout=FOUR, start=4), rows, rows, forms, None, "w"
    )
    kept = 16 if uneven == "drop_last" else 19
    assert tensor.plan.shape == (kept, 3)


def test_ranks_must_hold_arrays_of_one_kind():
    _, forms = held([np.zeros(2, np.int8), *[np.zeros(2, np.int16)] * 3])
    rows = Sharding.of(FOUR, dp=0)
    group = Group(name="src", layout=FOUR)
    with pytest.raises(
        InvalidRequestError, match=r"rank 1 holds numpy <i2, another rank numpy \|i1"
    ):
        list(planned(group, group, rows, rows, forms, None, "w"))


def test_a_round_takes_at_least_one_tensor():
    rows = Sharding.of(FOUR, dp=0)
    tree = {name: np.zeros(8) for name in "abc"}
    _, forms = held(shard(tree, rows).parts)
    src, dst = Group(name="src", layout=FOUR), Group(name="dst", layout=FOUR, start=4)
    tensors = list(planned(src, dst, rows, rows, forms, None, "w"))
    assert [len(some) for some in _rounds(tensors, 1)] == [1, 1, 1]
    assert [len(some) for some in _rounds(tensors, 128)] == [2, 1]


def test_an_abandoned_move_leaves_nothing_behind():
    agent = ShardHolder()
    agent.keep_shards({"old": np.zeros(1)}, "w")

    def take(move_id, last):
        agent.take_shards(
            TakeOrder(
                move_id=move_id,
                source_key="w",
                key="w",
                wanted=tuple(_wanted(each, 0) for each in made(move_id)),
                local=(),
                bundles=(),
                last=last,
            )
        )

    take("abandoned", last=False)
    assert list(agent.shards("w")) == ["old"]
    take("whole", last=True)
    assert list(agent.shards("w")) == ["whole"]


def made(name):
    """The plan of one tensor of this name, which nobody needs to be sent."""
    one = ParallelLayout.of()
    group = Group(name="g", layout=one)
    whole = Sharding(layout=one)
    _, forms = held([{name: np.zeros(0)}])
    return list(planned(group, group, whole, whole, forms, None, "w"))


def test_only_arrays_and_dicts_of_them_are_moved():
    agent = ShardHolder()
    agent.keep_shards({"a": {"b": [1, 2]}}, "w")
    with pytest.raises(InvalidRequestError, match="at a/b lies list"):
        agent.describe_shards("w")
    assert agent.describe_shards("other") == {}
    with pytest.raises(
        InvalidRequestError, match=r"nothing is held under 'other'; there are \['w'\]"
    ):
        agent.shards("other")


def test_trees_are_put_together_from_paths():
    assert tree_of({("a", "b"): 1, ("a", "c"): 2, ("d",): 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert tree_of({(): 1}) == 1
