"""Moves between groups whose agents are in this process."""

import pickle

import numpy as np

from schedulemesh.core.worker_groups.move_bundles import arranged
from schedulemesh.core.worker_groups.move_plan import has_replicas, in_rounds, planned
from schedulemesh.core.worker_groups.shard_holder import ShardHolder
from schedulemesh.core.worker_groups.shards import KeepOrder, OpenOrder, TakeOrder
from schedulemesh.dispatch import shard
from schedulemesh.dispatch.strategies import Workers
from schedulemesh.dispatch.trees import shardings_of


class Group(Workers, frozen=True, kw_only=True):
    """A group whose first worker has this number."""

    start: int = 0

    @property
    def workers(self):
        return tuple(range(self.start, self.start + self.layout.size))

    @property
    def agents(self):
        return tuple(f"{self.name}-{rank}" for rank in self.ranks)


def held(parts, samples=True):
    """Agents that hold these parts, and what they say of them."""
    agents, found = [], {}
    for rank, part in enumerate(parts):
        agents.append(ShardHolder())
        agents[-1].keep_shards(part, "w")
        found[rank] = crossed(agents[-1].describe_shards("w", samples))
    return agents, found


def move(
    tree, source, destination, shapes, *, start=1000, round_bytes=1 << 30, nodes=1, share=False
):
    """What each destination rank holds after a move; the ranks of each side are spread over nodes.

    ``share``: those of one node share memory.
    """
    parts = shard(tree, source).parts
    return moved(parts, source, destination, shapes, start, round_bytes, nodes, share=share)


def moved(
    parts, source, destination, shapes, start=1000, round_bytes=1 << 30, nodes=1, *, share=False
):
    """What each destination rank holds after a move of these parts."""
    givers, described = held(parts, has_replicas(source))
    src = Group(name="src", layout=shardings_of(source)[0].layout)
    dst = Group(name="dst", layout=shardings_of(destination)[0].layout, start=start)
    takers = [
        givers[dst.workers[rank]] if dst.workers[rank] < len(givers) else ShardHolder()
        for rank in dst.ranks
    ]
    made = planned(src, dst, source, destination, described, shapes, "w")
    places = [[str(rank % nodes) for rank in group.ranks] for group in (src, dst)]
    rounds = list(in_rounds(made.tensors, round_bytes))
    came = sum(
        carry_out(arranged(some, *places, share_memory=share), givers, takers, share=share)
        for some in rounds
    )
    assert came == sum(each.plan.bytes_moved for each in made.tensors)
    order = KeepOrder(
        move_id="one", key="w", version=1, rounds=len(rounds), outline=made.outline, shapes={}
    )
    for taker in takers:
        taker.commit_shards(crossed(order))
    return [taker.shards("w") for taker in takers]


def carry_out(found, givers, takers, *, share=False):
    """Gives first, then takes, as Ray orders them; what is given is copied."""
    came = written(found, givers, takers) if share else 0
    given = [
        crossed(givers[each.source].give_shards("w", [each.slices])[1]) for each in found.objects
    ]
    for rank, taker in enumerate(takers):
        mine = [at for at, each in enumerate(found.objects) if rank in each.copies]
        order = TakeOrder(
            move_id="one",
            source_key="w",
            into="w",
            targets=None if share else found.targets_of(rank),
            local=tuple(found.local.get(rank, ())),
            bundles=tuple(found.objects[at].bundle(rank) for at in mine),
        )
        came += taker.take_shards(crossed(order), *(given[at] for at in mine))
    return came


def written(found, givers, takers):
    """The givers write into new arrays of the takers; returns the bytes."""
    opened = [
        crossed(
            taker.open_shards(
                crossed(OpenOrder(move_id="one", into="w", targets=found.targets_of(rank)))
            )
        )
        for rank, taker in enumerate(takers)
    ]
    return sum(
        sum(givers[rank].write_shards("w", crossed(mine)).values())
        for rank, mine in found.writes(opened).items()
    )


def crossed(value):
    return pickle.loads(pickle.dumps(value, protocol=5))


def same(found, expected):
    if expected is None:
        assert found is None
    else:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
