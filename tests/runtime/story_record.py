"""What must be true of each durable step of a story: which tasks start, and what of them runs at once.

The record follows the facts that the journal has, of one supervisor after the other, and keeps by itself who
starts after whom and which members of an array have been what.
"""

from __future__ import annotations

import traceback

from schedulemesh.domain.arrays import array_form, member_id, parse_indices
from schedulemesh.domain.dependencies import dependency
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.node_labels import selects
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.placement import InGroup, OnNode
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.resources import sum_of
from schedulemesh.domain.task import FIRST_ATTEMPT, EndState
from schedulemesh.engine.codec import decode_facts
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState

#: The labels of nodes.
NODE_LABELS = {"n1": {"model": "A", "rack": "r1"}, "n2": {"model": "B", "rack": "r2"}}
#: Virtual seconds for which a task may run beyond its limit: ticks, a save that hangs, and the end after it.
LATE_S = 45.0


def is_met(condition, end):
    """Whether a task has ended as one that starts after it requires, by the table of docs/arrays.md."""
    completed = end is EndState.COMPLETED
    return {"ok": completed, "any": True, "fail": not completed}[condition]


class ArrayRecord:
    """What the members of one array are."""

    def __init__(self, spec):
        form = array_form(spec.array)
        self.most = form.most
        self.indices = frozenset(form.indices())
        self.untried = set(self.indices)
        #: By index, the name of its agent.
        self.running = {}
        #: Members that are tasks.
        self.tasks = set()
        self.ended = {}

    def end(self):
        """How it has ended, all of whose members have."""
        ends = set(self.ended.values())
        if ends & {EndState.FAILED, EndState.LOST}:
            return EndState.FAILED
        return EndState.CANCELLED if EndState.CANCELLED in ends else EndState.COMPLETED


class Record:
    """Follows durable facts, and notes what must never be in ``broken``."""

    def __init__(self, seen, broken):
        self._seen, self._broken = seen, broken
        self.state = MeshState()
        #: Of each task that waits for others, how each of these has to end.
        self.awaited = {}
        #: The conditions that were met of tasks that have not started since: with how the other has ended.
        self.ready = []
        #: Tasks that can never start.
        self.never = set()
        #: The arrays that have not ended.
        self.arrays = {}
        #: The tasks that ran or waited before the present step.
        self._alive = set()
        #: The agents of tasks as they were submitted.
        self.submitted = {}
        #: Of each task that has not started yet, which others it starts after; and those by whose ends a task
        #: has started, or was cancelled.
        self.after = {}
        self.gone_by = set()
        #: For which agent, with its incarnation, a task was evicted last; and which agents end in this step.
        self.evicted_for = {}
        self._ending = set()
        self._before = {
            q.TaskQueued: self._queued,
            q.ArrayMembersSplit: self._split,
            q.ArrayMembersCancelled: self._members_cancelled,
            q.ArrayEnded: self._array_ended,
            f.AgentAdmitted: self._admitted,
            f.EvictionStarted: self._evicted,
            f.AgentEnded: self._agent_ended,
        }

    def follow(self, record):
        """The facts of this record are durable."""
        try:
            self._alive = self.state.running.by_id.keys() | self.state.queue.by_id.keys()
            self._ending = set()
            for fact in decode_facts(record):
                if type(fact) in self._before:
                    self._before[type(fact)](fact)
                self.state.evolve(fact)
                if isinstance(fact, f.AgentStarted):
                    self._started(fact)
            self._note_ends()
        except Exception:  # noqa: BLE001  # the journal must not seem to fail
            self._broken.append(traceback.format_exc())

    def _insist(self, condition, sentence):
        if not condition:
            self._broken.append(sentence)

    # tasks that start after others

    def _queued(self, fact):
        task = fact.submission.task
        if task.task_id in self._alive:
            return  # it returns
        if task.array_id in self.arrays or fact.attempts != FIRST_ATTEMPT:
            self._returns(task)
            return
        self._submitted(task, fact.submission.agent)
        awaited = {one.task_id: one.condition for one in map(dependency, task.after)}
        self.after[task.task_id] = set(awaited)
        awaited = {task_id: how for task_id, how in awaited.items() if self.state.is_alive(task_id)}
        if awaited:
            self._seen["a task waited for others"] += 1
            self.awaited[task.task_id] = awaited

    def _returns(self, task):
        """A task had ended with its eviction, which was in vain: it waits or runs again. No other has evicted
        it since, and no task goes by its end.
        """
        past = self.state.ended[task.task_id]
        in_vain = past.reason == TaskEndReason.PREEMPTED.value
        self._insist(in_vain, f"{task.task_id} returns, and was {past}")
        incomer = self.evicted_for[task.task_id]
        self._insist(incomer in self._ending, f"{task.task_id} returns, evicted for {incomer}")
        others = {task.task_id, task.array_id} & self.gone_by
        self._insist(not others, f"{task.task_id} returns, and others went by {others}")
        self._seen["a task returned that was evicted in vain"] += 1
        if (one := self.arrays.get(task.array_id)) is not None:
            one.ended.pop(task.array_index)
            one.tasks.add(task.array_index)

    def _submitted(self, task, agent):
        self.submitted[task.task_id] = agent
        for waiting, others in self.after.items():
            if task.task_id not in self.awaited.get(waiting, {}):
                # It goes by the end of the one that had this id before.
                others.discard(task.task_id)
        self.awaited.pop(task.task_id, None)
        self.after.pop(task.task_id, None)
        self.gone_by.discard(task.task_id)
        self.never.discard(task.task_id)
        self.ready = [one for one in self.ready if one[0] != task.task_id]
        if task.array:
            for member in [one for one in self.submitted if one.startswith(f"{task.task_id}[")]:
                del self.submitted[member]
                self.gone_by.discard(member)
            self._seen["an array was queued"] += 1
            self.arrays[task.task_id] = ArrayRecord(task)

    def _check_order(self, task_id):
        """A task starts: all that it starts after have ended as they had to."""
        self._insist(task_id not in self.never, f"{task_id} has started, and never can")
        self.gone_by |= self.after.pop(task_id, set())
        for other, how in self.awaited.pop(task_id, {}).items():
            # It has ended in this step, or not at all.
            end = None if self.state.is_alive(other) else self.state.end_of(other)
            self._insist(end is not None and is_met(how, end), f"{task_id} before {how}:{other}")
            self.ready.append((task_id, how, end))
        for _, how, end in [one for one in self.ready if one[0] == task_id]:
            self._seen[f"a dependent started after {how}: {end and end.value}"] += 1
        self.ready = [one for one in self.ready if one[0] != task_id]

    def _note_ends(self):
        """After each step: what waited for those that have ended, and the members that have."""
        for task_id, awaited in list(self.awaited.items()):
            for other in [other for other in awaited if not self.state.is_alive(other)]:
                how, end = awaited.pop(other), self.state.end_of(other)
                if is_met(how, end):
                    self.ready.append((task_id, how, end))
                else:
                    self.never.add(task_id)
            if not awaited or not self.state.is_alive(task_id):
                del self.awaited[task_id]
        for task_id in [one for one in self.never if not self.state.is_alive(one)]:
            self._seen["a dependent was cancelled"] += 1
            self.never.discard(task_id)
            others = self.after.pop(task_id, set())
            self.gone_by |= {other for other in others if not self.state.is_alive(other)}
            self._insist(
                self.state.end_of(task_id) is EndState.CANCELLED,
                f"{task_id} can never start, and was not cancelled",
            )
        for array_id, one in self.arrays.items():
            self._note_member_ends(array_id, one)

    # arrays

    def _split(self, fact):
        one = self.arrays[fact.array_id]
        self._insist(one.untried.issuperset(fact.indices), f"members begin twice: {fact}")
        one.untried.difference_update(fact.indices)
        one.tasks.update(fact.indices)

    def _members_cancelled(self, fact):
        one = self.arrays[fact.array_id]
        indices = set(parse_indices(fact.indices)) if fact.indices else set(one.untried)
        self._insist(indices <= one.untried, f"members are cancelled that were tried: {fact}")
        one.untried -= indices
        one.ended |= dict.fromkeys(indices, EndState.CANCELLED)

    def _note_member_ends(self, array_id, one):
        for index in list(one.tasks):
            task_id = member_id(array_id, index)
            if not self.state.is_alive(task_id):
                one.tasks.discard(index)
                one.ended[index] = self.state.end_of(task_id)
                self._seen[f"a member ended: {one.ended[index].value}"] += 1

    def _array_ended(self, fact):
        one = self.arrays.pop(fact.array_id)
        self._note_member_ends(fact.array_id, one)
        ended = one.ended.keys() == one.indices
        self._insist(ended and fact.state is one.end(), f"an array has ended: {fact}, {one.ended}")
        self._seen[f"an array ended: {fact.state.value}"] += 1

    def _check_member(self, task, agent_name, state_key):
        """A member starts: it has not ended, and no more run than may."""
        one = self.arrays.get(task.array_id)
        if one is None:
            return  # it was lost, and is rebuilt after the end of its array
        index = task.array_index
        end = one.ended.pop(index, EndState.LOST)  # one that was lost may be rebuilt
        self._insist(end is EndState.LOST, f"{task.task_id} starts, and was {end.value}")
        one.untried.discard(index)
        one.tasks.add(index)
        self._insist(index not in one.running, f"{task.task_id} starts, and runs")
        one.running[index] = agent_name
        self._insist(not one.most or len(one.running) <= one.most, f"too many: {one.running}")
        self._seen["a member was admitted"] += 1
        self._seen["a member was admitted with its saved state"] += state_key is not None
        self._seen["an array was full"] += len(one.running) == one.most

    def _agent_ended(self, fact):
        self._ending.add((fact.agent_name, fact.incarnation))
        for one in self.arrays.values():
            one.running = {i: name for i, name in one.running.items() if name != fact.agent_name}

    # owners, alternatives, limits in time

    def _admitted(self, fact):
        task = fact.task
        if task is not None and not self.state.is_alive(task.task_id):
            if self._was_evicted(task.task_id) and fact.attempts != FIRST_ATTEMPT:
                self._returns(task)
            elif not task.array_id:
                self._submitted(task, fact.agent)
        self._check_owner(fact)
        self._check_alternative(fact)
        self._check_rack(task, self._nodes_of(fact.place))
        if task is not None:
            self._check_order(task.array_id or task.task_id)
            if task.array_id:
                self._check_member(task, fact.agent.name, fact.state_key)

    def _was_evicted(self, task_id):
        past = self.state.ended.get(task_id)
        return past is not None and past.reason == TaskEndReason.PREEMPTED.value

    def _check_owner(self, fact):
        """With the agent, its owner has no more than its limits."""
        pool = self.state.ledger.accounts[fact.agent.pool_name].spec
        if fact.task is None or not pool.owner_limits:
            return
        owner = fact.task.owner
        limit = pool.owner_limit(owner)
        agents = [
            agent
            for agent in self.state.agents.values()
            if agent.spec.pool_name == pool.name and agent.owner == owner
        ]
        asked = dict(fact.agent.resources.items())
        total = dict(sum_of([fact.agent.resources, *(a.spec.resources for a in agents)]).items())
        for kind, most in limit.named:
            self._insist(kind not in asked or total[kind] <= most, f"{owner} has {total}: {fact}")
        running = limit.running is None or len(agents) < limit.running
        self._insist(running, f"{owner} runs {len(agents)} already: {fact}")
        self._seen["a task of a limited owner was admitted"] += bool(limit.named)

    def _check_alternative(self, fact):
        """The agent is one of those that were submitted, on nodes whose labels match."""
        spec = fact.agent
        if spec.alternatives:
            self._seen[f"alternative {spec.alternative} was taken"] += 1
            chosen = spec.alternatives[spec.alternative]
            self._insist(spec.node_labels == chosen.node_labels, f"labels of none: {fact}")
            same = chosen.resources in (None, spec.resources)
            self._insist(same, f"an amount of no alternative: {fact}")
        task_id = None if fact.task is None else fact.task.array_id or fact.task.task_id
        if (asked := self.submitted.get(task_id)) is not None:
            same = spec.alternatives == asked.alternatives
            self._insist(same, f"other alternatives than {asked}: {fact}")
        if fact.choose_node:
            self._check_labels(spec, self._nodes_of(fact.place))

    def _nodes_of(self, place):
        if isinstance(place, InGroup):
            return self.state.groups.by_id[place.group_id].node_ids
        return (place.node_id,) if isinstance(place, OnNode) else ()

    def _check_labels(self, spec, node_ids):
        self._seen["an agent with labels was placed"] += bool(spec.node_labels and node_ids)
        for node_id in node_ids:
            matches = selects(spec.node_labels, NODE_LABELS.get(node_id, {}))
            self._insist(matches, f"{spec.name} is on {node_id}: {spec.node_labels}")

    def _check_rack(self, task, node_ids):
        """A task that requires a rack is in one; what its driver starts elsewhere is not asked."""
        if task is None or not task.topology.startswith("rack"):
            return
        racks = {NODE_LABELS.get(node_id, {}).get("rack") for node_id in node_ids}
        self._seen["a task was placed that requires a rack"] += bool(racks)
        self._insist(len(racks) < 2, f"{task.task_id} requires a rack, and is on {node_ids}")

    def _started(self, fact):
        agent = self.state.agents[fact.agent_name]
        is_job = isinstance(agent.spec.payload, JobPayload)
        if not is_job:
            self._check_labels(agent.spec, self._nodes_of(agent.place))
        for task_id in self.state.running.on_agent(fact.agent_name):
            if not is_job:
                task = self.state.running.by_id[task_id].spec
                self._check_rack(task, self._nodes_of(agent.place))
            if self.state.running.by_id[task_id].spec.array_id:
                self._seen["a member started"] += 1

    def _evicted(self, fact):
        task = self.state.running.by_id[fact.task_id]
        agent = self.state.agents.get(fact.for_agent or "")
        self._seen["a task was evicted again"] += fact.task_id in self.evicted_for
        self.evicted_for[fact.task_id] = agent and (agent.spec.name, agent.incarnation)
        self._seen["an eviction of a member began"] += bool(task.spec.array_id)
        if fact.reason is PreemptionReason.TIME_LIMIT:
            self._seen["a task reached its time limit"] += 1
            self._insist(
                task.max_run_s is not None and fact.at - task.started_at >= task.max_run_s - 1e-6,
                f"{fact.task_id} is at its limit of {task.max_run_s} after {task.started_at}: {fact}",
            )

    # processes

    def actor_starts(self, init, living):
        """An actor is created: it is one that the durable state has, and is expected now. ``living``: the
        names of all processes that live.
        """
        process = self._agent_of(init.agent_name)
        known = process is not None and process.incarnation == init.incarnation
        starts = known and not isinstance(process.phase, Running)
        self._insist(starts, f"{init.agent_name} starts, and is {process and process.phase}")
        for array_id, one in self.arrays.items():
            prefix = f"{self.submitted[array_id].name}["
            members = {name.partition("]")[0] for name in living if name.startswith(prefix)}
            self._insist(not one.most or len(members) <= one.most, f"too many live: {members}")

    def _agent_of(self, process_name):
        return self.state.agents.get(process_name) or self.state.gang_with(process_name)

    def check_end(self, now):
        """At the end of a story nothing waits in vain, and each member of each array is one thing."""
        for task_id in self.never:
            self._insist(not self.state.is_alive(task_id), f"{task_id} waits, and can never start")
        for task_id, task in self.state.queue.by_id.items():
            awaits = (task.spec.array_id or task_id) in self.awaited
            self._insist(task.depends == awaits, f"{task_id} waits for nobody, or not: {awaits}")
        for task in self.state.running.by_id.values():
            late = task.max_run_s is not None and now - task.started_at > task.max_run_s + LATE_S
            self._insist(not late, f"{task.spec.task_id} runs beyond its limit")
        for array_id, one in self.arrays.items():
            self._check_members(array_id, one)

    def _check_members(self, array_id, one):
        array = self.state.arrays.by_id[array_id]
        waiting = {i for i in one.tasks if member_id(array_id, i) in self.state.queue.by_id}
        running = {i for i in one.tasks if member_id(array_id, i) in self.state.running.by_id}
        parts = [one.untried, waiting, running, one.ended.keys()]
        whole = sum(map(len, parts)) == len(one.indices) == len(set().union(*parts))
        self._insist(whole, f"members of {array_id} are lost or twice: {parts}")
        self._insist(set(array.remaining) == one.untried, f"untried: {array.remaining.written()}")
        self._insist(array.waiting.keys() == waiting, f"{array_id} waits: {array.waiting}")
        for end, indices in array.ended.items():
            ended = {i for i, state in one.ended.items() if state is end}
            self._insist(set(indices) == ended, f"{end}: {indices.written()}, not {ended}")
