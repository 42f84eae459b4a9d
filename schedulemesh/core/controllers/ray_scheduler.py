"""RayScheduler: validate, send one request, wait, and answer in the documented words."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import ray

from schedulemesh.config.policy import (
    PreemptionAggressiveness,
    PreemptionPolicy,
    changed_policy,
    resolve_changes,
)
from schedulemesh.config.pools import parse_name, parse_pool
from schedulemesh.config.settings import DEFAULT_NAMESPACE, SchedulerSettings
from schedulemesh.core.actors.control.preemption_controller import TaskState
from schedulemesh.core.actors.supervisor import to_saved_state
from schedulemesh.core.controllers import replies
from schedulemesh.core.controllers.connection import Connection, connect, find
from schedulemesh.core.controllers.requests import (
    Caller,
    Submission,
    parse_number,
    parse_task,
    submission,
)
from schedulemesh.core.shipping import ship_function, ship_state
from schedulemesh.core.wire import key_of
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine import stimuli as s
from schedulemesh.engine.outcomes import AgentEvicted, Done, ProbeNeeded, Refused
from schedulemesh.engine.strategies import NODE_STRATEGIES
from schedulemesh.errors import InvalidRequestError

Preserver = Callable[[TaskState], dict[str, Any]]
Restorer = Callable[[dict[str, Any]], None]


class RayScheduler:
    """The scheduler of one name: finds its supervisor or makes it, and speaks for it.

    ``detached`` False ties it to this job: when the job ends, nothing of it stays in Ray. True lets it
    outlive the job; making it again attaches to the living one. ``state_path`` is the folder of its
    journal on this node (None: Ray's session folder). ``node_strategy`` chooses among nodes with room:
    "bin_pack" the fullest, "spread" the emptiest. ``health_interval_s`` has the scheduler itself look after
    agents every so many seconds, as ``ensure_agent_health`` does when asked.

    Malformed requests raise InvalidRequestError (a ValueError) before anything happens; refusals are
    answers with ``success`` False.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        detached: bool = False,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
        node_strategy: str = "bin_pack",
        health_interval_s: float | None = None,
    ) -> None:
        if node_strategy not in NODE_STRATEGIES:
            raise InvalidRequestError(
                f"node_strategy is {node_strategy!r}; allowed are {', '.join(NODE_STRATEGIES)}"
            )
        settings = _settings(name, namespace, state_path, detached, node_strategy)
        settings = msgspec.structs.replace(settings, health_interval_s=health_interval_s)
        self._take(connect(settings))

    @classmethod
    def attach(
        cls,
        name: str = "default",
        *,
        namespace: str | None = None,
        state_path: str | os.PathLike[str] | None = None,
    ) -> RayScheduler:
        """The scheduler of this name that lives already. Raises SchedulerNotFoundError where none does."""
        settings = _settings(name, namespace, state_path, detached=True, strategy="bin_pack")
        return cls._over(find(settings))

    @classmethod
    def _over(cls, connection: Connection) -> RayScheduler:
        scheduler = cls.__new__(cls)
        scheduler._take(connection)  # noqa: SLF001  # its own class
        return scheduler

    def _take(self, connection: Connection) -> None:
        self._connection = connection
        self._caller = _caller()
        self._sent: set[str] = set()

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self._connection.settings.name

    def supervisor_handle(self) -> Any:
        """The Ray handle of the supervisor, which agents report metrics to."""
        return self._connection.handle

    def create_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        target_agents: int = 0,
        placement_strategy: str = "STRICT_PACK",
    ) -> dict[str, Any]:
        """Make a pool with this total quota. The same definition again changes nothing; another one is
        refused with ``pool_exists``. The resources need not exist.
        """
        return self._pool(name, labels, resources, target_agents, placement_strategy, new=True)

    def ensure_pool(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        target_agents: int = 0,
        placement_strategy: str = "STRICT_PACK",
    ) -> dict[str, Any]:
        """Make a pool, or change it to this definition where what is in use allows (``pool_in_use``)."""
        return self._pool(name, labels, resources, target_agents, placement_strategy, new=False)

    def list_pools(self) -> dict[str, Any]:
        """Every pool with its quota: total, free, reserved, used, lent and borrowed."""
        return {"success": True, "pools": self._connection.call("view", "pools")}

    def create_agent(
        self,
        name: str,
        pool: str,
        actor_class: Any,
        resources: Mapping[str, Any] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
    ) -> replies.SubmitResult:
        """Make an agent without a task, from free resources only; nobody is evicted for it.

        ``resources`` None takes the pool's default. It is answered when the agent runs.
        """
        found = submission(
            self._caller,
            task=None,
            payload=None,
            pool_name=pool,
            pool_selector=None,
            actor_class=actor_class,
            resources=resources,
            labels=labels,
            actor_args=actor_args,
            actor_kwargs=actor_kwargs,
            agent_name=parse_name(name, "the agent's name"),
            ray_options=ray_options,
            request_id=uuid.uuid4().hex,
        )
        stimulus = msgspec.structs.replace(found.stimulus, may_preempt=False)
        return self._submit(msgspec.structs.replace(found, stimulus=stimulus))

    def submit_task_with_preemption(
        self,
        task_id: str,
        pool_name: str | None = None,
        actor_class: Any = None,
        resources: Mapping[str, Any] | None = None,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        actor_args: Sequence[Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        agent_name: str | None = None,
        estimated_duration: float | None = None,
        payload: Any = None,
        ray_options: Mapping[str, Any] | None = None,
        pool_selector: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> replies.SubmitResult:
        """Start an agent for a task, evicting others where the policy allows and it is needed.

        One transaction: it runs, or everything is as before. The class is built with ``name`` and
        ``labels`` first, then ``actor_args`` and ``actor_kwargs``. ``estimated_duration`` is in seconds.
        With ``pool_selector`` instead of ``pool_name`` the best matching pool is chosen. ``dry_run`` tells
        where it would run and who would go. The same ``request_id`` again gets the first answer.
        """
        task, data = parse_task(task_id, pool_name, priority, labels, estimated_duration, payload)
        found = submission(
            self._caller,
            task=task,
            payload=data,
            pool_name=pool_name,
            pool_selector=pool_selector,
            actor_class=actor_class,
            resources=resources,
            labels=labels,
            actor_args=actor_args,
            actor_kwargs=actor_kwargs,
            agent_name=agent_name,
            ray_options=ray_options,
            request_id=request_id or uuid.uuid4().hex,
            dry_run=dry_run,
        )
        return self._submit(found)

    def list_agents(self, pool_name: str | None = None) -> dict[str, Any]:
        """Every agent (of one pool): resources, labels, Ray options, state, node, tasks and handle."""
        listed = self._connection.call("view", "agents", pool_name)
        return {"success": True, "agents": [{**info, "handle": handle} for info, handle in listed]}

    def delete_agent(self, name: str, force: bool = False) -> dict[str, Any]:
        """End an agent with its tasks and give its quota back; answered when its process is gone.

        An agent that is gone already answers success with ``already_gone``. ``force`` is accepted for
        callers of Ray's kill: an agent's end never fails here.
        """
        del force
        stimulus = s.AgentDeletionRequested(at=0.0, agent_name=parse_name(name, "the agent's name"))
        return replies.deleted(self._connection.call("end", stimulus).outcome)

    def list_tasks(self) -> dict[str, Any]:
        """Every task on the book, with phase, remaining time and last metrics."""
        return {"success": True, "tasks": self._connection.call("view", "tasks")}

    def register_running_task(
        self,
        task_id: str,
        agent_name: str,
        pool_name: str,
        priority: float = 5.0,
        labels: Mapping[str, str] | None = None,
        estimated_duration: float | None = None,
        payload: Any = None,
    ) -> replies.Result:
        """Say that a task runs on an agent, so that it can be evaluated and preempted.

        Agent and pool may be unknown; then the task holds no quota. The same again changes nothing; another
        task of the same id is ``duplicate_task``.
        """
        task, data = parse_task(task_id, pool_name, priority, labels, estimated_duration, payload)
        stimulus = s.TaskAnnounced(
            at=0.0, task=task, agent_name=parse_name(agent_name, "agent_name")
        )
        blobs = {} if data is None else {key_of(data): data}
        return replies.done(self._connection.call("act", stimulus, blobs).outcome)

    def complete_task(self, task_id: str, end_agent: bool = False) -> replies.Result:
        """Say that a task is done; ``end_agent`` ends its agent too and gives the quota back."""
        stimulus = s.TaskFinished(
            at=0.0,
            task_id=parse_name(task_id, "task_id"),
            end_agent=end_agent,
            request_id=uuid.uuid4().hex,
        )
        return replies.done(self._connection.call("end", stimulus).outcome)

    def evaluate_preemption(
        self,
        incoming_task_priority: float,
        incoming_task_pool: str,
        incoming_task_labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        limit: int = 100,
    ) -> replies.EvaluationResult:
        """Whom an incoming task may evict, best first; a dry run that changes nothing.

        With ``resources`` it also says whether an eviction is needed and would make room (``victims``).
        """
        query = s.PreemptionQuery(
            at=0.0,
            priority=parse_number(incoming_task_priority, "incoming_task_priority"),
            pool_name=parse_name(incoming_task_pool, "incoming_task_pool"),
            labels=parse_labels(incoming_task_labels, "incoming_task_labels"),
            resources=None if resources is None else parse_resources(resources),
            limit=int(parse_number(limit, "limit", least=0)),
        )
        return replies.evaluated(self._connection.call("evaluate", query))

    def execute_preemption(self, task_id: str, agent_name: str) -> replies.PreemptionResult:
        """Save a task's state and cancel it; its agent stays, for another task."""
        stimulus = s.PreemptionRequested(
            at=0.0,
            task_id=parse_name(task_id, "task_id"),
            agent_name=parse_name(agent_name, "agent_name"),
        )
        reply = self._connection.call("preempt", stimulus, uuid.uuid4().hex)
        return replies.preempted(reply.outcome, reply.saved)

    def preempt_task(
        self,
        task_id: str | None = None,
        agent_name: str | None = None,
        for_pool: str | None = None,
    ) -> replies.PreemptionResult:
        """Evict by hand: save the agent's tasks, cancel them and end the agent.

        Name the task or the agent. ``for_pool`` holds the freed quota for that pool for 60 s.
        """
        if task_id is None and agent_name is None:
            raise InvalidRequestError("preempt_task needs a task_id or an agent_name")
        stimulus = s.PreemptionRequested(
            at=0.0, task_id=task_id, agent_name=agent_name, end_agent=True, for_pool=for_pool
        )
        reply = self._connection.call("preempt", stimulus, uuid.uuid4().hex)
        if not isinstance(reply.outcome, AgentEvicted):
            return replies.preempted(reply.outcome, reply.saved)
        return {
            "success": True,
            "preempted": [
                {"task_id": tid, "reason": why, "saved_state": replies.saved_state(saved)}
                for tid, why, saved in reply.evicted
            ],
        }

    def save_task_state(self, task_id: str) -> dict[str, Any]:
        """Save a running task's state now, and let it go on; a rebuilt agent goes on from there."""
        saved = self._connection.call("checkpoint", parse_name(task_id, "task_id"))
        if saved is None:
            error = f"task {task_id!r} is not running, so there is no state to save"
            return {"success": False, "error": error, "reason": "task_not_found"}
        return {"success": True, "saved_state": replies.saved_state(saved)}

    def list_saved_states(self) -> dict[str, Any]:
        """Every task with a stored state, and whether it is running, preempted or lost."""
        return {"success": True, "saved_states": self._connection.call("view", "saved_states")}

    def ensure_agent_health(self, timeout: float = 120.0) -> dict[str, Any]:
        """Look at every agent: the dead, and those silent for ``timeout`` seconds and deaf to a ping, are
        taken off the book and made again from their last saved state where that can be.

        Returns ``checked`` and ``healthy`` (counts), ``rebuilt`` and ``removed`` (names), and ``details``:
        per agent its problem, what was done, and why not more. Removed ones are told once.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise InvalidRequestError(f"timeout must be seconds above 0, not {timeout!r}")
        return {"success": True, **self._connection.call("ensure_health", float(timeout))}

    def get_saved_state(self, task_id: str) -> dict[str, Any]:
        """The state last saved of a task, as ``saved_state``; it goes to restore_task."""
        saved = self._connection.call("saved_state", parse_name(task_id, "task_id"))
        if saved is None:
            error = f"no saved state of task {task_id!r}; it was never preempted, or long ago"
            return {"success": False, "error": error, "reason": "state_not_found"}
        return {"success": True, "saved_state": replies.saved_state(saved)}

    def restore_task(self, saved_state: Mapping[str, Any]) -> dict[str, Any]:
        """Run a preempted task again from its saved state.

        The state goes to the pool's restorer, if one is registered, and to the new object's
        ``restore_state``. ``resubmitted`` says whether an agent was started for it.
        """
        if not isinstance(saved_state, Mapping) or "task_id" not in saved_state:
            raise InvalidRequestError(
                f"a saved state is a dict with task_id, as preemption answers it; not {saved_state!r}"
            )
        task_id = parse_name(saved_state["task_id"], "saved_state['task_id']")
        own = saved_state.get("source") == "save_state"
        state = ship_state(saved_state["state"] if own else dict(saved_state))
        given = to_saved_state(saved_state, "save_state" if own else "given", state, time.time())
        pool = saved_state.get("pool_name")
        reply = self._connection.call("restore", given, uuid.uuid4().hex, task_id, pool)
        if isinstance(reply.outcome, Done):
            return {"success": True, "task_id": task_id, "resubmitted": False}
        answer = replies.submitted(reply.outcome, reply.handle, dry_run=False)
        return {**answer, "resubmitted": answer["success"]}

    def register_state_handlers(
        self,
        pool_name: str,
        preserver: Preserver | None = None,
        restorer: Restorer | None = None,
    ) -> replies.Result:
        """How states of this pool's tasks are saved and restored.

        ``preserver`` takes a TaskState and returns a dict; ``restorer`` takes that dict. Both run in
        workers of their own, at most ``save_timeout`` seconds.
        """
        blobs: dict[str, bytes] = {}
        keys: list[str | None] = []
        for what, function in (("preserver", preserver), ("restorer", restorer)):
            data = None if function is None else ship_function(function, what)
            keys.append(None if data is None else key_of(data))
            if data is not None:
                blobs[key_of(data)] = data
        stimulus = s.StateHandlersGiven(
            at=0.0,
            pool_name=parse_name(pool_name, "the pool's name"),
            preserver_key=keys[0],
            restorer_key=keys[1],
        )
        return replies.done(self._connection.call("act", stimulus, blobs).outcome)

    def update_preemption_policy(
        self,
        *,
        preemption_aggressiveness: PreemptionAggressiveness | str | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Change what is given of the policy, and return the whole policy in force.

        Takes every field of PreemptionPolicy, and ``preemption_aggressiveness``: a member of
        PreemptionAggressiveness, a name or alias, or ``env:NAME``, which is read here.
        """
        given = {"preemption_aggressiveness": preemption_aggressiveness, **changes}
        resolved, level = resolve_changes(given, os.environ)
        changed_policy(PreemptionPolicy(), resolved)
        client = f"{socket.gethostname()}:{os.getpid()}"
        policy = self._connection.call("change_policy", resolved, client, level)
        if isinstance(policy, Refused):
            return dict(replies.refused(policy))
        return {"success": True, "policy": policy, **policy}

    def get_preemption_policy(self) -> dict[str, Any]:
        """The policy in force, and the last changes of it: when, by which client, what."""
        return {
            "success": True,
            "policy": self._connection.call("view", "policy"),
            "changes": self._connection.call("view", "policy_changes"),
        }

    def get_preemption_stats(self) -> dict[str, Any]:
        """Preemptions so far, by kind, running tasks, and the last preemptions, newest last."""
        return {"success": True, **self._connection.call("view", "preemption_stats")}

    def stats(self) -> dict[str, Any]:
        """The preemption stats, and the pools' quotas."""
        return {"success": True, **self._connection.call("view", "stats")}

    def cluster_snapshot(self) -> dict[str, Any]:
        """Every living node: total, free by our own book, what others use, and who stands there."""
        return {"success": True, "nodes": self._connection.call("view", "nodes")}

    def cordon_node(self, node_id: str, cordoned: bool = True) -> replies.Result:
        """Let a node take no new agents (or take them again); who is there stays."""
        stimulus = s.CordonRequested(
            at=0.0, node_id=parse_name(node_id, "node_id"), cordoned=cordoned
        )
        return replies.done(self._connection.call("act", stimulus).outcome)

    def detach(self) -> None:
        """Leave; the scheduler lives on if it is detached."""
        self._connection = _gone(self.name)

    def shutdown(self) -> dict[str, Any]:
        """End every agent, forget everything, and end the scheduler, without asking."""
        self._connection.end()
        return {"success": True}

    def _pool(
        self,
        name: str,
        labels: Mapping[str, str] | None,
        resources: Mapping[str, Any] | None,
        target_agents: int,
        placement_strategy: str,
        *,
        new: bool,
    ) -> dict[str, Any]:
        spec = parse_pool(name, labels, resources or {}, target_agents, placement_strategy)
        stimulus = s.PoolRequested(at=0.0, spec=spec, must_be_new=new)
        answer = replies.done(self._connection.call("act", stimulus).outcome)
        if not answer["success"]:
            return dict(answer)
        pool = {
            "name": spec.name,
            "labels": spec.labels,
            "resources": spec.resources.public(),
            "target_agents": spec.target_agents,
            "placement_strategy": spec.placement_strategy,
        }
        return {**answer, "pool": pool}

    def _submit(self, found: Submission) -> replies.SubmitResult:
        """Send it; the class's bytes go along only where the supervisor may not have them."""
        class_key = found.stimulus.agent.class_key
        blobs = dict(found.blobs)
        if class_key in self._sent:
            del blobs[class_key]
        reply = self._connection.call("submit", found.stimulus, blobs, found.refs)
        if isinstance(reply.outcome, ProbeNeeded):
            reply = self._connection.call("submit", found.stimulus, found.blobs, found.refs)
        dry_run = found.stimulus.dry_run
        if not dry_run and not isinstance(reply.outcome, Refused):
            self._sent.add(class_key)
        return replies.submitted(reply.outcome, reply.handle, dry_run=dry_run)


def _settings(
    name: object,
    namespace: str | None,
    state_path: str | os.PathLike[str] | None,
    detached: bool,
    strategy: str,
) -> SchedulerSettings:
    return SchedulerSettings(
        name=parse_name(name, "the scheduler's name"),
        namespace=DEFAULT_NAMESPACE if namespace is None else parse_name(namespace, "namespace"),
        detached=detached,
        state_path=None if state_path is None else os.fspath(state_path),
        node_strategy=strategy,
    )


def _caller() -> Caller:
    context = ray.get_runtime_context()
    return Caller(namespace=context.namespace, runtime_env=dict(context.runtime_env))


def _gone(name: str) -> Any:
    class Detached:
        """Stands for the connection of a scheduler object that has detached."""

        def __getattr__(self, _attribute: str) -> Any:
            raise InvalidRequestError(
                f"this object has detached from scheduler {name!r}; attach again with RayScheduler.attach"
            )

    return Detached()
