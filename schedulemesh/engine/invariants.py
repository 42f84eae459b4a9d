"""What must hold after every step; the tests call this after each, recovery once."""

from __future__ import annotations

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.resources import NOTHING, UNIT, Resources
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.state import MeshState


class BrokenInvariant(AssertionError):
    """The books contradict each other."""


def check(state: MeshState) -> None:
    """Raise BrokenInvariant, saying where, if any book contradicts another."""
    _check_ledger(state)
    _check_cluster(state)
    _check_running(state)
    _check_agents(state)


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenInvariant(what)


def _check_ledger(state: MeshState) -> None:
    """Every account is the sum of the shares of claims and holds, and never above its total."""
    zero = dict.fromkeys(state.ledger.accounts, NOTHING)
    reserved, used, lent, borrowed = dict(zero), dict(zero), dict(zero), dict(zero)

    def charge(book: dict[str, Resources], owner: str, pool: str, amount: Resources) -> None:
        book[owner] = book[owner] + amount
        if owner != pool:
            lent[owner] = lent[owner] + amount
            borrowed[pool] = borrowed[pool] + amount

    for agent in state.agents.values():
        for share in agent.shares:
            book = used if agent.committed else reserved
            charge(book, share.pool_name, agent.spec.pool_name, share.amount)
    for hold in state.ledger.holds.values():
        for share in hold.shares:
            charge(reserved, share.pool_name, hold.for_pool, share.amount)
    for name, account in state.ledger.accounts.items():
        told = (account.reserved, account.used, account.lent, account.borrowed)
        summed = (reserved[name], used[name], lent[name], borrowed[name])
        _expect(told == summed, f"pool {name}: account {told} is not the sum of claims {summed}")
        _expect(
            (account.reserved + account.used).fits(account.spec.resources),
            f"pool {name} is over-allocated",
        )
        _expect(not any(part.negative() for part in told), f"pool {name} has a negative amount")
    total_lent = sum((a.lent for a in state.ledger.accounts.values()), NOTHING)
    total_borrowed = sum((a.borrowed for a in state.ledger.accounts.values()), NOTHING)
    _expect(total_lent == total_borrowed, "loans do not balance")


def _check_cluster(state: MeshState) -> None:
    """What stands on a node and what is free make up its total; no device is given twice."""
    for node in state.cluster.nodes.values():
        held, reported = NOTHING, NOTHING
        on_device: dict[int, int] = {}
        for name, standing in node.standing.items():
            agent = state.agents.get(name)
            _expect(agent is not None, f"{name} stands on {node.node_id} but is not on the book")
            _expect(
                agent is not None and agent.node_id == node.node_id, f"{name} stands elsewhere too"
            )
            gpu = sum(units for _, units in standing.devices.units)
            held = held + standing.held + Resources(gpu=gpu)
            if standing.reported:
                reported = reported + standing.held + Resources(gpu=gpu)
                for i, units in standing.devices.units:
                    on_device[i] = on_device.get(i, 0) + units
        free = node.total - held - node.others_use
        _expect(node.free == free, f"node {node.node_id}: free is {node.free}, not {free}")
        _expect(node.free.gpu == sum(node.devices), f"node {node.node_id}: devices do not add up")
        _expect(all(units <= UNIT for units in node.devices), f"node {node.node_id}: a device grew")
        _expect(reported.fits(node.total), f"node {node.node_id} is over-allocated")
        _expect(
            max(on_device.values(), default=0) <= UNIT,
            f"node {node.node_id}: a device is given twice",
        )
    state.cluster.check_index()


def _check_running(state: MeshState) -> None:
    """Exactly the running tasks that nobody evicts are candidates, each in one class."""
    classes = state.running.classes.values()
    in_classes = [task_id for task_class in classes for _, _, task_id in task_class.timed]
    in_classes += [task_id for task_class in classes for _, task_id, _ in task_class.overdue]
    candidates = {
        task_id for task_id, task in state.running.by_id.items() if task.phase is TaskPhase.RUNNING
    }
    _expect(len(in_classes) == len(set(in_classes)), "a task is in two classes")
    _expect(set(in_classes) == candidates, "the classes are not the running tasks")
    for task_id, task in state.running.by_id.items():
        _expect(
            task_id in state.running.on_agent(task.agent_name), f"{task_id} is not on its agent"
        )


def _check_agents(state: MeshState) -> None:
    """Claims are whole once an agent starts; whoever waits has someone to wait for."""
    for name, agent in state.agents.items():
        _expect(name in state.agents_of[agent.spec.pool_name], f"{name} is not in its pool")
        if agent.phase is AgentPhase.WAITING:
            _expect(bool(agent.waits_for), f"{name} waits for nobody")
            for victim in agent.waits_for:
                leaving = state.agents.get(victim)
                _expect(
                    leaving is not None and leaving.leaves_for == name,
                    f"{name} waits for {victim}, which does not leave for it",
                )
        elif not (agent.phase is AgentPhase.ENDING and not agent.committed):
            _expect(agent.paid == agent.spec.resources, f"{name} runs on a claim that is not whole")
        _expect(
            agent.committed == (agent.started_at is not None), f"{name}: commit and start differ"
        )
