"""The nodes of a simulated cluster."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from schedulemesh.domain.labels import Labels
from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.errors import InvalidRequestError

#: The columns of a table of nodes; ``name`` may repeat, every other one is optional.
COLUMNS = ("name", "count", "cpu", "memory_gb", "gpu", "labels")
_MB_PER_GB = 1024.0


class NodeKind(msgspec.Struct, frozen=True, kw_only=True):
    """Some equal nodes."""

    #: Their names begin with this, followed by their numbers.
    name: str = "node"
    count: int = 1
    cpu: float = 0.0
    memory_gb: float = 0.0
    gpu: float = 0.0
    labels: Labels = {}

    @property
    def total(self) -> Resources:
        """The resources of one of them."""
        amounts = {"cpu": self.cpu, "memory": self.memory_gb * _MB_PER_GB, "gpu": self.gpu}
        return parse_resources({kind: amount for kind, amount in amounts.items() if amount})


def read_nodes(path: str | Path) -> list[NodeKind]:
    """The nodes of a CSV file with the columns ``COLUMNS``; labels are written as ``zone=a;disk=ssd``.

    Raises InvalidRequestError.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [_kind(row, path, number) for number, row in enumerate(csv.DictReader(file), 2)]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None


def _kind(row: dict[str, str], path: str | Path, line: int) -> NodeKind:
    unknown = [name for name in row if name not in COLUMNS]
    if unknown:
        raise InvalidRequestError(
            f"{path} has the unknown column {unknown[0]!r}; allowed are {', '.join(COLUMNS)}"
        )
    try:
        return NodeKind(
            name=row.get("name") or "node",
            count=int(row.get("count") or 1),
            cpu=float(row.get("cpu") or 0),
            memory_gb=float(row.get("memory_gb") or 0),
            gpu=float(row.get("gpu") or 0),
            labels=dict(
                pair.split("=", 1) for pair in (row.get("labels") or "").split(";") if pair
            ),
        )
    except ValueError as error:
        raise InvalidRequestError(f"{path}, line {line}: {error}") from None


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
