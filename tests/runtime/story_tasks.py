"""The tasks of stories: what clients submit, and which tasks they change.

An event has a number, by which it chooses among those tasks that it can act on at that moment. Where there
are none, and once in ``BLIND`` times, it names one that may not be there.
"""

from __future__ import annotations

import msgspec

from schedulemesh.api.agents import DeleteAgent
from schedulemesh.api.leases import ReleaseLease, RenewLease
from schedulemesh.api.pools import ResizePool
from schedulemesh.api.preemption import ExecutePreemption, PreemptTask
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.states import SaveTaskState
from schedulemesh.api.tasks import CancelTask, CancelTasks, CompleteTask, SetTimeLimit, SubmitTask
from schedulemesh.domain.agent import AgentSpec, Alternative, with_alternatives
from schedulemesh.domain.owner_limits import parse_owner_limits
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload, LeasePayload
from schedulemesh.domain.resources import parse_resources, sum_of
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from tests.runtime.story_jobs import job_agent

CLASS = b"a class"
NAMES = tuple(f"a{number}" for number in range(6))
#: The names of arrays.
ARRAYS = ("x", "y", "z")
INDICES = ("0-3", "0-5%2", "2,5,9-11%1", "0-20:4%3", "0-5", "7")
#: Which members of an array are meant; empty: all of them.
MEMBERS = ("", "", "[0-2]", "[0]", "[5]")
#: Of so many events one names a task that may not be there.
BLIND = 8
OWNERS = ("", "ada", "bob")
OWNER_LIMITS = (
    {},
    {"default": {"cpu": 3}, "ada": {"cpu": None, "running": 2}},
    {"default": {"running": 1, "queued": 4}, "bob": {"cpu": 2, "gpu": 1, "queued": None}},
)
#: How close together the members of a task are to be.
TOPOLOGIES = ("", "", "rack", "preferred:rack", "rack,slice:1:rack")
#: By the labels that a task asks for, its own condition and that of its alternative, if it has one.
LABELS = {
    "": (None, None),
    "A": ("A", None),
    "not A": ("!A", None),
    "A else B": ("A", "B"),
    "B else A": ("B", "A"),
    "A else less on B": ("A", "B"),
}

#: What a single task and an array may say alike.
_OF_A_TASK = {
    "priority": (1.0, 5.0, 9.0),
    "owner": OWNERS,
    "retries": (0, 2),
    "on_preempted": ("drop", "requeue"),
    "max_run_s": (None, None, None, 2.0, 12.0),
    "on_time_limit": ("", "requeue"),
    "after": ("", "", "ok", "any", "fail"),
    "topology": TOPOLOGIES,
}

#: What clients may do to tasks: how often, and with which arguments.
TASK_EVENTS = {
    "submit": (
        30,
        {
            "which": range(48),
            "pool": ("g", "p", "q", "w"),
            "cpu": (1, 1, 2, 4),
            "gpu": (0, 0, 0, 1),
            "pinned": (True, True, False),
            "replicas": (None, None, None, 1, 2, 3),
            "most": (0, 0, 4),
            "parts": (0, 0, 0, 1, 2),
            "job": (False, False, True),
            "ttl_s": (None, None, 5.0),
            "queue": (False, True, True),
            "wait_s": (None, None, None, 20.0),
            "labels": ("", "", "", *LABELS),
            "run": ("", "", "train"),
            **_OF_A_TASK,
        },
    ),
    "submit_array": (
        10,
        {
            "which": range(48),
            "indices": INDICES,
            "pool": ("g", "p", "q", "w"),
            "cpu": (1, 1, 2),
            "gpu": (0, 0, 0, 1),
            "replicas": (None, None, None, 2),
            "job": (False, True),
            "wait_s": (None, None, None, 20.0),
            "labels": ("", "", "", *LABELS),
            **_OF_A_TASK,
        },
    ),
    "change_queued": (
        6,
        {
            "which": range(48),
            "members": MEMBERS,
            "change": ({"held": True}, {"held": False}, {"priority": 7.0}, {"to_front": True}),
        },
    ),
    "set_time_limit": (2, {"which": range(48), "seconds": (None, 1.0, 30.0)}),
    "owners": (3, {"pool": ("g", "p", "q"), "limits": OWNER_LIMITS, "fair": (True, False)}),
    "cancel": (3, {"which": range(48), "members": MEMBERS}),
    "cancel_many": (1, {"which": range(48), "count": (1, 3)}),
    "release_lease": (2, {"which": range(48)}),
    "renew_lease": (2, {"which": range(48)}),
    "complete": (6, {"which": range(48), "end_agent": (True, True, False)}),
    "delete": (3, {"which": range(48)}),
    "checkpoint": (24, {"which": range(48)}),
    "evict_checkpointed": (6, {"which": range(48)}),
    "preempt": (6, {"which": range(48), "whole": (True, True, False)}),
    "victim": (
        10,
        {
            "which": range(48),
            "how": ("again", "again", "evict", "evict", "after", "fail", "fail", "delete"),
            "condition": ("ok", "any", "fail"),
        },
    ),
}

#: A task that evicts others, and one that they may be.
_INCOMER = {
    "cpu": 3,
    "gpu": 0,
    "pinned": True,
    "replicas": None,
    "most": 0,
    "parts": 0,
    "job": False,
    "ttl_s": None,
    "queue": False,
    "wait_s": None,
    "labels": "",
    "run": "",
    "priority": 9.0,
    "owner": "bob",
    "retries": 0,
    "on_preempted": "drop",
    "max_run_s": None,
    "on_time_limit": "",
    "after": "",
    "topology": "",
}
_VICTIM = {**_INCOMER, "cpu": 2, "priority": 1.0, "owner": "ada"}


def name_of(task_id):
    """The name of the agent of a task."""
    return task_id.removeprefix("t-")


class TaskEvents:
    """What clients submit, and which tasks they change."""

    # which tasks there are

    @property
    def _state(self):
        """The state of the present supervisor; None: it has not recovered."""
        return None if self.service._requests is None else self.reactor.state

    def _one_of(self, task_ids, which):
        """One of these tasks, or one that may not be there."""
        tasks = sorted(task_ids)
        if not tasks or not which % BLIND:
            return f"t-{NAMES[which % len(NAMES)]}"
        return tasks[which // BLIND % len(tasks)]

    def _running(self):
        """The tasks that have an agent. Extra members of an elastic gang begin anew with its core."""
        running = {} if self._state is None else self._state.running.by_id
        return [task_id for task_id, task in running.items() if not task.spec.extra_of]

    def _waiting(self):
        return [] if self._state is None else list(self._state.queue.by_id)

    def _arrays(self):
        arrays = {} if self._state is None else self._state.arrays.by_id
        return [array_id for array_id in arrays if self._state.arrays.alive(array_id)]

    def _selected(self, task_ids, which, members):
        """One of these tasks or arrays; of an array perhaps only some members."""
        task_id = self._one_of({*task_ids, *self._arrays()}, which)
        return task_id + members if task_id in self._arrays() else task_id

    def _free_name(self, names, which):
        """One of these names that nothing has, if there is one."""
        turned = [*names[which % len(names) :], *names[: which % len(names)]]
        state = self._state
        if state is None or not which % BLIND:
            return turned[0]
        free = (
            name for name in turned if not state.is_alive(f"t-{name}") and name not in state.agents
        )
        return next(free, turned[0])

    # submissions

    async def submit(self, which, pool, parts, ttl_s, queue, run, job, replicas, **how):
        """A single agent, a gang, elastic or not, a job or a lease; it may wait, and run by itself."""
        name, after = self._free_name(NAMES, which), self._after(how["after"], which)
        if parts:
            agent, run = self._lease(name, pool, parts, ttl_s), ""
            how["on_time_limit"] = ""
        else:
            agent, run = self._agent(name, pool, replicas, how, job=job, run=run)
        agent = self._labelled(agent, how["labels"])
        how["topology"] = how["topology"] if parts or job or replicas else ""
        # One that does not run by itself would return to the queue again and again.
        how["on_time_limit"] = how["on_time_limit"] if run else ""
        self._submit(
            agent,
            self._task(name, pool, how, run=run, after=after),
            queue=bool(queue or after),
            wait_s=how["wait_s"] if queue or after else None,
            choose_node=bool(
                how["pinned"] or how["labels"] or pool in self.GROUPED or replicas or parts or job
            ),
        )

    async def submit_array(self, which, indices, pool, replicas, job, **how):
        """Many tasks that run by themselves."""
        name, after = self._free_name(ARRAYS, which), self._after(how["after"], which)
        how["most"] = 0
        agent, run = self._agent(name, pool, replicas, how, job=job, run="train")
        how["topology"] = how["topology"] if job or replicas else ""
        task = self._task(name, pool, how, run=run, after=after, array=indices)
        agent = self._labelled(agent, how["labels"])
        self._submit(agent, task, queue=True, wait_s=how["wait_s"], choose_node=True)

    def _after(self, condition, which):
        """What a task starts after: one or two that have not ended, or one that ended so."""
        state = self._state
        if not condition or state is None:
            return ()
        alive = sorted({*self._running(), *self._waiting(), *self._arrays()})
        ended = [
            t
            for t, past in state.ended.items()
            if (past.state == "completed") == (condition == "ok")
        ]
        others = alive or ended[-3:]
        chosen = (
            {others[(which + step) % len(others)] for step in range(1 + which % 2)}
            if others
            else ()
        )
        return tuple(f"{condition}:{task_id}" for task_id in sorted(chosen))

    def _agent(self, name, pool, replicas, how, *, job, run):
        """An agent that is no lease, and the method that it runs by itself; empty: none."""
        bundles = (parse_resources({"cpu": how["cpu"], "gpu": how["gpu"]}),) * (replicas or 1)
        if job:
            return job_agent(name, pool, key_of(CLASS), bundles), "run_driver"
        gang = GangPayload(strategy="SPREAD", replicas=how["most"])
        agent = AgentSpec(
            name=name,
            pool_name=pool,
            resources=sum_of(bundles),
            class_key=key_of(CLASS),
            bundles=bundles if replicas else (),
            payload=gang if replicas else SINGLE_PROCESS,
        )
        return agent, run

    def _lease(self, name, pool, parts, ttl_s):
        """A lease of one or two groups, with a short time from its notice to its end."""
        bundles = (parse_resources({"cpu": 1}),) * 2
        return AgentSpec(
            name=name,
            pool_name=pool,
            resources=sum_of(bundles),
            bundles=bundles,
            payload=LeasePayload(parts=parts, strategy="SPREAD", grace_s=2.0, ttl_s=ttl_s),
        )

    def _labelled(self, agent, labels):
        """The agent on nodes with labels, and perhaps with another way to run."""
        first, second = LABELS[labels]
        if first is not None:
            agent = msgspec.structs.replace(agent, node_labels=(("model", first),))
        if second is None:
            return agent
        other = Alternative(node_labels=(("model", second),))
        if "less" in labels:
            bundles = (parse_resources({"cpu": 1}),) * len(agent.bundles or (agent.resources,))
            other = msgspec.structs.replace(
                other, resources=sum_of(bundles), bundles=bundles if agent.bundles else ()
            )
        return with_alternatives(agent, (other,))

    def _task(self, name, pool, how, **more):
        copied = ("priority", "owner", "on_preempted", "max_run_s", "on_time_limit", "topology")
        fields = {field: how[field] for field in copied}
        return TaskSpec(
            task_id=f"t-{name}", pool_name=pool, max_retries=how["retries"], **fields, **more
        )

    def _submit(self, agent, task, **how):
        submission = TaskSubmitted(agent=agent, task=task, request_id=self.next(), **how)
        blobs = {agent.class_key: CLASS} if agent.class_key else {}
        self.ask(SubmitTask(submission=submission, blobs=blobs))

    # changes of tasks

    async def change_queued(self, which, members, change):
        task_id = self._selected(self._waiting(), which, members)
        self.ask(ChangeQueuedTask(task_id=task_id, request_id=self.next(), **change))

    async def set_time_limit(self, which, seconds):
        task_id = self._one_of(self._running(), which)
        if self._state is not None and task_id in self._state.running.by_id:
            spec = self._state.running.by_id[task_id].spec
            # One that does not run by itself would return to the queue again and again.
            seconds = seconds if spec.run or spec.on_time_limit != "requeue" else None
        request = SetTimeLimit(task_id=task_id, max_run_s=seconds, request_id=self.next())
        self.ask(request)

    async def owners(self, pool, limits, fair):
        """What each owner may have of a pool changes, and who comes first."""
        self.ask(
            ResizePool(
                name=pool,
                owner_limits=parse_owner_limits(limits),
                owner_order="fair" if fair else "none",
            )
        )

    async def cancel(self, which, members=""):
        task_id = self._selected([*self._running(), *self._waiting()], which, members)
        self.cancel_task(task_id)

    def cancel_task(self, task_id):
        self.ask(CancelTask(task_id=task_id, request_id=self.next()))

    async def cancel_many(self, which, count):
        alive = [*self._running(), *self._waiting()]
        task_ids = {self._one_of(alive, which + BLIND * step) for step in range(count)}
        self.ask(CancelTasks(task_ids=tuple(sorted(task_ids))))

    def _leases(self):
        state = self._state
        agents = {} if state is None else state.agents
        return [
            task_id
            for task_id in self._running()
            if isinstance(
                agents[state.running.by_id[task_id].agent_name].spec.payload, LeasePayload
            )
        ]

    async def renew_lease(self, which):
        self.ask(RenewLease(task_id=self._one_of(self._leases(), which)))

    async def release_lease(self, which):
        task_id = self._one_of(self._leases(), which)
        self.ask(ReleaseLease(task_id=task_id, request_id=self.next()))

    async def complete(self, which, end_agent):
        task_id = self._one_of(self._running(), which)
        self.ask(CompleteTask(task_id=task_id, end_agent=end_agent, request_id=self.next()))

    async def delete(self, which):
        agents = [] if self._state is None else self._state.agents
        self.ask(DeleteAgent(agent_name=name_of(self._one_of(agents, which))))

    async def checkpoint(self, which):
        """Have one of the tasks saved that run."""
        if running := sorted(self._running()):
            self.ask(SaveTaskState(task_id=running[which % len(running)]))

    async def evict_checkpointed(self, which):
        """Evict one of the tasks whose state was acknowledged as saved; its own save may fail."""
        if tasks := sorted(self.checkpoints):
            self.evict(name_of(tasks[which % len(tasks)]), whole=True)

    async def victim(self, which, how, condition):
        """Something happens to a victim of an agent that does not run yet, or to that agent."""
        agents = {} if self._state is None else self._state.agents
        pairs = [
            (name, victim.task_id)
            for name, agent in sorted(agents.items())
            if agent.submission is not None
            for victim in agent.submission.evicting
        ]
        if not pairs:
            for kind in (_VICTIM, _VICTIM, _INCOMER):
                await self.wait(0.1)
                await self.submit(which + BLIND, ("p", "q")[which % 2], **kind)
            await self.hold(("agent_report",))  # so that it starts for a while
            return
        incomer, task_id = pairs[which % len(pairs)]
        self.seen[f"a victim of one that does not run yet: {how}"] += 1
        if how == "again" and "[" not in task_id:
            task = self._task(name_of(task_id), "q", _VICTIM)
            agent, _ = self._agent(name_of(task_id), "q", None, _VICTIM, job=False, run="")
            self._submit(agent, task, queue=False, choose_node=True)
        elif how == "after":
            name = self._free_name(NAMES, which)
            task = self._task(name, "q", _VICTIM, after=(f"{condition}:{task_id}",))
            agent, _ = self._agent(name, "q", None, _VICTIM, job=False, run="")
            self._submit(agent, task, queue=True, choose_node=True)
        elif how == "evict":
            self.evict(name_of(task_id), whole=True)
        elif how == "fail":
            self.end_actors_of(incomer)
        else:
            self.ask(DeleteAgent(agent_name=incomer))

    async def preempt(self, which, whole):
        self.evict(name_of(self._one_of(self._running(), which)), whole)

    def evict(self, agent_name, whole):
        """A client evicts a task with its agent, or alone."""
        if whole:
            self.ask(PreemptTask(agent_name=agent_name, request_id=self.next()))
        else:
            self.ask(
                ExecutePreemption(
                    task_id=f"t-{agent_name}", agent_name=agent_name, request_id=self.next()
                )
            )
