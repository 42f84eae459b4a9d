"""A drill with three nodes: one with agents fails, then the one with the journal. Prints results as JSON.

It is a program of its own, because a process can be connected to one Ray only. All processes of a node are
killed at once, as in a power failure.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.core import RayScheduler
from schedulemesh.core.client.connection import connect
from schedulemesh.errors import ScheduleMeshError
from tests.clusters.nodes import CPUS, NODE, three_nodes
from tests.drills.agents import Marked
from tests.drills.processes import DrillFailed, agent_processes, marked, until
from tests.store.conftest import Server, _programs

#: Seconds from the detected death of a node after which something has failed; the results have the real ones.
FAILS_AFTER_S = 60.0


def power_off(cluster: Cluster, node_id: str) -> None:
    """Kill every process of a node, at once."""
    (node,) = (n for n in cluster.worker_nodes if n.node_id == node_id)
    pids: set[int] = set()
    # What stands still starts no further process, such as the driver of a job.
    while started := _processes_of(node) - pids:
        _signal(started, signal.SIGSTOP)
        pids |= started
    _signal(pids, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


def _processes_of(node: Any) -> set[int]:
    """The processes of a node that Ray has started, and all that they have started."""
    pids = {each.process.pid for started in node.all_processes.values() for each in started}
    for pid in list(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            pids |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return pids


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def known_dead(node_id: str) -> float:
    """Wait until Ray reports the node as dead; the time on the monotonic clock."""
    until(
        lambda: not any(n["Alive"] for n in ray.nodes() if n["NodeID"] == node_id),
        "Ray does not detect that the node is dead",
        60.0,
    )
    return time.monotonic()


def node_with_agents(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """A node with busy agents fails: their quota is released, and they are rebuilt on other nodes."""
    mesh = RayScheduler("standing", node_strategy="spread", state_path=folder / "state")
    until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen", 30.0)
    mesh.create_pool("pool", resources={"cpu": 3.0 * CPUS})
    for n in range(6):
        answer = _submit(mesh, f"task-{n}", folder)
        ray.get(answer["agent"]["handle"].add.remote(10 + n))
        saved = mesh.save_task_state(f"task-{n}")["saved_state"]["state"]
        if saved != {"count": 10 + n}:
            raise DrillFailed(f"saved as {saved}")
    (mine,) = {n["NodeID"] for n in ray.nodes()} & {ray.get_runtime_context().get_node_id()}
    agents = mesh.list_agents()["agents"]
    victim = next(a["node_id"] for a in agents if a["node_id"] != mine)
    there = [a for a in agents if a["node_id"] == victim]
    refs = [agent["handle"].work.remote(60.0) for agent in there]
    for agent in there:
        until(lambda pid=agent["pid"]: marked(folder, "working", pid), "no work begins", 30.0)
    if ray.wait(refs, timeout=0)[0]:
        raise DrillFailed("the agents are not at work")
    power_off(cluster, victim)
    known = known_dead(victim)
    names = {agent["name"] for agent in there}
    until(
        lambda: not names & {a["name"] for a in mesh.list_agents()["agents"]},
        lambda: f"still listed: {mesh.list_agents()['agents']}",
        FAILS_AFTER_S,
    )
    removed_after_s = time.monotonic() - known
    used = _used(mesh)
    if used != 6 - len(there):
        raise DrillFailed(f"{used} CPUs are used by {6 - len(there)} agents")
    # It may learn of the deaths of the agents before that of their node.
    until(
        lambda: len(mesh.cluster_snapshot()["nodes"]) == 2,
        "the dead node is still listed",
        FAILS_AFTER_S,
    )
    done = mesh.ensure_agent_health(timeout=60.0)
    again_s = time.monotonic() - known
    if sorted(done["rebuilt"]) != sorted(names):
        raise DrillFailed(f"of {names} were rebuilt: {done}")
    counts = {}
    for agent in mesh.list_agents()["agents"]:
        (task_id,) = agent["tasks"]
        counts[task_id] = ray.get(agent["handle"].add.remote(0))
        if agent["node_id"] == victim:
            raise DrillFailed(f"{agent['name']} is listed on the dead node")
    if counts != {f"task-{n}": 10 + n for n in range(6)}:
        raise DrillFailed(f"counts after the rebuild: {counts}")
    living = agent_processes(folder)
    if {t: len(pids) for t, pids in living.items()} != dict.fromkeys(counts, 1):
        raise DrillFailed(f"processes: {living}")
    mesh.shutdown()
    return {"agents": len(there), "removed_after_s": removed_after_s, "rebuilt_s": again_s}


def node_with_journal(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """The node with the journal file fails: pending and later calls and ``attach`` get a clear error."""
    mine = ray.get_runtime_context().get_node_id()
    victim = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != mine)
    settings = SchedulerSettings(
        name="lost", detached=True, namespace="drill", state_path=str(folder / "file")
    )
    connect(settings, node_id=victim)
    mesh = RayScheduler.attach("lost", namespace="drill")
    mesh.create_pool("pool", resources={"cpu": 3.0 * CPUS})
    _submit(mesh, "stays", folder)
    results: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(_refusal(mesh.create_agent, folder)))
    waiting.start()
    until(lambda: "waits" in agent_processes(folder), "the submission does not begin", 60.0)
    if results:
        raise DrillFailed(f"answered already: {results}")
    power_off(cluster, victim)
    known = known_dead(victim)
    waiting.join(60.0)
    waited_s = time.monotonic() - known
    if not results:
        raise DrillFailed("the pending call was not answered within 60 s")
    began = time.monotonic()
    results.append(_refusal(mesh.list_pools))
    asked_s = time.monotonic() - began
    results.append(_refusal(RayScheduler.attach, "lost", namespace="drill"))
    results.append(_refusal(mesh.shutdown))
    return {"errors": results, "waited_s": waited_s, "asked_s": asked_s}


def node_with_supervisor(cluster: Cluster, folder: Path, url: str) -> dict[str, Any]:
    """The supervisor's node fails during a submission: with a database journal it continues elsewhere."""
    mesh, victim = until(
        lambda: _scheduler_on_another_node(url), "the supervisor always starts on this node", 60.0
    )
    until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen", 30.0)
    mesh.create_pool("pool", resources={"cpu": 3.0 * CPUS})
    mesh.update_preemption_policy(same_pool_priority_threshold=1.25)
    for n in range(4):
        answer = _submit(mesh, f"moving-{n}", folder)
        ray.get(answer["agent"]["handle"].add.remote(20 + n))
        mesh.save_task_state(f"moving-{n}")
    before = mesh.list_agents()["agents"]
    answers: list[Any] = []
    late = threading.Thread(
        target=lambda: answers.append(_submit(mesh, "late", folder, slow_start_s=4.0))
    )
    late.start()
    until(lambda: "late" in agent_processes(folder), "the submission does not begin", 60.0)
    if answers:
        raise DrillFailed(f"answered already: {answers}")
    power_off(cluster, victim)
    known = known_dead(victim)
    if not mesh.ensure_pool("other", resources={"cpu": 1.0})["success"]:
        raise DrillFailed("changes are refused")
    served_s = time.monotonic() - known
    late.join(60.0)
    results = answers[0]["success"] if answers else "no answer"
    there = {a["name"] for a in before if a["node_id"] == victim}
    until(
        lambda: not there & {a["name"] for a in mesh.list_agents()["agents"]},
        "agents of the dead node are still listed",
        FAILS_AFTER_S,
    )
    kept = {a["name"]: a["pid"] for a in mesh.list_agents()["agents"] if a["tasks"] != ["late"]}
    if kept != {a["name"]: a["pid"] for a in before if a["node_id"] != victim}:
        raise DrillFailed(f"of {before} are left {kept}")
    mesh.ensure_agent_health(timeout=60.0)
    counts = {
        agent["tasks"][0]: ray.get(agent["handle"].add.remote(0))
        for agent in mesh.list_agents()["agents"]
        if agent["tasks"] != ["late"]
    }
    if counts != {f"moving-{n}": 20 + n for n in range(4)}:
        raise DrillFailed(f"counts: {counts}")
    if mesh.get_preemption_policy()["policy"]["same_pool_priority_threshold"] != 1.25:
        raise DrillFailed("the policy is not what was acknowledged")
    living = {task_id: len(pids) for task_id, pids in agent_processes(folder).items()}
    tasks = [task["task_id"] for task in mesh.list_tasks()["tasks"]]
    if living != dict.fromkeys(tasks, 1) or _used(mesh) != len(tasks):
        raise DrillFailed(f"processes {living}, tasks {tasks}, used {_used(mesh)}")
    mesh.shutdown()
    return {"served_s": served_s, "late": results, "agents": len(there)}


def _scheduler_on_another_node(url: str) -> tuple[RayScheduler, str] | None:
    """A scheduler on another node than this one; None if Ray did not choose one, as just after it joined."""
    mine = ray.get_runtime_context().get_node_id()
    other_node = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != mine)
    settings = SchedulerSettings(
        name="moves", detached=True, namespace="drill", state_path=url, node_strategy="spread"
    )
    connect(settings, node_id=other_node)
    mesh = RayScheduler.attach("moves", namespace="drill")
    node_id = mesh.about()["node_id"]
    if node_id != mine:
        return mesh, node_id
    mesh.shutdown()
    return None


@contextlib.contextmanager
def database() -> Iterator[str | None]:
    """The URL of a new PostgreSQL server; None if none is installed."""
    if _programs() is None or importlib.util.find_spec("psycopg") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "s"
        home.mkdir()
        server = Server(_programs(), home)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


def _refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """The error that the call raises, as text."""
    if args and isinstance(args[0], Path):
        args, kwargs = (
            ("waits", "pool", Marked),
            {"resources": {"cpu": 1.0}, "actor_args": ["waits", str(args[0]), 120.0]},
        )
    try:
        answer = call(*args, **kwargs)
    except ScheduleMeshError as error:
        return f"{type(error).__name__}: {error}"
    return f"answered: {answer}"


def _submit(mesh: RayScheduler, task_id: str, folder: Path, slow_start_s: float = 0.0) -> Any:
    answer = mesh.submit_task_with_preemption(
        task_id,
        "pool",
        Marked,
        resources={"cpu": 1.0},
        actor_args=[task_id, str(folder), slow_start_s],
        agent_name=f"on-{task_id}",
    )
    if not answer["success"] and not slow_start_s:
        raise DrillFailed(f"cannot submit: {answer}")
    return answer


def _used(mesh: RayScheduler) -> float:
    return float(mesh.list_pools()["pools"][0]["used"].get("cpu", 0.0))


def main() -> None:
    """Run all scenarios on one cluster; each failed node is replaced by a new one."""
    with (
        database() as url,
        three_nodes() as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        results: dict[str, Any] = {}
        for name, scenario in SCENARIOS.items():
            mine = Path(folder) / name
            (mine / "processes").mkdir(parents=True)
            results[name] = scenario(cluster, mine)
            cluster.add_node(**NODE)
            cluster.wait_for_nodes()
        name = "node with the supervisor, journal in a database"
        (Path(folder) / "processes").mkdir()
        results[name] = (
            {"skipped": "no PostgreSQL server or no psycopg is installed"}
            if url is None
            else node_with_supervisor(cluster, Path(folder), url)
        )
    sys.stdout.write(json.dumps(results) + "\n")


SCENARIOS = {"node with agents": node_with_agents, "node with the journal": node_with_journal}


if __name__ == "__main__":
    main()
