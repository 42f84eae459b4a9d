"""Distributes a batch to the ranks of a layout, and joins it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schedulemesh.dispatch.collecting import Reductions, collect
from schedulemesh.dispatch.layout import ParallelLayout
from schedulemesh.dispatch.placement import Shard, Sharding, Uneven
from schedulemesh.dispatch.trees import Spec, gather, kind, split
from schedulemesh.errors import InvalidRequestError, nearest


class Sharded(msgspec.Struct, frozen=True, eq=False):
    """A batch that has been distributed, and the information needed to join it again."""

    #: What each rank holds, as a tree like the batch; None if a rank holds nothing of a leaf. Ranks that
    #: hold the same of every leaf share one object, which needs to be sent only once.
    parts: tuple[Any, ...]
    spec: Any
    #: A tree like the batch with the shape of each leaf.
    shapes: Any

    def gather(self) -> Any:
        """The batch again: equal to the original, without the elements that ``drop_last`` dropped.

        Leaves that no axis splits are returned unchanged; others are new arrays.
        """
        return gather(self.parts, self.spec, self.shapes)

    def collect(
        self, outputs: Sequence[Any], *, like: str | None = None, reduce: Reductions = None
    ) -> Any:
        """The results of the ranks, by rank, as one batch; see ``collecting.collect``."""
        return collect(outputs, self.parts, self.spec, self.shapes, like=like, reduce=reduce)


def shard(data: Any, spec: Spec) -> Sharded:
    """Distributes the batch to the ranks of the spec's layout.

    Parts of arrays are views of ``data`` if they are one run per dim without padding. An error names the
    path of the leaf.
    """
    parts, shapes = split(data, spec)
    return Sharded(parts, spec, shapes)


def microbatches(
    data: Any, count: int, *, dim: int = 0, uneven: Uneven = "error", whole: Sequence[str] = ()
) -> Sharded:
    """The batch in ``count`` microbatches along ``dim``: ``parts`` in order; ``gather`` joins them.

    ``whole`` names the top-level keys that every microbatch gets as a whole; an unknown one is refused.
    Microbatches are views.
    """
    _check_keys(whole, data)
    layout = ParallelLayout.of("microbatch", microbatch=count)
    parted = Sharding.of(layout, microbatch=Shard(dim, uneven))
    if not whole:
        return shard(data, parted)
    return shard(data, {**{key: Sharding(layout=layout) for key in whole}, "*": parted})


def _check_keys(names: Sequence[str], data: Any) -> None:
    if isinstance(names, str):
        raise InvalidRequestError(
            f"whole={names!r}; allowed is a list of keys, such as [{names!r}]"
        )
    data_keys = data if isinstance(data, Mapping) else ()
    for key in names:
        if key not in data_keys:
            raise InvalidRequestError(
                f"whole names {key!r}{nearest(str(key), map(str, data_keys))}; allowed are keys of the data, "
                f"which has {kind(data)}"
            )
