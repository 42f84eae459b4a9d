"""Tasks that were admitted, give their claims back before they run, and wait in the queue again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from schedulemesh.domain.end_reasons import ReturnReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages import stimuli as s
from tests.engine.builders import Mesh, node, pool

GANG = {"bundles": ({"cpu": 4}, {"cpu": 4}), "payload": GangPayload(strategy="STRICT_SPREAD")}
TWO = (node("a", cpu=4), node("b", cpu=4))
LENDING = {"cohort": "all"}


def _with_victims(kind: type[Mesh], **task: object) -> Mesh:
    """``t`` waits for what runs on both nodes, or on one of them."""
    mesh = kind(pool("p", cpu=8), nodes=TWO)
    for name in ("v1", "v2"):
        mesh.queue(name, cpu=4, on_preempted="requeue", class_key="c")
        mesh.report(name)
    mesh.queue("t", priority=9.0, class_key="c", **task)
    return mesh


def _victim_of_t(mesh: Mesh) -> tuple[str, str]:
    (name,) = mesh.ends
    return name, mesh.state.agents[name].node_id or ""


def node_lost(kind: type[Mesh]) -> Mesh:
    """The node dies on which room is made."""
    mesh = _with_victims(kind, cpu=4)
    victim, node_id = _victim_of_t(mesh)
    mesh.observe(*(each for each in TWO if each.node_id != node_id))
    mesh.leave(victim)
    return mesh


def gang_node_lost(kind: type[Mesh]) -> Mesh:
    """One of the nodes dies on which room is made for a gang."""
    mesh = _with_victims(kind, **GANG)
    mesh.observe(TWO[0])
    return mesh


def node_drained(kind: type[Mesh]) -> Mesh:
    """The node is drained on which room is made."""
    mesh = _with_victims(kind, cpu=4)
    victim, node_id = _victim_of_t(mesh)
    mesh.handle(s.DrainRequested(node_id=node_id, drained=True, client="host:1"))
    mesh.leave(victim)
    return mesh


def pool_drained(kind: type[Mesh]) -> Mesh:
    """Its pool is drained while room is made."""
    mesh = _with_victims(kind, cpu=4)
    victim, _ = _victim_of_t(mesh)
    mesh.handle(s.DrainRequested(pool_name="p", drained=True, client="host:1"))
    mesh.leave(victim)
    return mesh


def room_taken(kind: type[Mesh]) -> Mesh:
    """Ray has no room for its process."""
    mesh = kind(pool("p", cpu=8), nodes=TWO)
    mesh.queue("t", cpu=4, class_key="c")
    mesh.fail("t", Reason.CLUSTER_OUT_OF_RESOURCES)
    return mesh


def started_on_a_lost_node(kind: type[Mesh]) -> Mesh:
    """Its process has not begun when its node dies, so that Ray has no room for it."""
    mesh = kind(pool("p", cpu=8), nodes=TWO)
    mesh.queue("t", cpu=4, class_key="c")
    node_id = mesh.state.agents["t"].node_id
    mesh.observe(*(each for each in TWO if each.node_id != node_id))
    mesh.fail("t", Reason.CLUSTER_OUT_OF_RESOURCES)
    return mesh


def group_not_placed(kind: type[Mesh]) -> Mesh:
    """Ray does not place its group in time."""
    mesh = kind(pool("p", cpu=8), nodes=TWO)
    mesh.queue("t", class_key="c", **GANG)
    mesh.unmake(*mesh.makes)
    return mesh


def _lent(kind: type[Mesh]) -> Mesh:
    pools = (pool(name, gpu=8, cpu=64, lending=LENDING) for name in ("a", "b"))
    return kind(*pools, nodes=[node("n1", gpu=16, cpu=64)])


def taken_back_while_it_waits(kind: type[Mesh]) -> Mesh:
    """An owner takes back what it borrows while its victims leave."""
    mesh = _lent(kind)
    for name in ("x", "y"):
        mesh.queue(name, "b", 1.0, gpu=8, on_preempted="requeue", class_key="c")
        mesh.report(name)
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("t", "b", 9.0, gpu=16, class_key="c")
    mesh.queue("owner", "a", gpu=8)
    return mesh


def being_taken_back(kind: type[Mesh]) -> Mesh:
    """An owner takes back what it borrows while its process starts, which is being ended."""
    mesh = _lent(kind)
    mesh.queue("t", "b", 9.0, gpu=16)
    mesh.queue("owner", "a", gpu=8)
    return mesh


def taken_back_while_it_starts(kind: type[Mesh]) -> Mesh:
    """The same, when the process has ended."""
    mesh = being_taken_back(kind)
    mesh.leave("t")
    return mesh


def gone_while_it_waits(kind: type[Mesh]) -> Mesh:
    """It is reported gone before it has a process."""
    mesh = _with_victims(kind, cpu=4)
    mesh.die("t")
    return mesh


class Cause(NamedTuple):
    """What makes ``t`` return, and the reason that is recorded."""

    happen: Callable[[type[Mesh]], Mesh]
    reason: ReturnReason


CAUSES = (
    Cause(node_lost, ReturnReason.ROOM_LOST),
    Cause(gang_node_lost, ReturnReason.ROOM_LOST),
    Cause(started_on_a_lost_node, ReturnReason.ROOM_LOST),
    Cause(gone_while_it_waits, ReturnReason.ROOM_LOST),
    Cause(node_drained, ReturnReason.DRAINED),
    Cause(pool_drained, ReturnReason.DRAINED),
    Cause(room_taken, ReturnReason.ROOM_TAKEN),
    Cause(group_not_placed, ReturnReason.ROOM_TAKEN),
    Cause(taken_back_while_it_waits, ReturnReason.QUOTA_TAKEN_BACK),
    Cause(taken_back_while_it_starts, ReturnReason.QUOTA_TAKEN_BACK),
)
