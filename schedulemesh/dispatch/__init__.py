"""Computes which rank of parallel worker groups holds what, and which rank sends what to which other.

Pure: nothing here communicates with a worker. A ``ParallelLayout`` names the axes of a group's ranks, a
``Sharding`` defines what each axis does to one tensor, ``shard`` distributes a batch and ``Sharded.collect``
collects the results, and ``plan`` computes how a tensor moves from one layout to another.
"""

from schedulemesh.dispatch.balance import balance
from schedulemesh.dispatch.batches import Sharded, microbatches, shard
from schedulemesh.dispatch.collecting import Reduction
from schedulemesh.dispatch.declarations import Dispatch, dispatch
from schedulemesh.dispatch.holdings import Holdings, holdings
from schedulemesh.dispatch.jagged import Jagged
from schedulemesh.dispatch.key_mapping import Concat, Slice, fused_qkv, separate_qkv
from schedulemesh.dispatch.layout import DEFAULT_ORDER, ParallelLayout
from schedulemesh.dispatch.moving import apply_plan, assemble, give
from schedulemesh.dispatch.pieces import Piece, Segment
from schedulemesh.dispatch.placement import (
    Assign,
    Placement,
    Primary,
    Replicate,
    Shard,
    Sharding,
    Stage,
    Uneven,
)
from schedulemesh.dispatch.plan import Plan, Traffic, Transfer, plan
from schedulemesh.dispatch.routes import Worker
from schedulemesh.dispatch.stored import Made, Region, made_of, reads, writes
from schedulemesh.dispatch.strategies import Scattered, Workers, scatter
from schedulemesh.dispatch.trees import gather

__all__ = [
    "DEFAULT_ORDER",
    "Assign",
    "Concat",
    "Dispatch",
    "Holdings",
    "Jagged",
    "Made",
    "ParallelLayout",
    "Piece",
    "Placement",
    "Plan",
    "Primary",
    "Reduction",
    "Region",
    "Replicate",
    "Scattered",
    "Segment",
    "Shard",
    "Sharded",
    "Sharding",
    "Slice",
    "Stage",
    "Traffic",
    "Transfer",
    "Uneven",
    "Worker",
    "Workers",
    "apply_plan",
    "assemble",
    "balance",
    "dispatch",
    "fused_qkv",
    "gather",
    "give",
    "holdings",
    "made_of",
    "microbatches",
    "plan",
    "reads",
    "scatter",
    "separate_qkv",
    "shard",
    "writes",
]
