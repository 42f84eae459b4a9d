"""Planning a move of a model of many tensors between large groups, without Ray: what the driver computes."""

from __future__ import annotations

import time

from benchmarks.rows import Row, at_most
from schedulemesh.core.worker_groups.array_trees import ArrayMark
from schedulemesh.core.worker_groups.move_bundles import arranged
from schedulemesh.core.worker_groups.move_plan import planned
from schedulemesh.core.worker_groups.shards import Form, Held
from schedulemesh.dispatch import ParallelLayout, Sharding, Workers, holdings

#: The forms of the tensors of a layer of a transformer, in units of the width of the model.
LAYER = ((1, 1), (1, 1), (1, 1), (1, 1), (4, 1), (4, 1), (1, 4), (1, 1), (1, 1), (1, 1))
#: Ranks of the source, ranks along tp of the destination, and the mark in seconds.
CASES = ((128, 8, 1.0), (256, 8, 3.0))
WIDTH = 4096


class _Group(Workers, frozen=True, kw_only=True):
    start: int

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(range(self.start, self.start + self.layout.size))

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{rank}" for rank in self.ranks)


def many_tensors(tensors: int = 300) -> list[Row]:
    """The time to plan and to arrange the objects of a move from FSDP to tensor-parallel replicas."""
    return [_case(ranks, tp, mark, tensors) for ranks, tp, mark in CASES]


def _case(ranks: int, tp: int, mark: float, tensors: int) -> Row:
    rows = Sharding.of(ParallelLayout.of(dp=ranks), dp=0)
    columns = Sharding.of(ParallelLayout.of(tp=tp, dp=ranks // tp), tp=1)
    shapes = {
        str(number): tuple(WIDTH * size for size in LAYER[number % len(LAYER)])
        for number in range(tensors)
    }
    held = {rank: _held(rank, rows, shapes) for rank in range(ranks)}
    source = _Group(name="fsdp", layout=rows.layout, start=0)
    destination = _Group(name="rollout", layout=columns.layout, start=ranks)
    began = time.perf_counter()
    made = planned(source, destination, rows, columns, held, shapes, "model")
    found = arranged(made.tensors, ["a"] * ranks, ["b"] * ranks)
    wanted = [found.targets_of(rank) for rank in range(ranks)]
    took = time.perf_counter() - began
    return at_most(
        f"plan {tensors} tensors, FSDP {ranks} → tp={tp}, dp={ranks // tp}",
        took,
        mark,
        " s",
        f"{len(found.objects):,} objects, {sum(map(len, wanted)):,} kinds of arrays",
    )


def _held(rank: int, sharding: Sharding, shapes: dict[str, tuple[int, ...]]) -> Held:
    return Held(
        forms={
            (path,): Form(
                shape=holdings(sharding, shape).local_shape(rank) or (),
                dtype="bfloat16",
                itemsize=2,
                library="torch",
            )
            for path, shape in shapes.items()
        },
        outline=dict.fromkeys(shapes, ArrayMark()),
        shapes={},
        samples={},
        node="a",
    )
