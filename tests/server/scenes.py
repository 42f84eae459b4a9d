"""Schedulers with something to see on the page: three teams, and 2,000 tasks on 300 nodes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import msgspec

from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import EnsureCohort, EnsurePool
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.tasks import SubmitMany, SubmitTask, WaitTasks, WaitUntil
from schedulemesh.api.windows import CreateWindow
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.agents import key_of
from schedulemesh.runtime.backend import NodeView
from tests.server.work import CLASS, ask, submission

NODE = {"cpu": 64, "memory": 512_000, "gpu": 8}
#: Tasks of one call.
_TOGETHER = 100


def nodes(count, taken=0):
    """Nodes with eight GPUs; other Ray work holds ``taken`` GPUs of the last one."""
    total = parse_resources(NODE)
    free = parse_resources({**NODE, "gpu": 8 - taken})
    return [
        NodeView(
            node_id=f"{number:056x}",
            total=total,
            free=free if taken and number == count - 1 else total,
            labels={"rack": f"r{number // 16}"},
            host=f"gpu-{number:03d}",
            address=f"10.0.{number // 250}.{number % 250}",
        )
        for number in range(count)
    ]


def of(task_id, pool, *, gpu=1, priority=5.0, owner="ada", queue=True, labels=None, **fields):
    """The submission of a task with GPUs; ``fields``: further ones of the task."""
    made = submission(task_id, pool=pool, priority=priority, owner=owner, queue=queue)
    resources = parse_resources({"cpu": 4, "memory": 32_000, "gpu": gpu})
    return msgspec.structs.replace(
        made,
        agent=msgspec.structs.replace(made.agent, resources=resources),
        task=msgspec.structs.replace(made.task, labels=labels or {"team": owner}, **fields),
    )


def submit(mesh, task_id, pool, **how):
    """Submit a task with GPUs; the outcome."""
    blobs = {key_of(CLASS): CLASS}
    return ask(mesh, SubmitTask(submission=of(task_id, pool, **how), blobs=blobs)).outcome


def observe(mesh, views):
    """Have the supervisor see these nodes."""
    mesh.backend.free = views
    mesh.do(mesh.running.monitor.observe())


def three_teams(mesh):
    """Three teams that share a cluster of five nodes: one lends, one borrows and waits, one was evicted. What
    waits has no right to what others hold, so that nothing changes any more.
    """
    observe(mesh, nodes(5, taken=2))
    # Closed first, so that nothing of the scheduler's hides what other Ray work holds there.
    ask(mesh, CordonNode(node_id=f"{4:056x}", cordoned=True))
    ask(mesh, EnsureCohort(name="company"))
    for name, gpu in (("vision", 12), ("language", 12), ("robotics", 6)):
        amounts = {"cpu": 64, "memory": 512_000, "gpu": gpu}
        lending = {"cohort": "company"}
        ask(mesh, EnsurePool(name=name, resources=parse_resources(amounts), lending=lending))
    submit(mesh, "notebook", "vision", gpu=2, priority=5.0, owner="mei", queue=False)
    for number in range(4):
        submit(mesh, f"pretrain-{number}", "language", gpu=4, owner="lin", queue=False)
    submit(mesh, "simulate", "robotics", gpu=2, priority=1.0, owner="ada", queue=False)
    submit(mesh, "detector", "vision", gpu=8, priority=8.0, owner="bo", queue=False)
    submit(mesh, "segment", "vision", gpu=4, priority=9.0, owner="bo", queue=False)
    for number in range(3):
        submit(mesh, f"ablation-{number}", "language", gpu=4, priority=2.0, owner="lin")
    submit(mesh, "whole-node", "vision", gpu=8, priority=4.0, owner="mei")
    submit(mesh, "grasp", "robotics", gpu=4, priority=3.0, owner="ada")
    ask(mesh, ChangeQueuedTask(task_id="ablation-2", held=True, request_id="hold"))
    # The last ones that get what evictions free; what is submitted meanwhile might come before them.
    began = ("segment", "grasp", "ablation-0")
    ask(mesh, WaitTasks(task_ids=began, until=WaitUntil.RUNNING, enough=len(began), wait_s=20.0))


def sweep(mesh):
    """An array of which two members run at once, and a task that starts after it."""
    observe(mesh, nodes(1))
    quota = parse_resources({"cpu": 64, "memory": 512_000, "gpu": 8})
    ask(mesh, EnsurePool(name="vision", resources=quota))
    submit(mesh, "sweep", "vision", owner="mei", array="0-99%2", run="go")
    submit(mesh, "report", "vision", owner="mei", after=("any:sweep", "ok:sweep[1]"))


def large(mesh, tasks=2_000, count=300):
    """Many tasks on many nodes: as many as there is room for run, the others wait."""
    observe(mesh, nodes(count))
    pools = [f"team-{number:02d}" for number in range(20)]
    quota = parse_resources({"cpu": 64 * 15, "memory": 512_000 * 15, "gpu": 8 * 15})
    for pool in pools:
        ask(mesh, EnsurePool(name=pool, resources=quota))
    blobs = {key_of(CLASS): CLASS}
    every = [
        of(
            f"task-{number:04d}",
            pools[number % len(pools)],
            gpu=(1, 1, 2, 4)[number // len(pools) % 4],
            priority=(1.0, 5.0)[number % 2],
            owner=f"user-{number % 37}",
        )
        for number in range(tasks)
    ]
    for begin in range(0, tasks, _TOGETHER):
        ask(mesh, SubmitMany(submissions=tuple(every[begin : begin + _TOGETHER]), blobs=blobs))
    ask(mesh, Drain(node_id=f"{7:056x}", client="ops:1"))


def crowded(mesh):
    """More nodes and pools than are shown unfolded, in racks and blocks; windows, of which one is open; a
    gang within a rack, and one that no rack can hold; an array.
    """
    views = [
        msgspec.structs.replace(
            view, labels={"block": f"b{number // 16}", "rack": f"r{number // 4}"}
        )
        for number, view in enumerate(nodes(32))
    ]
    observe(mesh, views)
    ask(mesh, ChangePolicy(changes={"topology_levels": ["block", "rack"]}, client="ops:1"))
    quota = parse_resources({"cpu": 640, "memory": 5_120_000, "gpu": 80})
    for number in range(8):
        ask(mesh, EnsurePool(name=f"team-{number}", resources=quota))
    for name, begins_h, how in (
        ("firmware", 1.0, {"node_labels": {"rack": "r3"}, "comment": "new firmware"}),
        ("cables", -0.5, {"nodes": (views[30].node_id,)}),
        ("campaign", 24.0, {"resources": {"gpu": 16}, "pools": ("team-1",)}),
    ):
        start = datetime.now(timezone.utc) + timedelta(hours=begins_h)
        window = CreateWindow(
            name=name,
            start=start.isoformat(timespec="seconds"),
            duration_s=7_200.0,
            client="ops:1",
            **how,
        )
        ask(mesh, window)
    submit_gang(mesh, "in-one-rack", "team-0", members=4, topology="rack")
    submit_gang(mesh, "too-large", "team-0", members=5, topology="rack")
    submit(mesh, "sweep", "team-2", owner="mei", array="0-199%2", run="go")
    submit(mesh, "report", "team-2", owner="mei", after=("any:sweep",))
    for number in range(20):
        submit(mesh, f"train-{number:02d}", f"team-{3 + number % 5}", gpu=4, owner="lin")


def submit_gang(mesh, task_id, pool, *, members, topology):
    """Submit a gang that has a whole node for each member; the outcome."""
    made = of(task_id, pool, gpu=8 * members, topology=topology)
    bundle = parse_resources({"cpu": 4, "memory": 32_000, "gpu": 8})
    agent = msgspec.structs.replace(
        made.agent,
        resources=parse_resources(
            {"cpu": 4 * members, "memory": 32_000 * members, "gpu": 8 * members}
        ),
        bundles=(bundle,) * members,
        payload=GangPayload(strategy="SPREAD"),
    )
    gang = msgspec.structs.replace(made, agent=agent)
    return ask(mesh, SubmitTask(submission=gang, blobs={key_of(CLASS): CLASS})).outcome
