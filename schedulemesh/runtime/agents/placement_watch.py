"""Whether Ray places an actor: known within about a second, in a placement group within three, with the
reason if it does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from schedulemesh.domain.node import NodeReport
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.nodes import Node
from schedulemesh.runtime.backend import Backend, Handle, NodeView

logger = logging.getLogger(__name__)

#: Seconds to the first query about an actor's scheduling, and to the second, which must give the same: Ray
#: reports what is free on a node about every 0.1 s, so the room of a process that just ended appears as late.
_FIRST_S, _AGAIN_S = 0.5, 0.25
#: The same for an actor in a placement group, which is looked for in the queues of the raylets. The GCS asks
#: for those once a second (Ray's `gcs_pull_resource_loads_period_ms`), on a busy machine later: an earlier
#: query would be answered from the same copy, in which an actor is listed that has room since.
_AGAIN_IN_GROUP_S = 2.0
#: Seconds between further queries about an actor that has no process yet.
_EVERY_S = 1.0


async def unplaced(backend: Backend, handle: Handle, *, in_group: bool) -> None:
    """Return once Ray has had the actor wait for room for some time; never, where it gets a process."""
    wait_s, again_s = _FIRST_S, _AGAIN_IN_GROUP_S if in_group else _AGAIN_S
    seen = False
    while True:
        await asyncio.sleep(wait_s)
        try:
            view = await backend.actor(handle)
            if view is None or view.has_process:
                await asyncio.Event().wait()
            waits = await backend.waits_for_room(handle)
        except Exception:  # a start must not fail because Ray could not be asked about it
            logger.exception("cannot tell whether Ray has room for an actor")
            waits = False
        if waits and seen:
            return
        seen, wait_s = waits, again_s if waits else _EVERY_S


def external_use(node: Node, view: NodeView, not_placed: Resources) -> Resources:
    """The external usage of a node where Ray has not placed ``not_placed`` of what is allocated."""
    ours = node.total - node.external_usage - node.free - not_placed
    return (view.total - view.free - ours).beyond(NOTHING)


def seen_anew(
    state: MeshState, views: list[NodeView], node_id: str, not_placed: Resources
) -> tuple[NodeReport, ...]:
    """Reports of the living nodes, with the external usage of this one."""
    return tuple(
        NodeReport(
            node_id=view.node_id,
            total=view.total,
            labels=view.labels,
            external_usage=_external(state, view, not_placed) if view.node_id == node_id else None,
        )
        for view in views
    )


def no_room(node: Node, need: Resources, takers: Sequence[str] = ()) -> str:
    """Why Ray has not placed an actor with this need on a node; ``takers``: the Ray jobs that hold it."""
    total, others = _amounts(node.total), _amounts(node.external_usage)
    ours = _amounts(node.total - node.free - node.external_usage - need)
    shortages = "; ".join(
        f"of {kind} {total.get(kind, 0.0):g} there, other Ray work holds {others.get(kind, 0.0):g}, "
        f"ScheduleMesh {ours.get(kind, 0.0):g}, and it needs {amount:g}"
        for kind, amount in _amounts(need).items()
    )
    by = f"; in use by {', '.join(takers)}" if takers else ""
    return (
        f"Ray has no room for it on node {node.node_id}: {shortages}{by}. End some of that work, "
        "or submit it again later"
    )


def _amounts(resources: Resources) -> dict[str, float]:
    return {kind: amount / UNIT for kind, amount in resources.items()}


def _external(state: MeshState, view: NodeView, not_placed: Resources) -> Resources | None:
    node = state.cluster.nodes.get(view.node_id)
    return None if node is None else external_use(node, view, not_placed)
