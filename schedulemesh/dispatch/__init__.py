"""Layouts, plans and data of parallel worker groups: who holds what, and who sends what to whom.

Pure: nothing here talks to a worker. A ``ParallelLayout`` names the axes of a group's ranks, a ``Sharding``
says what each axis does to one tensor, ``shard`` deals a batch out and ``Sharded.collect`` collects the
answers, and ``plan`` says how a tensor moves from one layout to another.
"""

from schedulemesh.dispatch.balance import balance
from schedulemesh.dispatch.holdings import Holdings, holdings
from schedulemesh.dispatch.jagged import Jagged
from schedulemesh.dispatch.layout import DEFAULT_ORDER, ParallelLayout
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
from schedulemesh.dispatch.reshard import assemble, give, reshard
from schedulemesh.dispatch.routes import Worker
from schedulemesh.dispatch.strategies import Dealt, Workers, deal
from schedulemesh.dispatch.trees import Sharded, gather, microbatches, shard

__all__ = [
    "DEFAULT_ORDER",
    "Assign",
    "Dealt",
    "Holdings",
    "Jagged",
    "ParallelLayout",
    "Piece",
    "Placement",
    "Plan",
    "Primary",
    "Replicate",
    "Segment",
    "Shard",
    "Sharded",
    "Sharding",
    "Stage",
    "Traffic",
    "Transfer",
    "Uneven",
    "Worker",
    "Workers",
    "assemble",
    "balance",
    "deal",
    "gather",
    "give",
    "holdings",
    "microbatches",
    "plan",
    "reshard",
    "shard",
]
