"""A scheduler with something to show: made with requests, without Ray."""

from __future__ import annotations

import msgspec

from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import read_answer
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView

CLASS = b"class"
CPU = parse_resources({"cpu": 1})


def ask(mesh, request):
    """The answer of the supervisor itself."""
    answer = mesh.do(mesh.service.ask(encode_request(request)))
    return read_answer(answer[0] if isinstance(answer, tuple) else answer)


def submission(task_id, *, priority=5.0, pool="p", owner="ada", queue=True):
    """The submission of a task of one CPU."""
    return TaskSubmitted(
        agent=AgentSpec(
            name=f"{task_id}-agent", pool_name=pool, resources=CPU, class_key=key_of(CLASS)
        ),
        task=TaskSpec(
            task_id=task_id, pool_name=pool, priority=priority, owner=owner, labels={"team": "x"}
        ),
        queue=queue,
        until_runs=False,
        request_id=f"submit {task_id}",
    )


def submit(mesh, task_id, **how):
    """Submit a task of one CPU; the outcome."""
    blobs = {key_of(CLASS): CLASS}
    return ask(mesh, SubmitTask(submission=submission(task_id, **how), blobs=blobs)).outcome


def lease(mesh, task_id, owner="ada"):
    """A lease of one CPU that is to be renewed; the outcome, once it is granted."""
    given = submission(task_id, owner=owner)
    agent = AgentSpec(
        name=f"{task_id}-agent",
        pool_name="p",
        resources=CPU,
        bundles=(CPU,),
        payload=LeasePayload(ttl_s=60.0),
    )
    waits = msgspec.structs.replace(given, agent=agent, until_runs=True)
    return ask(mesh, SubmitTask(submission=waits)).outcome


def filled(mesh):
    """A node, a pool of two CPUs, a preemption, two tasks that run and two that wait."""
    room = parse_resources({"cpu": 2})
    mesh.backend.free = [NodeView(node_id="node-1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, EnsurePool(name="p", resources=parse_resources({"cpu": 2}), labels={"team": "x"}))
    # Those that do not queue are answered when they run.
    submit(mesh, "low", priority=1.0, queue=False)
    submit(mesh, "first", priority=6.0, queue=False)
    submit(mesh, "second", priority=6.0, queue=False)
    # In the order of the queue, so that the reason why the first one waits stays the same.
    submit(mesh, "waits-2", priority=3.0)
    submit(mesh, "waits-1", priority=2.0)
