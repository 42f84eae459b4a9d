"""What the workers of a group say of themselves: the declarations of their methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schedulemesh.dispatch.declarations import MethodDeclaration, declarations
from schedulemesh.errors import InvalidRequestError


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker says of itself."""

    #: By method.
    declared: dict[str, MethodDeclaration]


def worker_facts(actor: Any) -> WorkerFacts:
    """Called in a worker's process with its actor: an agent's host, or an object of a plain Ray actor."""
    worker = getattr(actor, "_sm_object", actor)
    return WorkerFacts(declared=declarations(type(worker)))


def agreed(
    declared: Sequence[Mapping[str, MethodDeclaration]], agents: Sequence[str], group: str
) -> Mapping[str, MethodDeclaration]:
    """The declarations of a group's workers. Raises ``InvalidRequestError`` if they are not the same."""
    for agent, by_method in zip(agents, declared, strict=True):
        for method in sorted({*by_method, *declared[0]}):
            first, other = declared[0].get(method), by_method.get(method)
            if first != other:
                raise InvalidRequestError(
                    f"the workers of group {group} declare {method} differently: agent {agents[0]} as "
                    f"{_shown(first)}, agent {agent} as {_shown(other)}; allowed is one declaration"
                )
    return declared[0]


def _shown(declared: MethodDeclaration | None) -> str:
    if declared is None:
        return "nothing"
    return f"{declared.mode.value} (strategy {declared.strategy}, reduce {declared.reduce})"
