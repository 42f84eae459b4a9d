"""Admission: where a submission goes, who pays, and who must leave for it.

One transaction: the answer is either a claim on both books, reserved as far as it is free now and promised
from the victims that leave for it, or a refusal that changed nothing.
"""

from __future__ import annotations

import msgspec

from schedulemesh.domain.agent import AgentPhase
from schedulemesh.domain.labels import Labels
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.engine import explain
from schedulemesh.engine.cluster import Node, devices_for
from schedulemesh.engine.consent import ask
from schedulemesh.engine.domains import submitted_view
from schedulemesh.engine.facts import (
    AgentAdmitted,
    AgentEnding,
    Devices,
    EvictionStarted,
    GroupClaimed,
    HoldShrank,
    TaskRegistered,
)
from schedulemesh.engine.group_life import end as end_group
from schedulemesh.engine.group_life import make
from schedulemesh.engine.group_life import plan as plan_group
from schedulemesh.engine.group_life import whole
from schedulemesh.engine.group_victims import GroupPlan, GroupSearch
from schedulemesh.engine.homes import Home, NoHome, Wish, find_home, idle_for_node, wish_of
from schedulemesh.engine.instructions import EvictAgent, StartAgent
from schedulemesh.engine.ledger import Account, Payment, pay
from schedulemesh.engine.outcomes import (
    Accepted,
    Pending,
    ProbeNeeded,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.preemption import Consent, Incoming
from schedulemesh.engine.state import MeshState, Preempted
from schedulemesh.engine.stimuli import TaskSubmitted
from schedulemesh.engine.strategies import Strategies
from schedulemesh.engine.turn import Turn
from schedulemesh.engine.victims import Plan, Search, Unit, evicted
from schedulemesh.plugins.scheduling import TaskView

_NO_DEVICES = Devices()
#: Why a victim of a submission ends.
PREEMPTED = "preempted"


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A submission whose pool is known: what it asks for, where, and how it is paid."""

    stimulus: TaskSubmitted
    pool_name: str
    need: Resources
    payment: Payment
    #: A node with room as things are; None: there is none, or none is to be chosen.
    node: Node | None
    by_node: bool
    #: In a pool that keeps placement groups: what is asked of them, and what is to be had for nothing.
    wish: Wish | None = None
    home: Home | NoHome | None = None

    @property
    def homeless(self) -> bool:
        """Whether somebody must leave before it has a place to run."""
        return self.by_node or isinstance(self.home, NoHome)

    @property
    def incoming(self) -> Incoming:
        """The task as the preemption rules see it; an agent without a task has the default priority."""
        task = self.stimulus.task
        if task is None:
            return Incoming(
                priority=DEFAULT_PRIORITY,
                pool_name=self.pool_name,
                labels=self.stimulus.agent.labels,
            )
        return Incoming(priority=task.priority, pool_name=self.pool_name, labels=task.labels)


def submit(turn: Turn, stimulus: TaskSubmitted) -> RequestOutcome:
    """Admit, refuse, or say what is missing; a repeated request gets its first answer."""
    state, request_id = turn.state, stimulus.request_id
    if request_id is not None:
        if request_id in state.answers:
            return state.answers[request_id].outcome
        if request_id in state.requests:
            return Pending(agent_name=state.requests[request_id])
    request = _understand(turn, _prioritised(turn, stimulus))
    if isinstance(request, Refused):
        outcome: RequestOutcome = request
    else:
        outcome = _decide(turn, request)
    if stimulus.dry_run or isinstance(outcome, ProbeNeeded):
        return outcome
    return turn.answer(request_id, outcome)


def _prioritised(turn: Turn, stimulus: TaskSubmitted) -> TaskSubmitted:
    """With the priority that a strategy gives the task, which is shown the one that was asked for."""
    if stimulus.task is None or not turn.strategies.asks("priority"):
        return stimulus
    asked = stimulus.task.as_asked()
    view = _view(msgspec.structs.replace(stimulus, task=asked), stimulus.agent.pool_name)
    priority = turn.strategies.priority(view)
    if priority is None:
        return stimulus
    if priority != asked.priority:
        asked = msgspec.structs.replace(asked, priority=priority, asked_priority=asked.priority)
    return msgspec.structs.replace(stimulus, task=asked)


def _view(stimulus: TaskSubmitted, pool_name: str, need: Resources | None = None) -> TaskView:
    """The submission as strategies see it."""
    if need is None and not stimulus.default_resources:
        need = stimulus.agent.resources
    return submitted_view(stimulus.agent, stimulus.task, need, pool_name)


def pool_for(state: MeshState, strategies: Strategies, stimulus: TaskSubmitted) -> str | None:
    """The pool that takes a submission; None: there is none for it."""
    agent = stimulus.agent
    if agent.pool_name:
        return agent.pool_name
    given = None if stimulus.default_resources else agent.resources
    view = _view(stimulus, "") if strategies.plugins else None
    workload = state.cluster.workload
    return strategies.choose_pool(state.ledger, stimulus.selector, given, view, workload)


def _understand(turn: Turn, stimulus: TaskSubmitted) -> Request | Refused:
    """Find pool, need, payment and node, or the reason why that cannot be."""
    state, agent = turn.state, stimulus.agent
    given = None if stimulus.default_resources else agent.resources
    pool_name: str | None = agent.pool_name
    if not pool_name:
        pool_name = pool_for(state, turn.strategies, stimulus)
        if pool_name is None:
            return explain.no_matching_pool(state)
    account = state.ledger.accounts.get(pool_name)
    if account is None:
        return explain.pool_not_found(state, pool_name)
    if (duplicate := _duplicate(state, stimulus)) is not None:
        return duplicate
    need = account.spec.default_agent() if given is None else given
    if not need.fits(account.spec.resources):
        return explain.exceeds_pool_capacity(state, pool_name, need)
    if (contradiction := _contradiction(stimulus, account)) is not None:
        return contradiction
    if account.spec.groups is not None:
        return _in_a_group(state, stimulus, account, need)
    node = None
    if by_node := stimulus.choose_node and state.nodes_known:
        view = _view(stimulus, pool_name, need) if turn.strategies.plugins else None
        node = turn.strategies.choose_node(state.cluster, need, view)
        if node is None and not state.cluster.could_ever(need):
            return explain.cluster_out_of_resources(state, need)
    return Request(
        stimulus=stimulus,
        pool_name=pool_name,
        need=need,
        payment=pay(state.ledger, pool_name, need),
        node=node,
        by_node=by_node and node is None,
    )


def _contradiction(stimulus: TaskSubmitted, account: Account) -> Refused | None:
    """The refusal of a wish for groups in a pool that keeps none, or against those that it keeps."""
    name = account.spec.name
    if account.spec.groups is None:
        if stimulus.for_group or len(stimulus.agent.bundles) > 1:
            return explain.no_pg_pool(name)
        return None
    return None if stimulus.choose_node else explain.conflicting_options(name)


def _in_a_group(
    state: MeshState, stimulus: TaskSubmitted, account: Account, need: Resources
) -> Request | Refused:
    """A request in a pool that keeps placement groups, with the group that it may have."""
    task, spec = stimulus.task, account.spec.groups
    request = Request(
        stimulus=stimulus,
        pool_name=account.spec.name,
        need=need,
        payment=pay(state.ledger, account.spec.name, need),
        node=None,
        by_node=False,
    )
    if spec is None:
        return request
    wish = wish_of(
        account.spec.name,
        spec,
        stimulus.agent.bundles or (need,),
        DEFAULT_PRIORITY if task is None else task.priority,
        stimulus.agent.labels if task is None else task.labels,
    )
    home = find_home(state, wish)
    if isinstance(home, NoHome) and not home.could_ever:
        return explain.group_out_of_resources(state, wish.shape)
    return msgspec.structs.replace(request, wish=wish, home=home)


def _duplicate(state: MeshState, stimulus: TaskSubmitted) -> Refused | None:
    """The refusal of a task id or an agent name that is taken."""
    task = stimulus.task
    if task is not None and task.task_id in state.running.by_id:
        on = state.running.by_id[task.task_id].agent_name
        return Refused(
            reason="duplicate_task",
            error=f"task {task.task_id!r} is already on the book, on agent {on!r}; "
            "complete it first or choose another id",
        )
    if stimulus.agent.name in state.agents:
        return Refused(
            reason="duplicate_agent",
            error=f"agent {stimulus.agent.name!r} already exists; delete it first or choose another name",
        )
    return None


def _decide(turn: Turn, request: Request) -> RequestOutcome:
    """Admit with what is free, or with victims, or refuse."""
    if not request.payment.short and not request.homeless:
        if request.stimulus.dry_run:
            return _would_run(turn.state, request, None)
        return _admit(turn, request, None)
    consent = _consent(turn, request)
    plan: Plan | GroupPlan | None = _without_idle(turn, request)
    if plan is None and request.stimulus.may_preempt:
        plan = _search(turn, request, consent)
    if plan is None:
        return _no_victim(turn, request, consent)
    if request.stimulus.dry_run:
        return _would_run(turn.state, request, plan)
    class_key = request.stimulus.agent.class_key
    if plan.units and class_key and class_key not in turn.state.loaded:
        return ProbeNeeded(class_key=class_key)
    return _admit(turn, request, plan)


def _without_idle(turn: Turn, request: Request) -> Plan | None:
    """Room on a node once placement groups that nobody uses have left; None: that is not enough."""
    if not request.by_node or request.payment.short:
        return None
    found = idle_for_node(turn.state, request.need)
    if found is None:
        return None
    spot, groups = found
    return Plan(units=(), node_id=spot.node_ids[0], devices=spot.devices[0], groups=groups)


def _search(turn: Turn, request: Request, consent: Consent | None) -> Plan | GroupPlan | None:
    search = search_for(turn.state, request, turn.at, consent)
    if request.wish is None or request.home is None:
        return search.plan()
    return GroupSearch(
        search=search,
        wish=request.wish,
        home=request.home,
        for_group=request.stimulus.for_group,
    ).plan()


def search_for(state: MeshState, request: Request, now: float, consent: Consent | None) -> Search:
    """The victim search of a request."""
    return Search(
        state=state,
        incoming=request.incoming,
        need=request.need,
        short_quota=request.payment.short,
        node=request.node,
        by_node=request.by_node,
        now=now,
        consent=consent,
    )


def _consent(turn: Turn, request: Request) -> Consent | None:
    """The say that strategies have in who leaves for this request."""
    if not turn.strategies.plugins:
        return None
    view = _view(request.stimulus, request.pool_name, request.need)
    return ask(turn.strategies, turn.state.preemption, request.incoming, view, turn.at)


def _no_victim(turn: Turn, request: Request, consent: Consent | None) -> Refused:
    state = turn.state
    turned_away: dict[str, int] = {}
    if request.stimulus.may_preempt:
        turned_away = state.preemption.turned_away(
            state.running, request.incoming, turn.at, consent
        )
    refused = explain.preemption_failed(
        state,
        request.pool_name,
        request.need,
        request.payment.short,
        request.by_node,
        turned_away,
    )
    only_group = request.stimulus.for_group or not request.stimulus.may_preempt
    if request.payment.short:
        return explain.insufficient_quota(refused, request.pool_name) if only_group else refused
    if request.wish is not None and isinstance(request.home, NoHome):
        return explain.group_unplaceable(state, request.wish, request.home, turned_away)
    return refused


def _would_run(state: MeshState, request: Request, plan: Plan | GroupPlan | None) -> Accepted:
    """The answer of a dry run."""
    agent, task = request.stimulus.agent, request.stimulus.task
    home = _home(request, plan)
    if home is not None:
        node_id: str | None = _node_ids(home)[0]
    elif isinstance(plan, Plan):
        node_id = plan.node_id
    else:
        node_id = request.node.node_id if request.node is not None else None
    return Accepted(
        agent_name=agent.name,
        pool_name=request.pool_name,
        resources=request.need,
        labels=_labels(state, request),
        task_id=None if task is None else task.task_id,
        preempted=() if plan is None else evicted(plan.units),
        node_id=node_id,
        restartable=agent.restartable,
        group_id=None if home is None or home.group is None else home.group.group_id,
        group_path="" if home is None else home.path,
    )


def _home(request: Request, plan: Plan | GroupPlan | None) -> Home | None:
    """The group that a request gets; None: it lives on a node."""
    if isinstance(plan, GroupPlan):
        return plan.home
    return request.home if isinstance(request.home, Home) else None


def _node_ids(home: Home) -> tuple[str, ...]:
    if home.group is not None:
        return home.group.node_ids
    return ("",) if home.spot is None else home.spot.node_ids


def _labels(state: MeshState, request: Request) -> Labels:
    """The agent's labels: its pool, the pool's own beneath, then those of the submission."""
    return {
        "pool": request.pool_name,
        **state.ledger.accounts[request.pool_name].spec.labels,
        **request.stimulus.agent.labels,
    }


def _admit(turn: Turn, request: Request, plan: Plan | GroupPlan | None) -> Pending:
    """Put the agent on both books and send its victims, if any, on their way."""
    state, stimulus = turn.state, request.stimulus
    for hold_id, left in request.payment.holds_left:
        turn.emit(HoldShrank(hold_id=hold_id, shares=left))
    agent = msgspec.structs.replace(
        stimulus.agent,
        pool_name=request.pool_name,
        resources=request.need,
        labels=_labels(state, request),
    )
    task = stimulus.task
    if task is not None and task.pool_name != request.pool_name:
        task = msgspec.structs.replace(task, pool_name=request.pool_name)
    admitted = AgentAdmitted(
        agent=agent,
        incarnation=state.next_incarnation,
        at=turn.at,
        task=task,
        shares=request.payment.shares,
        evicting=() if plan is None else evicted(plan.units),
        request_id=stimulus.request_id,
        state_key=stimulus.state_key,
    )
    home = _home(request, plan)
    if home is not None:
        _move_in(turn, request, admitted, home)
    else:
        _stand_on_node(turn, request, admitted, plan if isinstance(plan, Plan) else None)
    if plan is not None and plan.units:
        _evict(turn, plan.units, agent.name)
    if state.agents[agent.name].phase is AgentPhase.STARTING:
        turn.instruct(start_instruction(state, agent.name))
    return Pending(agent_name=agent.name)


def _stand_on_node(
    turn: Turn, request: Request, admitted: AgentAdmitted, plan: Plan | None
) -> None:
    """Its claim is on the node itself."""
    node = request.node if plan is None else turn.state.cluster.nodes.get(plan.node_id or "")
    held, devices, wanted = _room_now(request.need, node, plan)
    leaving = () if plan is None else plan.groups
    turn.emit(
        msgspec.structs.replace(
            admitted,
            node_id=None if node is None else node.node_id,
            held=held,
            devices=devices,
            wanted_devices=wanted,
            waits_for_groups=tuple(group.group_id for group in leaving),
        )
    )
    for group in leaving:
        end_group(turn, group, for_agent=admitted.agent.name)


def _move_in(turn: Turn, request: Request, admitted: AgentAdmitted, home: Home) -> None:
    """Its claim is a placement group: one that is there, or one that is made for it now."""
    name, group = admitted.agent.name, home.group
    if group is None and home.spot is not None and request.wish is not None:
        group = plan_group(turn, request.pool_name, request.wish.shape, home.spot, agent_name=name)
    if group is None:
        return
    waits_for = [leaving.group_id for leaving in home.leaving]
    if home.group is None:
        waits_for.append(group.group_id)
    turn.emit(
        msgspec.structs.replace(
            admitted,
            node_id=group.node_ids[0],
            group_id=group.group_id,
            group_path=home.path,
            waits_for_groups=tuple(waits_for),
        )
    )
    for leaving in home.leaving:
        if leaving.agent is None:
            end_group(turn, leaving, for_agent=name)
        else:
            turn.emit(GroupClaimed(group_id=leaving.group_id, for_agent=name))
    if (
        home.group is None
        and not home.leaving
        and not admitted.evicting
        and whole(turn.state, group)
    ):
        make(turn, group)


def _room_now(
    need: Resources, node: Node | None, plan: Plan | None
) -> tuple[Resources, Devices, Devices]:
    """What of the need is held on the node now: amounts, devices; and the devices wanted in the end."""
    without_gpu = msgspec.structs.replace(need, gpu=0) if need.gpu else need
    if node is None:
        return without_gpu, _NO_DEVICES, _NO_DEVICES
    if plan is None:
        return without_gpu, devices_for(node.devices, need.gpu) or _NO_DEVICES, _NO_DEVICES
    free_now = tuple((i, min(units, node.devices[i])) for i, units in plan.devices.units)
    devices = Devices(units=tuple((i, units) for i, units in free_now if units > 0))
    return without_gpu.within(node.free), devices, plan.devices


def _evict(turn: Turn, units: tuple[Unit, ...], newcomer: str) -> None:
    """All victims of one submission go at the same time."""
    for candidate in evicted(units):
        turn.emit(
            EvictionStarted(
                task_id=candidate.task_id,
                at=turn.at,
                reason=candidate.reason,
                preempt_score=candidate.preempt_score,
                for_agent=newcomer,
            )
        )
    for unit in units:
        name = unit.agent.spec.name
        turn.emit(AgentEnding(agent_name=name, reason=PREEMPTED, at=turn.at))
        turn.instruct(evict_instruction(turn.state, name))


def start_instruction(state: MeshState, agent_name: str, *, adopt: bool = False) -> StartAgent:
    """The order to make this agent's actor."""
    agent = state.agents[agent_name]
    return StartAgent(
        agent=agent.spec,
        incarnation=agent.incarnation,
        node_id=agent.node_id,
        state_key=agent.state_key,
        adopt=adopt,
        group_id=agent.group_id,
    )


def evict_instruction(state: MeshState, agent_name: str) -> EvictAgent:
    """The order to save and end this agent with its tasks."""
    return EvictAgent(
        agent_name=agent_name,
        incarnation=state.agents[agent_name].incarnation,
        task_ids=state.running.on_agent(agent_name),
        grace_s=state.policy.preemption_grace_s,
    )


def readmit(turn: Turn, past: Preempted, made: set[str]) -> bool:
    """Run a preempted task again with what is free; whether that could be done.

    ``made`` names the agents that were made again already: further tasks of theirs go along.
    """
    fact = past.fact
    if fact.agent is None or not fact.agent.class_key or not fact.agent.restartable:
        return False
    if fact.agent.name in made and fact.task is not None:
        turn.emit(TaskRegistered(task=fact.task, agent_name=fact.agent.name, at=turn.at))
        return True
    outcome = submit(
        turn,
        TaskSubmitted(
            at=turn.at,
            agent=fact.agent,
            task=fact.task,
            may_preempt=False,
            state_key=past.state_key,
        ),
    )
    if isinstance(outcome, Pending):
        made.add(fact.agent.name)
        return True
    return False
