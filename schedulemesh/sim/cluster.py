"""The nodes of a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.numbers import parse_count
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.tables import Cells, as_float, as_int, as_pairs, csv_table

#: The columns of a table of nodes; ``name`` may repeat, every other one is optional.
COLUMNS = ("name", "count", "cpu", "memory_gb", "gpu", "labels")
_MB_PER_GB = 1024.0


class NodeKind(msgspec.Struct, frozen=True, kw_only=True):
    """Some equal nodes. Raises InvalidRequestError for values that are not allowed."""

    #: Their names begin with this, followed by their numbers.
    name: str = "node"
    count: int = 1
    cpu: float = 0.0
    memory_gb: float = 0.0
    gpu: float = 0.0
    labels: Labels = {}

    def __post_init__(self) -> None:
        """Check the count, the amounts and the labels."""
        parse_count(self.count, "count")
        parse_labels(self.labels)
        _ = self.total

    @property
    def total(self) -> Resources:
        """The resources of one of them."""
        amounts = {"cpu": self.cpu, "memory": self.memory_gb * _MB_PER_GB, "gpu": self.gpu}
        return parse_resources({kind: amount for kind, amount in amounts.items() if amount})


def read_nodes(path: str | Path) -> list[NodeKind]:
    """The nodes of a CSV file with the columns ``COLUMNS``; labels are written as ``zone=a;disk=ssd``.

    Raises InvalidRequestError.
    """
    columns, rows = csv_table(Path(path))
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InvalidRequestError(
            f"{path} has the unknown column {unknown[0]!r}; allowed are {', '.join(COLUMNS)}"
        )
    return [_kind(place, cells) for place, cells in rows]


def _kind(place: str, cells: Cells) -> NodeKind:
    try:
        return NodeKind(
            name=cells.get("name") or "node",
            count=as_int(cells.get("count") or "1", "count"),
            cpu=as_float(cells.get("cpu") or "0", "cpu"),
            memory_gb=as_float(cells.get("memory_gb") or "0", "memory_gb"),
            gpu=as_float(cells.get("gpu") or "0", "gpu"),
            labels=as_pairs(cells.get("labels") or "", "labels"),
        )
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{place}: {error}") from None


def reports(kinds: Iterable[NodeKind]) -> tuple[NodeReport, ...]:
    """Every node as Ray would report it; names sort in the order of the table."""
    return tuple(_numbered(list(kinds)))


def _numbered(kinds: list[NodeKind]) -> Iterator[NodeReport]:
    digits = len(str(sum(kind.count for kind in kinds)))
    number = 0
    for kind in kinds:
        for _ in range(kind.count):
            yield NodeReport(
                node_id=f"{number:0{digits}}-{kind.name}", total=kind.total, labels=kind.labels
            )
            number += 1
