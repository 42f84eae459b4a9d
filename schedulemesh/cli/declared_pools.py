"""Pools that a file leaves out, which ``apply --prune`` deletes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schedulemesh.api.pools import DeletePool, ListPools
from schedulemesh.api.values import client_name
from schedulemesh.cli.changes import noted_result
from schedulemesh.cli.command import note
from schedulemesh.cli.exits import RefusedError
from schedulemesh.cli.gateway import Gateway
from schedulemesh.cli.texts import amounts
from schedulemesh.domain.sentences import Sentence, Text, say
from schedulemesh.protocol.answers import Listed, Response


def deletion(name: str, *, drain: bool = False, deadline_s: float | None = None) -> DeletePool:
    """The request that deletes a pool."""
    return DeletePool(name=name, drain=drain, deadline_s=deadline_s, client=client_name())


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """The pools that a file leaves out, each with what uses it in words; empty: nothing does."""

    left_out: Mapping[str, Sequence[Sentence]]
    #: Whether those in use are drained; False: they are refused.
    drain: bool

    @classmethod
    def of(cls, gateway: Gateway, declared: Mapping[str, object], *, drain: bool) -> PoolPlan:
        """The pools of a scheduler that are not declared, without those that are being deleted already."""
        rows = gateway.ask(ListPools(), Listed).rows
        return cls(
            left_out={
                row["name"]: _users(row)
                for row in rows
                if row["name"] not in declared and row["state"] != "ending"
            },
            drain=drain,
        )

    def differences(self) -> Iterator[dict[str, object]]:
        """A row for each pool, as differences are listed."""
        for name, users in self.left_out.items():
            result, current = say("declared_deleted"), say("declared_exists")
            if users:
                result = say("declared_drained" if self.drain else "declared_stays")
                current = say("declared_in_use", users=users)
            row = {"kind": "pool", "name": name, "field": "", "current": current}
            yield {**row, "declared": result}

    def carry_out(self, gateway: Gateway) -> Iterator[tuple[str, Text]]:
        """Each pool, and what became of it: one that is in use stays, which is printed on stderr."""
        for name in self.left_out:
            try:
                answer = gateway.ask(deletion(name, drain=self.drain), Response)
            except RefusedError as error:
                note(str(error))
                yield name, say("result_refused", reason=error.reason or "")
                continue
            yield name, noted_result(answer)


def _users(row: Mapping[str, Any]) -> list[Sentence]:
    """What uses a pool, from its row."""
    parts = []
    if row["agents"]:
        parts.append(say("declared_agents", count=len(row["agents"])))
    if row["queued"]:
        parts.append(say("declared_queued", count=row["queued"]))
    return parts + [
        say("declared_lent", amounts=amounts(amount), pool=other)
        for other, amount in row["lent_to"].items()
    ]
