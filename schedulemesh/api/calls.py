"""All calls, from every module that declares some."""

from __future__ import annotations

from schedulemesh.api import (
    agents,
    audit,
    cluster,
    history,
    jobs,
    leases,
    metrics,
    nodes,
    pages,
    policies,
    pools,
    preemption,
    queue,
    states,
    tasks,
    tokens,
)
from schedulemesh.api.call import Call, declared_by
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: Every call.
CALLS: tuple[type[Call], ...] = tuple(
    call
    for module in (
        agents,
        audit,
        cluster,
        history,
        jobs,
        leases,
        metrics,
        nodes,
        pages,
        policies,
        pools,
        preemption,
        queue,
        states,
        tasks,
        tokens,
    )
    for call in declared_by(module)
)
#: Those that may change the state.
CHANGES = tuple(call for call in CALLS if call.changes_state)


def check_change(name: str) -> None:
    """Raise InvalidRequestError for what is no name of a call that may change the state."""
    names = [str(call.__struct_config__.tag) for call in CHANGES]
    if name not in names:
        raise InvalidRequestError(
            f"there is no change {shown(name)}{nearest(name, names)}; there are {', '.join(sorted(names))}"
        )
