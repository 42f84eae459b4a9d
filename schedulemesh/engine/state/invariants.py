"""What must hold after every step; the tests call this after each."""

from __future__ import annotations

from collections import Counter

from schedulemesh.domain.arrays import member_id
from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.resources import NOTHING, UNIT, Resources, sum_of
from schedulemesh.domain.task import TaskPhase
from schedulemesh.engine.state.agents import Agent, Ending, Running, Starting, Waiting
from schedulemesh.engine.state.fair_order import Entry
from schedulemesh.engine.state.groups import Group, GroupPhase, bundle_of, is_bundle
from schedulemesh.engine.state.lending import idle_of_tree, lendable, payment_for
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.need_index import Alike, LeastNeed, joined
from schedulemesh.engine.state.nodes import Node
from schedulemesh.engine.state.queue_classes import PoolQueue
from schedulemesh.engine.state.task_phases import Preempting


class BrokenInvariant(AssertionError):
    """The parts of the state contradict each other."""


def check(state: MeshState) -> None:
    """Raise BrokenInvariant, saying where, if two parts of the state contradict each other."""
    _check_ledger(state)
    _check_cluster(state)
    _check_running(state)
    _check_agents(state)
    _check_groups(state)
    _check_requests(state)
    _check_queue(state)
    _check_owners(state)
    _check_budgets(state)
    _check_children(state)
    _check_dependents(state)
    _check_arrays(state)


def _expect(holds: bool, what: str, *parts: object) -> None:
    """``what`` has a place for each of the parts: it is written out only where it is raised."""
    if not holds:
        raise BrokenInvariant(what.format(*parts))


def _check_queue(state: MeshState) -> None:
    """A task that waits does not run and holds nothing, and is in its pool's queue exactly once."""
    queue = state.queue
    for task_id, task in queue.by_id.items():
        _expect(task_id not in state.running.by_id, "task {} waits and runs", task_id)
        _expect(task.pool_name in state.ledger.accounts, "task {} waits in no pool", task_id)
        name = task.submission.agent.name
        _expect(queue.agent_names.get(name) == task_id, "agent {} belongs to another task", name)
    waits = all(task_id in queue.by_id for task_id in queue.agent_names.values())
    _expect(waits, "an agent's name belongs to a task that does not wait")
    for name, pool in queue.pools.items():
        entries = [entry for c in pool.classes.values() for entry in c.entries]
        entries += _check_owners_of_queue(state, name)
        _expect(bool(pool.size), "the queue of pool {} is empty", name)
        _expect(sorted(entries) == [*pool.ready], "the order of pool {} is not its classes'", name)
        later = {task_id for _, task_id in pool.later}
        specs = (queue.by_id[task_id].spec for task_id in later)
        of_owner = Counter(spec.owner for spec in specs if not spec.extra_of)
        _expect(of_owner == pool.later_of_owner, "owners of what may not start in {}", name)
        for task_id in (*(task_id for *_, task_id in entries), *later):
            task = queue.by_id[task_id]
            _expect(task.pool_name == name, "task {} is in two queues", task_id)
            _expect((task.queue_class is None) == (task_id in later), "task {} is ready", task_id)
        for queue_class in (*pool.classes.values(), *pool.withheld.values()):
            relevant = state.running.relevant(queue_class.labels)
            _expect(queue_class.relevant == relevant, "labels of a class of {}", name)
        _check_need_index(name, pool)
    sizes = sum(pool.size for pool in queue.pools.values())
    _expect(
        sizes == len(queue.by_id), "{} tasks wait, {} of them in pools", len(queue.by_id), sizes
    )


def _check_need_index(pool_name: str, pool: PoolQueue) -> None:
    """The classes of a pool by what they ask for are as if they were found anew."""
    if pool.by_need is None:
        _expect(not pool.apart, "classes of {} are apart from no index", pool_name)
        return
    apart = {c for c in pool.classes.values() if c.group is None}
    _expect(pool.apart.keys() == apart, "classes of {} that are in no group", pool_name)
    needs: dict[Alike, list[LeastNeed]] = {}
    for queue_class in pool.classes.values():
        if queue_class.group is not None and queue_class.entries:
            need = queue_class.least_need_at(queue_class.first)
            needs.setdefault(queue_class.group, []).append(need)
    groups = pool.by_need.groups
    _expect(groups.keys() == needs.keys(), "groups of {}", pool_name)
    for alike, group in groups.items():
        in_blocks = [need for block in group.blocks for need in block.needs]
        in_order = sorted(needs[alike], key=lambda need: need.first)
        _expect(in_blocks == in_order, "classes of a group of {}", pool_name)
        for block in group.blocks:
            _expect(block.least == joined(block.needs), "a block of a group of {}", pool_name)
            _expect(
                block.entries == [need.first for need in block.needs], "places in {}", pool_name
            )


def _check_owners_of_queue(state: MeshState, pool_name: str) -> list[Entry]:
    """Each class has of each owner's tasks the first ones that its limits permit; the entries of others."""
    queue, pool, others = state.queue, state.queue.pools[pool_name], list[Entry]()
    for queue_class in (*pool.classes.values(), *pool.withheld.values()):
        is_withheld = pool.withheld.get(queue_class.key) is queue_class
        _expect(is_withheld == (not queue_class.entries), "a class of {} is withheld", pool_name)
        _expect(bool(queue_class.owners) == (pool_name in state.owners.pools), "owners are counted")
        admitted = set(queue_class.entries)
        for owner, of_owner in queue_class.owners.items():
            tasks = [queue.by_id[task_id] for *_, task_id in of_owner.entries]
            _expect(all(t.spec.owner == owner for t in tasks), "a task of {} is another's", owner)
            room = (
                None if queue_class.exceeds else queue.room_of_class(pool_name, owner, queue_class)
            )
            _expect(of_owner.room == room, "{} has room for {}, not {}", owner, of_owner.room, room)
            size = of_owner.size if room is None else min(room, of_owner.size)
            _expect(of_owner.admitted == size, "{} of {} may start", of_owner.admitted, owner)
            first = list(of_owner.entries[:size])
            rest = of_owner.entries[size:]
            _expect(admitted.issuperset(first) and not admitted & set(rest), "{}'s entries", owner)
            of_class = [queue.by_id[task_id].spec.owner for *_, task_id in queue_class.entries]
            _expect(of_class.count(owner) == size, "{} in a class, {} of {}", of_class, size, owner)
            _expect(of_owner.size == size + len(rest), "{} has {} entries", owner, of_owner.size)
            others += rest
    return others


def _check_owners(state: MeshState) -> None:
    """What owners hold is the sum of the claims of their agents, in the pools that count owners."""
    owners = state.owners
    counting = {n: a.spec for n, a in state.ledger.accounts.items() if a.spec.counts_owners}
    _expect(owners.pools.keys() == counting.keys(), "{} count owners", sorted(owners.pools))
    _expect(owners.uses.keys() == counting.keys(), "owners of other pools are counted")
    for name, spec in counting.items():
        _expect(owners.pools[name].owner_limits == spec.owner_limits, "other limits of {}", name)
    for name, uses in owners.uses.items():
        agents = [state.agents[agent_name] for agent_name in state.agents_of[name]]
        for owner in {a.owner for a in agents if a.owner is not None} | uses.keys():
            claims = [agent.spec.counted for agent in agents if agent.owner == owner]
            use = uses[owner]
            summed = (sum_of(claims), len(claims))
            _expect((use.held, use.running) == summed, "{} holds {}, not {}", owner, use, summed)


def _check_budgets(state: MeshState) -> None:
    """Each budget is charged for the GPUs of the processes that exist; nothing that it holds may start."""
    budgets = state.budgets
    having = {name for name, account in state.ledger.accounts.items() if account.spec.has_budgets}
    _expect(budgets.by_pool.keys() == having, "{} have budgets", sorted(budgets.by_pool))
    spent = {name for name, pool in budgets.by_pool.items() if pool.is_spent}
    _expect(budgets.spent == spent, "{} have budgets that are spent", sorted(budgets.spent))
    for name, pool in budgets.by_pool.items():
        _expect(pool.spec == state.ledger.accounts[name].spec, "another definition of {}", name)
        _expect((pool.total is None) == (pool.spec.budget is None), "the budget of {}", name)
        agents = [state.agents[agent_name] for agent_name in state.agents_of[name]]
        for owner, _, meter in pool.meters():
            gpus = [
                agent.spec.resources.gpu
                for agent in agents
                if agent.committed and owner in (None, agent.charged_owner)
            ]
            _expect(
                meter.gpu == sum(gpus),
                "{} in {} uses {}, not {}",
                owner,
                name,
                meter.gpu,
                sum(gpus),
            )
        for task in state.queue.of_pool(name):
            holds = budgets.holds(name, task.spec.owner, task.need_of_class)
            _expect(not holds or task.queue_class is None, "{} may start", task.task_id)


def _check_children(state: MeshState) -> None:
    """Every task with a parent is among the children of a task that runs, and nobody else is."""
    expected: dict[str, dict[str, None]] = {}
    running = [task.spec for task in state.running.by_id.values()]
    for spec in (*running, *(task.spec for task in state.queue.by_id.values())):
        if spec.parent:
            expected.setdefault(spec.parent, {})[spec.task_id] = None
            _expect(spec.parent in state.running.by_id, "the parent of {} has ended", spec.task_id)
    children = state.running.children
    _expect(children.by_parent == expected, "children are {}, not {}", expected, children.by_parent)
    _expect(not children.orphans, "tasks {} have outlived their parents", list(children.orphans))


def _check_dependents(state: MeshState) -> None:
    """Whatever a waiting task starts after runs or waits, and knows of it; what can never start is known."""
    expected: dict[str, set[str]] = {}
    broken = set()
    for task_id, task in state.queue.by_id.items():
        for one in map(dependency, task.waits_for):
            _expect(
                state.is_alive(one.task_id),
                "task {} waits for {}, which has ended",
                task_id,
                one.task_id,
            )
            expected.setdefault(one.task_id, set()).add(task_id)
        if task.broken_by is not None:
            broken.add(task_id)
        _expect(task.queue_class is None or not task.depends, "task {} may start", task_id)
    dependents = state.queue.dependents
    noted = {task_id: set(others) for task_id, others in dependents.by_task.items()}
    _expect(noted == expected, "dependents are {}, not {}", expected, noted)
    _expect(set(dependents.broken) == broken, "tasks {} can never start", broken)
    _expect(not dependents.ended, "the ends of {} are not noted", list(dependents.ended))


def _check_arrays(state: MeshState) -> None:
    """Each member of an array waits, runs or has ended, and what it does is known; no more run than may."""
    live: dict[str, tuple[set[int], set[int]]] = {}
    for task in state.queue.by_id.values():
        if task.spec.array_id:
            live.setdefault(task.spec.array_id, (set(), set()))[0].add(task.spec.array_index or 0)
    for running in state.running.by_id.values():
        if running.spec.array_id:
            live.setdefault(running.spec.array_id, (set(), set()))[1].add(
                running.spec.array_index or 0
            )
    for array_id, one in state.arrays.by_id.items():
        waiting, running_now = live.pop(array_id, (set(), set()))
        if one.ended_at is not None:
            waiting, running_now = set(), set()
        _expect(waiting == set(one.waiting), "array {} has other members that wait", array_id)
        _expect(running_now == set(one.running), "array {} has other members that run", array_id)
        parts = [len(waiting), len(running_now), len(one.remaining), *map(len, one.ended.values())]
        _expect(
            sum(parts) == one.size, "array {} has {} members, not {}", array_id, one.size, parts
        )
        _expect(not one.most or one.with_agent <= one.most, "too many of array {} run", array_id)
        for index in one.leaving if one.ended_at is None else ():
            leaving = index not in running_now and member_id(one.agent_name, index) in state.agents
            _expect(leaving, "member {} of array {} has no agent, or runs", index, array_id)
        entry = one.ended_at is None and array_id in state.queue.by_id
        _expect(entry == bool(one.remaining), "array {} waits without members, or not", array_id)
        _expect((one.ended_at is None) == (not one.is_over), "array {} has ended, or not", array_id)
        ready = [array_id, *(member_id(array_id, index) for index in waiting)]
        for task_id in ready if one.is_full else ():
            entry_of = state.queue.by_id.get(task_id)
            _expect(entry_of is None or entry_of.queue_class is None, "{} may start", task_id)
    _expect(not state.arrays.over and not state.arrays.turned, "arrays have changed")


def _check_ledger(state: MeshState) -> None:
    """Every account is the sum of the shares of claims and holds; it is noted which are above their total."""
    zero = dict.fromkeys(state.ledger.accounts, NOTHING)
    reserved, used, lent, borrowed = dict(zero), dict(zero), dict(zero), dict(zero)

    loans: dict[tuple[str, str], Resources] = {}

    def charge(totals: dict[str, Resources], owner: str, pool: str, amount: Resources) -> None:
        totals[owner] = totals[owner] + amount
        if owner != pool:
            loans[owner, pool] = loans.get((owner, pool), NOTHING) + amount
            lent[owner] = lent[owner] + amount
            borrowed[pool] = borrowed[pool] + amount

    for agent in state.agents.values():
        for share in agent.shares:
            totals = used if agent.committed else reserved
            charge(totals, share.pool_name, agent.spec.pool_name, share.amount)
    for hold in state.ledger.holds.values():
        for share in hold.shares:
            charge(reserved, share.pool_name, hold.for_pool or share.pool_name, share.amount)
    for name, account in state.ledger.accounts.items():
        reported = (account.reserved, account.used, account.lent, account.borrowed)
        summed = (reserved[name], used[name], lent[name], borrowed[name])
        _expect(
            reported == summed,
            "pool {}: account {} is not the sum of claims {}",
            name,
            reported,
            summed,
        )
        _expect(
            bool(account.above) == (name in state.ledger.over_quota),
            "pool {} has {} above its quota",
            name,
            account.above,
        )
        _expect(
            not any(part.negative() for part in reported), "pool {} has a negative amount", name
        )
    total_lent = sum((a.lent for a in state.ledger.accounts.values()), NOTHING)
    total_borrowed = sum((a.borrowed for a in state.ledger.accounts.values()), NOTHING)
    _expect(total_lent == total_borrowed, "loans do not balance")
    _expect(
        state.ledger.loans == loans,
        "loans {} are not those of claims {}",
        state.ledger.loans,
        loans,
    )
    for root in list(state.ledger.idle_of_trees):
        below = state.ledger.cohorts.pools_below(root)
        idle = sum_of(lendable(state.ledger, name) for name in below)
        _expect(idle_of_tree(state.ledger, root) == idle, "{} is idle in cohort {!r}", idle, root)
    for key, payment in state.ledger.payments.items():
        _expect(payment == payment_for(state.ledger, key), "the payment of {} has changed", key)
    _check_cohorts(state)


def _check_cohorts(state: MeshState) -> None:
    """Every cohort that is named exists, and none is above itself."""
    cohorts = state.ledger.cohorts
    for name, spec in cohorts.specs.items():
        _expect(spec.parent is None or spec.parent in cohorts.specs, "{} has no parent", name)
        _expect(
            spec.parent is None or not cohorts.would_be_cycle(name, spec.parent),
            "cohort {} is above itself",
            name,
        )
    for name, account in state.ledger.accounts.items():
        path = cohorts.path(name)
        _expect(
            path[:1] == ((account.spec.cohort,) if account.spec.cohort else ()), "{}'s cohort", name
        )
        _expect(
            set(path) <= cohorts.specs.keys(), "pool {} is in a cohort that does not exist", name
        )


def _check_cluster(state: MeshState) -> None:
    """The allocations on a node and its free resources make up its total; no device is reported twice.

    The sum may exceed the total: an agent may report that it runs where one stands whose death nobody has
    reported yet.
    """
    for node in state.cluster.nodes.values():
        allocated = NOTHING
        on_device: dict[int, int] = {}
        for name, allocations in node.allocations.items():
            _check_allocation(state, node.node_id, name)
            gpu = sum(units for _, units in allocations.devices.units)
            allocated = allocated + allocations.held + Resources(gpu=gpu)
            if allocations.reported:
                for i, units in allocations.devices.units:
                    on_device[i] = on_device.get(i, 0) + units
        free = node.total - allocated - node.external_usage
        _expect(node.free == free, "node {}: free is {}, not {}", node.node_id, node.free, free)
        _expect(node.free.gpu == sum(node.devices), "node {}: devices do not add up", node.node_id)
        _expect(
            all(units <= UNIT for units in node.devices), "node {}: a device grew", node.node_id
        )
        _expect(
            max(on_device.values(), default=0) <= UNIT,
            "node {}: a device is given twice",
            node.node_id,
        )
    state.cluster.check_index()


def _check_allocation(state: MeshState, node_id: str, name: str) -> None:
    """An allocation belongs to an agent without a group or to a bundle; both name the node as theirs."""
    if is_bundle(name):
        group_id, bundle = bundle_of(name)
        group = state.groups.by_id.get(group_id)
        _expect(
            group is not None, "{} has an allocation on {} but does not exist", group_id, node_id
        )
        at = None if group is None else group.node_ids[bundle]
        _expect(
            at == node_id, "bundle {} of {} has an allocation on {} too", bundle, group_id, node_id
        )
        return
    agent = state.agents.get(name)
    _expect(agent is not None, "{} has an allocation on {} but does not exist", name, node_id)
    here = agent is not None and agent.is_on(node_id)
    _expect(here, "{} has an allocation elsewhere too", name)


def _check_groups(state: MeshState) -> None:
    """A group that is being created or is ready has its resources, and its agent refers to it."""
    state.groups.check()
    for group_id, group in state.groups.by_id.items():
        if group.phase in (GroupPhase.CREATING, GroupPhase.READY):
            _expect(_has_room(state, group), "group {} has not all its room", group_id)
        for waiter in group.waiters:
            claimer = state.agents.get(waiter)
            waits = claimer is not None and group_id in _groups_awaited_by(claimer)
            _expect(waits, "group {} leaves for {}, which does not wait for it", group_id, waiter)
        for name in (group.agent, group.promised_to):
            agent = state.agents.get(name or "")
            _expect(
                name is None or (agent is not None and agent.group_id == group_id),
                "group {} is {}'s, which runs elsewhere",
                group_id,
                name,
            )
    for name, agent in state.agents.items():
        _check_job_claim(state, name, agent)
        assignment = state.groups.by_id.get(agent.group_id or "")
        if assignment is not None:
            _expect(
                name in (assignment.agent, assignment.promised_to), "{} is not in its group", name
            )
        runs = isinstance(agent.phase, (Running, Waiting))
        _expect(
            not runs or agent.group_id is None or assignment is not None,
            "{} has lost its group",
            name,
        )
        awaited = _groups_awaited_by(agent)
        missing = awaited - set(state.groups.by_id)
        _expect(not missing, "{} waits for groups that are gone: {}", name, sorted(missing))
        for group_id in awaited - missing - {agent.group_id}:
            waiters = state.groups.by_id[group_id].waiters
            _expect(name in waiters, "{} leaves for {}, not for {}", group_id, waiters, name)


def _check_job_claim(state: MeshState, name: str, agent: Agent) -> None:
    """Wherever the claim of a job is, it is as large as was asked for."""
    group = state.groups.by_id.get(agent.group_id or "")
    if isinstance(agent.spec.payload, JobPayload) and group is not None:
        claimed, requested = group.shape.total, agent.spec.resources
        _expect(claimed == requested, "job {} claims {} instead of {}", name, claimed, requested)
        _expect(group.shape.virtual, "job {} is in a placement group", name)


def _groups_awaited_by(agent: Agent) -> frozenset[str]:
    return agent.phase.for_groups if isinstance(agent.phase, Waiting) else frozenset()


def _check_requests(state: MeshState) -> None:
    """Every open request will be answered: by the start or end of an agent or queued task, or an eviction."""
    agents = state.agents.values()
    answering = {a.submission.request_id for a in agents if a.submission is not None}
    answering |= {a.phase.request_id for a in agents if isinstance(a.phase, Ending)}
    tasks = state.running.by_id.values()
    answering |= {t.phase.request_id for t in tasks if isinstance(t.phase, Preempting)}
    answering |= {task.submission.request_id for task in state.queue.by_id.values()}
    for request_id, agent_name in state.requests.items():
        _expect(request_id in answering, "nobody will answer {} about {}", request_id, agent_name)


def _has_room(state: MeshState, group: Group) -> bool:
    nodes = state.cluster.nodes
    return all(
        node_id not in nodes or _held(nodes[node_id], group.key(i)) == group.shape.bundles[i]
        for i, node_id in enumerate(group.node_ids)
    )


def _held(node: Node, key: str) -> Resources:
    allocations = node.allocations.get(key)
    if allocations is None:
        return NOTHING
    return allocations.held + Resources(gpu=sum(units for _, units in allocations.devices.units))


def _check_running(state: MeshState) -> None:
    """Exactly the running tasks that nobody evicts are candidates, each in one class."""
    classes = state.running.classes.values()
    in_classes = [task_id for task_class in classes for task_id in task_class.task_ids()]
    candidates = {
        task_id for task_id, task in state.running.by_id.items() if task.phase is TaskPhase.RUNNING
    }
    _expect(len(in_classes) == len(set(in_classes)), "a task is in two classes")
    _expect(set(in_classes) == candidates, "the classes are not the running tasks")
    with_end = sum(task.has_end for task in state.running.by_id.values())
    _expect(state.running.with_end == with_end, "the tasks with a known end are not counted")
    limited = sum(len(task_class.limits) for task_class in classes)
    has_limit = [i for i in candidates if state.running.by_id[i].max_run_s is not None]
    _expect(limited == len(has_limit), "the tasks with a time limit are not counted")
    due = [task_id for _, task_id in state.running.limits_due]
    _expect(sorted(due) == sorted(has_limit), "not every time limit has something due")
    warned = {i for i, task in state.running.by_id.items() if task.idle_since is not None}
    _expect(set(state.running.idle_warned) == warned, "not every idle task is known")
    for task_id, task in state.running.by_id.items():
        _expect(
            task_id in state.running.on_agent(task.agent_name), "{} is not on its agent", task_id
        )


def _check_agents(state: MeshState) -> None:
    """Claims are whole once an agent starts; whoever waits has someone to wait for."""
    for name, agent in state.agents.items():
        _expect(name in state.agents_of[agent.spec.pool_name], "{} is not in its pool", name)
        phase = agent.phase
        if isinstance(phase, Waiting):
            _check_waiting(state, name, phase)
        elif not (isinstance(phase, Ending) and isinstance(phase.previous, Starting)):
            _expect(agent.paid == agent.spec.quota, "{} runs on a claim that is not whole", name)


def _check_waiting(state: MeshState, name: str, waiting: Waiting) -> None:
    """Whatever it waits for leaves for it."""
    _expect(bool(waiting.for_agents or waiting.for_groups), "{} waits for nobody", name)
    incoming = state.agents[name]
    promised = sum_of(share.amount for share in waiting.promised)
    _expect(
        incoming.paid + promised == incoming.spec.quota,
        "{} has {} and gets {} of {}",
        name,
        incoming.paid,
        promised,
        incoming.spec.quota,
    )
    loans = tuple(s for s in waiting.promised if s.pool_name != incoming.spec.pool_name)
    noted = state.ledger.promises.get(name, ("", ()))[1]
    _expect(noted == loans, "{} is promised the loans {}, and {} are noted", name, loans, noted)
    for victim in waiting.for_agents:
        agent = state.agents.get(victim)
        leaving = None if agent is None else agent.phase
        _expect(
            isinstance(leaving, Ending) and name in leaving.waiters,
            "{} waits for {}, which does not leave for it",
            name,
            victim,
        )
