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
